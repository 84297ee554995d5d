"""The two-order mask: its formula, and a descent that never goes up."""

from __future__ import annotations

import numpy as np
import pytest
from mask_samples import keys_of, random_batch, random_features

from edge.learning.masks.factorization import (
    FactorizationPenalties,
    FactorizationProblem,
    Fit,
    objective,
    residuals,
    sweep,
)
from edge.learning.masks.one_order import OneOrder, OneOrderSettings
from edge.learning.masks.two_order import TwoOrder, TwoOrderSettings

PENALTIES = FactorizationPenalties(intercept=0.5, weights=1.5, factors=0.8)


def problem_of(seed: int, users: int, d: int, f: int) -> tuple[FactorizationProblem, np.ndarray, Fit]:
    rng = np.random.default_rng(seed)
    present = np.ones((users, 12))
    present[0, 9:] = 0.0
    x = rng.normal(size=(d, users, 12)) * present
    targets = rng.normal(size=(users, 12)) * present
    problem = FactorizationProblem(x, present)
    offset, weights = rng.normal(size=users), rng.normal(size=(d, users))
    factors = rng.normal(size=(f, d, users))
    return (
        problem,
        targets,
        Fit(offset, weights, factors, residuals(problem, targets, offset, weights, factors)),
    )


def test_the_prediction_is_the_double_sum_over_pairs() -> None:
    rng = np.random.default_rng(0)
    d, f, items = 5, 3, 7
    features = rng.normal(size=(items, d)).astype(np.float32)
    w, v = rng.normal(size=(2, d)), rng.normal(size=(2, d, f))
    model = TwoOrder(TwoOrderSettings(factors=f, feature_limit=10.0))
    parameters = {
        "intercept": np.array([3.0, 1.0], np.float32),
        "weights": w.astype(np.float32),
        "factors": v.astype(np.float32),
    }
    catalogue = model.catalogue(parameters, features)
    for user in range(2):
        for item, x in enumerate(features.astype(np.float64)):
            expected = (3.0, 1.0)[user] + w[user] @ x
            for i in range(d):
                for j in range(i + 1, d):
                    expected += v[user, i] @ v[user, j] * x[i] * x[j]
            assert catalogue[user, item] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_residuals_and_objective_by_hand() -> None:
    # One user, two ratings and one cell of padding; x = (1, 2) and (3, −1).
    x = np.array([[[1.0, 3.0, 0.0]], [[2.0, -1.0, 0.0]]])
    problem = FactorizationProblem(x, np.array([[1.0, 1.0, 0.0]]))
    fit = (np.array([0.5]), np.array([[1.0], [2.0]]), np.array([[[0.5], [2.0]]]))
    # ŷ = 0.5 + (1 + 4) + 1·(1·2) = 7.5 and 0.5 + (3 − 2) + 1·(3·−1) = −1.5.
    error = residuals(problem, np.array([[8.0, 0.0, 0.0]]), *fit)
    assert error.tolist() == [[0.5, 1.5, 0.0]]
    # e² = 2.5; 0.5·0.25; 1.5·5; 0.8·4.25.
    assert objective(Fit(*fit, error), PENALTIES).tolist() == pytest.approx([2.5 + 0.125 + 7.5 + 3.4])


@pytest.mark.parametrize("seed", range(5))
def test_the_objective_never_rises_and_comes_to_rest(seed: int) -> None:
    problem, targets, fit = problem_of(seed, users=4, d=3, f=2)
    values = [objective(fit, PENALTIES)]
    for _ in range(400):
        sweep(problem, fit, PENALTIES)
        values.append(objective(fit, PENALTIES))
    falls = -np.diff(values, axis=0)
    assert (falls >= -1e-10 * values[0]).all()
    assert (falls[0] > 0.1).all()
    # What is carried along is what would be computed anew.
    np.testing.assert_allclose(
        fit.error, residuals(problem, targets, fit.offset, fit.weights, fit.factors), atol=1e-9
    )
    # At rest no parameter can be moved for the better: the slopes are zero.
    for array in (fit.offset, fit.weights, fit.factors):
        for index in np.ndindex(array.shape):
            at, step = array[index], 1e-5
            sides = []
            for moved in (at + step, at - step):
                array[index] = moved
                anew = residuals(problem, targets, fit.offset, fit.weights, fit.factors)
                sides.append(objective(fit._replace(error=anew), PENALTIES).sum())
            array[index] = at
            assert abs(sides[0] - sides[1]) / (2 * step) < 1e-3


def test_a_crossing_of_features_is_learned() -> None:
    # r = 3 + x₁x₂ cannot be told from a mean by a linear mask.
    features = np.random.default_rng(0).choice([-1.0, 1.0], size=(80, 2)).astype(np.float32)
    batch = random_batch(0, [60, 60], 80)
    batch = batch._replace(ratings=3.0 + features[batch.items].prod(axis=1))
    errors = []
    for model in (
        OneOrder(OneOrderSettings(regularization=1.0)),
        TwoOrder(TwoOrderSettings(regularization=1.0, factor_regularization=1.0)),
    ):
        parameters = model.fit(batch, features, 3.0, keys_of(2))
        predicted = model.predict(parameters, features, batch.indptr, batch.items)
        errors.append(float(np.mean((predicted - batch.ratings) ** 2)))
    assert errors[0] > 0.8
    assert errors[1] < 0.05


def test_more_sweeps_and_less_tolerance_fit_closer() -> None:
    features = random_features(3, 80, 4)
    batch = random_batch(3, [60], 80)
    pairs = features[:, 0] * features[:, 1] - features[:, 2] * features[:, 3]
    batch = batch._replace(ratings=3.0 + pairs[batch.items])
    errors = []
    for sweeps, tolerance in ((1, 1e-9), (50, 0.999), (50, 1e-4)):
        chosen = TwoOrderSettings(
            regularization=1.0, factor_regularization=1.0, max_sweeps=sweeps, tolerance=tolerance
        )
        model = TwoOrder(chosen)
        parameters = model.fit(batch, features, 3.0, keys_of(1))
        predicted = model.predict(parameters, features, batch.indptr, batch.items)
        errors.append(float(np.mean((predicted - batch.ratings) ** 2)))
    # A tolerance that every sweep meets stops after the first.
    assert errors[1] == errors[0]
    assert errors[2] < 0.5 * errors[0]


def test_two_order_work_by_hand() -> None:
    model = TwoOrder(TwoOrderSettings(factors=2, max_sweeps=7))
    work = model.work(np.array([10]), 3)
    # A sweep over 1 + 3 + 6 parameters: 10·(4 + 6·3 + 12·6) + 4·10 flops, ten operators.
    assert work.steps.tolist() == [7.0]
    assert work.flops[0, 1] == pytest.approx(10 * 94 + 40)
    assert work.ops[0, 1] == pytest.approx(10)
    assert work.moved_bytes[0, 1] == pytest.approx(10 * (2 + 9 + 30) * 4)
