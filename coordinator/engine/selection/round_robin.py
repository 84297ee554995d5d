"""In turn: who was invited least often comes first, ties in an order that the seed decides.

Invitations are counted, not reports: a device that never answers would else be asked in every round.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from coordinator.engine.selection.base import AvailableSettings, Ids, Knowledge, Policy
from coordinator.engine.selection.pool import Pool
from edge.core.rng import hashed_bits, stream_key


class RoundRobinSettings(AvailableSettings):
    """In turn: who was invited least often comes first."""

    learns = True

    policy: Literal["round-robin"]


class RoundRobin(Policy):
    """Draws the devices with the fewest invitations.

    Those of the lowest count are kept in a queue; only when there are too few of them is the whole fleet put
    into its order.
    """

    Settings = RoundRobinSettings

    def __init__(self, knowledge: Knowledge, pool: Pool, settings: RoundRobinSettings) -> None:
        super().__init__(knowledge, pool, settings)
        self._invited = knowledge.seen.invited
        key = stream_key(knowledge.seed, "selection", "turn")
        self._order = np.argsort(hashed_bits(key, np.arange(pool.n)), kind="stable")
        self._level = 0
        self._queue: Ids = self._order

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices; see :class:`~coordinator.engine.selection.base.Policy`."""
        self._skip_those_invited()
        found = self.pool.first(self._queue, wanted, now_s)
        missing = wanted - len(found)
        if not missing:
            return found
        counts = self._invited[self._order]
        later = self._order[np.argsort(counts, kind="stable")][np.count_nonzero(counts <= self._level) :]
        return np.concatenate((found, self.pool.first(later, missing, now_s)))

    def _skip_those_invited(self) -> None:
        self._queue = self._queue[self._invited[self._queue] == self._level]
        while not len(self._queue):
            self._level += 1
            self._queue = self._of(self._level)

    def _of(self, level: int) -> Ids:
        of_level: Ids = self._order[self._invited[self._order] == level]
        return of_level
