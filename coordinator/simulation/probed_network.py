"""A simulated network that shows every frame to a probe."""

from __future__ import annotations

from coordinator.engine.probe import Probe
from edge.clock.virtual import VirtualClockLoop
from edge.core.vocabulary import Direction
from edge.network.link import Delivery, DeviceLink, SimulatedNetwork
from edge.network.loss import Congestion
from edge.network.pace import Conditions
from edge.wire.message_kinds import AnyMessage


class ProbedNetwork(SimulatedNetwork):
    """A network that tells a probe of every frame.

    Parameters are those of :class:`~edge.network.link.SimulatedNetwork`, and the probe.
    """

    def __init__(
        self,
        loop: VirtualClockLoop,
        down_bps: float,
        up_bps: float,
        *,
        tls: bool,
        congestion: Congestion,
        probe: Probe,
    ) -> None:
        super().__init__(loop, down_bps, up_bps, tls=tls, congestion=congestion)
        self._probe = probe

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
        self._probe.sent(delivery)
        return delivery
