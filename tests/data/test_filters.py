"""Which ratings are kept: positives and what is kept back of them, cores, samples of users."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.errors import DataError
from edge.data.filters import keep_core, keep_positives, sample_users
from edge.data.published import read_published_ml_1m
from edge.data.split import split_leave_one_out, split_none, split_ratio
from edge.data.store import RatingStore
from edge.data.synthetic import SyntheticRatings, generate_ratings

STORE = RatingStore(
    indptr=np.array([0, 3, 4, 4, 6]),
    items=np.array([0, 2, 5, 1, 0, 4], np.uint16),
    ratings=np.array([8, 3, 9, 7, 8, 2], np.uint8),
    n_items=6,
    scale=0.5,
    timestamps=np.arange(6),
    user_ids=np.array(["a", "b", "c", "d"]),
)


def test_low_ratings_go_and_users_left_without_any() -> None:
    kept = keep_positives(STORE, 4.0)
    kept.validate()
    assert kept.indptr.tolist() == [0, 2, 3]
    assert kept.items.tolist() == [0, 5, 0]
    assert kept.decoded().tolist() == [4.0, 4.5, 4.0]
    assert kept.timestamps is not None
    assert kept.timestamps.tolist() == [0, 2, 4]
    assert kept.user_ids is not None
    assert kept.user_ids.tolist() == ["a", "d"]
    assert kept.n_items == 6
    assert keep_positives(dataclasses.replace(STORE, user_ids=None), 0.5).counts.tolist() == [3, 1, 2]


def test_a_threshold_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"no rating is 4\.6 or more, the highest is 4\.5; lower data\.positive"
    ):
        keep_positives(STORE, 4.6)


def test_what_is_held_out_is_validation_and_test_together() -> None:
    store = generate_ratings(SyntheticRatings(users=30, items=80, ratings_per_user=9), seed=2)
    split = split_leave_one_out(store, seed=1)
    held_out = split.held_out
    assert held_out is not None
    held_out.validate()
    for user in range(30):
        items, ratings = held_out.local(user)
        rated, known = store.local(user)
        assert set(items.tolist()) == set(rated.tolist()) - set(split.train.local(user)[0].tolist())
        assert ratings.tolist() == known[np.isin(rated, items)].tolist()
    assert split_none(store).held_out is None
    alone = split_ratio(store, test=0.3, seed=1)
    assert alone.held_out is alone.test


@pytest.mark.slow
def test_validation_of_the_published_split_is_the_last_of_what_trained() -> None:
    folder = os.environ.get("RECFLEET_DATA")
    if folder is None:
        pytest.skip("set RECFLEET_DATA to a folder that holds ml-1m")
    whole = read_published_ml_1m(Path(folder, "ml-1m")).split
    split = read_published_ml_1m(Path(folder, "ml-1m"), validation=True).split
    assert split.validation is not None
    assert split.validation.counts.tolist() == [1] * 6_040
    assert split.train.n_ratings == 1_000_209 - 2 * 6_040
    assert whole.validation is None
    assert whole.test is not None
    assert split.test is not None
    assert split.test.content_hash() == whole.test.content_hash()
    assert split.train.timestamps is not None
    assert split.validation.timestamps is not None
    last = np.maximum.reduceat(split.train.timestamps, split.train.indptr[:-1])
    assert (split.validation.timestamps >= last).all()


def _pairs(store: RatingStore) -> list[tuple[object, object, float, int]]:
    store.validate()
    assert store.user_ids is not None
    assert store.item_ids is not None
    assert store.timestamps is not None
    users, items = store.user_ids.tolist(), store.item_ids.tolist()
    return [
        (users[user], items[item], rating, time)
        for user, item, rating, time in zip(
            store.owners().tolist(),
            store.items.tolist(),
            store.decoded().tolist(),
            store.timestamps.tolist(),
            strict=True,
        )
    ]


def _store(pairs: set[tuple[int, int]]) -> RatingStore:
    rows = sorted(pairs)
    counts = np.bincount([user for user, _ in rows], minlength=8)
    return RatingStore(
        indptr=np.append(0, np.cumsum(counts)),
        items=np.array([item for _, item in rows], np.uint16),
        ratings=np.arange(len(rows)).astype(np.uint8),
        n_items=9,
        timestamps=np.arange(len(rows)),
        user_ids=np.arange(8) + 100,
        item_ids=np.array([f"i{item}" for item in range(9)]),
    )


@settings(max_examples=200)
@given(
    st.sets(st.tuples(st.integers(0, 7), st.integers(0, 8)), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_a_core_is_what_remains_when_nothing_has_too_few(
    pairs: set[tuple[int, int]], min_user: int, min_item: int
) -> None:
    store = _store(pairs)
    left = _pairs(store)
    while True:
        users = [user for user, *_ in left]
        items = [item for _, item, *_ in left]
        kept = [row for row in left if users.count(row[0]) >= min_user and items.count(row[1]) >= min_item]
        if len(kept) == len(left):
            break
        left = kept
    if not left:
        with pytest.raises(DataError, match=r"lower data\.min_user or data\.min_item"):
            keep_core(store, min_user=min_user, min_item=min_item)
        return
    core = keep_core(store, min_user=min_user, min_item=min_item)
    assert _pairs(core) == left
    assert core.counts.min() >= min_user
    assert core.item_counts().min() >= min_item


def test_a_sample_of_users_follows_from_the_seed() -> None:
    store = _store({(user, item) for user in range(8) for item in range(user % 3, 9, 3)})
    sample = sample_users(store, 3, seed=5)
    assert sample.n_users == 3
    assert set(_pairs(sample)) <= set(_pairs(store))
    drawn = {row[0] for row in _pairs(sample)}
    assert [row for row in _pairs(store) if row[0] in drawn] == _pairs(sample)
    assert sample.item_counts().min() >= 1
    assert sample.content_hash() == sample_users(store, 3, seed=5).content_hash()
    assert (
        len({frozenset(row[0] for row in _pairs(sample_users(store, 3, seed=seed))) for seed in range(20)})
        > 5
    )
    assert sample_users(store, 8, seed=5) is store
