"""A device's link whose frames, and what else befalls the device, are written to the log of the round."""

from __future__ import annotations

from edge.codec import measure
from edge.device.endings import event_of_discarded
from edge.device.round_services import RoundServices
from edge.log import pack_record
from edge.message_kinds import KINDS, AnyMessage
from edge.transport.link import Delivery, DeviceLink
from edge.transport.tcp_model import INITIAL_WINDOW_BYTES, tcp_ip_bytes
from edge.vocabulary import Direction, EventKind, Fate, Outcome, Reason, Stage

# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_NOWHERE = Direction.NONE
_DISCARDED = Fate.DISCARDED
_DELIVERED = Fate.DELIVERED
_NONE = Reason.NONE


class RecordedLink(DeviceLink):
    """The link of ``device`` in one round, and how far its participation has come."""

    __slots__ = ("_services", "device", "outcome", "reason", "stage")

    def __init__(self, services: RoundServices, device: int, slot: int) -> None:
        super().__init__(services.loop, services.links, slot)
        self._services = services
        self.device = device
        self.outcome: Outcome | None = None
        """How the participation ended, as far as the device knows; set once."""
        self.reason = _NONE
        self.stage = Stage.INVITE

    def log_frame(self, delivery: Delivery, fate: Fate, reason: Reason) -> None:
        """Record a frame that has arrived, and what became of it."""
        services = self._services
        message = delivery.message
        kind = KINDS[message.__class__]
        services.record(
            pack_record(
                self.loop.now_s,
                self.slot,
                self.device,
                kind.event if fate is not _DISCARDED else event_of_discarded(message, reason),
                kind.stage,
                delivery.direction,
                delivery.start_s,
                delivery.end_s,
                delivery.payload_bytes,
                delivery.framing_bytes,
                delivery.tcp_ip_bytes,
                delivery.retransmitted_bytes,
                fate,
                reason,
            )
        )

    def _log_loss(self, delivery: Delivery, reason: Reason, share: float) -> None:
        """Record a frame that will not arrive, with the ``share`` of it that was sent."""
        delivery.end_s = self.loop.now_s
        delivery.payload_bytes = int(delivery.payload_bytes * share)
        delivery.framing_bytes = int(delivery.framing_bytes * share)
        delivery.tcp_ip_bytes = int(delivery.tcp_ip_bytes * share)
        delivery.retransmitted_bytes = int(delivery.retransmitted_bytes * share)
        self.log_frame(delivery, Fate.LOST, reason)

    def _log_event(self, kind: EventKind, stage: Stage, start_s: float, reason: Reason) -> None:
        now_s = self.loop.now_s
        self._services.record(
            pack_record(
                now_s, self.slot, self.device, kind, stage, _NOWHERE, start_s, now_s, 0, 0, 0, 0,
                _DELIVERED, reason,
            )
        )  # fmt: skip

    def _send_in_vain(self, direction: Direction, message: AnyMessage) -> None:
        """Record a frame to a device that is gone: TCP sends one window and hears nothing more."""
        frame_bytes, payload_bytes = measure(message)
        lost = Delivery(self, direction, message, frame_bytes, payload_bytes)
        lost.start_s = lost.end_s = self.loop.now_s
        lost.retransmitted_bytes = 0
        lost.tcp_ip_bytes = tcp_ip_bytes(frame_bytes)
        self._log_loss(lost, self.reason, min(1.0, INITIAL_WINDOW_BYTES / frame_bytes))

    def _cut(self, reason: Reason) -> None:
        services = self._services
        for delivery in services.network.cut(self):
            self._log_loss(delivery, reason, delivery.sent_share(self.loop.now_s))
