"""Frames that are overtaken."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coordinator.simulation.faults.base import Strike
from coordinator.simulation.faults.frames import FrameKind, sometimes
from device_profiles.fields import PositiveFraction, PositiveSeconds
from edge.core.draws import Draws
from edge.device.round_faults import FrameFault


class Reorder(FrameKind):
    """A frame waits until the next one of its device and direction has overtaken it."""

    key = "reorder"
    summary = "frames are overtaken"

    wait: PositiveSeconds = Field(default=2.0, description="longest wait for the frame that overtakes it")
    probability: PositiveFraction = Field(default=1.0, description="of each frame to be struck")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"wait": draws.seconds(0.05, 20), **sometimes(draws)}

    def strike(self, strike: Strike) -> None:
        """Mark the frames."""
        self.mark(strike, FrameFault.REORDER, self.probability, self.wait)
