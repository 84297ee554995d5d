"""Links that are dead for a while."""

from __future__ import annotations

from coordinator.simulation.faults.base import LinkFault, Strike
from edge.network.disturbances import LinkEffect


class Blackout(LinkFault):
    """The link is dead: transfers stand still, and go on afterwards. On a `region`, a regional outage.

    Connections wait for the link; TCP gives up on it after hours.
    """

    key = "blackout"
    summary = "links are dead"

    def strike(self, strike: Strike) -> None:
        """Take the links down."""
        strike.lay(LinkEffect(scale=0.0))
