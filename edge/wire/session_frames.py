"""The frames of the session layer: what carries messages over a connection that may break.

A session frame is a msgpack array ``[kind, field, …]`` and travels in one binary WebSocket message. Messages
(:mod:`edge.wire.codec`) travel inside :class:`Piece`, whole or cut up, so that nobody ever has to buffer more
than a piece before it can refuse, and so that a sign of life is never stuck behind a large model.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from edge.core.errors import CodecError, LocalProtocolError

PROTOCOL: Final = 1
"""Version of the session protocol."""
PIECE_BYTES: Final = 64 * 1024
"""Most bytes of a message in one piece."""
MESSAGE_BYTES: Final = PIECE_BYTES + 64
"""Longest session frame; only a welcome, which carries the scenario, may be longer."""
WELCOME_BYTES: Final = 1024 * 1024
"""Longest welcome."""
TEXT_BYTES: Final = 512
"""Longest text in a session frame but for the scenario."""

BEGINS: Final = -1.0
"""In place of the seconds of a :class:`Note`: the computation begins."""
LONGEST_CLOCK_S: Final = 1e12
"""The latest that the other end's clock may show, seconds."""


class Hello(NamedTuple):
    """Device → coordinator, the first frame of a connection: who I am and where I stand.

    ``token`` says that the device may come in, ``session`` names the session to go on with (empty: a new
    one), ``scenario`` is the hash of the scenario that the device has (empty: none), ``received`` the
    sequence number that it received last.
    """

    protocol: int
    device: int
    token: str
    session: str
    scenario: str
    received: int


class Welcome(NamedTuple):
    """Coordinator → device, the answer: the session, its clock, the scenario, and the run.

    ``received`` is the sequence number that the coordinator received last; 0 in a new session. ``scenario``
    is the hash, ``text`` the YAML, empty if the device said that it has it. After ``heartbeat_s`` of silence
    the coordinator asks for a sign of life, after ``idle_s`` it counts the connection as broken, and after
    ``resume_s`` more the session is over. A message has at most ``frame_bytes``. ``run_id`` is the run's
    identity, 1 to 64 letters, digits, ``-`` and ``_``: the same in every welcome and message of the run.
    """

    session: str
    received: int
    heartbeat_s: float
    idle_s: float
    resume_s: float
    frame_bytes: int
    scenario: str
    text: str
    run_id: str


class Piece(NamedTuple):
    """Either way: the next bytes of a message; ``left`` more bytes of it follow in the next pieces.

    ``at_s`` in the first piece is when the sender began to send the message, by its own clock.
    """

    sequence: int
    left: int
    data: bytes | memoryview
    at_s: float | None = None


class Note(NamedTuple):
    """Device → coordinator: I begin to compute for ``stage`` (seconds −1), or it took me so long.

    ``at_s`` is when it began or ended, by the device's clock.
    """

    sequence: int
    stage: int
    seconds: float
    at_s: float | None = None


class Ack(NamedTuple):
    """Either way: I have everything up to the sequence number ``received``, the last since ``at_s``."""

    received: int
    at_s: float | None = None


class Ping(NamedTuple):
    """Either way: asks for a :class:`Pong`."""

    number: int


class Pong(NamedTuple):
    """Either way: the answer to a :class:`Ping`, which came at ``at_s``."""

    number: int
    at_s: float | None = None


class Goodbye(NamedTuple):
    """Either way, the last frame of a session: it is over, and why."""

    reason: str


SessionFrame: TypeAlias = Hello | Welcome | Piece | Note | Ack | Ping | Pong | Goodbye

KINDS: Final[dict[int, type[Any]]] = {
    1: Hello,
    2: Welcome,
    3: Piece,
    4: Note,
    5: Ack,
    6: Ping,
    7: Pong,
    8: Goodbye,
}
"""Every kind of session frame by its code; codes are only ever added."""

_CODE_OF: Final = {kind: code for code, kind in KINDS.items()}


def pack(frame: SessionFrame) -> bytes:
    """Return the bytes of a session frame."""
    # A field that may be left out is the last one of its frame.
    fields = frame[:-1] if frame[-1] is None else frame
    packed = msgpack.packb((_CODE_OF[frame.__class__], *fields), use_bin_type=True)
    assert isinstance(packed, bytes)
    limit = WELCOME_BYTES if isinstance(frame, Welcome) else MESSAGE_BYTES
    if len(packed) > limit:
        name = type(frame).__name__
        raise LocalProtocolError(f"a {name} of {len(packed)} bytes is above the limit of {limit}")
    return packed


def unpack(data: bytes) -> SessionFrame:
    """Return the session frame in ``data``.

    Raises
    ------
    CodecError : for anything that is not a valid one.
    """
    if len(data) > WELCOME_BYTES:
        raise CodecError("garbage", f"a session frame of {len(data)} bytes, above {WELCOME_BYTES}")
    try:
        fields = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=WELCOME_BYTES,
            max_bin_len=PIECE_BYTES,
            max_array_len=16,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException, msgpack.ExtraData, RecursionError) as error:
        raise CodecError("garbage", f"not a session frame: {type(error).__name__}: {error!s:.80}") from None
    if not isinstance(fields, list) or not fields:
        raise CodecError("garbage", "a session frame is an array that begins with its kind")
    kind = KINDS.get(fields[0]) if type(fields[0]) is int else None
    if kind is None:
        raise CodecError("garbage", f"session frame of kind {fields[0]!r:.20} is not known")
    most = len(kind._fields)
    if not most - len(kind._field_defaults) <= len(fields) - 1 <= most:
        raise CodecError("garbage", f"{kind.__name__} has {most} fields, the frame has {len(fields) - 1}")
    for name, value in zip(kind._fields, fields[1:], strict=False):
        problem = _problem(name, value)
        if problem is not None:
            raise CodecError("garbage", f"{kind.__name__}.{name}: {problem}")
    frame: SessionFrame = kind(*fields[1:])
    return frame


_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_TEXTS: Final = frozenset({"token", "session", "scenario", "reason"})
_REALS: Final = frozenset({"heartbeat_s", "idle_s", "resume_s", "seconds", "at_s"})


def _problem(name: str, value: object) -> str | None:
    if name == "data":
        if not isinstance(value, bytes) or not value:
            return f"expected 1 to {PIECE_BYTES} bytes"
    elif name == "run_id":
        if not isinstance(value, str) or not _RUN_ID.fullmatch(value):
            return f"expected 1 to 64 letters, digits, '-' and '_', got {value!r:.80}"
    elif name in _TEXTS or name == "text":
        if not isinstance(value, str) or (name in _TEXTS and len(value.encode()) > TEXT_BYTES):
            return f"expected at most {TEXT_BYTES} bytes of text"
    elif name in _REALS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return f"expected a finite number, got {value!r:.40}"
        if name == "at_s" and not 0.0 <= value <= LONGEST_CLOCK_S:
            return f"expected from 0 to {LONGEST_CLOCK_S:g} s, got {value!r:.40}"
    elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        return f"expected a whole number from 0 to 2**63 − 1, got {value!r:.40}"
    return None


def carried_bytes(length: int, *, masked: bool) -> int:
    """Return the length of a WebSocket message of ``length`` bytes in one frame (RFC 6455, section 5.2).

    What a client sends is ``masked``, which takes four bytes more.
    """
    header = 2 if length < 126 else 4 if length < 0x1_0000 else 10
    return header + (4 if masked else 0) + length
