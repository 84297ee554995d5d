"""Packets that take longer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coordinator.simulation.faults.base import LinkFault, Strike
from device_profiles.fields import PositiveSeconds, Seconds
from edge.core.draws import Draws
from edge.network.disturbances import LinkEffect


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
