"""FedNCF: special cases, independence of the batch, sizes, what it keeps, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import add_all, assert_same_update, keys_for, offsets_of, random_ratings, take_users
from ncf_helpers import BATCHES, N_ITEMS, STEPS, fedncf, planted, some_rows
from pydantic import ValidationError

from edge.core.errors import RemoteProtocolError
from edge.learning import neumf
from edge.learning.base import Ratings
from edge.learning.fedrecon_kernels import ClientUsers
from edge.learning.methods.fedncf.local import GMF, MLP, NETWORK
from edge.learning.methods.fedncf.settings import FedNCFSettings
from edge.learning.updates import ITEMS, ROWS

COUNTS = [7, 1, 30, 12, 0, 25, 3]
VARIANTS: dict[str, dict[str, Any]] = {
    "steps": {"client": STEPS},
    "batches": {"client": BATCHES},
    "reconstructed": {"user_embeddings": "reconstructed", "client": STEPS, "weighting": "uniform"},
    "dense": {"upload": "dense"},
    "no-user-steps": {"user_steps": 0},
}


@pytest.mark.parametrize("variant", VARIANTS)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 2**31))
@settings(max_examples=12, deadline=None)
def test_a_device_does_not_depend_on_the_others(variant: str, counts: list[int], seed: int) -> None:
    algorithm = fedncf(**VARIANTS[variant])
    state, batch = algorithm.initial_state(1), random_ratings(seed, counts, N_ITEMS)
    keys, rows = keys_for(seed, len(counts)), some_rows(algorithm, len(counts))
    local = rows if algorithm.local_width else None
    whole = algorithm.client_update(state, batch, keys, local=local)
    predicted = algorithm.predict(state, batch, batch, keys, local)
    scores = algorithm.scores(state, batch, keys, local)
    for user in range(len(counts)):
        own = None if local is None else rows[[user]]
        one = take_users(batch, [user])
        assert_same_update(whole, user, algorithm.client_update(state, one, keys[[user]], local=own), 0)
        alone = algorithm.predict(state, one, one, keys[[user]], own)
        assert alone.tobytes() == predicted[batch.indptr[user] : batch.indptr[user + 1]].tobytes()
        assert algorithm.scores(state, one, keys[[user]], own)[0].tobytes() == scores[user].tobytes()


def test_published_sizes_do_not_depend_on_the_batch_either() -> None:
    """Other routines multiply large matrices than small ones."""
    algorithm = fedncf(400, gmf_factors=32, mlp_factors=128, layers=[128, 64, 32], negatives=4)
    counts = [40, 3, 79, 1, 11]
    state, batch, keys = algorithm.initial_state(1), random_ratings(4, counts, 400), keys_for(4, 5)
    rows = some_rows(algorithm, 5)
    whole = algorithm.client_update(state, batch, keys, local=rows)
    for user in range(5):
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]], local=rows[[user]])
        assert_same_update(whole, user, alone, 0)


def by_hand(algorithm: Any, state: Any, examples: Any, user: Any) -> tuple[Any, Any, Any, Any]:
    """Take a round of one client, in float64: steps on the user, then on all, a whole gradient a time."""
    s = algorithm.settings
    tables = [state[GMF][examples.items], state[MLP][examples.items]]
    point = neumf.Point(*tables, state[NETWORK][None], user)
    bounds, counts = [0, len(examples.items)], np.array([len(examples.items)])
    rows = neumf.ExampleRows(bounds, counts, examples.positive.astype(float))
    for _ in range(s.user_steps):
        _, found = neumf.losses_and_gradients(
            algorithm.shape, point, rows, s.client.regularization, shared=True, local=True
        )
        assert found.users is not None
        point = point._replace(users=point.users - s.user_learning_rate * found.users)
    for _ in range(s.client.steps):
        _, found = neumf.losses_and_gradients(
            algorithm.shape, point, rows, s.client.regularization, shared=True, local=True
        )
        rates = (s.client.learning_rate,) * 3 + (s.user_learning_rate,)
        moved: list[Any] = [
            at - rate * gradient for at, rate, gradient in zip(point[:4], rates, found, strict=True)
        ]
        point = neumf.Point(*moved)
    return point


def test_rounds_of_one_client_with_plain_averaging_are_gradient_descent() -> None:
    algorithm = fedncf(dtype=np.float64, client=STEPS, optimizer={"kind": "sgd"}, learning_rate=1.0)
    batch = random_ratings(1, [9], N_ITEMS)
    state: Any = algorithm.initial_state(3)
    expected: dict[str, Any] = {name: array.copy() for name, array in state.items()}
    user: Any = np.zeros((1, algorithm.local_width))
    optimizer_state, local = algorithm.initial_optimizer_state(state), None
    for round_number in range(4):
        keys = keys_for(round_number, 1)
        examples = algorithm._examples(batch, keys)
        point = by_hand(algorithm, expected, examples, user)
        expected[GMF][examples.items], expected[MLP][examples.items] = point[0], point[1]
        expected[NETWORK], user = point[2][0], point[3]
        (update,) = algorithm.client_update(state, batch, keys, local=local)
        local = update.local
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, [update])
        state, optimizer_state = algorithm.server_update(
            state, optimizer_state, accumulator.result(), round_number
        )
    assert local is not None
    for name, array in expected.items():
        np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(local, user, rtol=0, atol=1e-12)


def test_one_mini_batch_of_everything_is_one_gradient_step() -> None:
    whole = {"method": "mini-batches", "batch_size": 500, "epochs": 1, "learning_rate": 0.3}
    step = {"method": "gradient-steps", "steps": 1, "learning_rate": 0.3}
    one, other = fedncf(client=whole), fedncf(client=step)
    state, batch, keys = one.initial_state(2), random_ratings(2, COUNTS, N_ITEMS), keys_for(2, 7)
    first, second = one.client_update(state, batch, keys), other.client_update(state, batch, keys)
    # A sum that starts at zero has no negative zeros, so their bits may differ.
    np.testing.assert_array_equal(first.stacked[NETWORK], second.stacked[NETWORK])
    np.testing.assert_array_equal(first.ragged[ROWS], second.ragged[ROWS])
    np.testing.assert_array_equal(first.local, second.local)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kept_back", [0, 2])
def test_declared_sizes_are_those_uploaded(variant: str, kept_back: int) -> None:
    algorithm = fedncf(kept_back=kept_back, **VARIANTS[variant])
    counts = [*COUNTS, 57]
    batch = random_ratings(3, counts, N_ITEMS)
    updates = algorithm.client_update(algorithm.initial_state(1), batch, keys_for(3, 8))
    specs = algorithm.upload_spec(np.array(counts))
    accumulator = algorithm.accumulator(algorithm.initial_state(1))
    for user, update in enumerate(updates):
        assert {spec.name for spec in specs} == update.arrays.keys()
        for spec in specs:
            array = update.arrays[spec.name]
            assert (array.dtype, array.shape) == (spec.dtype, (spec.rows[user], *spec.row_shape))
            assert array.nbytes == spec.nbytes()[user]
        accumulator.check(update.arrays)


def test_dense_and_sparse_uploads_add_up_to_the_same() -> None:
    sparse, dense = fedncf(), fedncf(upload="dense")
    state, batch, keys = sparse.initial_state(5), random_ratings(5, COUNTS, N_ITEMS), keys_for(5, 7)
    sums = []
    for algorithm in (sparse, dense):
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, algorithm.client_update(state, batch, keys))
        sums.append(accumulator.result())
    for name in (ROWS, NETWORK):
        np.testing.assert_array_equal(sums[0].sums[name], sums[1].sums[name])
    assert (sums[0].weight, sums[0].clients, sums[0].examples) == (sum(COUNTS), 7, sum(COUNTS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({ITEMS: np.array([3, 3], np.uint16)}, "does not increase"),
        ({NETWORK: np.zeros(3, np.float32)}, "'network' is"),
        ({"other": np.zeros(1)}, "has the arrays"),
    ],
)
def test_a_malformed_update_is_refused(change: dict[str, Any], message: str) -> None:
    algorithm = fedncf()
    arrays = {
        ITEMS: np.array([3, 4], np.uint16),
        ROWS: np.zeros((2, 7), np.float32),
        NETWORK: np.zeros(algorithm.shape.weights, np.float32),
    }
    accumulator = algorithm.accumulator(algorithm.initial_state(1))
    accumulator.check(arrays)
    with pytest.raises(RemoteProtocolError, match=message):
        accumulator.check({**arrays, **change})


def test_a_group_uploads_the_sum_of_its_users() -> None:
    algorithm = fedncf(client=STEPS)
    state, batch = algorithm.initial_state(8), random_ratings(8, COUNTS, N_ITEMS)
    rows, clients = some_rows(algorithm, 7), np.array([0, 3, 4, 7])
    grouped = algorithm.client_update(state, batch, keys_for(8, 3), clients, local=rows)
    assert grouped.local is not None
    assert grouped.weights.tolist() == [38.0, 12.0, 28.0]
    key = ClientUsers.of(keys_for(8, 3)[[1]], np.array([0, 1])).keys
    single = algorithm.client_update(state, take_users(batch, [3]), key, local=rows[[3]])
    np.testing.assert_array_equal(grouped.client(1).arrays[NETWORK], single.client(0).arrays[NETWORK])
    np.testing.assert_array_equal(grouped.client(1).local, single.client(0).local)
    bound = algorithm.upload_spec(np.array([38]))[0].rows[0]
    assert len(grouped.client(0).arrays[ITEMS]) <= bound
    with pytest.raises(ValueError, match="leave steps out"):
        algorithm.client_update(state, batch, keys_for(8, 3), clients, steps=np.ones(3, np.int64))


@pytest.mark.parametrize("variant", ["steps", "batches"])
def test_a_part_of_the_steps(variant: str) -> None:
    algorithm = fedncf(**VARIANTS[variant])
    state, batch, keys = algorithm.initial_state(9), random_ratings(9, COUNTS, N_ITEMS), keys_for(9, 7)
    counts = np.array(COUNTS)
    every = algorithm.local_steps(counts)
    whole = algorithm.client_update(state, batch, keys)
    limited = algorithm.client_update(state, batch, keys, steps=np.maximum(every, 1))
    for user in range(7):
        if COUNTS[user]:
            assert_same_update(whole, user, limited, user)
    if variant == "steps":
        first = fedncf(client={**STEPS, "steps": 1}).client_update(state, batch, keys)
        part = algorithm.client_update(state, batch, keys, steps=np.array([1, 3, 1, 3, 1, 1, 2]))
        np.testing.assert_allclose(part.client(2).arrays[ROWS], first.client(2).arrays[ROWS] / 3, rtol=1e-5)
        assert part.weights[[0, 1]].tolist() == pytest.approx([7 / 3, 1.0])
        assert_same_update(part, 1, whole, 1)


def test_what_a_device_keeps_is_where_it_goes_on() -> None:
    algorithm = fedncf(client=STEPS)
    state, batch, keys = algorithm.initial_state(6), random_ratings(6, COUNTS, N_ITEMS), keys_for(6, 7)
    zeros = np.zeros((7, algorithm.local_width), np.float32)
    first = algorithm.client_update(state, batch, keys, local=zeros)
    assert not zeros.any(), "what a device kept is not written to"
    assert first.local is not None
    assert first.local.shape == (7, 7)
    second = algorithm.client_update(state, batch, keys, local=first.local)
    assert (second.losses[[0, 2, 3, 5]] < first.losses[[0, 2, 3, 5]]).all()
    assert fedncf(user_embeddings="reconstructed").local_width == 0


def test_it_learns_planted_tastes() -> None:
    users, n_items = 60, 40
    batch, held_out = planted(1, users, n_items, 8)
    algorithm = fedncf(n_items, user_learning_rate=3.0, learning_rate=0.05)
    state: Any = algorithm.initial_state(1)
    optimizer_state, local = algorithm.initial_optimizer_state(state), None
    losses = []
    for round_number in range(40):
        updates = algorithm.client_update(state, batch, keys_for(round_number, users), local=local)
        local = updates.local
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, updates)
        result = accumulator.result()
        losses.append(result.loss)
        state, optimizer_state = algorithm.server_update(state, optimizer_state, result, round_number)
    scores = algorithm.scores(state, batch, keys_for(99, users), local)
    same_taste = (np.arange(users) % 2)[:, None] == (np.arange(n_items) >= n_items // 2)
    own = scores[np.arange(users), held_out]
    ahead = np.array([np.mean(own[user] > scores[user, ~same_taste[user]]) for user in range(users)])
    assert ahead.mean() > 0.95, "chance is a half"
    assert losses[-1] < 0.6 * losses[0]
    pairs = Ratings(np.arange(users + 1), held_out.astype(np.uint16), np.zeros(users, np.float32))
    predicted = algorithm.predict(state, batch, pairs, keys_for(99, users), local)
    np.testing.assert_allclose(predicted, 1 / (1 + np.exp(-own.astype(float))), rtol=1e-4)


def test_work_grows_with_what_is_done() -> None:
    examples = np.array([0, 1, 20, 300])
    algorithm = fedncf(2000, client=STEPS)
    work = algorithm.work(examples)
    total = work.flops.sum(axis=1) * work.steps
    assert (np.diff(total) > 0).all()
    part = algorithm.work(examples, np.ones(4, np.int64))
    assert (part.flops.sum(axis=1) * part.steps < total).all()
    assert (algorithm.work(examples).memory_bytes >= 4 * 2000 * algorithm.shape.width).all()


def test_flops_are_those_of_the_products() -> None:
    """For many examples, 2 flops a weight forward and 4 back; the user's half of the first layer is free."""
    algorithm = fedncf(
        10**6, gmf_factors=32, mlp_factors=128, layers=[128, 64, 32], user_steps=0, negatives=4
    )
    work = algorithm.work(np.array([20000]))
    a_row = work.flops.sum() * work.steps[0] / 100_000
    assert a_row == pytest.approx(6 * (128 * 128 + 128 * 64 + 64 * 32 + 64), rel=0.01)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"user_embeddings": "reconstructed", "user_steps": 0}, "write 1 or more"),
        ({"layers": []}, "at least 1"),
        ({"layers": [8, 0]}, "layers"),
        ({"negatives": "0"}, "negatives"),
    ],
)
def test_bad_settings_are_refused(written: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FedNCFSettings.model_validate({"algorithm": "fedncf", **written})


def test_an_empty_batch_has_no_updates() -> None:
    algorithm = fedncf()
    empty = Ratings(offsets_of(np.array([], np.int64)), np.zeros(0, np.uint16), np.zeros(0, np.float32))
    assert len(algorithm.client_update(algorithm.initial_state(1), empty, keys_for(1, 0))) == 0
