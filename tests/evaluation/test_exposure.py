"""The exposure of an item: ER@k of a case made by hand, and which item is meant."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from coordinator.engine.exposure import Exposure, item_called
from edge.data.store import RatingStore


def lists(*items: list[int]) -> RatingStore:
    indptr = np.cumsum([0, *map(len, items)])
    flat = np.array([item for one in items for item in one], np.uint16)
    return RatingStore(indptr, flat, np.ones(flat.size, np.float32), 5)


def test_exposure_by_hand() -> None:
    # Item 2 is first for user 0 and third for user 1; second for user 2, whose own item 4 is left out; and
    # third for user 3, tied with item 1; user 4 has it, and user 5 has it kept back for validation.
    scores = np.array([
        [1, 2, 9, 3, 4],
        [7, 8, 6, 5, 4],
        [1, 7, 5, 0, 9],
        [9, 5, 5, 0, 0],
        [0, 0, 9, 0, 0],
        [0, 0, 9, 0, 0],
    ], np.float32)  # fmt: skip
    trained = lists([0], [4], [4], [3], [2], [0])
    masked = lists([0], [4], [4], [3], [2], [0, 2])
    exposure = Exposure(2, (1, 2, 3))
    hits, users = exposure.counts(scores, trained, masked)
    assert (hits.tolist(), users) == ([1.0, 2.0, 4.0], 4)
    assert exposure.ratios(hits, users) == {"er@1": 0.25, "er@2": 0.5, "er@3": 1.0}


def test_exposure_without_lists_is_no_number() -> None:
    exposure = Exposure(2, (1,))
    hits, users = exposure.counts(np.full((1, 5), np.nan), lists([0]), lists([0]))
    assert users == 1
    assert math.isnan(exposure.ratios(hits, users)["er@1"])
    assert math.isnan(exposure.ratios(np.zeros(1), 0)["er@1"])


def test_items_by_name() -> None:
    store = lists([0, 1], [0])
    assert [item_called(name, store, 1) for name in ("0", "4", "5", "-1", "x")] == [0, 4, None, None, None]
    named = dataclasses.replace(store, item_ids=np.array([10, 20, 30, 40, 50]))
    assert [item_called(name, named, 1) for name in ("20", "1")] == [1, None]


def test_a_cold_item_is_among_the_tenth_with_the_fewest_ratings() -> None:
    # Item i of 1 … 40 has i ratings, item 0 none.
    users = [list(range(max(41 - n, 1), 41)) for n in range(1, 41)]
    indptr = np.cumsum([0, *map(len, users)])
    flat = np.concatenate(users).astype(np.uint16)
    store = RatingStore(indptr, flat, np.ones(flat.size, np.float32), 41)
    counts = store.item_counts()
    found = {item_called("cold", store, seed) for seed in range(60)}
    assert found == {1, 2, 3, 4}
    assert sorted(counts.tolist()) == list(range(41))
    assert item_called("cold", store, 5) == item_called("cold", store, 5)
    assert item_called("cold", lists([], []), 1) is None


@pytest.mark.parametrize("k", [1, 5, 9])
def test_lists_as_long_as_the_catalogue_have_every_item(k: int) -> None:
    scores = np.random.default_rng(3).normal(size=(30, 5))
    none = lists(*[[] for _ in range(30)])
    hits, users = Exposure(1, (k,)).counts(scores, none, none)
    assert users == 30
    assert bool(hits[0] == 30) is (k >= 5)
