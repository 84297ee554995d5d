"""Ones for what users took to, zeros for items they drew."""

from __future__ import annotations

import numpy as np
import pytest

from edge.learning.sampled_negatives import ImplicitBatch, ZeroOne

N_ITEMS = 12
RULES = ZeroOne(each=2, n_items=N_ITEMS, kept_back=1)
POSITIVES = ImplicitBatch(
    indptr=np.array([0, 2, 2, 8]),
    items=np.array([3, 7, 0, 1, 2, 4, 6, 9], np.uint16),
    ratings=np.array([4, 5, 4, 4, 4, 5, 5, 4], np.float32),
    kept_indptr=np.array([0, 1, 2, 3]),
    kept_items=np.array([5, 0, 11], np.uint16),
    timestamps=np.array([20, 10, 1, 2, 3, 4, 5, 6]),
)
KEYS = np.array([11, 12, 13], np.uint64)


def test_ones_and_zeros_of_every_user() -> None:
    batch = RULES.batch(POSITIVES, KEYS)
    # Two zeros for each positive; the third has 12 - 6 - 1 items left to draw from.
    assert np.diff(batch.indptr).tolist() == [6, 0, 11]
    assert RULES.counts(np.array([2, 0, 6])).tolist() == [6, 0, 11]
    assert RULES.mean(np.array([2, 0, 6])) == 8 / 17
    assert batch.items.dtype == np.uint16
    assert batch.ratings.dtype == np.float32
    assert batch.timestamps is not None
    first = slice(0, 6)
    assert np.all(np.diff(batch.items[first].astype(int)) > 0)
    assert batch.items[first][batch.ratings[first] == 1].tolist() == [3, 7]
    assert 5 not in batch.items[first]
    assert batch.timestamps[first][batch.ratings[first] == 1].tolist() == [20, 10]
    assert np.all(batch.timestamps[first][batch.ratings[first] == 0] < 10)
    third = slice(6, 17)
    assert batch.items[third].tolist() == list(range(11))
    assert batch.ratings[third].tolist() == [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 0]


def test_a_user_draws_by_its_own_key_alone() -> None:
    def drawn(keys: list[int]) -> list[list[int]]:
        batch = RULES.batch(POSITIVES, np.array(keys, np.uint64))
        return [batch.items[start:end].tolist() for start, end in ((0, 6), (6, 17))]

    assert drawn([11, 12, 13])[0] == drawn([11, 99, 98])[0]
    assert len({tuple(drawn([key, 0, 0])[0]) for key in range(20)}) > 10


def test_no_ratings_have_no_mean() -> None:
    assert RULES.mean(np.array([0, 0])) == pytest.approx(float("nan"), nan_ok=True)
