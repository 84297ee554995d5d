"""Frames whose bytes are garbage."""

from __future__ import annotations

from pydantic import Field

from coordinator.faults.base import Strike
from coordinator.faults.frames import FrameKind
from device_profiles.fields import PositiveFraction
from edge.device.round_faults import FrameFault


class Corrupt(FrameKind):
    """A frame arrives as garbage; whoever receives it goes on without the other.

    The coordinator refuses it and leaves the device out. A device can read nothing that follows, and tears
    the connection down.
    """

    probability: PositiveFraction = Field(default=1.0, description="of each frame to be struck")

    def strike(self, strike: Strike) -> None:
        """Mark the frames."""
        self.mark(strike, FrameFault.CORRUPT, self.probability)
