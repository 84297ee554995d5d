"""Packets that are lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import LinkFault, Strike
from device_profiles.fields import PositiveFraction
from edge.core.draws import Draws
from edge.network.disturbances import LinkEffect


class Loss(LinkFault):
    """Packets are lost beside those that the link loses anyway; TCP sends them again, and slows down."""

    key = "loss"
    summary = "packets are lost"

    probability: PositiveFraction = Field(description="of each packet to be lost")

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.probability >= 1:
            message = "loses everything; write 'blackout: {}' for a dead link"
            yield FieldProblem(("loss", "probability"), message)

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"probability": draws.percent(0.01, 0.9)}

    def strike(self, strike: Strike) -> None:
        """Lay the loss on the links."""
        strike.lay(LinkEffect(loss=self.probability))
