"""Users of like size as one rectangular array, so that they can be fitted together.

A user's row is padded to a length that is a function of its own number of ratings alone. Rows of one length
form a group, and every operation on a group works within a row: other rows cannot change a user's bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_BLOCK_ROWS = 8192


class PaddedUsers(NamedTuple):
    """Some users whose ratings are padded to the same length S.

    Attributes
    ----------
    users : int64 [u], their numbers in the batch.
    positions : int64 [u, S], where in the batch each rating lies; padding repeats the user's first rating.
    present : bool [u, S], false for padding.
    """

    users: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]


def padded_sizes(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the length that each count is padded to, int64 [n]: at most a quarter more.

    Lengths go up in steps of an eighth of the next power of two, four of them to an octave: … 16, 20, 24, 28,
    32, 40, 48 …; up to 8 every length has its own group.
    """
    octave = np.frexp(np.maximum(counts - 1, 0))[1].astype(np.int64)
    step = np.left_shift(1, np.maximum(octave - 3, 0))
    return -(-counts // step) * step


def groups(indptr: npt.NDArray[np.int64]) -> Iterator[PaddedUsers]:
    """Yield users with ratings in groups of one padded length, of about 8,192 ratings each.

    ``indptr`` int64 [n + 1]. Users without ratings are in no group.
    """
    counts = np.diff(indptr)
    sizes = padded_sizes(counts)
    for size in np.unique(sizes[counts > 0]).tolist():
        alike = np.flatnonzero(sizes == size)
        together = max(_BLOCK_ROWS // size, 1)
        for first in range(0, len(alike), together):
            users = alike[first : first + together]
            places = np.arange(size)
            present = places < counts[users, None]
            positions = indptr[users, None] + np.where(present, places, 0)
            yield PaddedUsers(users, positions, present)
