from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learning_helpers import keys_for, offsets_of

from edge.learning.least_squares import (
    descend,
    descend_in_mini_batches,
    ridge,
    segment_grams,
    shuffled_ranks,
)

COUNTS = np.array([3, 0, 17, 1, 40], dtype=np.int64)


def problem(dtype: Any, d: int = 4) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(5)
    n = int(COUNTS.sum())
    return offsets_of(COUNTS), rng.normal(size=(n, d)).astype(dtype), rng.normal(size=n).astype(dtype)


def moments(indptr: Any, rows: Any, targets: Any) -> tuple[Any, Any]:
    d = rows.shape[1]
    design = np.concatenate([rows, targets[:, None]], axis=1)
    grams = np.empty((len(indptr) - 1, d + 1, d + 1), rows.dtype)
    segment_grams(design, indptr.tolist(), grams)
    return grams[:, :d, :d].copy(), grams[:, :d, d].copy()


def test_grams_are_the_products_of_each_segment() -> None:
    indptr, rows, targets = problem(np.float64)
    gram, moment = moments(indptr, rows, targets)
    for i in range(len(COUNTS)):
        x, t = rows[indptr[i] : indptr[i + 1]], targets[indptr[i] : indptr[i + 1]]
        np.testing.assert_allclose(gram[i], x.T @ x, atol=1e-13)
        np.testing.assert_allclose(moment[i], x.T @ t, atol=1e-13)


def test_ridge_minimises_the_penalised_squares() -> None:
    indptr, rows, targets = problem(np.float64)
    penalty = np.array([0.5, 1.0, 2.0, 4.0])
    solution = ridge(*moments(indptr, rows, targets), penalty)
    for i, w in enumerate(solution):
        x, t = rows[indptr[i] : indptr[i + 1]], targets[indptr[i] : indptr[i + 1]]
        # Ridge is least squares with one extra row √λ per unknown.
        expected = np.linalg.lstsq(
            np.vstack([x, np.diag(np.sqrt(penalty))]), np.concatenate([t, np.zeros(4)]), rcond=None
        )[0]
        np.testing.assert_allclose(w, expected, atol=1e-12)


def test_full_batch_steps_are_gradient_descent() -> None:
    indptr, rows, targets = problem(np.float64)
    rng = np.random.default_rng(1)
    rates, decay = rng.uniform(0.005, 0.02, (len(COUNTS), 4)), rng.uniform(0, 3, (len(COUNTS), 4))
    start = rng.normal(size=(len(COUNTS), 4))
    got = descend(
        start,
        *moments(indptr, rows, targets),
        steps=7,
        step_sizes=rates,
        regularization=decay,
    )
    for i in range(len(COUNTS)):
        x, t = rows[indptr[i] : indptr[i + 1]], targets[indptr[i] : indptr[i + 1]]
        w = start[i]
        for _ in range(7):
            w = w - rates[i] * (-(x.T @ (t - x @ w)) + decay[i] * w)
        np.testing.assert_allclose(got[i], w, atol=1e-12)


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_mini_batches_are_sequential_sgd(batch_size: int) -> None:
    indptr, rows, targets = problem(np.float64)
    ranks = shuffled_ranks(indptr, keys_for(3, len(COUNTS)), 0)
    rate, decay = np.full(4, 0.07), np.array([0.1, 0.1, 0.1, 0.0])
    start = np.zeros((len(COUNTS), 4))
    got = descend_in_mini_batches(
        start,
        rows,
        targets,
        indptr,
        ranks,
        batch_size=batch_size,
        learning_rate=rate,
        regularization=decay,
    )
    for i in range(len(COUNTS)):
        part = slice(indptr[i], indptr[i + 1])
        order = np.argsort(ranks[part])
        x, t = rows[part][order], targets[part][order]
        w = np.zeros(4)
        for first in range(0, len(t), batch_size):
            xb, tb = x[first : first + batch_size], t[first : first + batch_size]
            w = w - rate * (-(xb.T @ (tb - xb @ w)) / len(tb) + decay * w)
        np.testing.assert_allclose(got[i], w, atol=1e-12)
    assert not start.any()


def test_an_order_is_a_permutation_that_only_its_own_key_and_counters_decide() -> None:
    indptr = offsets_of(COUNTS)
    keys = keys_for(8, len(COUNTS))
    ranks = shuffled_ranks(indptr, keys, 2, 0)
    for i, count in enumerate(COUNTS):
        part = ranks[indptr[i] : indptr[i + 1]]
        assert sorted(part) == list(range(count))
        alone = shuffled_ranks(np.array([0, count]), keys[i : i + 1], 2, 0)
        assert (alone == part).all()
    assert (shuffled_ranks(indptr, keys, 2, 1) != ranks).any()
    assert (shuffled_ranks(indptr, keys, 0, 2) != ranks).any()


def test_an_order_is_uniform() -> None:
    # 6 orders of 3 rows, 6,000 draws: each is Binomial(6000, 1/6), standard deviation 29.
    ranks = shuffled_ranks(np.arange(6001) * 3, keys_for(4, 6000), 0).reshape(-1, 3)
    _, counts = np.unique(ranks, axis=0, return_counts=True)
    assert len(counts) == 6
    assert np.abs(counts - 1000).max() < 5 * 29
