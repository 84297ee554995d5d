"""Devices whose clocks are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import FaultKind, Strike
from device_profiles.fields import PositiveSeconds
from edge.core.draws import Draws


class ClockSkew(FaultKind):
    """The device is wrong about the time: it gives up too early, or works on when the round is over."""

    key = "clock_skew"
    summary = "clocks of devices are wrong"
    stages = frozenset()
    elsewhere = "a clock is wrong at all stages"

    ahead: PositiveSeconds | None = Field(
        default=None, description="by how much its clock is ahead: its deadlines come too early"
    )
    behind: PositiveSeconds | None = Field(
        default=None, description="by how much its clock is behind: its deadlines come too late"
    )

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.ahead is None and self.behind is None:
            yield FieldProblem(("clock_skew",), "says not how wrong; write 'ahead' or 'behind' below it")
        elif self.ahead is not None and self.behind is not None:
            message = "contradicts ahead; write one of the two"
            yield FieldProblem(("clock_skew", "behind"), message, None, of_key=True)

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {draws.one(("ahead", "behind")): draws.seconds(0.1, 200)}

    def strike(self, strike: Strike) -> None:
        """Note by how much the devices are wrong."""
        if strike.begun:
            later_s = (self.behind or 0.0) - (self.ahead or 0.0)
            for slot in strike.slots.tolist():
                strike.faults.skews.setdefault(slot, []).append((strike.number, later_s))
