from __future__ import annotations

import math

import numpy as np
import pytest

from edge.metrics.rating_errors import RatingErrors

PREDICTED = np.array([3.5, 2.0, 4.2, 1.0, 5.0], dtype=np.float64)
ACTUAL = np.array([4.0, 2.0, 5.0, 3.0, 4.5], dtype=np.float32)


def test_known_values() -> None:
    errors = RatingErrors()
    errors.add(PREDICTED, ACTUAL)
    results = errors.results()
    # sklearn.metrics.root_mean_squared_error and mean_absolute_error of the same arrays.
    assert results["rmse"][0] == pytest.approx(1.0139033484509261, abs=1e-12)
    assert results["mae"][0] == pytest.approx(0.76, abs=1e-12)
    assert results["accuracy"][0] == 3 / 5
    assert errors.counts.tolist() == [5]


def test_batches_and_groups_add_up() -> None:
    groups = np.array([0, 1, 0, 2, 1])
    whole = RatingErrors(4)
    whole.add(PREDICTED, ACTUAL, groups)
    parts = RatingErrors(4)
    parts.add(PREDICTED[:2], ACTUAL[:2], groups[:2])
    parts.add(PREDICTED[2:], ACTUAL[2:], groups[2:])
    for name, values in whole.results().items():
        assert np.allclose(parts.results()[name], values, equal_nan=True, atol=1e-15), name
    assert whole.counts.tolist() == [2, 2, 1, 0]
    assert whole.mae()[:3] == pytest.approx([(0.5 + 0.8) / 2, 0.25, 2.0])
    assert math.isnan(whole.rmse()[3])


def test_float32_predictions_are_summed_in_float64() -> None:
    errors = RatingErrors()
    for _ in range(100):
        errors.add(np.full(10_000, 4096.25, dtype=np.float32), np.full(10_000, 4096, dtype=np.float32))
    assert errors.rmse()[0] == 0.25


def test_a_diverged_model_shows() -> None:
    errors = RatingErrors()
    errors.add(np.array([np.nan, 1.0]), np.array([1.0, 1.0]))
    assert math.isnan(errors.rmse()[0])
    assert errors.accuracy()[0] == 0.5


def test_bad_arguments_are_refused() -> None:
    errors = RatingErrors(2)
    with pytest.raises(ValueError, match="equally long"):
        errors.add(PREDICTED, ACTUAL[:4])
    with pytest.raises(ValueError, match=r"outside 0 \.\. 1"):
        errors.add(PREDICTED, ACTUAL, np.array([0, 1, 2, 0, 0]))
    with pytest.raises(ValueError, match="5 entries"):
        errors.add(PREDICTED, ACTUAL, np.array([0]))
    with pytest.raises(ValueError, match="n_groups"):
        RatingErrors(0)
