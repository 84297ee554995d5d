"""What the log of a round says of devices at the end of sessions: messages, computing times, and who left.

A record is written when the coordinator hears of what is in it. Times are those of the session; the wire
below it is not seen.
"""

from __future__ import annotations

from coordinator.engine.backend import Clock
from coordinator.service.sessions import Transfer
from edge.core.log import EventLog, pack_record
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, Stage
from edge.device.participation import event_of_discarded
from edge.wire.codec import measure
from edge.wire.messages import KINDS, AnyMessage
from edge.wire.session import Received


class SessionRecords:
    """The log of one round.

    Parameters
    ----------
    loop : gives the time.
    devices : the devices of the round, by slot.
    """

    def __init__(self, loop: Clock, devices: list[int]) -> None:
        self._loop = loop
        self._devices = devices
        self.log = EventLog()

    def arrived(self, slot: int, transfer: Transfer, end_s: float) -> None:
        """Record a message that a device has acknowledged, and has had since ``end_s``."""
        payload_bytes, frame_bytes = transfer.payload_bytes, transfer.frame_bytes
        self._add_down(slot, transfer, end_s, payload_bytes, frame_bytes, Fate.DELIVERED, Reason.NONE)

    def lost(self, slot: int, transfer: Transfer, reason: Reason) -> None:
        """Record a message that is given up, as far as it was sent."""
        sent = 0 if transfer.sent is None else transfer.sent.message_bytes
        payload = min(transfer.payload_bytes, sent)
        self._add_down(slot, transfer, self._loop.now_s, payload, sent, Fate.LOST, reason)

    def _add_down(
        self,
        slot: int,
        transfer: Transfer,
        end_s: float,
        payload: int,
        frame: int,
        fate: Fate,
        reason: Reason,
    ) -> None:
        kind = KINDS[transfer.message.__class__]
        sent = transfer.sent
        self._add(
            slot,
            kind.event,
            kind.stage,
            Direction.DOWN,
            transfer.start_s,
            end_s,
            payload,
            frame - payload + (0 if sent is None else sent.session_bytes),
            0 if sent is None else sent.repeated_bytes,
            fate,
            reason,
        )

    def received(self, slot: int, message: AnyMessage, received: Received, reason: Reason) -> None:
        """Record a message of a device; ``reason`` is why it was discarded, or ``NONE``."""
        kind = KINDS[message.__class__]
        frame_bytes, payload_bytes = measure(message)
        self._add(
            slot,
            event_of_discarded(message.__class__, reason) if reason else kind.event,
            kind.stage,
            Direction.UP,
            received.begun_s,
            self._loop.now_s,
            payload_bytes,
            frame_bytes - payload_bytes + received.session_bytes,
            received.repeated_bytes,
            Fate.DISCARDED if reason else Fate.DELIVERED,
            reason,
        )

    def garbage(self, slot: int, stage: Stage, received: Received, reason: Reason) -> None:
        """Record bytes of a device that are no message."""
        self._add(
            slot,
            EventKind.GARBAGE,
            stage,
            Direction.UP,
            received.begun_s,
            self._loop.now_s,
            0,
            len(received.frame) + received.session_bytes,
            received.repeated_bytes,
            Fate.DISCARDED,
            reason,
        )

    def computed(self, slot: int, stage: Stage, start_s: float, end_s: float) -> None:
        """Record that a device has computed from ``start_s`` to ``end_s``, for a stage."""
        self._without_bytes(slot, EventKind.COMPUTED, stage, start_s, end_s, Reason.NONE)

    def dropped(self, slot: int, stage: Stage, reason: Reason) -> None:
        """Record that a device has left at a stage."""
        now_s = self._loop.now_s
        self._without_bytes(slot, EventKind.DROPPED, stage, now_s, now_s, reason)

    def _without_bytes(
        self, slot: int, kind: EventKind, stage: Stage, start_s: float, end_s: float, reason: Reason
    ) -> None:
        self._add(slot, kind, stage, Direction.NONE, start_s, end_s, 0, 0, 0, Fate.DELIVERED, reason)

    def _add(
        self,
        slot: int,
        kind: EventKind,
        stage: Stage,
        direction: Direction,
        start_s: float,
        end_s: float,
        payload_bytes: int,
        framing_bytes: int,
        repeated_bytes: int,
        fate: Fate,
        reason: Reason,
    ) -> None:
        """Add a record. Bytes below a WebSocket are not observed here, and recorded as 0."""
        self.log.extend(
            pack_record(
                self._loop.now_s, slot, self._devices[slot], kind, stage, direction, start_s, end_s,
                payload_bytes, framing_bytes, 0, repeated_bytes, fate, reason,
            )
        )  # fmt: skip
