"""Links of several kinds in one round: some follow a model, some a trace, others another trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.core.vocabulary import Direction
from edge.network.pace import Conditions

IntArray = npt.NDArray[np.int64]


class MixedConditions:
    """The conditions of several kinds of links, as one; implements ``Conditions``.

    Parameters
    ----------
    kind : int64[n], for each link which of ``parts`` it belongs to.
    parts : the conditions of each kind; the slots of a part are its links, in their order in ``kind``.
    """

    __slots__ = ("_kind", "_part_of", "_parts", "_slot_in", "_within")

    def __init__(self, kind: IntArray, parts: Sequence[Conditions]) -> None:
        within: IntArray = np.empty(kind.shape, np.int64)
        for code in range(len(parts)):
            rows = np.flatnonzero(kind == code)
            within[rows] = np.arange(rows.size)
        self._parts = tuple(parts)
        self._part_of: IntArray = kind
        self._slot_in: IntArray = within
        # A transfer asks about one slot at a time.
        self._kind: list[int] = kind.tolist()
        self._within: list[int] = within.tolist()

    def prepare(self, slots: IntArray, t_s: float) -> None:
        """Get ready for transfers of ``slots`` about ``t_s``."""
        for code, part in enumerate(self._parts):
            of_part = slots[self._part_of[slots] == code]
            if of_part.size:
                part.prepare(self._slot_in[of_part], t_s)

    def pace(self, slot: int, direction: Direction, t_s: float) -> tuple[float, float]:
        """Return the factor on the link's mean rate at ``t_s``, 0 if it is down, and until when it holds."""
        return self._parts[self._kind[slot]].pace(self._within[slot], direction, t_s)

    def carry_s(self, slot: int, direction: Direction, start_s: float, steady_s: float) -> float:
        """Return the seconds that a transfer takes which takes ``steady_s`` at the link's mean rate."""
        return self._parts[self._kind[slot]].carry_s(self._within[slot], direction, start_s, steady_s)

    def alone_time(
        self,
        slot: int,
        direction: Direction,
        payload_bytes: float,
        rate_bps: float,
        rtt_s: float,
        start_s: float,
    ) -> tuple[float, float]:
        """Return the seconds from the first to the last byte leaving, and the window afterwards."""
        part, within = self._parts[self._kind[slot]], self._within[slot]
        return part.alone_time(within, direction, payload_bytes, rate_bps, rtt_s, start_s)
