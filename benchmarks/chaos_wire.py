"""What attacks are made of: bytes on the wire, and a ledger of how they went."""

import asyncio
import contextlib
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field

REQUEST = (
    b"GET /v1/join HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
"""What makes a connection a WebSocket."""


class NotNowError(Exception):
    """An attack that cannot be tried at the moment."""


@dataclass
class Ledger:
    """What was tried how often, how it went, and how often it got in."""

    tried: Counter[str] = field(default_factory=Counter)
    in_: Counter[str] = field(default_factory=Counter)
    answers: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def note(self, name: str, answer: str, *, got_in: bool) -> None:
        """Count an attempt."""
        self.tried[name] += 1
        self.in_[name] += got_in
        self.answers[name][answer] += 1


async def trickle(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send one byte after the other, ten a second."""
    with contextlib.suppress(OSError):
        for place in range(len(data)):
            writer.write(data[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0.1)


def masked(data: bytes) -> bytes:
    """Return a binary WebSocket message as a client sends it, with a mask of zeros."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
    return b"\x82" + length + bytes(4) + data


HUGE_HEADER = b"\x82\xff" + struct.pack(">Q", 2**62) + bytes(4)
"""Of a WebSocket message of four exabytes."""
