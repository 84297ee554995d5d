"""Links that go on and off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import LinkFault, Strike
from device_profiles.fields import PositiveFraction, PositiveSeconds
from edge.core.draws import Draws
from edge.network.disturbances import LinkEffect


class Flapping(LinkFault):
    """The link goes on and off, each device at moments of its own."""

    key = "flapping"
    summary = "links go on and off"
    stages = frozenset()
    elsewhere = "a link goes on and off whatever is sent"

    period: PositiveSeconds = Field(description="from one time that the link comes up to the next")
    up: PositiveFraction = Field(description="share of the period in which the link is up")

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.up >= 1:
            yield FieldProblem(("flapping", "up"), "never goes off; write less than 100%")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"period": draws.seconds(0.5, 60), "up": draws.percent(0.1, 0.95)}

    def strike(self, strike: Strike) -> None:
        """Let the links go on and off; where in its period a device is has nothing to do with rounds."""
        strike.lay(LinkEffect(period_s=self.period, up_s=self.up * self.period))
