"""FedProx: the pull of local steps back to the global model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import (
    Samples,
    assert_same_update,
    fedrecon,
    keys_for,
    offsets_of,
    random_ratings,
    take_users,
    trained_looking_state,
)
from pydantic import ValidationError

from edge.learning import fedrecon_kernels as kernels
from edge.learning.base import Problem
from edge.learning.least_squares import shuffled_ranks
from edge.learning.methods.linear_regression import LinearRegression, LinearRegressionSettings

N_ITEMS, FACTORS = 40, 3
FULL = {"method": "gradient-steps", "steps": 4, "learning_rate": 0.8, "regularization": 0.05}
BATCHES = {
    "method": "mini-batches",
    "batch_size": 3,
    "epochs": 2,
    "learning_rate": 0.3,
    "regularization": 0.05,
}
COUNTS = [12, 1, 7, 20, 0, 3]


def make(client: dict[str, Any], proximal: float, dtype: Any = np.float64, **more: Any) -> Any:
    return fedrecon(N_ITEMS, dtype=dtype, factors=FACTORS, client=client, proximal=proximal, **more)


def slow_steps(
    algorithm: Any, state: Any, batch: Any, key: Any, client: dict[str, Any], mu: float, steps: int | None
) -> npt.NDArray[np.float64]:
    """Take one user's steps one at a time, on whole rows, as the paper writes them."""
    local = algorithm.reconstruct(state, batch, key)[0]
    p, bias = local[:FACTORS], local[FACTORS]
    start = np.column_stack([state["item_factors"], state["item_bias"]])[batch.items].astype(float)
    rows, n = start.copy(), len(batch.items)
    parts = []
    if client["method"] == "gradient-steps":
        parts = [np.arange(n)] * client["steps"]
    else:
        for epoch in range(client["epochs"]):
            order = np.argsort(shuffled_ranks(batch.indptr, key, kernels.CLIENT_DRAW, epoch))
            parts += [order[i : i + client["batch_size"]] for i in range(0, n, client["batch_size"])]
    for part in parts[:steps]:
        gradient = mu * (rows - start)
        error = batch.ratings[part] - 3.0 - rows[part, FACTORS] - bias - rows[part, :FACTORS] @ p
        gradient[part, :FACTORS] += (
            client["regularization"] * rows[part, :FACTORS] - error[:, None] * p
        ) / len(part)
        gradient[part, FACTORS] -= error / len(part)
        rows -= client["learning_rate"] * gradient
    return (rows - start) * n


@pytest.mark.parametrize("client", [FULL, BATCHES], ids=["full", "batches"])
@pytest.mark.parametrize("steps", [None, 3])
def test_steps_are_those_taken_one_by_one(client: dict[str, Any], steps: int | None) -> None:
    algorithm = make(client, 0.7)
    state, batch = trained_looking_state(algorithm, 1), random_ratings(1, [14], N_ITEMS, np.float64)
    key = keys_for(1, 1)
    limits = None if steps is None else np.array([steps])
    (update,) = algorithm.client_update(state, batch, key, steps=limits)
    expected = slow_steps(algorithm, state, batch, key, client, 0.7, steps)
    share = update.weight / 14
    np.testing.assert_allclose(update.arrays["item_rows"], expected * share, rtol=0, atol=1e-11)


@pytest.mark.parametrize("client", [FULL, BATCHES], ids=["full", "batches"])
def test_no_pull_is_the_plain_method_and_a_pull_is_not(client: dict[str, Any]) -> None:
    plain = fedrecon(N_ITEMS, factors=FACTORS, client=client)
    state, batch, keys = trained_looking_state(plain, 2), random_ratings(2, COUNTS, N_ITEMS), keys_for(2, 6)
    expected = plain.client_update(state, batch, keys)
    same = make(client, 0.0, np.float32).client_update(state, batch, keys)
    tiny = make(client, 1e-12).client_update(
        {name: array.astype(np.float64) for name, array in state.items()}, batch, keys
    )
    pulled = make(client, 0.5, np.float32).client_update(state, batch, keys)
    for user in range(len(COUNTS)):
        assert_same_update(expected, user, same, user)
    np.testing.assert_allclose(tiny.ragged["item_rows"], expected.ragged["item_rows"], atol=1e-4)
    assert np.linalg.norm(pulled.ragged["item_rows"]) < 0.9 * np.linalg.norm(expected.ragged["item_rows"])


def test_one_step_starts_where_nothing_pulls() -> None:
    client = {**FULL, "steps": 1}
    plain, pulled = make(client, 0.0), make(client, 5.0)
    state, batch, keys = trained_looking_state(plain, 3), random_ratings(3, COUNTS, N_ITEMS), keys_for(3, 6)
    one, other = (a.client_update(state, batch, keys).ragged["item_rows"] for a in (plain, pulled))
    np.testing.assert_allclose(one, other, rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    client=st.sampled_from([FULL, BATCHES]),
    limited=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_client_does_not_depend_on_the_others(
    counts: list[int], client: dict[str, Any], limited: bool, seed: int
) -> None:
    algorithm = make(client, 0.4, np.float32)
    state, batch = trained_looking_state(algorithm, seed), random_ratings(seed, counts, N_ITEMS)
    keys = keys_for(seed, len(counts))
    steps = np.full(len(counts), 2) if limited else None
    whole = algorithm.client_update(state, batch, keys, steps=steps)
    for user in range(len(counts)):
        one = algorithm.client_update(
            state, take_users(batch, [user]), keys[[user]], steps=None if steps is None else steps[:1]
        )
        assert_same_update(whole, user, one, 0)


def regression(local: dict[str, Any], proximal: float) -> LinearRegression:
    written = {"algorithm": "linear-regression", "local": local, "proximal": proximal}
    return LinearRegression(LinearRegressionSettings.model_validate(written), Problem(n_features=4))


def samples(seed: int, counts: list[int]) -> Samples:
    rng = np.random.default_rng(seed)
    n = sum(counts)
    return Samples(offsets_of(np.array(counts)), rng.normal(size=(n, 4)), rng.normal(size=n))


@pytest.mark.parametrize("client", [FULL, BATCHES], ids=["full", "batches"])
def test_linear_regression_is_pulled_in_every_step(client: dict[str, Any]) -> None:
    algorithm, plain = regression(client, 0.7), regression(client, 0.0)
    batch, keys = samples(4, [11]), keys_for(4, 1)
    start = np.random.default_rng(5).normal(size=5)
    weights, x = start.copy(), np.column_stack([batch.x, np.ones(11)])
    parts = [np.arange(11)] * 4
    if client is BATCHES:
        orders = [np.argsort(shuffled_ranks(batch.indptr, keys, epoch)) for epoch in range(2)]
        parts = [order[i : i + 3] for order in orders for i in range(0, 11, 3)]
    decay = np.array([0.05] * 4 + [0.0])
    for part in parts:
        error = batch.y[part] - x[part] @ weights
        gradient = -x[part].T @ error / len(part) + decay * weights + 0.7 * (weights - start)
        weights = weights - client["learning_rate"] * gradient
    (update,) = algorithm.client_update({"weights": start}, batch, keys)
    np.testing.assert_allclose(update.arrays["weights"], 11 * (weights - start), rtol=0, atol=1e-10)
    (unpulled,) = plain.client_update({"weights": start}, batch, keys)
    assert np.linalg.norm(unpulled.arrays["weights"]) > np.linalg.norm(update.arrays["weights"])


def test_a_gradient_cannot_be_pulled() -> None:
    with pytest.raises(ValidationError, match="no local step that could be pulled back"):
        regression({"method": "gradient"}, 0.1)
    assert regression({"method": "gradient"}, 0.0).settings.proximal == 0


def test_the_pull_costs_flops() -> None:
    examples = np.array([5, 50])
    for plain, pulled in (
        (make(FULL, 0.0), make(FULL, 0.1)),
        (regression(FULL, 0.0), regression(FULL, 0.1)),
    ):
        assert (pulled.work(examples).flops.sum(axis=1) > plain.work(examples).flops.sum(axis=1)).all()
