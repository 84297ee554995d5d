"""Frames that are overtaken."""

from __future__ import annotations

from pydantic import Field

from coordinator.faults.base import Strike
from coordinator.faults.frames import FrameKind
from device_profiles.fields import PositiveFraction, PositiveSeconds
from edge.device.round_faults import FrameFault


class Reorder(FrameKind):
    """A frame waits until the next one of its device and direction has overtaken it."""

    wait: PositiveSeconds = Field(default=2.0, description="longest wait for the frame that overtakes it")
    probability: PositiveFraction = Field(default=1.0, description="of each frame to be struck")

    def strike(self, strike: Strike) -> None:
        """Mark the frames."""
        self.mark(strike, FrameFault.REORDER, self.probability, self.wait)
