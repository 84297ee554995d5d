"""From columns of users, items and ratings, as a file holds them, to a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.data.store import Labels, RatingStore, as_items

LARGEST_RATING = 1e9
"""Ratings beyond it, up or down, are refused: sums of their squares would leave float32."""
_CODED_STEPS = (1.0, 0.5, 0.25)
_MAX_CODE = 255


@dataclass(frozen=True, slots=True)
class RatingsFile:
    """What a reader made of a file.

    Attributes
    ----------
    store : the ratings; users and items are indexed in ascending order of their original ids (numerically
        when every id is a whole number, otherwise by code point).
    path : the file read.
    format : name of the format, as accepted by ``read_ratings``.
    rows : ratings in the file.
    duplicates : rows dropped because the same user rated the same item again; the latest by time is kept, the
        last in the file when times are equal or absent.
    """

    store: RatingStore
    path: Path
    format: str
    rows: int
    duplicates: int


def build_store(
    user_labels: Labels,
    item_labels: Labels,
    ratings: npt.NDArray[np.float64],
    timestamps: npt.NDArray[np.int64] | None,
) -> tuple[RatingStore, int]:
    """Return a store of the rows and the number of duplicates dropped.

    Parameters
    ----------
    user_labels, item_labels : int64[N] or text [N], original ids, one per rating; at least one rating.
    ratings : float64[N], up to ``LARGEST_RATING``. Whole, half and quarter stars are stored as one byte each.
    timestamps : int64[N] seconds, or None.
    """
    user_ids, users = _index(user_labels)
    item_ids, items = _index(item_labels)
    n_items = item_ids.size
    keys = users * n_items + items
    order = np.argsort(keys, kind="stable")
    repeated = np.zeros(order.size, dtype=np.bool_)
    np.equal(keys[order[1:]], keys[order[:-1]], out=repeated[1:])
    duplicates = int(np.count_nonzero(repeated))
    if duplicates:
        if timestamps is not None:
            order = np.lexsort((timestamps, keys))
        # The last row of every run of equal keys survives.
        order = order[np.append(keys[order[1:]] != keys[order[:-1]], True)]
    indptr = np.zeros(user_ids.size + 1, dtype=np.int64)
    np.cumsum(np.bincount(users[order], minlength=user_ids.size), out=indptr[1:])
    values, scale, offset = compact_ratings(ratings[order])
    store = RatingStore(
        indptr=indptr,
        items=as_items(items[order], n_items),
        ratings=values,
        n_items=n_items,
        scale=scale,
        offset=offset,
        timestamps=None if timestamps is None else timestamps[order],
        user_ids=user_ids,
        item_ids=item_ids,
    )
    return store, duplicates


def compact_ratings(
    ratings: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.uint8] | npt.NDArray[np.float32], float, float]:
    """Return ``(stored, scale, offset)``: uint8 codes when whole, half or quarter steps fit, else float32.

    The codes are exact: ``offset + scale * code`` is the rating. The offset is 0 unless a rating is negative.
    """
    offset = min(0.0, float(np.floor(ratings.min())))
    highest = float(ratings.max())
    for step in _CODED_STEPS:
        if (highest - offset) / step > _MAX_CODE:
            break
        codes = (ratings - offset) / step
        if np.array_equal(codes, np.rint(codes)):
            return codes.astype(np.uint8), step, offset
    return ratings.astype(np.float32), 1.0, 0.0


def _index(labels: Labels) -> tuple[Labels, npt.NDArray[np.int64]]:
    """Return the distinct labels, ascending, and the index of every row's label."""
    if labels.dtype.kind == "U":
        texts, positions = np.unique(labels.astype(np.str_, copy=False), return_inverse=True)
        return texts, positions.astype(np.int64)
    numbers = labels.astype(np.int64, copy=False)
    lowest, highest = int(numbers.min()), int(numbers.max())
    if highest - lowest < 4 * numbers.size + 1024:
        # Ids are dense enough for a table; several times quicker than sorting.
        present = np.zeros(highest - lowest + 1, dtype=np.bool_)
        present[numbers - lowest] = True
        place = np.cumsum(present) - 1
        return np.flatnonzero(present) + lowest, place[numbers - lowest]
    distinct, inverse = np.unique(numbers, return_inverse=True)
    return distinct, inverse.astype(np.int64)
