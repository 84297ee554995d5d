"""Connections that are torn down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import EVERYWHERE, Fault
from coordinator.simulation.faults.base import WITH_FRAMES, Strike
from coordinator.simulation.faults.frames import FrameKind
from device_profiles.fields import PositiveFraction
from edge.core.draws import Draws
from edge.core.vocabulary import Reason, Stage, label
from edge.device.round_faults import FrameFault


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
