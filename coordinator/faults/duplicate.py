"""Frames that come twice."""

from __future__ import annotations

from pydantic import Field

from coordinator.faults.base import Strike
from coordinator.faults.frames import FrameKind
from device_profiles.fields import PositiveFraction
from edge.device.round_faults import FrameFault


class Duplicate(FrameKind):
    """A frame is sent twice, and both copies travel and are counted."""

    probability: PositiveFraction = Field(default=1.0, description="of each frame to be struck")

    def strike(self, strike: Strike) -> None:
        """Mark the frames."""
        self.mark(strike, FrameFault.DUPLICATE, self.probability)
