"""Devices that compute more slowly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import COMPUTING, FaultKind, Strike
from device_profiles.fields import PositiveFloat
from edge.core.draws import Draws
from edge.device.round_faults import ComputeSlowdown


class Slowdown(FaultKind):
    """Computing takes `factor` times as long: the update, and the cryptography of a secure sum."""

    key = "slowdown"
    summary = "computing takes longer"
    stages = COMPUTING
    elsewhere = "devices compute nothing at it"

    factor: PositiveFloat = Field(description="how many times as long; 1 or more")

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.factor < 1:
            message = f"{self.factor:g} would be faster; write 1 or more"
            yield FieldProblem(("slowdown", "factor"), message)

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"factor": f"{draws.between(1, 1000):.4g}"}

    def strike(self, strike: Strike) -> None:
        """Slow the devices down."""
        start_s, end_s = strike.fault.window_s
        effect = ComputeSlowdown(strike.number, strike.stage, start_s, end_s, self.factor)
        for slot in strike.slots.tolist():
            strike.faults.slowdowns.setdefault(slot, []).append(effect)
