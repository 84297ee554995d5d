"""Links that go on and off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from coordinator.faults.base import LinkFault, Strike
from coordinator.scenario.errors import Problem
from device_profiles.fields import PositiveFraction, PositiveSeconds
from edge.transport.disturbances import LinkEffect

if TYPE_CHECKING:
    from coordinator.scenario.faults_section import Fault


class Flapping(LinkFault):
    """The link goes on and off, each device at moments of its own."""

    stages = frozenset()
    elsewhere = "a link goes on and off whatever is sent"

    period: PositiveSeconds = Field(description="from one time that the link comes up to the next")
    up: PositiveFraction = Field(description="share of the period in which the link is up")

    def problems(self, fault: Fault) -> Iterator[Problem]:
        """Yield what contradicts the fault."""
        if self.up >= 1:
            yield Problem(("flapping", "up"), "never goes off; write less than 100%")

    def strike(self, strike: Strike) -> None:
        """Let the links go on and off; where in its period a device is has nothing to do with rounds."""
        strike.lay(LinkEffect(period_s=self.period, up_s=self.up * self.period))
