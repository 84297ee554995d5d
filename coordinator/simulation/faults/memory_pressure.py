"""Devices whose memory others use."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from coordinator.simulation.faults.base import FaultKind, Strike
from device_profiles.fields import PositiveFraction
from edge.core.draws import Draws
from edge.core.vocabulary import Reason


class MemoryPressure(FaultKind):
    """Other programs leave the task less memory; a device on which it does not fit fails."""

    key = "memory_pressure"
    summary = "other programs use the memory"
    stages = frozenset()
    elsewhere = "memory is short when the device computes"

    factor: PositiveFraction = Field(description="share of its memory that the device keeps")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"factor": draws.percent(1e-8, 0.1)}

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
