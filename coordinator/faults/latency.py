"""Packets that take longer."""

from __future__ import annotations

from pydantic import Field

from coordinator.faults.base import LinkFault, Strike
from device_profiles.fields import PositiveSeconds, Seconds
from edge.transport.disturbances import LinkEffect


class Latency(LinkFault):
    """Every packet takes longer, in each direction that is struck; round trips grow by as much."""

    mean: PositiveSeconds = Field(description="what a packet takes longer one way")
    jitter: Seconds = Field(
        default=0.0, description="mean of an exponential delay of each frame on top of that"
    )

    def strike(self, strike: Strike) -> None:
        """Lay the delay on the links."""
        strike.lay(LinkEffect(delay_s=self.mean, jitter_s=self.jitter))
