"""Who is invited: devices drawn without repetition, at a cost that does not grow with the fleet."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from coordinator.fleet import Fleet
from edge.rng import stream

Ids = npt.NDArray[np.int64]
Policy = Literal["random", "availability-aware"]


class Selector:
    """Draws the devices of each round.

    Parameters
    ----------
    fleet : the devices; busy ones are never drawn.
    seed : the run's seed; round ``r`` draws from the stream ``"selection", r``.
    policy : ``random`` draws any device, ``availability-aware`` only those available at the time.
    """

    def __init__(self, fleet: Fleet, seed: int, policy: Policy) -> None:
        self._fleet = fleet
        self._seed = seed
        self._policy = policy

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices, int64 [n], in the order drawn; fewer when there are no more.

        ``attempt`` counts the draws for this round, from 0.
        """
        generator = stream(self._seed, "selection", round_number, attempt)
        n = self._fleet.n
        if 2 * wanted >= n:
            return self._scan(generator.permutation(n), wanted, now_s)
        size = wanted + wanted // 4 + 16
        while 2 * size < n:
            found = self._eligible(generator.choice(n, size, replace=False), now_s)
            if len(found) >= wanted:
                return found[:wanted]
            # Few are available: draw anew, in proportion.
            size = max(2 * size, size * wanted * 5 // (4 * max(len(found), 1)))
        return self._scan(generator.permutation(n), wanted, now_s)

    def _scan(self, order: Ids, wanted: int, now_s: float) -> Ids:
        return self._eligible(order, now_s)[:wanted]

    def _eligible(self, ids: Ids, now_s: float) -> Ids:
        ids = ids[~self._fleet.busy[ids]]
        if self._policy == "availability-aware":
            ids = ids[self._fleet.availability.available(ids, now_s)]
        return ids

    def next_chance_s(self, now_s: float, round_number: int) -> float:
        """Return when some sampled device is first available from ``now_s`` on, or ``inf``."""
        fleet = self._fleet
        generator = stream(self._seed, "selection", "next-chance", round_number)
        sample = generator.integers(0, fleet.n, min(fleet.n, 4096)) if fleet.n > 4096 else np.arange(fleet.n)
        idle = sample[~fleet.busy[sample]]
        if not len(idle):
            return np.inf
        return float(fleet.availability.next_available(idle, now_s).min())
