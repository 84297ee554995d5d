"""User factors that devices keep: steps go on from them, and nothing else of the method changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from learning_helpers import (
    add_all,
    assert_same_update,
    fedrecon,
    keys_for,
    random_ratings,
    take_users,
    trained_looking_state,
)
from pydantic import ValidationError

from edge.learning.base import Problem, Ratings
from edge.learning.methods.fedmmf import FedMMF, FedMMFSettings
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings

N_ITEMS = 40
COUNTS = [7, 1, 30, 12, 0, 25, 3]
FACTORS = 4
STEPS = {
    "method": "gradient-steps",
    "steps": 2,
    "learning_rate": 0.7,
    "bias_learning_rate": 0.4,
    "regularization": 3.0,
    "bias_regularization": 0.5,
}
BATCHES = {"method": "mini-batches", "batch_size": 5, "epochs": 2, "learning_rate": 0.2}
VARIANTS: dict[str, dict[str, Any]] = {
    "steps": {"reconstruction": STEPS},
    "batches": {"reconstruction": BATCHES},
    "no-bias": {"reconstruction": STEPS, "user_bias": "false"},
    "dense": {"reconstruction": STEPS, "upload": "dense", "weighting": "uniform"},
}
Floats = npt.NDArray[np.float64]


def make(variant: str, user_factors: str = "persistent", dtype: Any = np.float32) -> FedRecon:
    settings = {"factors": FACTORS, "user_factors": user_factors, **VARIANTS[variant]}
    return fedrecon(N_ITEMS, dtype=dtype, **settings)


def some_rows(algorithm: FedRecon, users: int, seed: int = 5) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.5, (users, algorithm.local_width)).astype(np.float32)


def by_hand(batch: Ratings, q: Floats, b: Floats, mean: float, rounds: int) -> tuple[Floats, Floats, Floats]:
    """Train one client, SGD with rate 0.8 at the server, two steps on users, one on items; a rating a time.

    Returns item factors, item biases, and the client's ``[p, b_u]``.
    """
    q, b, p, bias = q.copy(), b.copy(), np.zeros(FACTORS), 0.0
    n = len(batch.items)
    for _ in range(rounds):
        for _ in range(2):
            of_p, of_bias = 3.0 * p, 0.5 * bias
            for item, rating in zip(batch.items.tolist(), batch.ratings.tolist(), strict=True):
                error = rating - (mean + b[item] + bias + p @ q[item])
                of_p = of_p - error * q[item]
                of_bias -= error
            p = p - 0.7 / (n + 3.0) * of_p
            bias -= 0.4 / (n + 0.5) * of_bias
        for item, rating in zip(batch.items.tolist(), batch.ratings.tolist(), strict=True):
            error = rating - (mean + b[item] + bias + p @ q[item])
            change = 0.1 / n * (error * p - 0.05 * q[item])
            q[item] += 0.8 * change
            b[item] += 0.8 * 0.1 / n * error
    return q, b, np.append(p, bias)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_rounds_of_one_client_are_those_computed_by_hand(dtype: Any, tolerance: float) -> None:
    algorithm = fedrecon(
        N_ITEMS,
        dtype=dtype,
        factors=FACTORS,
        user_factors="persistent",
        reconstruction=STEPS,
        client={"method": "gradient-steps", "steps": 1, "learning_rate": 0.1, "regularization": 0.05},
        optimizer={"kind": "sgd"},
        learning_rate=0.8,
    )
    batch = random_ratings(1, [20], N_ITEMS)
    state: Any = trained_looking_state(algorithm, 3)
    expected = by_hand(batch, state["item_factors"].astype(float), state["item_bias"].astype(float), 3.0, 6)
    optimizer_state, local = algorithm.initial_optimizer_state(state), None
    for round_number in range(6):
        (update,) = algorithm.client_update(state, batch, keys_for(round_number, 1), local=local)
        local = update.local
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, [update])
        state, optimizer_state = algorithm.server_update(
            state, optimizer_state, accumulator.result(), round_number
        )
    assert local is not None
    np.testing.assert_allclose(state["item_factors"], expected[0], rtol=0, atol=tolerance)
    np.testing.assert_allclose(state["item_bias"], expected[1], rtol=0, atol=tolerance)
    np.testing.assert_allclose(local[0], expected[2], rtol=0, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_round_is_that_of_reconstructed_factors(variant: str) -> None:
    kept, made = make(variant), make(variant, "reconstructed")
    state, batch, keys = (
        trained_looking_state(kept, 2),
        random_ratings(2, COUNTS, N_ITEMS),
        keys_for(2, len(COUNTS)),
    )
    zeros = np.zeros((len(COUNTS), kept.local_width), np.float32)
    first = kept.client_update(state, batch, keys, local=zeros)
    other = made.client_update(state, batch, keys)
    assert kept.local_width == FACTORS + (variant != "no-bias")
    assert made.local_width == 0
    for user in range(len(COUNTS)):
        one, two = first.client(user), other.client(user)
        assert two.local is None
        assert one.local is not None
        assert one.local.shape == (1, kept.local_width)
        assert {name: array.tobytes() for name, array in one.arrays.items()} == {
            name: array.tobytes() for name, array in two.arrays.items()
        }
    assert not zeros.any(), "what a device kept is not written to"
    without = kept.client_update(state, batch, keys)
    assert without.local is not None
    assert first.local is not None
    assert without.local.tobytes() == first.local.tobytes()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_device_depends_on_its_own_rows_alone(variant: str) -> None:
    algorithm = make(variant)
    state, batch = trained_looking_state(algorithm, 4), random_ratings(4, COUNTS, N_ITEMS)
    keys, rows = keys_for(4, len(COUNTS)), some_rows(algorithm, len(COUNTS))
    whole = algorithm.client_update(state, batch, keys, local=rows)
    support = random_ratings(6, [max(count, 1) for count in COUNTS], N_ITEMS)
    predicted = algorithm.predict(state, support, batch, keys, rows)
    scores = algorithm.scores(state, support, keys, rows)
    for user in range(len(COUNTS)):
        one = take_users(batch, [user])
        alone = algorithm.client_update(state, one, keys[[user]], local=rows[[user]])
        assert_same_update(whole, user, alone, 0)
        part = take_users(support, [user])
        got = algorithm.predict(state, part, one, keys[[user]], rows[[user]])
        assert got.tobytes() == predicted[batch.indptr[user] : batch.indptr[user + 1]].tobytes()
        assert (
            algorithm.scores(state, part, keys[[user]], rows[[user]])[0].tobytes() == scores[user].tobytes()
        )


@pytest.mark.parametrize("variant", ["steps", "batches"])
def test_steps_in_two_rounds_are_twice_the_steps_in_one(variant: str) -> None:
    """With the items as they were, a second round goes on exactly where the first ended."""
    algorithm = make(variant)
    state, batch, keys = (
        trained_looking_state(algorithm, 7),
        random_ratings(7, COUNTS, N_ITEMS),
        keys_for(7, 7),
    )
    rows: Any = None
    for _ in range(3):
        rows = algorithm.client_update(state, batch, keys, local=rows).local
    before = algorithm.predict(state, batch, batch, keys)
    after = algorithm.predict(state, batch, batch, keys, rows)
    assert np.mean((after - batch.ratings) ** 2) < np.mean((before - batch.ratings) ** 2)
    if variant == "steps":
        long = fedrecon(N_ITEMS, factors=FACTORS, reconstruction={**STEPS, "steps": 8})
        np.testing.assert_array_equal(after, long.predict(state, batch, batch, keys))


def test_a_group_keeps_the_rows_of_all_its_users() -> None:
    algorithm = make("steps")
    state, batch = trained_looking_state(algorithm, 8), random_ratings(8, COUNTS, N_ITEMS)
    rows, clients = some_rows(algorithm, len(COUNTS)), np.array([0, 3, 4, 7])
    grouped = algorithm.client_update(state, batch, keys_for(8, 3), clients, local=rows)
    single = algorithm.client_update(state, batch, keys_for(8, len(COUNTS)), local=rows)
    assert single.local is not None
    for client, update in enumerate(grouped):
        assert update.local is not None
        part = slice(clients[client], clients[client + 1])
        assert update.local.tobytes() == single.local[part].tobytes()


def test_fedmmf_is_fedrecon_on_masked_ratings() -> None:
    features = np.random.default_rng(0).standard_normal((N_ITEMS, 3)).astype(np.float32)
    shared = {"factors": FACTORS, "user_factors": "persistent", "reconstruction": STEPS}
    written = {"algorithm": "fedmmf", "mask": {"kind": "one-order"}, **shared}
    problem = Problem(n_items=N_ITEMS, rating_mean=3.5, features=features)
    masked = FedMMF(FedMMFSettings.model_validate(written), problem)
    plain = fedrecon(N_ITEMS, mean=0.0, **shared)
    assert masked.local_width == plain.local_width == FACTORS + 1
    state, batch, keys = trained_looking_state(plain, 9), random_ratings(9, COUNTS, N_ITEMS), keys_for(9, 7)
    rows = some_rows(plain, len(COUNTS))
    rest: Any = masked.masked(batch)
    one = masked.client_update(state, batch, keys, local=rows)
    other = plain.client_update(state, rest, keys, local=rows)
    for user in range(len(COUNTS)):
        assert_same_update(one, user, other, user)
    known = masked.mask_of(batch, batch.indptr, batch.items)
    np.testing.assert_array_equal(
        masked.predict(state, batch, batch, keys, rows), plain.predict(state, rest, batch, keys, rows) + known
    )
    owners = np.repeat(np.arange(len(COUNTS)), COUNTS)
    np.testing.assert_allclose(
        masked.scores(state, batch, keys, rows)[owners, batch.items],
        masked.predict(state, batch, batch, keys, rows),
        atol=1e-5,
    )


@pytest.mark.parametrize("variant", ["steps", "no-bias"])
def test_keeping_costs_the_memory_of_a_row_and_no_work(variant: str) -> None:
    examples = np.array([0, 1, 20, 300])
    kept, made = make(variant), make(variant, "reconstructed")
    one, other = kept.work(examples), made.work(examples)
    for name in ("flops", "moved_bytes", "ops", "steps"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.memory_bytes - other.memory_bytes, 4 * kept.local_width)
    assert kept.upload_spec(examples)[1].nbytes().tolist() == made.upload_spec(examples)[1].nbytes().tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "'ridge' ends in the same place"),
        ({"reconstruction": STEPS, "split": "support-query"}, "write 'split: none'"),
    ],
)
def test_what_cannot_persist_is_refused(settings: dict[str, Any], message: str) -> None:
    written = {"algorithm": "fedrecon", "user_factors": "persistent", **settings}
    with pytest.raises(ValidationError, match=message) as caught:
        FedReconSettings.model_validate(written)
    assert [error["loc"] for error in caught.value.errors()] == [("user_factors",)]
