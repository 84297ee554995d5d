"""Sampling items that a user never rated, to rank a held-out item against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits, stream_key
from edge.metrics.ranking import ItemLists

_CELLS_PER_CHUNK = 1 << 22
_RATED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


def sample_negatives(
    users: npt.NDArray[np.int64], rated: ItemLists, n_items: int, n_negatives: int, *, seed: int
) -> npt.NDArray[np.int64]:
    """Return ``n_negatives`` distinct items a user, uniform over those not rated: int64[n, n_negatives].

    Every (user, item) has a hashed number of its own and the smallest win; a user's negatives therefore
    depend on the seed and on what the user rated, never on who else is in the batch. They come in ascending
    order.

    Parameters
    ----------
    users : int64[n], user indices.
    rated : the items that each of the n users rated, in any part of the split.
    n_items : size of the catalogue.
    n_negatives : at least 1.
    seed : the run's seed.

    Raises
    ------
    ValueError
        naming the first user with fewer unrated items than asked for.
    """
    if n_negatives < 1:
        raise ValueError(f"n_negatives must be at least 1, not {n_negatives}")
    counts = np.diff(rated.indptr)
    if counts.shape != users.shape:
        raise ValueError(f"item lists of {counts.size} users for {users.size} users")
    short = counts > n_items - n_negatives
    if short.any():
        position = int(np.argmax(short))
        raise ValueError(
            f"user {users[position]} has {n_items - counts[position]} unrated items, fewer than the"
            f" {n_negatives} negatives asked for; ask for fewer or rank fully"
        )
    key = stream_key(seed, "evaluation", "negatives")
    items = np.arange(n_items, dtype=np.int64)
    result = np.empty((users.size, n_negatives), dtype=np.int64)
    rows = max(1, _CELLS_PER_CHUNK // n_items)
    for first in range(0, users.size, rows):
        last = min(first + rows, users.size)
        numbers = hashed_bits(key, users[first:last, None], items[None, :])
        owners = np.repeat(np.arange(last - first), counts[first:last])
        numbers[owners, rated.items[rated.indptr[first] : rated.indptr[last]].astype(np.int64)] = _RATED
        smallest = np.argpartition(numbers, n_negatives - 1, axis=1)[:, :n_negatives]
        result[first:last] = np.sort(smallest, axis=1)
    return result
