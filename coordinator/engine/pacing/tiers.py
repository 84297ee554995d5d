"""Tiers of speed: a round draws its devices from one tier, so that nobody in it waits for a much slower one.

Source: Chai et al. 2020, "TiFL: A Tier-based Federated Learning System" (HPDC). Devices are put into tiers of
equal size by how long their last report took, as the coordinator saw it. A round belongs to one tier, drawn
with equal probability among those with credits left (section 4.3; algorithm 2 without its line 2); a round
costs its tier a credit. When no tier has any left, all are given theirs again: slow tiers are heard as often
as fast ones.

Where this differs: the paper profiles all devices before training and drops those that are too slow; here the
first ``profiling`` rounds draw from the whole fleet, and devices that have not been heard of form a tier of
their own, so that they can be. The paper also raises the probability of tiers whose test accuracy is low;
nobody here knows the accuracy of a tier during training.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.selection.experience import Experience
from coordinator.engine.selection.pool import Accept, Bools
from coordinator.scenario.rounds_section import Tiers
from edge.core.rng import stream

Ids = npt.NDArray[np.int64]

UNHEARD = -1
"""The tier of devices that have not reported yet."""


class SpeedTiers:
    """Tiers of devices, and the tier that a round draws from.

    Parameters
    ----------
    experience : what was seen of each device.
    seed : the run's seed.
    pacing : the section of the scenario.
    """

    def __init__(self, experience: Experience, seed: int, pacing: Tiers) -> None:
        self._seen = experience
        self._seed = seed
        self.most = pacing.tiers + 1
        """Tiers that there can be, with those of devices not heard of."""
        self._pacing = pacing
        self._sorted_after = 0
        self.tier = np.full(len(experience.invited), UNHEARD, np.int16)
        """The tier of each device, 0 the fastest, int16 [n]."""
        self.credits: dict[int, int] = {}
        """What is left to each tier."""

    def choices(self, round_number: int) -> Iterator[tuple[int | None, Accept | None]]:
        """Yield tiers in the order in which a round tries them, each with who belongs to it.

        While speeds are being found out that is everybody, tier None. The next tier is for when too few
        devices of the one before can be invited.
        """
        if round_number <= self._pacing.profiling:
            yield None, None
            return
        if self._sorted_after == 0 or round_number - self._sorted_after > self._pacing.every:
            self._sort()
            self._sorted_after = round_number - 1
        if not any(self.credits.values()):
            self.credits = dict.fromkeys(self.credits, self._pacing.credits)
        order = stream(self._seed, "pacing", "tiers", round_number).permutation(sorted(self.credits)).tolist()
        for tier in sorted(order, key=lambda tier: self.credits[tier] == 0):
            yield tier, functools.partial(self._belongs, tier)

    def spend(self, tier: int | None) -> None:
        """Take a credit from the tier that a round was drawn from."""
        if tier is not None:
            self.credits[tier] = max(self.credits[tier] - 1, 0)

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return the tiers and what is left to each, as arrays by name."""
        return {
            "tier": self.tier,
            "sorted_after": np.array(self._sorted_after),
            "credited": np.array(list(self.credits), dtype=np.int64),
            "credits": np.array(list(self.credits.values()), dtype=np.int64),
        }

    def recall(self, memory: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what :meth:`memory` returned."""
        self.tier[:] = memory["tier"]
        self._sorted_after = int(memory["sorted_after"])
        self.credits = dict(zip(memory["credited"].tolist(), memory["credits"].tolist(), strict=True))

    def _belongs(self, tier: int, ids: Ids) -> Bools:
        return np.asarray(self.tier[ids] == tier)

    def _sort(self) -> None:
        """Put every device that has reported into a tier; tiers differ by one device at most."""
        known = self._seen.known()
        order = np.lexsort((known, self._seen.duration_s[known]))
        self.tier[known[order]] = np.arange(len(known)) * (self.most - 1) // max(len(known), 1)
        named = np.unique(self.tier[known]).tolist()
        if len(known) < len(self.tier):
            named.append(UNHEARD)
        self.credits = {tier: self.credits.get(tier, self._pacing.credits) for tier in named}
