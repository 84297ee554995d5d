from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.data.split import (
    Split,
    limit_per_user,
    split_leave_one_out,
    split_none,
    split_ratio,
    split_temporal,
    split_user_temporal,
    split_users,
)
from edge.data.store import RatingStore
from edge.data.synthetic import SyntheticRatings, generate_ratings


def _store(users: int = 60, seed: int = 3) -> RatingStore:
    return generate_ratings(SyntheticRatings(users=users, items=90, ratings_per_user=12), seed=seed)


def _timed_store(seed: int, spread: int = 10_000) -> RatingStore:
    """Ratings at random whole times below ``spread``."""
    store = _store()
    times = np.random.default_rng(seed).integers(1, spread, store.n_ratings)
    return replace(store, timestamps=times)


def _handmade(times: list[int] | None) -> RatingStore:
    """Users with 4, 2, 1 and 0 ratings."""
    return RatingStore(
        indptr=np.array([0, 4, 6, 7, 7], dtype=np.int64),
        items=np.array([0, 1, 2, 3, 1, 4, 2], dtype=np.uint16),
        ratings=np.array([1, 2, 3, 4, 5, 1, 2], dtype=np.uint8),
        n_items=5,
        timestamps=None if times is None else np.array(times, dtype=np.int64),
    )


def _keys(store: RatingStore | None) -> npt.NDArray[np.int64]:
    if store is None:
        return np.empty(0, dtype=np.int64)
    store.validate()
    return store.owners() * store.n_items + store.items


def _assert_partition(split: Split, store: RatingStore) -> None:
    parts = [_keys(part) for part in (split.train, split.validation, split.test, split.support)]
    assert np.array_equal(np.sort(np.concatenate(parts)), _keys(store))
    everyone = np.concatenate([split.seen_users, split.unseen_users, split.validation_users, split.newcomers])
    assert np.array_equal(np.sort(everyone), np.arange(store.n_users))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**40), st.floats(0, 0.6), st.floats(0, 0.39))
def test_every_split_is_a_partition(seed: int, test: float, validation: float) -> None:
    store = _store()
    _assert_partition(split_ratio(store, test=test, validation=validation, seed=seed), store)
    _assert_partition(split_users(store, unseen=test, validation=validation, seed=seed, test=test), store)
    _assert_partition(split_leave_one_out(store, seed=seed), store)
    timed = _timed_store(seed)
    _assert_partition(split_user_temporal(timed, test=test, validation=validation, seed=seed), timed)
    _assert_partition(split_temporal(timed, test=test, validation=validation), timed)
    _assert_partition(split_none(store), store)


def test_ratio_gives_each_user_its_share_and_keeps_one_to_train() -> None:
    store = _store()
    split = split_ratio(store, test=0.25, validation=0.1, seed=5)
    assert split.test is not None
    assert split.validation is not None
    counts = store.counts
    assert np.array_equal(split.test.counts, np.floor(counts * 0.25 + 0.5))
    assert np.array_equal(split.validation.counts, np.floor(counts * 0.1 + 0.5))
    tight = split_ratio(_handmade(None), test=0.6, validation=0.39, seed=5)
    assert tight.train.counts.tolist() == [1, 1, 1, 0]
    assert tight.test is not None
    assert tight.test.counts.tolist() == [2, 1, 0, 0]


def test_parts_of_nothing_are_none() -> None:
    split = split_ratio(_store(), test=0.2, seed=5)
    assert split.validation is None
    assert split.support is None
    assert split_ratio(_store(), test=0.0, seed=5).test is None


@pytest.mark.parametrize(
    ("test", "validation"), [(1.0, 0.0), (-0.1, 0.0), (0.5, 0.5), (float("nan"), 0.0), (0.1, -0.2)]
)
def test_impossible_fractions_are_refused(test: float, validation: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        split_ratio(_store(), test=test, validation=validation, seed=1)
    with pytest.raises(ValueError, match="fraction"):
        split_users(_store(), unseen=test, validation=validation, seed=1)


def test_leave_one_out_by_time() -> None:
    split = split_leave_one_out(_handmade([5, 8, 0, 9, 8, 7, 1]), seed=1)
    assert split.test is not None
    assert split.validation is not None
    assert _keys(split.test).tolist() == [0 * 5 + 3, 1 * 5 + 1]
    assert _keys(split.validation).tolist() == [0 * 5 + 1]
    assert _keys(split.train).tolist() == [0, 2, 9, 12]
    without = split_leave_one_out(_handmade([5, 8, 0, 9, 8, 7, 1]), seed=1, validation=False)
    assert without.validation is None
    assert _keys(without.train).tolist() == [0, 1, 2, 9, 12]


def test_equal_times_are_in_no_order_of_the_items() -> None:
    """User 0 rated items 1 and 3 last, at the same time: each is held out half of the time."""
    held_out = [split_leave_one_out(_handmade([5, 9, 0, 9, 8, 7, 1]), seed=seed).test for seed in range(400)]
    first = [int(part.items[0]) for part in held_out if part is not None]
    assert set(first) == {1, 3}
    assert abs(first.count(3) - 200) < 60  # six standard deviations
    again = split_leave_one_out(_handmade([5, 9, 0, 9, 8, 7, 1]), seed=7).test
    assert again is not None
    assert int(again.items[0]) == first[7]


@pytest.mark.parametrize("spread", [5, 10_000])
def test_user_temporal_keeps_back_each_users_latest(spread: int) -> None:
    store = _timed_store(1, spread)
    split = split_user_temporal(store, test=0.25, validation=0.1, seed=5)
    at_random = split_ratio(store, test=0.25, validation=0.1, seed=5)
    for part, other in ((split.test, at_random.test), (split.validation, at_random.validation)):
        assert part is not None
        assert other is not None
        assert np.array_equal(part.counts, other.counts)
    for user in range(store.n_users):
        trained, decided, scored = (
            part.timestamps[part.indptr[user] : part.indptr[user + 1]]
            for part in (split.train, split.validation, split.test)
            if part is not None and part.timestamps is not None
        )
        assert trained.max() <= decided.min(initial=spread)
        assert max(trained.max(), decided.max(initial=0)) <= scored.min()


def test_equal_times_of_a_user_are_in_a_seeded_order() -> None:
    store = replace(_store(), timestamps=np.ones(_store().n_ratings, dtype=np.int64))
    first, again, other = (split_user_temporal(store, test=0.2, seed=seed) for seed in (1, 1, 2))
    assert first.hash == again.hash != other.hash


def test_temporal_cuts_all_users_at_the_same_moments() -> None:
    store = _timed_store(2)
    split = split_temporal(store, test=0.1, validation=0.2)
    times = store.timestamps
    assert times is not None
    latest = np.sort(times)[::-1]
    from_test = latest[round(0.1 * times.size) - 1]
    from_validation = latest[round(0.3 * times.size) - 1]
    keys = _keys(store)
    assert _keys(split.test).tolist() == keys[times >= from_test].tolist()
    assert _keys(split.train).tolist() == keys[times < from_validation].tolist()
    assert split.newcomers.size == 0
    without = split_temporal(store, test=0.3)
    assert without.validation is None
    assert _keys(without.train).tolist() == _keys(split.train).tolist()


def test_temporal_keeps_equal_times_together_and_counts_newcomers() -> None:
    store = _handmade([1, 2, 3, 7, 3, 7, 7])
    split = split_temporal(store, test=0.2)
    # One of seven ratings was asked for; three have its time.
    assert _keys(split.test).tolist() == [0 * 5 + 3, 1 * 5 + 4, 2 * 5 + 2]
    assert split.seen_users.tolist() == [0, 1]
    assert split.newcomers.tolist() == [2, 3]
    assert split.hash != replace(split, newcomers=np.array([3])).hash
    with pytest.raises(ValueError, match="have the same time"):
        split_temporal(_handmade([4] * 7), test=0.2)


def test_splits_by_time_need_times() -> None:
    with pytest.raises(ValueError, match="needs ratings with times"):
        split_temporal(_store(), test=0.1)
    with pytest.raises(ValueError, match="needs ratings with times"):
        split_user_temporal(_store(), test=0.1, seed=1)


def test_leave_one_out_without_times_is_random_but_seeded() -> None:
    store = _store()
    first, again, other = (split_leave_one_out(store, seed=seed) for seed in (1, 1, 2))
    assert first.hash == again.hash != other.hash
    assert first.test is not None
    assert first.test.counts.tolist() == [1] * store.n_users
    last_items = store.items[store.indptr[1:] - 1]
    assert not np.array_equal(first.test.items, last_items)


def test_unseen_users_have_a_support_half_and_a_scored_half_and_never_train() -> None:
    store = _store(users=101)
    split = split_users(store, unseen=0.2, validation=0.1, seed=4)
    assert (split.unseen_users.size, split.validation_users.size) == (20, 10)
    assert split.support is not None
    assert split.test is not None
    assert split.validation is not None
    train, support, test, validation = (
        part.counts for part in (split.train, split.support, split.test, split.validation)
    )
    for users, scored in ((split.unseen_users, test), (split.validation_users, validation)):
        assert not train[users].any()
        assert np.array_equal(scored[users], store.counts[users] // 2)
        assert np.array_equal(support[users], store.counts[users] - store.counts[users] // 2)
    assert np.array_equal(train[split.seen_users], store.counts[split.seen_users])
    assert not support[split.seen_users].any()


def test_scoring_seen_users_too_does_not_move_the_unseen_ones() -> None:
    store = _store()
    plain = split_users(store, unseen=0.25, seed=4)
    both = split_users(store, unseen=0.25, seed=4, test=0.2)
    assert np.array_equal(plain.unseen_users, both.unseen_users)
    assert plain.support is not None
    assert both.support is not None
    assert plain.support.content_hash() == both.support.content_hash()
    assert plain.test is not None
    assert both.test is not None
    assert both.test.counts[both.seen_users].all()
    assert not plain.test.counts[plain.seen_users].any()


def test_someone_must_be_left_to_train() -> None:
    with pytest.raises(ValueError, match="leave none of 4 to train"):
        split_users(_handmade(None), unseen=0.9, seed=1)


def test_limit_per_user_keeps_a_random_subset() -> None:
    store = _store()
    limited = limit_per_user(store, 8, seed=1)
    assert np.array_equal(limited.counts, np.minimum(store.counts, 8))
    assert np.isin(_keys(limited), _keys(store)).all()
    assert limit_per_user(store, 8, seed=2).content_hash() != limited.content_hash()
    assert limit_per_user(store, int(store.counts.max()), seed=1) is store
    with pytest.raises(ValueError, match="at least 1"):
        limit_per_user(store, 0, seed=1)


def test_the_random_part_is_uniform() -> None:
    store = _store(users=2000)
    split = split_ratio(store, test=0.5, seed=9)
    assert split.test is not None
    first = np.isin(_keys(store)[store.indptr[:-1]], _keys(split.test))
    expected = (split.test.counts / store.counts).mean()
    # Six standard deviations of the binomial.
    assert abs(first.mean() - expected) < 6 * np.sqrt(0.25 / 2000)


def test_hash_is_the_same_in_another_process() -> None:
    program = (
        "from edge.data.synthetic import SyntheticRatings, generate_ratings\n"
        "from edge.data.split import split_ratio\n"
        "spec = SyntheticRatings(users=60, items=90, ratings_per_user=12)\n"
        "print(split_ratio(generate_ratings(spec, seed=3), test=0.2, seed=7).hash)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "99", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == split_ratio(_store(), test=0.2, seed=7).hash
