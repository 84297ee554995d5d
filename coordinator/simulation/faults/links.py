"""Faults of links: less rate, longer delays, lost packets, links that are down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import LinkFault, Strike
from device_profiles.fields import BitsPerSecond, PositiveFraction, PositiveSeconds, Seconds
from edge.core.rng import Draws
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

    @property
    def neutral(self) -> bool:
        """A link that keeps all of its rate, and has no cap, is as fast as ever."""
        return self.up is None and self.down is None and self.scale is not None and self.scale >= 1

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


class Latency(LinkFault):
    """Every packet takes longer, in each direction that is struck; round trips grow by as much."""

    key = "latency"
    summary = "packets take longer"

    mean: PositiveSeconds = Field(description="what a packet takes longer one way")
    jitter: Seconds = Field(
        default=0.0, description="mean of an exponential delay of each frame on top of that"
    )

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        made = {"mean": draws.seconds(0.01, 10)}
        return {**made, "jitter": draws.seconds(0.01, 5)} if draws.chance(0.5) else made

    def strike(self, strike: Strike) -> None:
        """Lay the delay on the links."""
        strike.lay(LinkEffect(delay_s=self.mean, jitter_s=self.jitter))


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


class Blackout(LinkFault):
    """The link is dead: transfers stand still, and go on afterwards. On a `region`, a regional outage.

    Connections wait for the link; TCP gives up on it after hours.
    """

    key = "blackout"
    summary = "links are dead"

    def strike(self, strike: Strike) -> None:
        """Take the links down."""
        strike.lay(LinkEffect(scale=0.0))


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
