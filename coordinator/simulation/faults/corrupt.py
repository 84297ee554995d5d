"""Frames whose bytes are garbage."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coordinator.simulation.faults.base import Strike
from coordinator.simulation.faults.frames import FrameKind, sometimes
from device_profiles.fields import PositiveFraction
from edge.core.draws import Draws
from edge.device.round_faults import FrameFault


class Corrupt(FrameKind):
    """A frame arrives as garbage; whoever receives it goes on without the other.

    The coordinator refuses it and leaves the device out. A device can read nothing that follows, and tears
    the connection down.
    """

    key = "corrupt"
    summary = "frames arrive as garbage"

    probability: PositiveFraction = Field(default=1.0, description="of each frame to be struck")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return sometimes(draws)

    def strike(self, strike: Strike) -> None:
        """Mark the frames."""
        self.mark(strike, FrameFault.CORRUPT, self.probability)
