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

from edge.errors import FrameTooLargeError, RemoteProtocolError
from edge.session_frames import (
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

    ``begun_s`` is when its first piece had come, ``session_bytes`` what carried it beside its own bytes, and
    ``repeated_bytes`` what came twice since the message before it.
    """

    frame: bytes
    begun_s: float
    session_bytes: int
    repeated_bytes: int


class Noted(NamedTuple):
    """The other end begins to compute for a stage (``seconds`` None), or has done so for ``seconds``."""

    stage: int
    seconds: float | None


class Acknowledged(NamedTuple):
    """The other end has all of a message that was sent."""

    sent: Sent


class Ended(NamedTuple):
    """The other end has said goodbye."""

    reason: str


Event = Received | Noted | Acknowledged | Ended


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


class Session:
    """One end of a session.

    Parameters
    ----------
    limits : bounds.
    client : whether this is the device's end, whose WebSocket messages are masked.
    """

    __slots__ = (
        "_asked",
        "_challenges",
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
        self._challenges: set[int] = set()
        """Numbers of pings that have not been answered on this connection."""
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
        self._challenges.clear()
        self._heard_s = now_s
        self._asked = False
        self._next = 0
        return self._acknowledged(peer_received)

    # -- sending -----------------------------------------------------------------------------------------

    def send(self, frame: bytes, label: Any = None) -> Sent:
        """Queue a message; returns what will be known of its sending.

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
            self._keep(_Kept(Piece(self._sequence, left, data), sent, len(data)))
        return sent

    def note(self, stage: int, seconds: float | None = None) -> None:
        """Say that a computation for a stage begins, or how long it took."""
        self._sequence += 1
        self._keep(_Kept(Note(self._sequence, stage, BEGINS if seconds is None else seconds), None, 0))

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
            packed = pack(self._control.popleft())
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
                return list(self._acknowledged(frame.received))
            case Ping():
                self._answer(Pong(frame.number))
                return []
            case Pong():
                self._challenges.discard(frame.number)
                return []
            case Goodbye():
                return [Ended(frame.reason)]
        raise RemoteProtocolError("wrong-stage", f"a {type(frame).__name__} in the middle of a session")

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
            self._answer(Ack(self.received))
            return []
        if frame.sequence != self.received + 1:
            raise RemoteProtocolError("gap", f"sequence number {frame.sequence} after {self.received}")
        if isinstance(frame, Note):
            self.received = frame.sequence
            self._answer(Ack(self.received))
            self._computing = frame.seconds == BEGINS
            if not self._computing and frame.seconds < 0:
                raise RemoteProtocolError("garbage", f"a computation of {frame.seconds} s")
            return [Noted(frame.stage, None if self._computing else frame.seconds)]
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
            self._incoming_begun_s = now_s
            self._incoming_session_bytes = 0
        elif size + piece.left != self._incoming_left:
            raise RemoteProtocolError(
                "gap", f"{size} bytes with {piece.left} left, where {self._incoming_left} were awaited"
            )
        self.received = piece.sequence
        self._answer(Ack(self.received))
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

    def _acknowledged(self, received: int) -> list[Acknowledged]:
        if received > self._left:
            raise RemoteProtocolError("gap", f"{received} is acknowledged, and {self._left} was sent last")
        done: list[Acknowledged] = []
        kept = self._kept
        while kept and kept[0].frame.sequence <= received:
            first = kept.popleft()
            self._kept_bytes -= first.size
            self._next = max(0, self._next - 1)
            if first.sent is not None and isinstance(first.frame, Piece) and first.frame.left == 0:
                done.append(Acknowledged(first.sent))
        return done

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
        self._challenges.add(number)

    def has_answered(self, number: int) -> bool:
        """Return whether the other end has answered a :meth:`challenge` on this connection."""
        return number not in self._challenges

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
