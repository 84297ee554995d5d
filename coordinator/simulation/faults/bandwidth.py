"""Links that carry less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import LinkFault, Strike
from device_profiles.fields import BitsPerSecond, PositiveFraction
from edge.core.draws import Draws
from edge.core.vocabulary import Direction
from edge.network.disturbances import LinkEffect


class Bandwidth(LinkFault):
    """The link is no faster than `up` and `down` say, or carries a share of what it did."""

    key = "bandwidth"
    summary = "links carry less"

    up: BitsPerSecond | None = Field(default=None, description="highest rate from the device")
    down: BitsPerSecond | None = Field(default=None, description="highest rate towards the device")
    scale: PositiveFraction | None = Field(
        default=None, description="share of its rate that the link keeps, in the fault's `direction`"
    )

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.up is None and self.down is None and self.scale is None:
            yield FieldProblem(("bandwidth",), "says nothing; write 'up', 'down' or 'scale' below it")
        if fault.direction is not None and self.scale is None:
            message = "'up' and 'down' say which way already; leave it out"
            yield FieldProblem(("direction",), message, None, of_key=True)

    @property
    def directable(self) -> bool:
        """Caps have directions of their own."""
        return self.scale is not None

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        way = draws.whole(0, 3)
        settings = {}
        if way & 1:
            settings["up"] = f"{draws.between(1, 2000):.4g} kbit/s"
        if way & 2:
            settings["down"] = f"{draws.between(1, 2000):.4g} kbit/s"
        return settings or {"scale": draws.percent(0.01, 1.0)}

    def strike(self, strike: Strike) -> None:
        """Lay caps and scale on the links."""
        for direction, cap_bps in ((Direction.UP, self.up), (Direction.DOWN, self.down)):
            if cap_bps is not None:
                strike.lay(LinkEffect(direction=direction, cap_bps=cap_bps))
        if self.scale is not None:
            strike.lay(LinkEffect(scale=self.scale))
