"""Batteries that run down."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coordinator.simulation.faults.base import FaultKind, Strike
from device_profiles.fields import Fraction
from edge.core.draws import Draws
from edge.core.vocabulary import Reason, Stage


class BatteryDrain(FaultKind):
    """The battery falls to a level: an empty device declines, one that empties it computing leaves.

    Devices on mains power are not struck. Batteries are full again at midnight.
    """

    key = "battery_drain"
    summary = "batteries run down"
    lingers = True
    stages = frozenset()
    elsewhere = "a battery falls before the round begins"

    level: Fraction = Field(description="share of a full battery that is left, at most")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"level": "0%" if draws.chance(0.5) else draws.percent(0.0001, 0.3)}

    def strike(self, strike: Strike) -> None:
        """Drain the batteries, and plan who declines and who leaves."""
        if not strike.begun:
            return
        setting, plan = strike.setting, strike.setting.plan
        left_s = setting.fleet.drain(setting.ids[strike.slots], self.level, setting.now_s)
        for slot, seconds in zip(strike.slots.tolist(), left_s.tolist(), strict=True):
            if seconds <= 0.0:
                plan.obstacle[slot] = Reason.BATTERY
                plan.computes[slot] = False
                strike.faults.obstacles[slot] = strike.number
            elif seconds < plan.compute_s[slot]:
                strike.end_one(slot, Stage.COMPUTE, seconds / plan.compute_s[slot], Reason.BATTERY)
