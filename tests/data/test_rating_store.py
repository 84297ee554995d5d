from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.core.errors import DataError
from edge.data.build import Columns, build_store, compact_ratings
from edge.data.store import RatingStore, hash_arrays
from edge.data.synthetic import SyntheticRatings, generate_ratings


def _store(**changes: Any) -> RatingStore:
    fields: dict[str, Any] = {
        "indptr": np.array([0, 2, 2, 5], dtype=np.int64),
        "items": np.array([1, 3, 0, 2, 3], dtype=np.uint16),
        "ratings": np.array([2, 10, 1, 7, 9], dtype=np.uint8),
        "n_items": 4,
        "scale": 0.5,
    }
    return RatingStore(**(fields | changes))


def test_local_decodes_and_items_are_a_view() -> None:
    store = _store()
    items, ratings = store.local(2)
    assert items.tolist() == [0, 2, 3]
    assert np.shares_memory(items, store.items)
    assert ratings.dtype == np.float32
    assert ratings.tolist() == [0.5, 3.5, 4.5]
    assert store.local(1)[0].size == 0


def test_counts_mean_and_item_counts() -> None:
    store = _store(offset=-1.0)
    assert (store.n_users, store.n_ratings) == (3, 5)
    assert store.counts.tolist() == [2, 0, 3]
    assert store.mean() == pytest.approx(np.mean([0.0, 4.0, -0.5, 2.5, 3.5]))
    assert store.decoded().tolist() == [0.0, 4.0, -0.5, 2.5, 3.5]
    assert store.item_counts().tolist() == [1, 1, 1, 2]
    assert store.owners().tolist() == [0, 0, 2, 2, 2]


def test_gather_takes_users_in_any_order_with_repeats_and_empty_ones() -> None:
    batch = _store().gather(np.array([2, 1, 0, 2]))
    assert batch.indptr.tolist() == [0, 3, 3, 5, 8]
    assert batch.items.tolist() == [0, 2, 3, 1, 3, 0, 2, 3]
    assert batch.ratings.tolist() == [0.5, 3.5, 4.5, 1.0, 5.0, 0.5, 3.5, 4.5]
    assert batch.ratings.dtype == np.float32
    assert batch.counts.tolist() == [3, 0, 2, 3]


def test_gather_of_nobody_is_empty() -> None:
    batch = _store().gather(np.array([], dtype=np.int64))
    assert batch.n_users == 0
    assert batch.items.size == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 39), max_size=60))
def test_gather_equals_local_of_each_user(seed: int, users: list[int]) -> None:
    store = generate_ratings(SyntheticRatings(users=40, items=60, ratings_per_user=9), seed=seed)
    batch = store.gather(np.array(users, dtype=np.int64))
    for place, user in enumerate(users):
        items, ratings = store.local(user)
        span = slice(batch.indptr[place], batch.indptr[place + 1])
        assert np.array_equal(batch.items[span], items)
        assert np.array_equal(batch.ratings[span], ratings)


@pytest.mark.parametrize("user", [-1, 3])
def test_users_outside_the_store_are_refused(user: int) -> None:
    with pytest.raises(IndexError, match="outside"):
        _store().local(user)
    with pytest.raises(IndexError, match="outside"):
        _store().gather(np.array([0, user]))


def test_arrays_are_read_only_but_the_callers_stay_writable() -> None:
    mine = np.array([2, 10, 1, 7, 9], dtype=np.uint8)
    store = _store(ratings=mine)
    with pytest.raises(ValueError, match="read-only"):
        store.ratings[0] = 1
    mine[0] = 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indptr": np.array([0, 2, 5], dtype=np.int32)}, "indptr must be int64"),
        ({"indptr": np.array([0, 3, 2, 5], dtype=np.int64)}, "never fall"),
        ({"indptr": np.array([0, 2, 2, 4], dtype=np.int64)}, "ends at 4"),
        ({"items": np.array([1, 3, 0, 2, 3], dtype=np.int32)}, "uint16"),
        ({"ratings": np.zeros(5)}, "float32"),
        ({"ratings": np.zeros(5, dtype=np.float32)}, "stand for themselves"),
        ({"scale": float("nan")}, "scale"),
        ({"timestamps": np.zeros(4, dtype=np.int64)}, "timestamps"),
        ({"item_ids": np.arange(3)}, "item_ids must have 4"),
        ({"n_items": -1}, "n_items"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        _store(**changes)


def test_validate_names_the_user_with_items_out_of_order() -> None:
    with pytest.raises(DataError, match="user 2: items must be distinct and ascending"):
        _store(items=np.array([1, 3, 0, 2, 2], dtype=np.uint16)).validate()
    with pytest.raises(DataError, match="outside 0"):
        _store(items=np.array([1, 3, 0, 2, 4], dtype=np.uint16)).validate()
    with pytest.raises(DataError, match="finite"):
        _store(ratings=np.full(5, np.nan, dtype=np.float32), scale=1.0).validate()
    # The first item of a user may well be below the last of the user before.
    _store().validate()


def test_select_keeps_users_and_labels() -> None:
    store = _store(timestamps=np.arange(5), user_ids=np.array([7, 8, 9]))
    kept = store.select(np.array([False, True, False, False, True]))
    assert kept.indptr.tolist() == [0, 1, 1, 2]
    assert kept.items.tolist() == [3, 3]
    assert kept.decoded().tolist() == [5.0, 4.5]
    assert kept.timestamps is not None
    assert kept.timestamps.tolist() == [1, 4]
    assert kept.user_ids is not None
    with pytest.raises(ValueError, match=r"bool\[5\]"):
        store.select(np.array([True]))


def test_content_hash_is_stable_and_sees_every_field() -> None:
    base = _store().content_hash()
    assert base == _store().content_hash()
    others = [
        _store(ratings=np.array([2, 10, 1, 7, 8], dtype=np.uint8)),
        _store(items=np.array([1, 3, 0, 1, 3], dtype=np.uint16)),
        _store(indptr=np.array([0, 2, 3, 5], dtype=np.int64)),
        _store(n_items=5),
        _store(scale=1.0),
        _store(timestamps=np.zeros(5, dtype=np.int64)),
        _store(user_ids=np.array(["a", "b", "c"])),
    ]
    assert len({base, *(other.content_hash() for other in others)}) == len(others) + 1


def test_hash_does_not_depend_on_layout_or_text_width() -> None:
    array = np.arange(10, dtype=np.int64)
    assert hash_arrays([("a", array)]) == hash_arrays([("a", np.repeat(array, 2)[::2])])
    assert hash_arrays([("a", array)]) == hash_arrays([("a", array.astype(">i8"))])
    text = np.array(["a", "bc"])
    assert hash_arrays([("a", text)]) == hash_arrays([("a", text.astype("<U9"))])


def test_hash_of_an_array_larger_than_a_leaf_sees_its_last_byte() -> None:
    array = np.zeros((16 << 20) + 5, dtype=np.uint8)
    before = hash_arrays([("a", array)])
    array[-1] = 1
    assert hash_arrays([("a", array)]) != before


def _columns(users: list[int], items: list[int], ratings: list[float], times: list[int] | None) -> Columns:
    user_ids, user_codes = np.unique(users, return_inverse=True)
    item_ids, item_codes = np.unique(items, return_inverse=True)
    return Columns(
        user_ids,
        item_ids,
        user_codes.astype(np.int32),
        item_codes.astype(np.int32),
        np.array(ratings, dtype=np.float32),
        None if times is None else np.array(times, dtype=np.int64),
    )


def test_build_sorts_by_id_and_keeps_the_latest_duplicate() -> None:
    columns = _columns(
        [9, 5, 9, 9, 5], [30, 10, 20, 30, 10], [1.0, 2.0, 3.0, 4.0, 5.0], [200, 100, 100, 100, 100]
    )
    store, duplicates = build_store(columns)
    assert duplicates == 2
    assert store.user_ids is not None
    assert store.user_ids.tolist() == [5, 9]
    # User 5 rated item 10 twice at the same time: the last row counts. User 9's later rating came first.
    assert store.decoded().tolist() == [5.0, 3.0, 1.0]
    assert store.items.tolist() == [0, 1, 2]


def test_duplicates_can_be_an_error_that_names_the_rows() -> None:
    columns = _columns([9, 5, 9], [30, 10, 30], [1.0, 2.0, 3.0], None)
    with pytest.raises(DataError, match=r"r\.csv: rows 1 and 3 are both of user 9 and item 30"):
        build_store(columns, "error", "r.csv")


_ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 10), st.integers(0, 3)), min_size=1
)


@settings(max_examples=100)
@given(_ROWS, st.sampled_from(["last", "first", "mean"]), st.booleans(), st.sampled_from([2, 1 << 16]))
@example([(0, 1, 1, 3), (0, 1, 2, 1), (0, 2, 3, 0), (1, 0, 4, 2)], "last", True, 2)  # in order already
@example([(0, 1, 1, 3), (0, 2, 2, 1), (0, 0, 3, 0), (0, 3, 4, 2)], "last", True, 2)  # but between two chunks
def test_build_equals_a_dictionary(
    rows: list[tuple[int, int, int, int]], rule: str, timed: bool, chunk: int
) -> None:
    users, items, ratings, times = (list(column) for column in zip(*rows, strict=True))
    columns = _columns(users, items, [float(rating) for rating in ratings], times if timed else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edge.data.build._CHUNK_ROWS", chunk)
        store, duplicates = build_store(columns, rule)
    store.validate()
    by_pair: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
    for row, (user, item, rating, time) in enumerate(rows):
        by_pair.setdefault((user, item), []).append((time if timed else 0, row, float(rating)))
    expected = []
    for pair in sorted(by_pair):
        found = sorted(by_pair[pair])
        rating = {
            "last": found[-1][2],
            "first": found[0][2],
            "mean": sum(one[2] for one in found) / len(found),
        }[rule]
        expected.append((*pair, rating, found[0 if rule == "first" else -1][0]))
    assert duplicates == len(rows) - len(by_pair)
    assert store.user_ids is not None
    assert store.item_ids is not None
    assert [
        (store.user_ids[user], store.item_ids[item])
        for user, item in zip(store.owners(), store.items, strict=True)
    ] == [row[:2] for row in expected]
    assert store.decoded() == pytest.approx([row[2] for row in expected], rel=1e-6)
    assert (store.timestamps is not None) == timed
    if store.timestamps is not None:
        assert store.timestamps.tolist() == [row[3] for row in expected]


@pytest.mark.parametrize(
    ("values", "dtype", "scale", "offset"),
    [
        ([1.0, 5.0], np.uint8, 1.0, 0.0),
        ([0.5, 4.0], np.uint8, 0.5, 0.0),
        ([0.25, 4.0], np.uint8, 0.25, 0.0),
        ([-9.75, 10.0], np.uint8, 0.25, -10.0),
        ([1.1, 2.0], np.float32, 1.0, 0.0),
        ([1.0, 256.0], np.float32, 1.0, 0.0),
        ([0.5, 200.0], np.float32, 1.0, 0.0),
    ],
)
def test_ratings_on_a_grid_become_bytes_exactly(
    values: list[float], dtype: type[np.generic], scale: float, offset: float
) -> None:
    stored, got_scale, got_offset = compact_ratings(np.array(values, np.float32))
    assert stored.dtype == dtype
    assert (got_scale, got_offset) == (scale, offset)
    assert np.allclose(got_offset + got_scale * stored.astype(np.float64), values, atol=1e-7, rtol=0)


def test_a_catalogue_of_65536_items_needs_int32() -> None:
    store, _ = build_store(_columns([0] * 65_536, list(range(65_536)), [1.0] * 65_536, None))
    assert store.items.dtype == np.int32
    store.validate()
