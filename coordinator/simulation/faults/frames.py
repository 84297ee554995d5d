"""Faults that strike frame by frame: late, doubled, overtaken, garbled, or the end of a connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import EVERYWHERE, Fault
from coordinator.simulation.faults.base import WITH_FRAMES, FaultKind, Strike
from device_profiles.fields import PositiveFraction, PositiveSeconds
from edge.core.rng import Draws
from edge.core.vocabulary import Reason, Stage, label
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


class Duplicate(FrameKind):
    """A frame is sent twice, and both copies travel and are counted."""

    key = "duplicate"
    summary = "frames come twice"

    probability: PositiveFraction = Field(default=1.0, description="of each frame to be struck")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return sometimes(draws)

    def strike(self, strike: Strike) -> None:
        """Mark the frames."""
        self.mark(strike, FrameFault.DUPLICATE, self.probability)


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


class Reset(FrameKind):
    """The connection is torn down: the device leaves the round, and the coordinator knows at once.

    What is under way is lost. It happens at a stage, ``at`` a time, or with a probability for each frame.
    """

    key = "reset"
    summary = "connections are torn down"
    stages = EVERYWHERE

    probability: PositiveFraction | None = Field(
        default=None, description="of each frame to tear the connection; by default there is one reset"
    )

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.probability is None:
            if fault.at_stage is None and fault.at is None:
                message = "says not when; write 'at_stage', 'at', or a probability"
                yield FieldProblem(("reset",), message, None, of_key=True)
            if fault.direction is not None:
                message = "a reset has a direction only with a probability for each frame"
                yield FieldProblem(("direction",), message, "leave it out", of_key=True)
        elif fault.at_stage == label(Stage.COMPUTE):
            yield FieldProblem(
                ("reset", "probability"), "no frame is sent while a device computes; leave it out"
            )

    @property
    def momentary(self) -> bool:
        """Whether there is one reset."""
        return self.probability is None

    @property
    def pinnable(self) -> frozenset[Stage]:
        """No frame is sent while a device computes."""
        return self.stages if self.probability is None else WITH_FRAMES

    @property
    def directable(self) -> bool:
        """A single reset has no direction."""
        return self.probability is not None

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        made = {"probability": draws.percent(0.02, 0.5)}
        return {} if draws.chance(0.5) else made

    def strike(self, strike: Strike) -> None:
        """Let the devices lose their connections."""
        if self.probability is None:
            strike.end(Reason.CONNECTION_RESET)
        else:
            self.mark(strike, FrameFault.RESET, self.probability)
