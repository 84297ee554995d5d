"""Which ratings are kept: positive ones, users and items with enough of them, a sample of users."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError
from edge.core.rng import stream
from edge.data.store import RatingStore, as_items


def keep_positives(store: RatingStore, threshold: float) -> RatingStore:
    """Return the ratings of ``threshold`` or more, with the values they have.

    Users left without any are dropped, and the others numbered anew in the same order. All items stay in the
    catalogue.

    Raises
    ------
    DataError
        when no rating reaches the threshold.
    """
    kept = store.select(store.decoded() >= threshold)
    if kept.n_ratings == 0:
        highest = float(store.decoded().max()) if store.n_ratings else float("nan")
        raise DataError(
            f"no rating is {threshold:g} or more, the highest is {highest:g}; lower data.positive"
        )
    users = np.flatnonzero(kept.counts)
    return dataclasses.replace(
        kept,
        indptr=np.append(kept.indptr[users], kept.n_ratings),
        user_ids=None if kept.user_ids is None else kept.user_ids[users],
    )


def keep_core(store: RatingStore, *, min_user: int = 1, min_item: int = 1) -> RatingStore:
    """Return the largest part of the ratings in which every user and every item has enough of them (k-core).

    Users and items that have not are dropped by turns until nothing changes; those left are numbered anew in
    the same order.

    Raises
    ------
    DataError
        when nothing is left.
    """
    positions = np.arange(store.n_ratings)
    while True:
        per_user = np.diff(np.searchsorted(positions, store.indptr))
        items = store.items[positions]
        per_item = np.bincount(items, minlength=store.n_items)
        keep = np.repeat(per_user >= min_user, per_user) & (per_item >= min_item)[items]
        if keep.all():
            break
        positions = positions[keep]
    if positions.size == 0:
        raise DataError(
            f"no users with {min_user} and items with {min_item} ratings or more are left; "
            "lower data.min_user or data.min_item"
        )
    return _renumbered(store, positions)


def sample_users(store: RatingStore, n_users: int, *, seed: int) -> RatingStore:
    """Return the ratings of ``n_users`` users, drawn by the seed, and of the items that they rated.

    Those are numbered anew in the same order. All users are kept where there are no more.
    """
    if n_users >= store.n_users:
        return store
    drawn = np.zeros(store.n_users, dtype=np.bool_)
    drawn[stream(seed, "data", "sample-users").permutation(store.n_users)[:n_users]] = True
    return _renumbered(store, np.flatnonzero(np.repeat(drawn, store.counts)))


def _renumbered(store: RatingStore, positions: npt.NDArray[np.int64]) -> RatingStore:
    """Return the ratings at ascending positions, without users and items that have none."""
    per_user = np.diff(np.searchsorted(positions, store.indptr))
    users = np.flatnonzero(per_user)
    items = store.items[positions]
    rated = np.bincount(items, minlength=store.n_items) > 0
    place = np.cumsum(rated) - 1
    n_items = int(np.count_nonzero(rated))
    return dataclasses.replace(
        store,
        indptr=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(per_user[users])]),
        items=as_items(place[items], n_items),
        ratings=store.ratings[positions],
        n_items=n_items,
        timestamps=None if store.timestamps is None else store.timestamps[positions],
        user_ids=None if store.user_ids is None else store.user_ids[users],
        item_ids=None if store.item_ids is None else store.item_ids[rated],
    )
