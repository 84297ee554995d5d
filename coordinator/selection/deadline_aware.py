"""Deadline-aware: nobody is invited who is not going to make it.

A device is left out when a round is expected to take it longer than the deadline. Where it has reported
before, late or in time, the coordinator expects the time that its last report took. Where it has not, it
expects what the figures of its profile say for links and processor at their mean: what a device would tell of
itself when it registers. Neither knows of dropouts, noise, congestion or outages. Nishio and Yonetani 2019,
"Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge" (FedCS), ask devices
for such figures and fill a round with as many as fit; here every device that fits is as likely as any other.
"""

from __future__ import annotations

import numpy as np

from coordinator.selection.base import Ids, Knowledge
from coordinator.selection.pool import Bools, Pool
from edge.rng import stream


class DeadlineAware:
    """Draws, of the devices that are expected to make it, each with the same probability.

    Parameters
    ----------
    margin : how much of the deadline a device may be expected to need, as a multiple.
    """

    def __init__(self, knowledge: Knowledge, pool: Pool, margin: float) -> None:
        self._knowledge = knowledge
        self._pool = pool
        self._limit_s = margin * knowledge.deadline_s

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices; see :class:`~coordinator.selection.base.Policy`."""
        generator = stream(self._knowledge.seed, "selection", round_number, attempt)
        return self._pool.sample(wanted, generator, now_s, self._fits)

    def _fits(self, ids: Ids) -> Bools:
        expected_s = self._knowledge.seen.duration_s[ids].astype(np.float64)
        unknown = np.flatnonzero(np.isnan(expected_s))
        expected_s[unknown] = self._knowledge.predicted_s(ids[unknown])
        return expected_s <= self._limit_s
