"""What the kinds of faults have in common that strike frame by frame."""

from __future__ import annotations

from typing import Any

from coordinator.simulation.faults.base import WITH_FRAMES, FaultKind, Strike
from edge.core.draws import Draws
from edge.device.round_faults import FrameEffect, FrameFault


class FrameKind(FaultKind):
    """A kind that strikes frame by frame."""

    directed = True
    stages = WITH_FRAMES
    elsewhere = "nothing is sent at it"

    def mark(self, strike: Strike, kind: FrameFault, probability: float, seconds: float = 0.0) -> None:
        """Let ``kind`` befall the frames of the devices that are struck."""
        start_s, end_s = strike.fault.window_s
        for slot, key in strike.each():
            strike.faults.frames.setdefault(slot, []).append(
                FrameEffect(
                    fault=strike.number,
                    kind=kind,
                    direction=strike.direction,
                    stage=strike.stage,
                    start_s=start_s,
                    end_s=end_s,
                    probability=probability,
                    seconds=seconds,
                    key=key,
                )
            )


def sometimes(draws: Draws) -> dict[str, Any]:
    """Return a random probability of a frame to be struck, or the default."""
    return {"probability": draws.percent(0.02, 1.0)} if draws.chance(0.7) else {}
