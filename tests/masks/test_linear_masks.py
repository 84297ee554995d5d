"""Zero-order and one-order masks, against sums by hand and numpy's least squares."""

from __future__ import annotations

import numpy as np
import pytest
from mask_samples import keys_of, random_batch, random_features, ratings_of

from edge.learning.masks.one_order import OneOrder, OneOrderSettings
from edge.learning.masks.zero_order import ZeroOrder, ZeroOrderSettings


def test_the_zero_order_mask_is_the_shrunk_mean() -> None:
    model = ZeroOrder(ZeroOrderSettings(shrinkage=2.0))
    parameters = model.fit(
        ratings_of({0: 5.0, 1: 4.0}, {}, {3: 1.0}), random_features(0, 4, 1), 3.0, keys_of(3)
    )
    # (5 + 4 + 2·3)/4, 2·3/2, (1 + 2·3)/3.
    assert parameters["mean"].tolist() == pytest.approx([3.75, 3.0, 7 / 3])
    predicted = model.predict(
        parameters, random_features(0, 4, 1), np.array([0, 1, 3, 3]), np.array([2, 0, 1])
    )
    assert predicted.tolist() == [3.75, 3.0, 3.0]


def test_a_one_order_mask_by_hand() -> None:
    # x = ±1, r − μ = 2 and −1: Σx² = 2, Σx(r − μ) = 3, Σ(r − μ) = 1, Σx = 0, so the unknowns separate:
    # w = 3/(2 + λ), c − μ = 1/(2 + λ_0).
    features = np.array([[1.0], [-1.0], [0.5]], np.float32)
    model = OneOrder(OneOrderSettings(regularization=1.0, intercept_regularization=0.5))
    parameters = model.fit(ratings_of({0: 5.0, 1: 2.0}), features, 3.0, keys_of(1))
    assert parameters["weights"][0, 0] == pytest.approx(1.0)
    assert parameters["intercept"][0] == pytest.approx(3.4)
    assert model.catalogue(parameters, features)[0].tolist() == pytest.approx([4.4, 2.4, 3.9])


def test_one_order_masks_are_least_squares_with_penalty_rows() -> None:
    model = OneOrder(OneOrderSettings(regularization=3.0, intercept_regularization=0.7, feature_limit=9.0))
    features, batch = random_features(1, 50, 4), random_batch(1, [2, 9, 31], 50)
    parameters = model.fit(batch, features, 3.5, keys_of(3))
    for user in range(3):
        own = batch.user(user)
        rows = np.column_stack([features[own.items], np.ones(len(own.items))]).astype(np.float64)
        penalty = np.diag(np.sqrt([3.0] * 4 + [0.7]))
        solution, *_ = np.linalg.lstsq(
            np.concatenate([rows, penalty]), np.concatenate([own.ratings - 3.5, np.zeros(5)]), rcond=None
        )
        np.testing.assert_allclose(parameters["weights"][user], solution[:4], atol=2e-5)
        assert parameters["intercept"][user] == pytest.approx(3.5 + solution[4], abs=2e-5)


def test_linear_work_by_hand() -> None:
    examples = np.array([10])
    zero = ZeroOrder(ZeroOrderSettings()).work(examples, 4)
    assert zero.flops.tolist() == [[0.0, 13.0, 0.0]]
    assert zero.moved_bytes.tolist() == [[0.0, 44.0, 0.0]]
    assert zero.ops.tolist() == [[0.0, 1.0, 0.0]]
    one = OneOrder(OneOrderSettings()).work(examples, 4)
    # Six columns: 10·6·7 for the Gram matrix; five unknowns: 2/3·125 + 2·25.
    assert one.flops[0, 1] == pytest.approx(420 + 250 / 3 + 50)
    # Ten rows of six numbers read and written.
    assert one.moved_bytes[0, 0] == 2 * 10 * 6 * 4
    assert one.ops.tolist() == [[1.0, 2.0, 0.0]]
    assert one.memory_bytes.tolist() == [4 * (60 + 72 + 5)]
