"""A fault: links are noisy for a while."""

from __future__ import annotations

from pydantic import Field

from coordinator.simulation.faults.base import LinkFault, Strike
from device_profiles.fields import PositiveFraction
from edge.network.disturbances import LinkEffect


class SolarFlare(LinkFault):
    """The link carries a share of what it did, and loses as large a share of its packets as it is told."""

    key = "solar_flare"
    summary = "links are noisy"

    left: PositiveFraction = Field(description="share of its rate that the link keeps")
    loss: PositiveFraction = Field(default=0.05, description="share of packets that are lost besides")

    def strike(self, strike: Strike) -> None:
        """Lay the noise on the links that are struck."""
        strike.lay(LinkEffect(scale=self.left, loss=min(self.loss, 0.5)))
