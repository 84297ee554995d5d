from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.core.errors import DataError
from edge.data.regression import HETEROGENEITIES, RegressionStore, generate_regression


def _generate(**changes: Any) -> RegressionStore:
    fields: dict[str, Any] = {"clients": 10, "samples_per_client": 40, "features": 5, "seed": 3}
    return generate_regression(**(fields | changes))


@pytest.mark.parametrize("heterogeneity", HETEROGENEITIES)
def test_shapes_and_seed(heterogeneity: str) -> None:
    store = _generate(heterogeneity=heterogeneity)
    assert (store.n_clients, store.n_features) == (10, 5)
    assert store.x.shape == (400, 5)
    assert store.content_hash() == _generate(heterogeneity=heterogeneity).content_hash()
    assert store.content_hash() != _generate(heterogeneity=heterogeneity, seed=4).content_hash()


def test_gather_and_local() -> None:
    store = _generate()
    batch = store.gather(np.array([7, 2]))
    assert batch.indptr.tolist() == [0, 40, 80]
    x, y = store.local(2)
    assert np.array_equal(batch.x[40:], x)
    assert np.array_equal(batch.y[40:], y)
    with pytest.raises(IndexError, match="outside"):
        store.gather(np.array([10]))
    with pytest.raises(IndexError, match="outside"):
        store.local(-1)


def _fit(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.linalg.lstsq(np.column_stack([x, np.ones(len(y))]), y, rcond=None)[0])


@pytest.mark.parametrize("heterogeneity", ["iid", "feature-shift"])
def test_labels_given_features_are_the_same_everywhere(heterogeneity: str) -> None:
    store = _generate(samples_per_client=500, heterogeneity=heterogeneity, noise_sd=0.0)
    assert store.weights is not None
    assert store.intercept is not None
    for client in range(10):
        fitted = _fit(*store.local(client))
        assert np.allclose(fitted, np.append(store.weights, store.intercept), atol=1e-10)


def test_feature_shift_moves_the_inputs_of_a_client() -> None:
    def spread(heterogeneity: str) -> float:
        store = _generate(samples_per_client=400, heterogeneity=heterogeneity, shift=2.0)
        return float(store.x.reshape(10, 400, 5).mean(axis=1).std(axis=0).mean())

    assert spread("feature-shift") > 1.0
    assert spread("iid") < 0.15


def test_label_shift_moves_the_labels_but_not_features_given_labels() -> None:
    store = _generate(clients=40, samples_per_client=500, heterogeneity="label-shift", shift=2.0)
    iid = _generate(clients=40, samples_per_client=500, heterogeneity="iid")
    assert store.weights is not None
    y = store.y.reshape(40, 500)
    within = y.std(axis=1).mean()
    assert y.mean(axis=1).std() > 1.2 * within
    assert iid.y.reshape(40, 500).mean(axis=1).std() < 0.2 * within
    # E[x | y] is linear in y with the same coefficients on every client: w / (|w|² + noise²).
    slope = store.weights / (store.weights @ store.weights + 0.1**2)
    for client in range(40):
        x, labels = store.local(client)
        fitted = np.polyfit(labels, x, 1)[0]
        # Standard error: sd(x | y) ≤ 1 over sd(y)·√500; five of them.
        assert np.abs(fitted - slope).max() < 5 / (labels.std() * np.sqrt(500))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 0}, "clients"),
        ({"features": 0}, "features"),
        ({"samples_per_client": -1}, "samples_per_client"),
        ({"heterogeneity": "non-iid"}, "write one of iid, feature-shift, label-shift"),
        ({"shift": float("inf")}, "shift"),
        ({"noise_sd": -1.0}, "noise_sd"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _generate(**changes)


@pytest.mark.parametrize(
    ("indptr", "x", "y", "message"),
    [
        ([0, 2], np.zeros((3, 1)), np.zeros(2), "x must be"),
        ([0, 2], np.zeros((2, 1)), np.zeros(3), "y must be"),
        ([1, 2], np.zeros((2, 1)), np.zeros(2), "start at 0"),
        ([0, 2], np.full((2, 1), np.nan), np.zeros(2), "finite"),
    ],
)
def test_contradictions_are_refused(indptr: list[int], x: Any, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        RegressionStore(np.array(indptr, dtype=np.int64), x, y)
