"""Devices whose memory others use."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from coordinator.faults.base import FaultKind, Strike
from device_profiles.fields import PositiveFraction
from edge.vocabulary import Reason, Stage


class MemoryPressure(FaultKind):
    """Other programs leave the task less memory; a device on which it does not fit fails."""

    stages: ClassVar[frozenset[Stage]] = frozenset()
    elsewhere: ClassVar[str] = "memory is short when the device computes"

    factor: PositiveFraction = Field(description="share of its memory that the device keeps")

    def strike(self, strike: Strike) -> None:
        """Plan whose computation fails."""
        if not strike.begun:
            return
        setting, plan = strike.setting, strike.setting.plan
        ids, needed = setting.ids[strike.slots], setting.memory_bytes[strike.slots]
        fits = setting.fleet.memory_fits(ids, needed, self.factor)
        for slot in strike.slots[np.flatnonzero(~fits)].tolist():
            if plan.shortage[slot] is Reason.NONE:
                plan.shortage[slot] = Reason.MEMORY
                plan.computes[slot] = False
                strike.faults.shortages[slot] = strike.number
