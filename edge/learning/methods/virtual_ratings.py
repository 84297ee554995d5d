"""Unrated items that a device treats as rated, so that its upload does not name the rated ones alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits
from edge.learning.base import RatingBatch, Ratings

Ints = npt.NDArray[np.int64]
_ITEM_SALT = 0x7669_7274_7500_0001
_RATED = np.uint64(2**64 - 1)


def virtual_counts(rated: Ints, share: float, n_items: int) -> Ints:
    """Return how many virtual ratings users with so many ratings add, int64 [n]: ρ for each, rounded down.

    No more than there are unrated items.
    """
    return np.asarray(np.minimum(np.floor(share * rated).astype(np.int64), n_items - rated))


def virtual_items(
    batch: RatingBatch, keys: npt.NDArray[np.uint64], share: float, n_items: int
) -> tuple[Ints, npt.NDArray[Any]]:
    """Draw unrated items for every user, each as likely as any other.

    Parameters
    ----------
    batch : the ratings.
    keys : uint64 [n]; a user's draw depends on its key and its rated items alone.
    share : ρ, virtual ratings for each rating.
    n_items : size of the catalogue.

    Returns
    -------
    Offsets int64 [n + 1], and the items, ascending within a user, of the dtype of the batch's.
    """
    counts = np.diff(batch.indptr)
    wanted = virtual_counts(counts, share, n_items)
    offsets = np.concatenate([[0], np.cumsum(wanted)]).astype(np.int64)
    drawn = np.empty(int(offsets[-1]), batch.items.dtype)
    catalogue = np.arange(n_items)
    salted = hashed_bits(_ITEM_SALT, keys)
    for user, number in enumerate(wanted.tolist()):
        if number:
            # A random order of the catalogue with the rated items last; its beginning is a fair draw.
            order = hashed_bits(salted[user : user + 1], catalogue)
            order[batch.items[batch.indptr[user] : batch.indptr[user + 1]]] = _RATED
            chosen = np.argpartition(order, number - 1)[:number]
            drawn[offsets[user] : offsets[user + 1]] = np.sort(chosen)
    return offsets, drawn


def with_virtual(batch: RatingBatch, offsets: Ints, items: npt.NDArray[Any], values: Any) -> Ratings:
    """Return a batch with virtual ratings among the others, items ascending within a user.

    ``offsets`` and ``items`` are from :func:`virtual_items`; ``values`` [V] are the ratings of these items.
    """
    users = np.arange(len(batch.indptr) - 1)
    owners = np.concatenate([np.repeat(users, np.diff(batch.indptr)), np.repeat(users, np.diff(offsets))])
    every = np.concatenate([batch.items, items])
    order = np.lexsort((every, owners))
    ratings = np.concatenate([batch.ratings, np.asarray(values, batch.ratings.dtype)])
    return Ratings(batch.indptr + offsets, every[order], ratings[order])


def user_means(batch: RatingBatch) -> npt.NDArray[np.float64]:
    """Return the mean rating of every user, float64 [n]; 0 without ratings."""
    counts = np.diff(batch.indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.asarray(np.bincount(owners, batch.ratings, len(counts)) / np.maximum(counts, 1))
