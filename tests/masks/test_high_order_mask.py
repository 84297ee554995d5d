"""The network of the high-order mask: its gradient, its training, its stopping rule."""

from __future__ import annotations

import numpy as np
import pytest
from mask_samples import keys_of, random_batch, random_features

from edge.learning.masks.high_order import HighOrder, HighOrderSettings
from edge.learning.masks.network import (
    NetworkPenalties,
    NetworkProblem,
    Parameters,
    gradient,
    objective,
    train,
)

PENALTIES = NetworkPenalties(weights=0.7, intercept=0.3)


def network(seed: int, users: int = 3, d: int = 4, h: int = 2) -> tuple[NetworkProblem, Parameters]:
    rng = np.random.default_rng(seed)
    present = np.ones((users, 9))
    present[1, 5:] = 0.0
    problem = NetworkProblem(rng.normal(size=(users, 9, d)), present, rng.normal(size=(users, 9)) * present)
    return problem, {
        "hidden_weights": rng.normal(size=(users, d, h)),
        "hidden_bias": rng.normal(size=(users, h)),
        "output_weights": rng.normal(size=(users, h)),
        "intercept": rng.normal(size=users),
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_the_gradient_is_that_of_the_objective(seed: int) -> None:
    problem, p = network(seed)
    slopes = gradient(problem, p, PENALTIES)
    step = 1e-6
    for name, array in p.items():
        assert slopes[name].shape == array.shape
        for index in np.ndindex(array.shape):
            at, user = array[index], index[0]
            sides = []
            for moved in (at + step, at - step):
                array[index] = moved
                sides.append(objective(problem, p, PENALTIES)[user])
            array[index] = at
            assert slopes[name][index] == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-6)


def test_the_prediction_by_hand() -> None:
    model = HighOrder(HighOrderSettings(width=2))
    parameters = {
        "hidden_weights": np.array([[[1.0, 0.0], [0.0, 2.0]]], np.float32),
        "hidden_bias": np.array([[0.5, -1.0]], np.float32),
        "output_weights": np.array([[2.0, -3.0]], np.float32),
        "intercept": np.array([3.0], np.float32),
    }
    features = np.array([[0.25, 1.5]], np.float32)
    expected = 3.0 + 2.0 * np.tanh(0.75) - 3.0 * np.tanh(2.0)
    assert model.catalogue(parameters, features)[0, 0] == pytest.approx(expected, rel=1e-6)


def test_padding_has_no_say() -> None:
    problem, p = network(2)
    other = problem._replace(x=problem.x.copy())
    other.x[1, 5:] = 99.0
    for name, array in gradient(problem, p, PENALTIES).items():
        np.testing.assert_array_equal(array, gradient(other, p, PENALTIES)[name])


def test_the_first_step_of_adam_has_the_size_of_the_rate() -> None:
    problem, p = network(3)
    slopes = gradient(problem, p, PENALTIES)
    ((rows, after),) = train(
        problem, p, PENALTIES, learning_rate=0.01, epochs=1, check_every=1, tolerance=1e-9
    )
    assert rows.tolist() == [0, 1, 2]
    for name, array in after.items():
        np.testing.assert_allclose(array, p[name] - 0.01 * np.sign(slopes[name]), atol=1e-5)


def test_training_lowers_the_objective_until_it_stalls() -> None:
    problem, p = network(4)
    before = objective(problem, p, PENALTIES)
    ends: dict[int, tuple[int, float]] = {}
    for turn, (rows, after) in enumerate(
        train(problem, p, PENALTIES, learning_rate=0.02, epochs=4000, check_every=20, tolerance=1e-3)
    ):
        own = NetworkProblem(*(array[rows] for array in problem))
        for row, value in zip(rows.tolist(), objective(own, after, PENALTIES).tolist(), strict=True):
            ends[row] = (turn, value)
    assert sorted(ends) == [0, 1, 2]
    assert all(ends[row][1] < 0.7 * before[row] for row in ends)
    ((_, longest),) = train(
        problem, p, PENALTIES, learning_rate=0.02, epochs=3000, check_every=3000, tolerance=1e-3
    )
    # Stopping early costs little.
    bests = objective(problem, longest, PENALTIES)
    assert all(ends[row][1] < 1.1 * bests[row] for row in ends)


def test_a_user_stops_at_the_first_look_that_finds_too_little() -> None:
    problem, p = network(5)
    every = {"learning_rate": 0.02, "tolerance": 0.999}
    ((rows, stopped),) = train(problem, p, PENALTIES, epochs=100, check_every=7, **every)
    ((_, seven),) = train(problem, p, PENALTIES, epochs=7, check_every=50, **every)
    assert rows.tolist() == [0, 1, 2]
    for name, array in stopped.items():
        np.testing.assert_array_equal(array, seven[name])


def test_a_curve_is_learned_that_no_line_fits() -> None:
    features = random_features(0, 80, 1)
    batch = random_batch(0, [70], 80)
    batch = batch._replace(ratings=(3.0 + np.abs(features[batch.items, 0])).astype(np.float32))
    model = HighOrder(HighOrderSettings(weight_decay=0.01, epochs=800, learning_rate=0.05, tolerance=1e-5))
    parameters = model.fit(batch, features, 3.0, keys_of(1))
    error = model.predict(parameters, features, batch.indptr, batch.items) - batch.ratings
    assert np.var(error) < 0.2 * np.var(batch.ratings)


def test_high_order_work_by_hand() -> None:
    work = HighOrder(HighOrderSettings(width=2, epochs=5)).work(np.array([10]), 3)
    # 6 + 4 + 1 parameters; an epoch: 10·(4·6 + 8·2) + 12·11 flops.
    assert work.steps.tolist() == [5.0]
    assert work.flops[0, 1] == pytest.approx(10 * 40 + 132)
    assert work.ops[0, 1] == pytest.approx(8)
    assert work.moved_bytes[0, 1] == pytest.approx(4 * (10 * (6 + 12) + 77))
