"""A simulated network that shows every frame to a witness."""

from __future__ import annotations

from coordinator.engine.witness import Witness
from edge.clock.virtual import VirtualClockLoop
from edge.core.vocabulary import Direction
from edge.network.link import Delivery, DeviceLink, SimulatedNetwork
from edge.network.loss import Congestion
from edge.network.pace import Conditions
from edge.wire.message_kinds import AnyMessage


class WitnessedNetwork(SimulatedNetwork):
    """A network that tells a witness of every frame.

    Parameters are those of :class:`~edge.network.link.SimulatedNetwork`, and the witness.
    """

    def __init__(
        self,
        loop: VirtualClockLoop,
        down_bps: float,
        up_bps: float,
        *,
        tls: bool,
        congestion: Congestion,
        witness: Witness,
    ) -> None:
        super().__init__(loop, down_bps, up_bps, tls=tls, congestion=congestion)
        self._witness = witness

    def transmit(
        self,
        link: DeviceLink,
        conditions: Conditions,
        direction: Direction,
        message: AnyMessage,
        frame_bytes: int,
        payload_bytes: int,
    ) -> Delivery:
        """Send as any network does, and tell of it."""
        delivery = super().transmit(link, conditions, direction, message, frame_bytes, payload_bytes)
        self._witness.sent(delivery)
        return delivery
