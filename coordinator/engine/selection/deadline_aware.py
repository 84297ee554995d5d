"""Deadline-aware: nobody is invited who is not going to make it.

A device is left out when a round is expected to take it longer than the deadline. Where it has reported
before, late or in time, the coordinator expects the time that its last report took. Where it has not, it
expects what the figures of its profile say for links and processor at their mean: what a device would tell of
itself when it registers. Neither includes dropouts, noise, congestion or outages. Nishio and Yonetani 2019,
"Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge" (FedCS), ask devices
for such figures and fill a round with as many as fit; here every device that fits is as likely as any other.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from coordinator.engine.selection.base import AvailableSettings, Ids, Policy
from coordinator.engine.selection.pool import Bools
from device_profiles.fields import Ratio


class DeadlineAwareSettings(AvailableSettings):
    """Any device that is expected to make the deadline."""

    learns = True
    by_reports = True
    by_examples = True

    policy: Literal["deadline-aware"]
    margin: Ratio = Field(
        default=1.0, description="how much of the deadline a device may be expected to need"
    )


class DeadlineAware(Policy):
    """Draws, of the devices that are expected to make it, each with the same probability."""

    Settings = DeadlineAwareSettings

    def draw(self, wanted: int, round_number: int, attempt: int, now_s: float) -> Ids:
        """Return up to ``wanted`` devices; see :class:`~coordinator.engine.selection.base.Policy`."""
        limit_s: float = self.settings.margin * self.knowledge.deadline_s(round_number, now_s)
        generator = self.generator(round_number, attempt)
        return self.pool.sample(wanted, generator, now_s, lambda ids: self._fits(ids, limit_s))

    def _fits(self, ids: Ids, limit_s: float) -> Bools:
        expected_s = self.knowledge.seen.duration_s[ids].astype(np.float64)
        unknown = np.flatnonzero(np.isnan(expected_s))
        expected_s[unknown] = self.knowledge.predicted_s(ids[unknown])
        return np.asarray(expected_s <= limit_s)
