"""The rows that devices keep between rounds, with memory for those that have taken part alone."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

_CHUNK_BYTES: Final = 1 << 24
"""Rows are allocated so many bytes at a time, one row at least."""


class KeptRows:
    """A row of each user, zeros until it is set for the first time.

    Rows may be whole item tables: a user without one costs four bytes at most.

    Parameters
    ----------
    users : how many there are.
    width : numbers of a row.
    """

    def __init__(self, users: int, width: int) -> None:
        self.width = width
        self._places = np.zeros(users, np.int32)
        """Where each user's row is, counted from 1; 0 for one that has none."""
        self._held = 0
        self._per_chunk = max(_CHUNK_BYTES // (4 * width), 1)
        self._chunks: list[Rows] = []

    @property
    def held(self) -> int:
        """How many users have a row."""
        return self._held

    def copy(self) -> KeptRows:
        """Return the same rows, which go on by themselves."""
        made = KeptRows(len(self._places), self.width)
        made._places, made._held = self._places.copy(), self._held
        made._chunks = [chunk.copy() for chunk in self._chunks]
        return made

    def of(self, users: Ids) -> Rows:
        """Return a copy of the rows of ``users`` (int64 [n]), float32 [n, width]."""
        found = np.zeros((len(users), self.width), np.float32)
        places = self._places[users].astype(np.int64) - 1
        chunks = places // self._per_chunk
        for chunk in np.unique(chunks[places >= 0]).tolist():
            those = np.flatnonzero(chunks == chunk)
            found[those] = self._chunks[chunk][places[those] - chunk * self._per_chunk]
        return found

    def put(self, users: Ids, rows: Rows) -> None:
        """Set the rows of ``users`` (int64 [n], none twice) to ``rows`` [n, width]."""
        new = users[self._places[users] == 0]
        self._places[new] = np.arange(self._held + 1, self._held + 1 + len(new))
        self._held += len(new)
        while len(self._chunks) * self._per_chunk < self._held:
            self._chunks.append(np.zeros((self._per_chunk, self.width), np.float32))
        for place, row in zip((self._places[users] - 1).tolist(), rows, strict=True):
            chunk, within = divmod(place, self._per_chunk)
            self._chunks[chunk][within] = row
