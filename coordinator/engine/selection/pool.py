"""The devices that can be invited at a moment, looked through at a cost that does not grow with the fleet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coordinator.engine.fleet import Fleet
from edge.core.rng import stream

Ids = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Accept = Callable[[Ids], Bools]
"""Says of some devices, int64 [n], which may be drawn, bool [n]."""


class Pool:
    """The devices of a fleet that are free, and perhaps only those that are available.

    Parameters
    ----------
    fleet : the devices; busy and suspended ones are never drawn.
    seed : the run's seed.
    available_only : leave out devices that are not available at the moment.
    """

    def __init__(self, fleet: Fleet, seed: int, *, available_only: bool) -> None:
        self.n = fleet.n
        self._fleet = fleet
        self._seed = seed
        self._available_only = available_only
        self.restriction: Accept | None = None
        """Which devices may be drawn for now; None: any."""

    def eligible(self, ids: Ids, now_s: float, accept: Accept | None = None) -> Ids:
        """Return those of ``ids`` that may be invited now, in their order."""
        ids = ids[~(self._fleet.busy[ids] | self._fleet.suspended[ids])]
        if self._fleet.joined is not None:
            ids = ids[self._fleet.joined[ids]]
        if self.restriction is not None:
            ids = ids[self.restriction(ids)]
        if accept is not None:
            ids = ids[accept(ids)]
        if self._available_only and self._fleet.joined is None:
            ids = ids[self._fleet.availability.available(ids, now_s)]
        return ids

    def sample(
        self, wanted: int, generator: np.random.Generator, now_s: float, accept: Accept | None = None
    ) -> Ids:
        """Return up to ``wanted`` eligible devices, each as likely as any other, int64 [n], in random order.

        There are fewer only when the whole fleet has no more.
        """
        n = self.n
        if wanted <= 0:
            return np.zeros(0, np.int64)
        if 2 * wanted >= n:
            return self.eligible(generator.permutation(n), now_s, accept)[:wanted]
        size = wanted + wanted // 4 + 16
        while 2 * size < n:
            found = self.eligible(generator.choice(n, size, replace=False), now_s, accept)
            if len(found) >= wanted:
                return found[:wanted]
            # Few are eligible: draw anew, in proportion.
            size = max(2 * size, size * wanted * 5 // (4 * max(len(found), 1)))
        return self.eligible(generator.permutation(n), now_s, accept)[:wanted]

    def first(self, order: Ids, wanted: int, now_s: float) -> Ids:
        """Return the first ``wanted`` eligible devices of ``order`` (int64 [n]), looking no further."""
        found: list[Ids] = []
        missing, start, size = wanted, 0, wanted + wanted // 4 + 16
        while missing > 0 and start < len(order):
            part = self.eligible(order[start : start + size], now_s)[:missing]
            found.append(part)
            missing -= len(part)
            start += size
            size *= 2
        return np.concatenate(found) if found else order[:0]

    def next_chance_s(self, now_s: float, round_number: int) -> float:
        """Return when some sampled device is first available from ``now_s`` on, or ``inf``."""
        fleet = self._fleet
        if fleet.joined is not None:
            return now_s  # nobody knows when a real device joins
        generator = stream(self._seed, "selection", "next-chance", round_number)
        sample = generator.integers(0, fleet.n, min(fleet.n, 4096)) if fleet.n > 4096 else np.arange(fleet.n)
        idle = sample[~(fleet.busy[sample] | fleet.suspended[sample])]
        if not len(idle):
            return np.inf
        # One look at the present costs a hundredth of a search through the days to come.
        if fleet.availability.available(idle, now_s).any():
            return now_s
        return float(fleet.availability.next_available(idle, now_s).min())


def sample_by_weight(
    ids: Ids, weights: npt.NDArray[np.float64], wanted: int, generator: np.random.Generator
) -> Ids:
    """Return up to ``wanted`` of ``ids``, drawn one after the other in proportion to ``weights`` (positive).

    Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir": the largest log(u)/w.
    """
    if wanted <= 0:
        return ids[:0]
    keys = np.log(1.0 - generator.random(len(ids))) / weights
    return ids[np.argsort(-keys, kind="stable")[:wanted]]
