"""Splitting ratings into what is trained on, what decides and what is scored.

All parts of a split cover the same users and items; a user without ratings in a part has an empty row there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edge.core.rng import stream
from edge.data.store import RatingStore, as_items, hash_arrays

PUBLISHED_NEGATIVES = 99
"""Of each user, beside the held-out item: the split published with Neural Collaborative Filtering."""

_CHUNK_USERS = 65_536
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Split:
    """The parts of a dataset.

    Attributes
    ----------
    kind : ``none``, ``ratio``, ``user-temporal``, ``temporal``, ``leave-one-out``, ``users`` or
        ``published-leave-one-out``.
    train : ratings that devices train on. Users that are not in ``seen_users`` have none here.
    validation : ratings for choosing rounds and settings, or None.
    test : ratings for the final score, or None.
    support : ratings from which the users that never train are reconstructed, or None when all users train
        (then a user is reconstructed from ``train``).
    seen_users : int64[], users that train, ascending.
    unseen_users : int64[], users that never train and are scored on ``test``.
    validation_users : int64[], users that never train and are scored on ``validation``; empty unless ``kind``
        is ``users``.
    newcomers : int64[], users without a training rating that neither train nor are scored, whatever of theirs
        lies in the other parts; empty unless ``kind`` is ``temporal``.
    """

    kind: str
    train: RatingStore
    validation: RatingStore | None
    test: RatingStore | None
    support: RatingStore | None
    seen_users: npt.NDArray[np.int64]
    unseen_users: npt.NDArray[np.int64]
    validation_users: npt.NDArray[np.int64]
    newcomers: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def parts(self) -> list[RatingStore]:
        """The parts that there are; each rating of the dataset is in exactly one of them."""
        found = (self.train, self.validation, self.test, self.support)
        return [store for store in found if store is not None]

    @cached_property
    def held_out(self) -> RatingStore | None:
        """The ratings of validation and test together, without times or labels; None if there are none."""
        stores = [store for store in (self.validation, self.test) if store is not None]
        if len(stores) < 2:
            return stores[0] if stores else None
        owners = np.concatenate([store.owners() for store in stores])
        items = np.concatenate([store.items for store in stores])
        order = np.lexsort((items, owners))
        indptr = np.zeros(self.train.n_users + 1, dtype=np.int64)
        np.cumsum(np.sum([store.counts for store in stores], axis=0), out=indptr[1:])
        ratings = np.concatenate([store.decoded() for store in stores])[order]
        return RatingStore(
            indptr, as_items(items[order].astype(np.int64), self.train.n_items), ratings, self.train.n_items
        )

    @cached_property
    def hash(self) -> str:
        """32 hexadecimal digits that stand for the contents of all parts, for a run's manifest."""
        parts: list[tuple[str, npt.NDArray[np.generic] | None]] = [
            ("kind", np.array([self.kind])),
            ("seen", self.seen_users),
            ("unseen", self.unseen_users),
            ("validation_users", self.validation_users),
        ]
        if self.newcomers.size:
            parts.append(("newcomers", self.newcomers))
        for name in ("train", "validation", "test", "support"):
            store: RatingStore | None = getattr(self, name)
            parts.append((name, None if store is None else np.array([store.content_hash()])))
        return hash_arrays(parts)


def split_none(store: RatingStore) -> Split:
    """Train on everything and score nothing."""
    return _all_seen("none", store, None, None, store)


def split_ratio(store: RatingStore, *, test: float, validation: float = 0.0, seed: int) -> Split:
    """Hold back a random share of every user's ratings.

    A user with n ratings gives round(n · test) (halves up) to the test and round(n · validation) to the
    validation part, but always keeps one to train on: the validation part gives way first.

    Parameters
    ----------
    test, validation : fractions from 0 up; their sum is below 1. A part whose fraction is 0 is None.
    seed : the run's seed.

    Raises
    ------
    ValueError
        for fractions outside those limits.
    """
    return _shares("ratio", store, test, validation, seed)


def split_user_temporal(store: RatingStore, *, test: float, validation: float = 0.0, seed: int) -> Split:
    """Hold back the latest share of every user's ratings.

    The latest round(n · test) (halves up) of a user with n ratings go to the test, the round(n · validation)
    before them to the validation part; one always stays to train on, and the validation part gives way first.
    Equal times are in a random and seeded order, a time of 0 is the earliest, as in
    :func:`split_leave_one_out`.

    Parameters
    ----------
    test, validation : fractions from 0 up; their sum is below 1. A part whose fraction is 0 is None.
    seed : the run's seed.

    Raises
    ------
    ValueError
        for fractions outside those limits, or ratings without times.
    """
    _check_times(store)
    return _shares("user-temporal", store, test, validation, seed)


def split_temporal(store: RatingStore, *, test: float, validation: float = 0.0) -> Split:
    """Hold back what was rated last by anybody: the test begins at one moment for all users.

    That is the time of the rating which the latest round(N · test) of all N ratings (halves up) begin with,
    the validation part's that of the round(N · (test + validation)) latest. Equal times stay together, in the
    later part, so a part may be larger than its share. Users whose first rating comes after the training part
    are ``newcomers``: nothing of theirs trains, and they are not scored.

    Parameters
    ----------
    test, validation : fractions of all ratings from 0 up; their sum is below 1. A part whose fraction is 0 is
        None.

    Raises
    ------
    ValueError
        for fractions outside those limits, ratings without times, or when nothing is left to train on.
    """
    _check_times(store)
    _check_fractions(test, validation)
    times = store.timestamps
    assert times is not None
    from_test, from_validation = (_moment(times, share) for share in (test, test + validation))
    in_test = times >= from_test if from_test is not None else _empty_flags(store)
    kept_back = times >= from_validation if from_validation is not None else in_test
    train = store.select(~kept_back)
    if store.n_ratings and not train.n_ratings:
        raise ValueError("all ratings that would train have the same time as the first kept back")
    nobody = np.empty(0, dtype=np.int64)
    return Split(
        kind="temporal",
        train=train,
        validation=store.select(kept_back & ~in_test) if validation > 0 else None,
        test=store.select(in_test) if test > 0 else None,
        support=None,
        seen_users=np.flatnonzero(train.counts > 0),
        unseen_users=nobody,
        validation_users=nobody,
        newcomers=np.flatnonzero(train.counts == 0),
    )


def split_leave_one_out(store: RatingStore, *, seed: int, validation: bool = True) -> Split:
    """Hold back every user's last rating for the test and the one before for validation.

    Last by time; a time of 0, the usual mark of an unknown one, is the earliest. Equal times, and all where
    there are none, are in a random and seeded order: users rate many items within a second, and any rule
    would choose some items over others for the test. One rating always stays to train on: a user with two
    gives only a test rating, a user with one gives none.
    """
    counts = store.counts
    in_test, in_validation = _empty_flags(store), _empty_flags(store)
    for first, last, part in _chunks(store):
        if store.timestamps is None:
            rank = _random_ranks(store, first, last, seed, "leave-one-out")
        else:
            rank = _time_ranks(store, first, last, seed)
        own = np.repeat(counts[first:last], counts[first:last])
        in_test[part] = (rank == own - 1) & (own >= 2)
        in_validation[part] = (rank == own - 2) & (own >= 3) & validation
    return _all_seen(
        "leave-one-out",
        store.select(~(in_test | in_validation)),
        store.select(in_validation) if validation else None,
        store.select(in_test),
        store,
    )


def split_users(
    store: RatingStore,
    *,
    unseen: float,
    validation: float = 0.0,
    seed: int,
    test: float = 0.0,
) -> Split:
    """Keep a share of the users out of training altogether.

    round(n · unseen) users (halves up, an exact seeded draw) are scored on ``test`` and round(n · validation)
    others on ``validation``; neither ever trains. Half of such a user's ratings, the larger half of an odd
    number, goes to ``support``, drawn at random; the other half is scored.

    Parameters
    ----------
    unseen, validation : fractions of the users; their sum is below 1.
    test : fraction of the ratings of the users that do train to score as well, as in :func:`split_ratio`, so
        that seen and unseen users can be compared. It goes to ``test``.
    seed : the run's seed. The users drawn do not depend on ``test``.

    Raises
    ------
    ValueError
        for fractions outside those limits, or when no user is left to train.
    """
    _check_fractions(unseen, validation)
    _check_fractions(test, 0.0)
    n_unseen, n_validation = (
        int(np.floor(store.n_users * fraction + 0.5)) for fraction in (unseen, validation)
    )
    if n_unseen + n_validation >= store.n_users:
        raise ValueError(
            f"{n_unseen} unseen and {n_validation} validation users leave none of {store.n_users} to train"
        )
    drawn = stream(seed, "split", "users").permutation(store.n_users).astype(np.int64)
    role = np.zeros(store.n_users, dtype=np.int8)
    role[drawn[:n_unseen]] = 1
    role[drawn[n_unseen : n_unseen + n_validation]] = 2
    n_test, _ = _sizes(store.counts, test, 0.0)
    in_train, in_support, in_validation, in_test = (_empty_flags(store) for _ in range(4))
    for first, last, part in _chunks(store):
        counts = store.counts[first:last]
        rank = _random_ranks(store, first, last, seed, "users")
        own_role = np.repeat(role[first:last], counts)
        scored = rank < np.repeat(counts // 2, counts)
        held_back = rank < np.repeat(n_test[first:last], counts)
        in_train[part] = (own_role == 0) & ~held_back
        in_support[part] = (own_role != 0) & ~scored
        in_validation[part] = (own_role == 2) & scored
        in_test[part] = ((own_role == 1) & scored) | ((own_role == 0) & held_back)
    return Split(
        kind="users",
        train=store.select(in_train),
        validation=store.select(in_validation) if n_validation else None,
        test=store.select(in_test),
        support=store.select(in_support),
        seen_users=np.flatnonzero(role == 0),
        unseen_users=np.flatnonzero(role == 1),
        validation_users=np.flatnonzero(role == 2),
    )


def limit_per_user(store: RatingStore, max_ratings: int, *, seed: int) -> RatingStore:
    """Return a store where a user with more than ``max_ratings`` keeps that many, drawn at random (seeded).

    Raises
    ------
    ValueError
        when ``max_ratings`` is below 1.
    """
    if max_ratings < 1:
        raise ValueError(f"max_ratings must be at least 1, not {max_ratings}")
    if store.n_users == 0 or int(store.counts.max()) <= max_ratings:
        return store
    keep = _empty_flags(store)
    for first, last, part in _chunks(store):
        keep[part] = _random_ranks(store, first, last, seed, "limit") < max_ratings
    return store.select(keep)


def _all_seen(
    kind: str,
    train: RatingStore,
    validation: RatingStore | None,
    test: RatingStore | None,
    source: RatingStore,
) -> Split:
    nobody = np.empty(0, dtype=np.int64)
    everybody = np.arange(source.n_users, dtype=np.int64)
    return Split(kind, train, validation, test, None, everybody, nobody, nobody)


def _shares(kind: str, store: RatingStore, test: float, validation: float, seed: int) -> Split:
    """Return a split by shares of every user's ratings, the latest ones for ``user-temporal``."""
    _check_fractions(test, validation)
    n_test, n_validation = _sizes(store.counts, test, validation)
    in_test, in_validation = _empty_flags(store), _empty_flags(store)
    for first, last, part in _chunks(store):
        counts = store.counts[first:last]
        if kind == "user-temporal":
            rank = np.repeat(counts, counts) - 1 - _time_ranks(store, first, last, seed)
        else:
            rank = _random_ranks(store, first, last, seed, "ratio")
        test_end = np.repeat(n_test[first:last], counts)
        in_test[part] = rank < test_end
        in_validation[part] = (rank >= test_end) & (
            rank < test_end + np.repeat(n_validation[first:last], counts)
        )
    return _all_seen(
        kind,
        store.select(~(in_test | in_validation)),
        store.select(in_validation) if validation > 0 else None,
        store.select(in_test) if test > 0 else None,
        store,
    )


def _moment(times: npt.NDArray[np.int64], share: float) -> int | None:
    """Return the time of the earliest of the latest ``share`` of ratings; None where that is none."""
    latest = int(np.floor(times.size * share + 0.5))
    return int(np.partition(times, times.size - latest)[times.size - latest]) if latest else None


def _check_times(store: RatingStore) -> None:
    if store.timestamps is None:
        raise ValueError("a split by time needs ratings with times")


def _check_fractions(test: float, validation: float) -> None:
    for fraction in (test, validation):
        if not 0.0 <= fraction < 1.0:
            raise ValueError(f"a split takes fractions from 0 up to, not including, 1; got {fraction}")
    if test + validation >= 1.0:
        raise ValueError(f"the fractions {test} and {validation} leave nothing to train on")


def _sizes(
    counts: npt.NDArray[np.int64], test: float, validation: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    spare = np.maximum(counts - 1, 0)
    n_test = np.minimum(np.floor(counts * test + 0.5).astype(np.int64), spare)
    n_validation = np.minimum(np.floor(counts * validation + 0.5).astype(np.int64), spare - n_test)
    return n_test, n_validation


def _empty_flags(store: RatingStore) -> _Flags:
    return np.zeros(store.n_ratings, dtype=np.bool_)


def _chunks(store: RatingStore) -> Iterator[tuple[int, int, slice]]:
    """Yield runs of whole users ``(first, last, positions)``; a fixed size, since draws depend on it."""
    for first in range(0, store.n_users, _CHUNK_USERS):
        last = min(first + _CHUNK_USERS, store.n_users)
        yield first, last, slice(int(store.indptr[first]), int(store.indptr[last]))


def _random_ranks(
    store: RatingStore, first: int, last: int, seed: int, purpose: str
) -> npt.NDArray[np.int64]:
    """Return every rating's place, 0 … n − 1, in a random order of its user's n ratings."""
    size = int(store.indptr[last] - store.indptr[first])
    keys = stream(seed, "split", purpose, first).random(size)
    return _ranks(store, first, last, keys)


def _time_ranks(store: RatingStore, first: int, last: int, seed: int) -> npt.NDArray[np.int64]:
    """Return every rating's place in its user's history, equal times in a random order."""
    assert store.timestamps is not None
    times = store.timestamps[store.indptr[first] : store.indptr[last]]
    return _ranks(store, first, last, times, stream(seed, "split", "equal-times", first).random(times.size))


def _ranks(
    store: RatingStore, first: int, last: int, *keys: npt.NDArray[np.float64] | npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return every rating's place in its user's by the first key, and by each other where those are equal."""
    counts = store.counts[first:last]
    owners = np.repeat(np.arange(last - first), counts)
    order = np.lexsort((*reversed(keys), owners))
    ranks = np.empty(len(owners), dtype=np.int64)
    starts = store.indptr[first:last] - store.indptr[first]
    ranks[order] = np.arange(len(owners)) - np.repeat(starts, counts)
    return ranks
