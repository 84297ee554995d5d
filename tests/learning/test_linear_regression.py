from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_helpers import Samples, add_all, assert_same_update, keys_for, offsets_of

from edge.learning.base import Problem
from edge.learning.methods.linear_regression import LinearRegression, LinearRegressionSettings
from edge.learning.updates import Aggregate

CLIENTS, FEATURES = 10, 5
TRUE = np.array([1.0, -2.0, 0.5, 3.0, -1.0])


def fleet(seed: int = 0, *, noise: float = 0.1, shift: float = 1.0) -> Samples:
    """Ten clients of different size whose features have different means: not identically distributed."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(5, 60, CLIENTS)
    centers = np.repeat(rng.normal(0, shift, (CLIENTS, FEATURES)), counts, axis=0)
    x = centers + rng.normal(size=centers.shape)
    return Samples(offsets_of(counts), x, x @ TRUE + 0.7 + rng.normal(0, noise, len(x)))


def regression(**settings: Any) -> LinearRegression:
    model = LinearRegressionSettings.model_validate({"algorithm": "linear-regression", **settings})
    return LinearRegression(model, Problem(n_features=FEATURES))


def rounds(algorithm: LinearRegression, data: Samples, count: int) -> tuple[Any, Aggregate, str | None, int]:
    state = algorithm.initial_state(0)
    optimizer_state = algorithm.initial_optimizer_state(state)
    for round_number in range(count):
        updates = algorithm.client_update(state, data, keys_for(round_number, CLIENTS))
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, updates)
        aggregate = accumulator.result()
        rule = algorithm.converged(aggregate)
        if rule is not None:
            break
        state, optimizer_state = algorithm.server_update(state, optimizer_state, aggregate, round_number)
    return state["weights"], aggregate, rule, round_number


def centralised(data: Samples, rate: float, count: int) -> Any:
    x = np.hstack([data.x, np.ones((len(data.x), 1))])
    w = np.zeros(FEATURES + 1)
    for _ in range(count):
        w = w + rate * x.T @ (data.y - x @ w) / len(x)
    return w


@pytest.mark.parametrize(
    "settings",
    [
        {"local": {"method": "gradient-steps", "steps": "1", "learning_rate": "0.1"}},
        {"local": {"method": "mini-batches", "batch_size": "1000", "learning_rate": "0.1"}},
        {"local": {"method": "gradient"}, "learning_rate": "0.1"},
    ],
    ids=["fedavg", "fedavg-one-batch", "fedsgd"],
)
def test_one_full_batch_step_with_everyone_is_centralised_gradient_descent(settings: Any) -> None:
    data = fleet()
    weights, _, _, _ = rounds(regression(**settings), data, 50)
    np.testing.assert_allclose(weights, centralised(data, 0.1, 50), rtol=0, atol=1e-12)


def test_several_local_steps_are_each_clients_own_descent_then_the_weighted_mean() -> None:
    data = fleet()
    weights, _, _, _ = rounds(
        regression(local={"method": "gradient-steps", "steps": 3, "learning_rate": 0.1}), data, 1
    )
    x = np.hstack([data.x, np.ones((len(data.x), 1))])
    expected = np.zeros(FEATURES + 1)
    for i in range(CLIENTS):
        part = slice(data.indptr[i], data.indptr[i + 1])
        w = np.zeros(FEATURES + 1)
        for _ in range(3):
            w = w + 0.1 * x[part].T @ (data.y[part] - x[part] @ w) / len(x[part])
        expected += len(x[part]) / len(x) * w
    np.testing.assert_allclose(weights, expected, atol=1e-12)


def test_it_stops_by_gradient_norm_at_the_least_squares_solution() -> None:
    data = fleet()
    local = {"method": "gradient-steps", "steps": "1", "learning_rate": "0.15"}
    weights, _, rule, last = rounds(regression(local=local, stop_gradient_norm="1e-8"), data, 5000)
    assert rule == "gradient-norm"
    assert 0 < last < 4999
    x = np.hstack([data.x, np.ones((len(data.x), 1))])
    np.testing.assert_allclose(weights, np.linalg.lstsq(x, data.y, rcond=None)[0], atol=1e-6)


def test_it_stops_by_target_loss() -> None:
    _, aggregate, rule, last = rounds(
        regression(local={"method": "gradient-steps", "steps": 1, "learning_rate": 0.15}, stop_loss=0.05),
        fleet(),
        5000,
    )
    assert rule == "target-loss"
    assert aggregate.loss < 0.05
    assert 0 < last < 4999


def test_without_a_rule_it_goes_on() -> None:
    _, _, rule, last = rounds(regression(), fleet(), 3)
    assert rule is None
    assert last == 2


def test_the_uploaded_gradient_is_that_of_the_loss() -> None:
    data = fleet()
    algorithm = regression(local={"method": "gradient", "regularization": "0.3"})
    weights = np.random.default_rng(1).normal(size=FEATURES + 1)
    step = 1e-6

    def objective(w: Any, i: int) -> float:
        loss = algorithm.client_update({"weights": w}, data, keys_for(0, CLIENTS)).client(i).loss
        return loss + 0.5 * 0.3 * float(w[:-1] @ w[:-1])

    updates = algorithm.client_update({"weights": weights}, data, keys_for(0, CLIENTS))
    for i in (0, 7):
        numeric = [
            (objective(weights + step * unit, i) - objective(weights - step * unit, i)) / (2 * step)
            for unit in np.eye(FEATURES + 1)
        ]
        update = updates.client(i)
        np.testing.assert_allclose(-update.arrays["weights"] / update.weight, numeric, rtol=1e-6)


@pytest.mark.parametrize("method", ["gradient", "gradient-steps", "mini-batches"])
@given(chosen=st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=6))
def test_an_update_does_not_depend_on_the_batch(method: str, chosen: list[int]) -> None:
    more: dict[str, dict[str, int]] = {
        "gradient": {},
        "gradient-steps": {"steps": 3},
        "mini-batches": {"batch_size": 4, "epochs": 2},
    }
    algorithm = regression(local={"method": method, **more[method]})
    data, keys = fleet(), keys_for(9, CLIENTS)
    state = {"weights": np.linspace(-1, 1, FEATURES + 1)}
    whole = algorithm.client_update(state, data, keys)
    rows = np.concatenate([np.arange(data.indptr[i], data.indptr[i + 1]) for i in chosen])
    part = Samples(offsets_of(np.diff(data.indptr)[chosen]), data.x[rows], data.y[rows])
    some = algorithm.client_update(state, part, keys[chosen])
    for place, i in enumerate(chosen):
        assert_same_update(some, place, whole, i)


def test_predictions_are_the_linear_form() -> None:
    data = fleet()
    weights = np.arange(6.0)
    got = regression().predict({"weights": weights}, data, data, keys_for(0, CLIENTS))
    np.testing.assert_allclose(got, data.x @ weights[:5] + 5.0)
    got = regression(intercept="false").predict({"weights": weights[:5]}, data, data, keys_for(0, CLIENTS))
    np.testing.assert_allclose(got, data.x @ weights[:5])


def test_the_upload_has_the_declared_size() -> None:
    algorithm = regression()
    data = fleet()
    specs = algorithm.upload_spec(np.diff(data.indptr))
    updates = algorithm.client_update(algorithm.initial_state(0), data, keys_for(0, CLIENTS))
    for i, update in enumerate(updates):
        assert {spec.name: int(spec.nbytes()[i]) for spec in specs} == {
            name: array.nbytes for name, array in update.arrays.items()
        }


def test_work_grows_with_samples_and_steps() -> None:
    examples = np.array([10, 20, 0])
    once = regression(local={"method": "gradient-steps", "steps": 1}).work(examples)
    often = regression(local={"method": "gradient-steps", "steps": 4}).work(examples)
    batches = regression(local={"method": "mini-batches", "batch_size": 5}).work(examples)
    assert once.flops[:, 1].tolist() == [10 * 4 * 6 + 12, 20 * 4 * 6 + 12, 12]
    # Features and target of each sample, forwards and backwards, float64.
    assert once.moved_bytes[:, 1].tolist() == [10 * 2 * 7 * 8, 20 * 2 * 7 * 8, 0]
    np.testing.assert_allclose(often.flops, once.flops)
    assert often.steps.tolist() == [4, 4, 4]
    assert batches.steps.tolist() == [2, 4, 1]


def test_what_does_not_fit_is_refused() -> None:
    algorithm = regression()
    with pytest.raises(ValueError, match="leave clients out"):
        algorithm.client_update(
            algorithm.initial_state(0), fleet(), keys_for(0, CLIENTS), np.array([0, CLIENTS])
        )
    with pytest.raises(ValueError, match="this problem has none"):
        LinearRegression(LinearRegressionSettings(algorithm="linear-regression"), Problem(n_items=4))
