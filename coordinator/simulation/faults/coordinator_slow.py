"""A coordinator that cannot keep up."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coordinator.simulation.faults.base import FaultKind, Strike
from device_profiles.fields import PositiveSeconds
from edge.core.draws import Draws
from edge.device.round_faults import Handling


class CoordinatorSlow(FaultKind):
    """The coordinator takes some time for every frame that arrives, one after the other."""

    key = "coordinator_slow"
    summary = "the coordinator cannot keep up"
    stages = frozenset()
    of_devices = False
    of_rounds = True
    elsewhere = "it is slow with every frame"

    handling: PositiveSeconds = Field(description="how long it takes for a frame")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"handling": draws.seconds(0.001, 5)}

    def strike(self, strike: Strike) -> None:
        """Slow the coordinator down."""
        start_s, end_s = strike.fault.window_s
        strike.faults.handlings.append(Handling(strike.number, start_s, end_s, self.handling))
