"""Simulated links: frames on their way, in virtual time.

One :class:`SimulatedNetwork` carries a whole fleet. A device that takes part in a round has a
:class:`DeviceLink`, which remembers the state of its connection: whether it is open, when the radio was last
active, and what is on its way. A frame becomes a :class:`Delivery`: it waits for the radio and the handshake,
occupies the device's link (and its share of the coordinator's), and arrives half a round trip later.

How long a frame takes alone is the TCP model's business, at the rate that the link has at that moment; the
coordinator's link stretches it when it is full. Frames are not encoded here: ``edge.wire.codec.frame_size``
gives their exact length. Every frame starts from the initial window: frames of one direction are separated by
the other side's answer or by a computation, which is idle time to TCP.
"""

from __future__ import annotations

import abc
import math

from edge.clock.virtual import VirtualClockLoop
from edge.core.vocabulary import Direction, Stage
from edge.network.cohort import CohortLinks
from edge.network.loss import REPEATED, Congestion, TransferFailedError, lossy_transfer
from edge.network.pace import Conditions
from edge.network.tcp import (
    HANDSHAKE_RECEIVED_BYTES,
    HANDSHAKE_SENT_BYTES,
    PACKET_BYTES,
    SEGMENT_PAYLOAD_BYTES,
    SYN_BYTES,
    ack_bytes,
    tcp_ip_bytes,
)
from edge.network.trunk import Flow, Trunk
from edge.wire.messages import KINDS, AnyMessage

TLS_HANDSHAKE_BYTES = 4096
"""What TLS 1.3 adds to a new connection, both ways together: hellos, a certificate chain of about 3 KB."""


# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_DOWN = Direction.DOWN
_UP = Direction.UP


class DeviceLink(abc.ABC):
    """One device's end of its link in one round, and the state of its connection.

    ``slot`` is its place in ``cohort`` (and in the round's link conditions). A device is made by deriving
    from this: it receives what arrives.
    """

    __slots__ = (
        "arrived_s",
        "cohort",
        "connected",
        "frames_sent",
        "in_flight",
        "loop",
        "radio_until_s",
        "slot",
    )

    def __init__(self, loop: VirtualClockLoop, cohort: CohortLinks, slot: int) -> None:
        self.loop = loop
        self.cohort = cohort
        self.slot = slot
        self.connected = cohort.connected[slot]
        self.radio_until_s = -math.inf
        self.arrived_s = 0.0
        self.frames_sent = 0
        self.in_flight: list[Delivery] = []

    @abc.abstractmethod
    def arrived(self, delivery: Delivery) -> None:
        """Take a frame from the coordinator."""

    @abc.abstractmethod
    def delivered(self, delivery: Delivery) -> None:
        """Learn that a frame to the coordinator has arrived there."""

    def hold(self, delivery: Delivery, delay_s: float) -> None:
        """Let a frame that has come the whole way arrive later."""
        delivery.live = True
        self.in_flight.append(delivery)
        delivery.end_s = self.loop.now_s + delay_s
        self.loop.push_timer(delivery.end_s, delivery)

    def release(self, delivery: Delivery) -> None:
        """Let a frame that is held up arrive now."""
        delivery.end_s = self.loop.now_s
        self.loop.push_timer(delivery.end_s, delivery)

    def gave_up(self, delivery: Delivery) -> None:
        """Learn that TCP has given the connection up while a frame waited for a link that is down.

        Only a fault takes a link down for so long; who lets faults strike overrides this.
        """
        raise NotImplementedError(f"{self!r} has no way to lose its connection")


class TimedFrame:
    """A frame, when it travels and what it costs in bytes.

    ``start_s`` is when the sender began (waiting for the radio included), ``first_byte_s`` and
    ``last_byte_s`` when they left; the last arrives ``latency_s`` later.
    """

    start_s: float
    first_byte_s: float
    last_byte_s: float
    latency_s: float
    tcp_ip_bytes: int

    __slots__ = (
        "direction",
        "first_byte_s",
        "framing_bytes",
        "last_byte_s",
        "latency_s",
        "payload_bytes",
        "retransmitted_bytes",
        "start_s",
        "tcp_ip_bytes",
    )

    def __init__(self, direction: Direction, frame_bytes: int, payload_bytes: int) -> None:
        self.direction = direction
        self.payload_bytes = payload_bytes
        self.framing_bytes = frame_bytes - payload_bytes
        self.retransmitted_bytes = 0

    @property
    def wire_bits(self) -> float:
        """Bits that leave, headers and retransmissions included."""
        frame_bytes = self.payload_bytes + self.framing_bytes
        return 8.0 * (frame_bytes + tcp_ip_bytes(frame_bytes) + self.retransmitted_bytes)

    def sent_share(self, now_s: float) -> float:
        """Return the share of the frame that has left by ``now_s``, 0…1, at the pace it has alone."""
        if now_s <= self.first_byte_s:
            return 0.0
        span_s = self.last_byte_s - self.first_byte_s
        return min(1.0, (now_s - self.first_byte_s) / span_s) if span_s > 0.0 else 1.0


class Delivery(TimedFrame):
    """A frame of a device on its way; its last byte arrives at ``end_s``. The object is its own timer."""

    __slots__ = ("end_s", "link", "live", "message", "sharing")

    def __init__(
        self,
        link: DeviceLink,
        direction: Direction,
        message: AnyMessage,
        frame_bytes: int,
        payload_bytes: int,
    ) -> None:
        # What super().__init__ does, without the cost of the call.
        self.direction = direction
        self.payload_bytes = payload_bytes
        self.framing_bytes = frame_bytes - payload_bytes
        self.retransmitted_bytes = 0
        self.link = link
        self.message = message
        self.live = True
        self.sharing = False
        self.end_s = math.inf
        """Unknown until the frame has left a link that it shares."""

    def fire(self, when: float) -> None:
        """Arrive, unless the link was cut or filled up since the timer was set; called by the loop."""
        if not self.live or self.sharing or when != self.end_s:
            return
        self.live = False
        link = self.link
        link.loop.now_s = when
        link.in_flight.remove(self)
        if self.direction is _DOWN:
            link.arrived(self)
        else:
            link.delivered(self)

    def left(self) -> None:
        """Let the frame arrive, whose last byte leaves at ``last_byte_s``."""
        link = self.link
        # One connection delivers in order, whatever the jitter.
        link.arrived_s = self.end_s = max(self.last_byte_s + self.latency_s, link.arrived_s)
        link.loop.push_timer(self.end_s, self)

    @property
    def weight(self) -> float:
        """Share of a full link relative to other frames: TCP favours short round trips."""
        return 1.0 / self.link.cohort.rtt_s[self.link.slot]


class SimulatedNetwork:
    """Carries frames between the coordinator and the devices of a fleet.

    Parameters
    ----------
    loop : the virtual clock.
    down_bps, up_bps : capacity of the coordinator's own link, bits/s; ``math.inf`` never limits.
    tls : whether a new connection pays for TLS 1.3 on top of TCP.
    congestion : the congestion control of every connection.
    """

    def __init__(
        self, loop: VirtualClockLoop, down_bps: float, up_bps: float, *, tls: bool, congestion: Congestion
    ) -> None:
        self._loop = loop
        self.handshakes = 2 if tls else 1
        """Round trips that opening a connection takes."""
        self.handshake_bytes = (
            HANDSHAKE_SENT_BYTES + HANDSHAKE_RECEIVED_BYTES + (TLS_HANDSHAKE_BYTES if tls else 0)
        )
        """What opening a connection sends, both ways together."""
        self.congestion: Congestion = congestion
        self.down = Trunk[Flow](loop, down_bps)
        self.up = Trunk[Flow](loop, up_bps)

    def transmit(
        self,
        link: DeviceLink,
        conditions: Conditions,
        direction: Direction,
        message: AnyMessage,
        frame_bytes: int,
        payload_bytes: int,
    ) -> Delivery:
        """Start sending ``message``; the device is called when it has arrived whole.

        ``frame_bytes`` is the length of its frame, ``payload_bytes`` what its arrays take of that.
        Raises ``TransferFailedError`` if TCP gives the transfer up.
        """
        number = link.frames_sent
        link.frames_sent = number + 1
        delivery = Delivery(link, direction, message, frame_bytes, payload_bytes)
        now_s = self._loop.now_s
        stage = KINDS[message.__class__].stage
        carried = self.carry(
            delivery,
            link.cohort,
            conditions,
            link.slot,
            number,
            stage,
            now_s,
            link.radio_until_s,
            link.connected,
        )
        link.connected = True
        link.in_flight.append(delivery)
        if not carried:
            self._loop.call_at(delivery.last_byte_s, link.gave_up, delivery)
            return delivery
        link.radio_until_s = delivery.last_byte_s + delivery.latency_s + link.cohort.tail_s[link.slot]
        if frame_bytes <= SEGMENT_PAYLOAD_BYTES:
            # Too small to queue behind anyone's share of the coordinator's link.
            delivery.left()
        elif delivery.first_byte_s > now_s:
            self._loop.call_at(delivery.first_byte_s, self._occupy, delivery)
        else:
            self._occupy(delivery)
        return delivery

    def carry(
        self,
        frame: TimedFrame,
        cohort: CohortLinks,
        conditions: Conditions,
        slot: int,
        number: int,
        stage: Stage,
        now_s: float,
        radio_until_s: float,
        connected: bool,
    ) -> bool:
        """Fill in when ``frame``, the ``number``-th of its device in the round, travels, and what it costs.

        Returns False where TCP gives the connection up at ``last_byte_s``, while the frame waits for a dead
        link. The coordinator's own link is not looked at.

        Parameters
        ----------
        frame : its direction and bytes are set.
        cohort, conditions, slot : the link.
        stage : of its message.
        now_s, radio_until_s : when it is sent, and until when the radio is up, absolute seconds.
        connected : whether the connection is open.

        Raises
        ------
        TransferFailedError : TCP gives the transfer up because of lost packets.
        """
        direction = frame.direction
        frame_bytes = frame.payload_bytes + frame.framing_bytes
        first_byte_s = now_s
        if now_s > radio_until_s:
            first_byte_s += cohort.promotion_s[slot]
        foreseen = cohort.frames[number] if number < cohort.frame_count else None
        plain = False
        if (
            foreseen is not None
            and foreseen.frame_bytes[slot] == frame_bytes
            and foreseen.direction is direction
        ):
            overhead = foreseen.overhead_bytes[slot]
            latency_s = foreseen.latency_s[slot]
            plain = foreseen.plain[slot]
        else:
            foreseen = None
            overhead = tcp_ip_bytes(frame_bytes) + ack_bytes(frame_bytes)
            latency_s = cohort.unforeseen_latency_s(slot, number, direction)
        frame.start_s = now_s
        frame.latency_s = 0.0
        disturbances = cohort.disturbances
        faults = None if disturbances is None else disturbances.of_frame(slot, direction, stage, now_s)
        if not connected:
            if faults is None:
                first_byte_s += cohort.handshake_s[slot]
            else:
                try:
                    wait_s, syns = faults.connect(first_byte_s, cohort.handshake_s[slot], self.handshakes)
                except TransferFailedError as error:
                    frame.first_byte_s = first_byte_s
                    frame.last_byte_s = first_byte_s + error.after_s
                    frame.tcp_ip_bytes = tcp_ip_bytes(frame_bytes)
                    return False
                first_byte_s += wait_s
                overhead += syns * SYN_BYTES
            overhead += self.handshake_bytes
        frame.first_byte_s = first_byte_s
        frame.tcp_ip_bytes = overhead
        if not plain:
            seconds = self._lossy(frame, cohort, conditions, slot, number)
        elif frame_bytes <= SEGMENT_PAYLOAD_BYTES and foreseen is not None:
            # A single packet is over before the link's rate could matter.
            seconds = foreseen.transmission_s[slot]
        else:
            rate_bps = cohort.up_bps[slot] if direction is _UP else cohort.down_bps[slot]
            rtt_s = cohort.rtt_s[slot]
            seconds, _ = conditions.alone_time(slot, direction, frame_bytes, rate_bps, rtt_s, first_byte_s)
        if faults is not None and faults.meet(first_byte_s, first_byte_s + seconds):
            from edge.network.disturbances import LinkRates  # noqa: PLC0415 - most runs do without

            latency_s += faults.latency_s(number, first_byte_s)
            try:
                seconds = faults.carry(
                    frame,
                    LinkRates(
                        cohort.up_bps[slot] if direction is _UP else cohort.down_bps[slot],
                        cohort.rtt_s[slot],
                        cohort.loss[slot],
                    ),
                    conditions,
                    cohort.loss_draws(slot, number),
                    first_byte_s,
                    self.congestion,
                    plain=plain,
                )
            except TransferFailedError as error:
                frame.last_byte_s = first_byte_s + error.after_s
                return False
        frame.last_byte_s = first_byte_s + seconds
        frame.latency_s = latency_s
        return True

    def _lossy(
        self, frame: TimedFrame, cohort: CohortLinks, conditions: Conditions, slot: int, number: int
    ) -> float:
        """Return how long a frame takes that may lose packets or meet an outage; note what is sent again."""
        direction = frame.direction
        result = lossy_transfer(
            frame.payload_bytes + frame.framing_bytes,
            cohort.up_bps[slot] if direction is _UP else cohort.down_bps[slot],
            cohort.rtt_s[slot],
            cohort.loss[slot],
            cohort.loss_draws(slot, number),
            self.congestion,
        )
        frame.retransmitted_bytes = result.retransmitted_segments * PACKET_BYTES
        return conditions.carry_s(slot, direction, frame.first_byte_s, result.seconds)

    def repeat(self, delivery: Delivery, conditions: Conditions) -> None:
        """Send a frame once more; the frames that follow keep their numbers, and so their fates.

        Raises ``TransferFailedError`` if TCP gives the transfer up.
        """
        link, number = delivery.link, delivery.link.frames_sent
        frame_bytes = delivery.payload_bytes + delivery.framing_bytes
        link.frames_sent = number - 1 + REPEATED
        try:
            self.transmit(
                link, conditions, delivery.direction, delivery.message, frame_bytes, delivery.payload_bytes
            )
        finally:
            link.frames_sent = number

    def _occupy(self, delivery: Delivery) -> None:
        """Put a frame on the coordinator's link, unless it was cut while it waited for the radio."""
        if delivery.live:
            (self.up if delivery.direction is _UP else self.down).start(delivery)

    def cut(self, link: DeviceLink) -> list[Delivery]:
        """Break the link off; return the frames that were on their way and will not arrive."""
        broken, link.in_flight = link.in_flight, []
        for delivery in broken:
            delivery.live = False
            (self.up if delivery.direction is _UP else self.down).cancel(delivery)
        link.connected = False
        return broken
