"""A coordinator that cannot keep up."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from coordinator.faults.base import FaultKind, Strike
from device_profiles.fields import PositiveSeconds
from edge.device.round_faults import Handling
from edge.vocabulary import Stage


class CoordinatorSlow(FaultKind):
    """The coordinator takes some time for every frame that arrives, one after the other."""

    stages: ClassVar[frozenset[Stage]] = frozenset()
    of_devices: ClassVar[bool] = False
    of_rounds: ClassVar[bool] = True
    elsewhere: ClassVar[str] = "it is slow with every frame"

    handling: PositiveSeconds = Field(description="how long it takes for a frame")

    def strike(self, strike: Strike) -> None:
        """Slow the coordinator down."""
        start_s, end_s = strike.fault.window_s
        strike.faults.handlings.append(Handling(strike.number, start_s, end_s, self.handling))
