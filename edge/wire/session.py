"""One end of a session, as a state machine without I/O: messages survive connections that break.

Everything that must not be lost (pieces of messages, notes) has a sequence number and is kept until the
other end has acknowledged it. When a connection breaks, the next one begins with both ends saying what they
received last; what was not acknowledged is sent again, and what comes twice is dropped. So a message arrives
once and in order, or the session ends.

Bytes come in with the time at which they came; what to send is fetched one session frame at a time. Both ends
use this machine; only the coordinator decides that a session is over.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from edge.core.errors import FrameTooLargeError, RemoteProtocolError
from edge.wire.session_frames import (
    BEGINS,
    PIECE_BYTES,
    Ack,
    Goodbye,
    Note,
    Piece,
    Ping,
    Pong,
    SessionFrame,
    carried_bytes,
    pack,
    unpack,
)

CONTROL_FRAMES: Final = 256
"""Most acknowledgements, pings and pongs that wait to be sent; an end that asks for more is not well."""
CLOCK_DRIFT: Final = 1e-4
"""How far two clocks may drift apart, seconds a second; quartz stays below a tenth of it."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of a session; each names the setting that it comes from.

    Attributes
    ----------
    frame_bytes : longest message, ``limits.frame_bytes``.
    unacknowledged_bytes : most that is kept for the other end, ``connection.sockets.unacknowledged_bytes``.
    heartbeat_s : silence after which a sign of life is asked for.
    idle_s : silence after which a connection counts as broken.
    computing_s : the same while the other end has said that it computes.
    """

    frame_bytes: int
    unacknowledged_bytes: int
    heartbeat_s: float
    idle_s: float
    computing_s: float


class Received(NamedTuple):
    """A whole message has come.

    ``begun_s`` is when the other end began to send it, or where that is not said, when its first piece had
    come; ``session_bytes`` is what carried it beside its own bytes, and ``repeated_bytes`` what came twice
    since the message before it.
    """

    frame: bytes
    begun_s: float
    session_bytes: int
    repeated_bytes: int


class Noted(NamedTuple):
    """The other end begins to compute for a stage (``seconds`` None), or has done so for ``seconds``.

    ``at_s`` is when it began or ended, or where that is not said, when the note came.
    """

    stage: int
    seconds: float | None
    at_s: float


class Acknowledged(NamedTuple):
    """The other end has all of a message that was sent, since ``at_s``.

    Where it does not say since when, that is when its acknowledgement came.
    """

    sent: Sent
    at_s: float


class SessionEnded(NamedTuple):
    """The other end has said goodbye."""

    reason: str


Event = Received | Noted | Acknowledged | SessionEnded


@dataclass(slots=True)
class Sent:
    """A message that was given to :meth:`Session.send`.

    Attributes
    ----------
    label : whatever the sender wants to remember with it.
    begun_s : when its first piece left; NaN as long as none has.
    session_bytes : what carried it beside its own bytes, when it was sent first.
    repeated_bytes : all bytes that were sent again because a connection broke.
    message_bytes : its own bytes that have left at least once.
    """

    label: Any
    begun_s: float = math.nan
    session_bytes: int = 0
    repeated_bytes: int = 0
    message_bytes: int = 0


@dataclass(slots=True)
class _Kept:
    """Something with a sequence number that is not acknowledged yet."""

    frame: Piece | Note
    sent: Sent | None
    size: int
    times: int = 0
    left_s: float = math.nan
    """When it left first."""


class PeerClock:
    """The clock of the other end, in the time of this one.

    No frame arrives before it was sent. So every frame that says when it was sent, or received, by the other
    clock bounds the difference of the two from one side; halfway between the bounds is wrong by at most half
    the shortest round trip seen (F. Cristian, Probabilistic clock synchronization, Distributed Computing 3,
    1989). Bounds widen by :data:`CLOCK_DRIFT`. Where they exclude each other the other clock was set, or is
    another one, and what was known before is dropped.
    """

    __slots__ = ("_as_of_s", "_highest_s", "_lowest_s")

    def __init__(self) -> None:
        self._lowest_s, self._highest_s = -math.inf, math.inf
        """Bounds of this clock less the other."""
        self._as_of_s = 0.0

    def sent(self, peer_s: float, now_s: float) -> None:
        """Narrow the bounds by a frame that was sent at ``peer_s`` and came at ``now_s``."""
        self._narrow(-math.inf, now_s - peer_s, now_s)

    def reached(self, left_s: float, peer_s: float, now_s: float) -> None:
        """Narrow the bounds by a frame that left at ``left_s`` and was there at ``peer_s``."""
        self._narrow(left_s - peer_s, math.inf, now_s)

    def _narrow(self, lowest_s: float, highest_s: float, now_s: float) -> None:
        drift_s = CLOCK_DRIFT * max(0.0, now_s - self._as_of_s)
        low_s = max(self._lowest_s - drift_s, lowest_s)
        high_s = min(self._highest_s + drift_s, highest_s)
        if low_s > high_s:
            low_s, high_s = lowest_s, highest_s
        self._lowest_s, self._highest_s, self._as_of_s = low_s, high_s, now_s

    def own_s(self, peer_s: float, now_s: float) -> float:
        """Return when it was ``peer_s`` at the other end, by this clock; not later than ``now_s``."""
        low_s, high_s = self._lowest_s, self._highest_s
        if math.isinf(low_s):
            low_s = high_s
        return min(peer_s + 0.5 * (low_s + high_s), now_s)


class Session:
    """One end of a session.

    Parameters
    ----------
    limits : bounds.
    client : whether this is the device's end, whose WebSocket messages are masked.
    """

    __slots__ = (
        "_asked",
        "_client",
        "_computing",
        "_control",
        "_heard_s",
        "_incoming",
        "_incoming_begun_s",
        "_incoming_left",
        "_incoming_session_bytes",
        "_kept",
        "_kept_bytes",
        "_left",
        "_limits",
        "_next",
        "_peer_clock",
        "_pings",
        "_repeated_bytes",
        "_sequence",
        "control_bytes",
        "received",
    )

    def __init__(self, limits: SessionLimits, *, client: bool) -> None:
        self._limits = limits
        self._client = client
        self.received = 0
        """The sequence number received last."""
        self.control_bytes = 0
        """Sent in acknowledgements, pings and pongs, which belong to no message."""
        self._sequence = 0
        self._left = 0
        """The highest sequence number that has left."""
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._next = 0
        """Place in ``_kept`` of what is sent next on this connection."""
        self._control: deque[SessionFrame] = deque()
        self._incoming = bytearray()
        self._incoming_left = 0
        self._incoming_begun_s = 0.0
        self._incoming_session_bytes = 0
        self._repeated_bytes = 0
        self._heard_s = 0.0
        self._asked = False
        self._pings: dict[int, float] = {}
        """Pings that have not been answered on this connection, and when they left; NaN: they have not."""
        self._peer_clock = PeerClock()
        self._computing = False

    # -- connections -------------------------------------------------------------------------------------

    def connected(self, peer_received: int, now_s: float) -> list[Acknowledged]:
        """Begin on a new connection, whose other end received ``peer_received`` last.

        Returns the messages that have turned out to be received.

        Raises
        ------
        RemoteProtocolError : the other end claims what was never sent.
        """
        self._control.clear()
        self._pings.clear()
        self._heard_s = now_s
        self._asked = False
        self._next = 0
        return self._acknowledged(peer_received, None, now_s)

    # -- sending -----------------------------------------------------------------------------------------

    def send(self, frame: bytes, label: Any = None, *, at_s: float | None = None) -> Sent:
        """Queue a message, which is sent from ``at_s`` on; returns what will be known of its sending.

        The other end receives ``at_s`` unless it is None.

        Raises
        ------
        RemoteProtocolError : the other end has not acknowledged so much that no more is kept for it.
        """
        limit = self._limits.unacknowledged_bytes
        if self._kept_bytes + len(frame) > limit and self._kept:
            raise RemoteProtocolError(
                "overflow",
                f"{self._kept_bytes} bytes are not acknowledged, and {len(frame)} more would be above "
                f"connection.sockets.unacknowledged_bytes = {limit}",
            )
        sent = Sent(label)
        view = memoryview(frame)
        for start in range(0, len(frame), PIECE_BYTES):
            data = view[start : start + PIECE_BYTES]
            self._sequence += 1
            left = len(frame) - start - len(data)
            self._keep(_Kept(Piece(self._sequence, left, data, None if start else at_s), sent, len(data)))
        return sent

    def note(self, stage: int, seconds: float | None = None, *, at_s: float | None = None) -> None:
        """Say that a computation for a stage begins, or how long it took, and when."""
        self._sequence += 1
        note = Note(self._sequence, stage, BEGINS if seconds is None else seconds, at_s)
        self._keep(_Kept(note, None, 0))

    def _keep(self, kept: _Kept) -> None:
        self._kept.append(kept)
        self._kept_bytes += kept.size

    @property
    def waiting(self) -> bool:
        """Whether there is something to send on this connection now."""
        return bool(self._control) or self._next < len(self._kept)

    @property
    def unacknowledged(self) -> list[Sent]:
        """The messages that the other end may not have, in order."""
        return list({id(kept.sent): kept.sent for kept in self._kept if kept.sent is not None}.values())

    def next_frame(self, now_s: float) -> bytes | None:
        """Return the next session frame to send on this connection; None if there is nothing to send."""
        if self._control:
            control = self._control.popleft()
            if isinstance(control, Ping) and math.isnan(self._pings.get(control.number, 0.0)):
                self._pings[control.number] = now_s
            packed = pack(control)
            self.control_bytes += carried_bytes(len(packed), masked=self._client)
            return packed
        if self._next >= len(self._kept):
            return None
        kept = self._kept[self._next]
        self._next += 1
        self._left = max(self._left, kept.frame.sequence)
        packed = pack(kept.frame)
        carried = carried_bytes(len(packed), masked=self._client)
        if kept.sent is None:
            self.control_bytes += carried
        elif kept.times:
            kept.sent.repeated_bytes += carried
        else:
            kept.sent.session_bytes += carried - kept.size
            kept.sent.message_bytes += kept.size
            if math.isnan(kept.sent.begun_s):
                kept.sent.begun_s = now_s
        if not kept.times:
            kept.left_s = now_s
        kept.times += 1
        return packed

    # -- receiving ---------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Take a session frame from the other end; return what follows from it.

        Raises
        ------
        CodecError : it is none, or a message in it is above the limit.
        RemoteProtocolError : it does not belong here.
        """
        self._heard_s = now_s
        self._asked = False
        frame = unpack(data)
        match frame:
            case Piece() | Note():
                return self._received(frame, len(data), now_s)
            case Ack():
                return list(self._acknowledged(frame.received, frame.at_s, now_s))
            case Ping():
                self._answer(Pong(frame.number, self._told(now_s)))
                return []
            case Pong():
                left_s = self._pings.pop(frame.number, math.nan)
                if not math.isnan(left_s):
                    self._had(left_s, frame.at_s, now_s)
                return []
            case Goodbye():
                return [SessionEnded(frame.reason)]
        raise RemoteProtocolError("wrong-stage", f"a {type(frame).__name__} in the middle of a session")

    def _told(self, now_s: float) -> float | None:
        """Return the time to put into an answer: the device's; the coordinator's is not sent."""
        return now_s if self._client else None

    def _had(self, left_s: float, peer_s: float | None, now_s: float) -> float:
        """Return when what left at ``left_s`` was at the other end, where it was ``peer_s``; or else now."""
        if peer_s is None:
            return now_s
        self._peer_clock.reached(left_s, peer_s, now_s)
        return self._did(peer_s, now_s)

    def _did(self, peer_s: float | None, now_s: float) -> float:
        """Return when it was ``peer_s`` at the other end, where a frame has just said so; or else now."""
        if peer_s is None:
            return now_s
        self._peer_clock.sent(peer_s, now_s)
        return self._peer_clock.own_s(peer_s, now_s)

    def _answer(self, frame: SessionFrame) -> None:
        if isinstance(frame, Ack):
            # One that has not left yet says less than this one.
            for place, waiting in enumerate(self._control):
                if isinstance(waiting, Ack):
                    self._control[place] = frame
                    return
        if len(self._control) >= CONTROL_FRAMES:
            raise RemoteProtocolError(
                "flood", f"{CONTROL_FRAMES} answers wait to be sent and more are wanted"
            )
        self._control.append(frame)

    def _received(self, frame: Piece | Note, length: int, now_s: float) -> list[Event]:
        carried = carried_bytes(length, masked=not self._client)
        if frame.sequence <= self.received:
            self._repeated_bytes += carried
            self._answer(Ack(self.received, self._told(now_s)))
            return []
        if frame.sequence != self.received + 1:
            raise RemoteProtocolError("gap", f"sequence number {frame.sequence} after {self.received}")
        if isinstance(frame, Note):
            self.received = frame.sequence
            self._answer(Ack(self.received, self._told(now_s)))
            self._computing = frame.seconds == BEGINS
            if not self._computing and frame.seconds < 0:
                raise RemoteProtocolError("garbage", f"a computation of {frame.seconds} s")
            seconds = None if self._computing else frame.seconds
            return [Noted(frame.stage, seconds, self._did(frame.at_s, now_s))]
        return self._received_piece(frame, carried, now_s)

    def _received_piece(self, piece: Piece, carried: int, now_s: float) -> list[Event]:
        size = len(piece.data)
        if self._incoming_left == 0:
            if size + piece.left > self._limits.frame_bytes:
                raise FrameTooLargeError(
                    "frame-too-large",
                    f"a message of {size + piece.left} bytes is above limits.frame_bytes = "
                    f"{self._limits.frame_bytes}",
                )
            self._incoming_begun_s = self._did(piece.at_s, now_s)
            self._incoming_session_bytes = 0
        elif size + piece.left != self._incoming_left:
            raise RemoteProtocolError(
                "gap", f"{size} bytes with {piece.left} left, where {self._incoming_left} were awaited"
            )
        self.received = piece.sequence
        self._answer(Ack(self.received, self._told(now_s)))
        self._incoming_session_bytes += carried - size
        self._incoming_left = piece.left
        if not self._incoming and piece.left == 0:
            frame = bytes(piece.data)
        else:
            self._incoming += piece.data
            if piece.left:
                return []
            frame = bytes(self._incoming)
            self._incoming = bytearray()
        self._computing = False
        repeated, self._repeated_bytes = self._repeated_bytes, 0
        return [Received(frame, self._incoming_begun_s, self._incoming_session_bytes, repeated)]

    def _acknowledged(self, received: int, peer_s: float | None, now_s: float) -> list[Acknowledged]:
        if received > self._left:
            raise RemoteProtocolError("gap", f"{received} is acknowledged, and {self._left} was sent last")
        done: list[Sent] = []
        kept, left_s = self._kept, math.nan
        while kept and kept[0].frame.sequence <= received:
            first = kept.popleft()
            self._kept_bytes -= first.size
            self._next = max(0, self._next - 1)
            left_s = first.left_s
            if first.sent is not None and isinstance(first.frame, Piece) and first.frame.left == 0:
                done.append(first.sent)
        if math.isnan(left_s):
            return []
        at_s = self._had(left_s, peer_s, now_s)
        return [Acknowledged(sent, at_s) for sent in done]

    # -- signs of life -----------------------------------------------------------------------------------

    @property
    def _patience_s(self) -> float:
        return self._limits.computing_s if self._computing else self._limits.idle_s

    def challenge(self, number: int) -> None:
        """Ask for a sign of life that cannot have been on its way already: the answer repeats ``number``.

        Raises
        ------
        RemoteProtocolError : too much waits to be sent already.
        """
        self._answer(Ping(number))
        self._pings.setdefault(number, math.nan)

    def has_answered(self, number: int) -> bool:
        """Return whether the other end has answered a :meth:`challenge` on this connection."""
        return number not in self._pings

    def next_check_s(self) -> float:
        """Return when :meth:`check` wants to be called next, absolute seconds."""
        wait_s = self._patience_s if self._asked else min(self._limits.heartbeat_s, self._patience_s)
        return self._heard_s + wait_s

    def check(self, now_s: float) -> bool:
        """Ask for a sign of life if it is time; return whether the connection is still to be trusted.

        A device that has said that it computes is given ``computing_s`` of silence: its process may have no
        time for anything else.
        """
        silent_s = now_s - self._heard_s
        if silent_s >= self._patience_s:
            return False
        if silent_s >= self._limits.heartbeat_s and not self._asked:
            self._asked = True
            self._control.append(Ping(self.received))
        return True
