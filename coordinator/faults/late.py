"""Frames that come later."""

from __future__ import annotations

from pydantic import Field

from coordinator.faults.base import Strike
from coordinator.faults.frames import FrameKind
from device_profiles.fields import PositiveFraction, PositiveSeconds
from edge.device.round_faults import FrameFault


class Late(FrameKind):
    """A frame is held up on its way and comes later; what is sent after it may overtake it."""

    by: PositiveSeconds = Field(description="how much later a frame comes")
    probability: PositiveFraction = Field(default=1.0, description="of each frame to be struck")

    def strike(self, strike: Strike) -> None:
        """Mark the frames."""
        self.mark(strike, FrameFault.LATE, self.probability, self.by)
