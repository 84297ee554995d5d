"""Frames that come later."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coordinator.simulation.faults.base import Strike
from coordinator.simulation.faults.frames import FrameKind, sometimes
from device_profiles.fields import PositiveFraction, PositiveSeconds
from edge.core.draws import Draws
from edge.device.round_faults import FrameFault


class Late(FrameKind):
    """A frame is held up on its way and comes later; what is sent after it may overtake it."""

    key = "late"
    summary = "frames come later"

    by: PositiveSeconds = Field(description="how much later a frame comes")
    probability: PositiveFraction = Field(default=1.0, description="of each frame to be struck")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"by": draws.seconds(0.01, 200), **sometimes(draws)}

    def strike(self, strike: Strike) -> None:
        """Mark the frames."""
        self.mark(strike, FrameFault.LATE, self.probability, self.by)
