"""Shaped links: a fast host talks to the coordinator as a slow device would.

What a device sends and receives takes as long as on the simulated link, by the same formulas and draws:

* bytes leave as TCP fills a link (:mod:`edge.network.tcp`), from the initial window for each
  message, and arrive half a round trip later; a radio that was idle for longer than its tail is promoted
  first;
* the rate changes and the link is down as :class:`~edge.network.link.Conditions` say;
* a message loses packets (:mod:`edge.network.loss`) and is late by its jitter, by the draws that frame
  ``n`` of the round has in a simulation (:mod:`edge.network.loss`). What belongs to no message
  (acknowledgements, notes, signs of life) shares the lane, and nothing befalls it by chance.

A message is followed whole from its first piece on; its pieces leave evenly over its time, and its last one
carries the jitter. What comes later arrives later: one connection delivers in order. Where TCP would give the
connection up, ``TransferFailedError`` says after how long; it is for the caller to break it.

A host that many devices share is late now and then. What a device sends is put on its link at the device's
own time, :attr:`ShapedLink.moment_s`, so the host's lateness shows only as far as the link cannot make it up.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from edge.core.rng import hashed_bits_scalar
from edge.core.vocabulary import Direction
from edge.network.loss import (
    HANDSHAKE,
    LOSS,
    REPEATED,
    Congestion,
    TransferFailedError,
    frame_draws,
    frame_jitter,
    handshake_time,
    lossy_transfer,
    silence_limit,
)
from edge.network.pace import Conditions, Pace, carry
from edge.network.tcp import small_round_trip
from edge.wire.codec import round_of_head
from edge.wire.session_frames import Ack, Note, Piece, Pong, SessionFrame, unpack

_ONLY = 0
"""The slot of the link in its conditions, which are of it alone."""


@dataclass(frozen=True, slots=True)
class LinkShape:
    """What a link is made to look like: rates in bits/s, times in seconds.

    ``loss`` is the probability that a packet is lost, ``jitter_s`` the mean of the exponential jitter,
    ``promotion_s`` what an idle radio takes to be ready, ``tail_s`` how long it stays up after an activity,
    ``flaky`` whether its conditions know outages, ``handshakes`` the round trips that opening a connection
    takes.
    """

    down_bps: float
    up_bps: float
    rtt_s: float
    loss: float = 0.0
    jitter_s: float = 0.0
    promotion_s: float = 0.0
    tail_s: float = 0.0
    flaky: bool = False
    congestion: Congestion = "cubic"
    handshakes: int = 1


class Radio:
    """The radio of a device, which both directions of its link share."""

    __slots__ = ("_promotion_s", "_tail_s", "_until_s")

    def __init__(self, promotion_s: float, tail_s: float) -> None:
        self._promotion_s = promotion_s
        self._tail_s = tail_s
        self._until_s = -math.inf

    def ready_s(self, now_s: float) -> float:
        """Return when the radio is ready for what is wanted at ``now_s``."""
        return now_s if now_s <= self._until_s else now_s + self._promotion_s

    def active_until(self, when_s: float) -> None:
        """Record an activity that ends at ``when_s``."""
        self._until_s = max(self._until_s, when_s + self._tail_s)


def _never() -> float:
    raise AssertionError("nothing is drawn for what belongs to no message")


class Lane:
    """One direction of a shaped link; all times are absolute seconds.

    Parameters
    ----------
    direction : up or down.
    shape : of the link.
    conditions : what changes about it over time, of this link alone.
    radio : what it goes over.
    """

    __slots__ = (
        "_conditions",
        "_direction",
        "_first_s",
        "_jitter_s",
        "_last_s",
        "_late_s",
        "_message_bytes",
        "_radio",
        "_rate_bps",
        "_seconds",
        "_shape",
        "free_s",
        "in_message",
    )

    def __init__(self, direction: Direction, shape: LinkShape, conditions: Conditions, radio: Radio) -> None:
        self._direction = direction
        self._shape = shape
        self._conditions = conditions
        self._radio = radio
        self._rate_bps = shape.up_bps if direction is Direction.UP else shape.down_bps
        self._late_s = 0.5 * small_round_trip(self._rate_bps, shape.rtt_s)
        self._message_bytes = 0
        self._first_s = self._seconds = self._jitter_s = 0.0
        self.reset(0.0)

    def reset(self, now_s: float) -> None:
        """Begin on a new connection: what was under way on the one before is gone."""
        self._last_s = -math.inf
        self.in_message = False
        """Whether a message has begun whose last piece is still to come."""
        self.free_s = now_s
        """When the last byte will have left, and the next one may."""

    def carry(self, size: int, now_s: float) -> float:
        """Put ``size`` bytes that belong to no message on the lane; return when the last arrives.

        Raises ``TransferFailedError`` if TCP gives the connection up.
        """
        start_s = self._start(now_s)
        self.free_s = start_s + self._transfer(size, start_s, now_s, 0.0, _never)
        return self._arrival(self._late_s)

    def begin(self, size: int, now_s: float, draw: Callable[[], float], jitter_s: float) -> None:
        """Put a message of ``size`` bytes on the lane, whose losses are drawn with ``draw``.

        Raises ``TransferFailedError`` if TCP gives the connection up.
        """
        start_s = self._start(now_s)
        self._seconds = self._transfer(size, start_s, now_s, self._shape.loss, draw)
        self._first_s, self._message_bytes, self._jitter_s = start_s, size, jitter_s
        self.in_message = True

    def piece(self, left: int) -> float:
        """Take a piece of the message that was begun, ``left`` bytes before its end.

        Returns when it arrives, always later than what came before.
        """
        share = 1.0 - left / self._message_bytes
        self.free_s = max(self.free_s, self._first_s + self._seconds * share)
        if left:
            return self._arrival(self._late_s)
        self.in_message = False
        return self._arrival(self._late_s + self._jitter_s)

    def _start(self, now_s: float) -> float:
        """Return when the first byte of what is wanted now leaves."""
        return max(self.free_s, self._radio.ready_s(now_s))

    def _transfer(
        self, size: int, start_s: float, now_s: float, loss: float, draw: Callable[[], float]
    ) -> float:
        """Return the seconds from the first to the last byte leaving, as the simulated link has them."""
        shape, rate_bps, rtt_s = self._shape, self._rate_bps, self._shape.rtt_s
        try:
            lossy = lossy_transfer(size, rate_bps, rtt_s, loss, draw, shape.congestion)
            if shape.flaky or lossy.retransmitted_segments:
                return carry(self._pace(), start_s, lossy.seconds, silence_limit(rtt_s))
        except TransferFailedError as error:
            raise TransferFailedError(str(error), after_s=start_s - now_s + error.after_s) from None
        return self._conditions.alone_time(_ONLY, self._direction, size, rate_bps, rtt_s, start_s)[0]

    def _pace(self) -> Pace:
        conditions, direction = self._conditions, self._direction
        return lambda t_s: conditions.pace(_ONLY, direction, t_s)

    def _arrival(self, late_s: float) -> float:
        # Strictly later than what came before, whatever jitter and rounding do: one connection keeps order.
        arrival_s = self.free_s + late_s
        self._last_s = arrival_s if arrival_s > self._last_s else math.nextafter(self._last_s, math.inf)
        self._radio.active_until(self._last_s)
        return self._last_s


class ShapedLink:
    """Both directions of one device's link.

    Parameters
    ----------
    shape : of the link.
    conditions : what changes about it over time; of this link alone.
    device_key : of the device in the stream ``"link", "frames"``.
    """

    __slots__ = (
        "_conditions",
        "_device_key",
        "_messages",
        "_promised",
        "_radio",
        "_repeats",
        "_round_key",
        "_round_number",
        "_sequence",
        "_shape",
        "_unfinished",
        "down",
        "moment_s",
        "up",
    )

    def __init__(self, shape: LinkShape, conditions: Conditions, device_key: int) -> None:
        self._radio = radio = Radio(shape.promotion_s, shape.tail_s)
        self._shape = shape
        self._conditions = conditions
        self.down = Lane(Direction.DOWN, shape, conditions, radio)
        self.up = Lane(Direction.UP, shape, conditions, radio)
        self._device_key = device_key
        self._round_number = -1
        self._round_key = device_key
        self._messages = 0
        """Messages of this round, either way."""
        self._repeats = 0
        """Messages that were sent again, and connections that were opened again, in this round."""
        self._sequence = {Direction.DOWN: 0, Direction.UP: 0}
        """The highest sequence number that has begun its way."""
        self._unfinished = {Direction.DOWN: False, Direction.UP: False}
        """Whether the last piece of a message that has begun its way has not."""
        self._promised: deque[float] = deque()
        """When the device has sent what has not left yet, a time for every message and note."""
        self.moment_s = math.inf
        """The device's own time at what it does now, absolute seconds: what came last was due then."""

    def came(self, data: bytes, now_s: float) -> float:
        """Take a session frame that the coordinator has sent; return when it is to arrive.

        Raises
        ------
        CodecError : it is none.
        TransferFailedError : TCP gives the connection up.
        """
        return self._pass(Direction.DOWN, unpack(data), len(data), now_s)

    def promise(self) -> None:
        """Record that the device sends a message or a note at its own time."""
        self._promised.append(self.moment_s)

    def sent(self, data: bytes, now_s: float) -> float:
        """Take a session frame for the coordinator; return when it is to arrive there.

        Raises ``TransferFailedError`` if TCP gives the connection up.
        """
        frame = unpack(data)
        if isinstance(frame, Piece | Note):
            begins = not self.up.in_message and not self._repeated(Direction.UP, frame)
            if begins and self._promised:
                now_s = min(now_s, self._promised.popleft())
        elif isinstance(frame, Ack | Pong):
            now_s = min(now_s, self.moment_s)
        return self._pass(Direction.UP, frame, len(data), now_s)

    def _pass(self, direction: Direction, frame: SessionFrame, size: int, now_s: float) -> float:
        lane = self.up if direction is Direction.UP else self.down
        if isinstance(frame, Note):
            self._sequence[direction] = max(self._sequence[direction], frame.sequence)
        if not isinstance(frame, Piece):
            return lane.carry(size, now_s)
        if not lane.in_message:
            number = self._number(frame, repeated=self._repeated(direction, frame))
            lane.begin(
                size + frame.left,
                now_s,
                frame_draws(self._round_key, number, LOSS),
                frame_jitter(self._round_key, number, self._shape.jitter_s),
            )
        self._sequence[direction] = max(self._sequence[direction], frame.sequence)
        self._unfinished[direction] = frame.left > 0
        return lane.piece(frame.left)

    def _repeated(self, direction: Direction, frame: Piece | Note) -> bool:
        """Return whether this, or the message that it is in, has begun its way on another connection."""
        unfinished = isinstance(frame, Piece) and self._unfinished[direction]
        return unfinished or frame.sequence <= self._sequence[direction]

    def _number(self, first: Piece, *, repeated: bool) -> int:
        """Return the number of the message that begins; those that follow keep theirs if it is repeated."""
        if repeated:
            # What is left of it may begin anywhere: only a whole message says which round it is of.
            self._repeats += 1
            return REPEATED + self._repeats
        round_number = round_of_head(first.data)
        if round_number is not None and round_number > self._round_number:
            self._round_number = round_number
            self._round_key = hashed_bits_scalar(self._device_key, round_number)
            self._messages = self._repeats = 0
        self._messages += 1
        return self._messages - 1

    def opening_s(self, now_s: float) -> float:
        """Return how long opening a new connection takes, seconds; it stands still while the link is down.

        Raises ``TransferFailedError`` if TCP gives up.
        """
        shape = self._shape
        self._repeats += 1
        draw = frame_draws(self._round_key, REPEATED + self._repeats, HANDSHAKE)
        steady_s = handshake_time(shape.rtt_s, shape.down_bps, shape.handshakes, shape.loss, draw)
        return self._conditions.carry_s(_ONLY, Direction.UP, now_s, steady_s)

    def opened(self, now_s: float) -> None:
        """Begin on a new connection, which the radio was awake for."""
        self.down.reset(now_s)
        self.up.reset(now_s)
        self._radio.active_until(now_s)
