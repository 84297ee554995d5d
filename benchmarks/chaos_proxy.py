"""A TCP proxy that keeps what passes, and can stop forwarding while it keeps its connections open."""

import asyncio
import contextlib
import itertools
import math
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from edge.core.errors import CodecError
from edge.wire.session_frames import Hello, Piece, SessionFrame, Welcome, unpack

_KEPT_BYTES = 1 << 20


@dataclass
class Recording:
    """The beginning of what passed on a connection.

    Attributes
    ----------
    live : whether it is open and forwarded.
    heard_s : when something came from the device, monotonic seconds.
    """

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    live: bool = True
    heard_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))

    def silence_s(self, since_s: float) -> float:
        """Return the longest silence of the device since ``since_s``; infinity if its connection is gone."""
        if not self.live:
            return math.inf
        times = [since_s, *(time_s for time_s in self.heard_s if time_s > since_s), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))

    @property
    def hello(self) -> Hello | None:
        """What the device said first."""
        return next((frame for frame in frames_in(bytes(self.up)) if isinstance(frame, Hello)), None)

    @property
    def welcome(self) -> Welcome | None:
        """What it was answered; None: not yet."""
        return next((frame for frame in frames_in(bytes(self.down)) if isinstance(frame, Welcome)), None)

    @property
    def pieces(self) -> list[Piece]:
        """The messages that the device sent, in pieces."""
        return [frame for frame in frames_in(bytes(self.up)) if isinstance(frame, Piece)]


class Proxy:
    """Forwards connections to the service.

    Attributes
    ----------
    recordings : of all connections, in the order in which they came.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[None]] = set()
        self.recordings: list[Recording] = []
        self.url = ""

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the next turn of the loop

    def freeze(self) -> int:
        """Forward nothing more on the connections that there are, and keep them open; return how many."""
        frozen = [recording for recording in self.recordings if recording.live]
        for recording in frozen:
            recording.live = False
            recording.thawed.clear()
        return len(frozen)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recording = Recording()
        recording.thawed.set()
        self.recordings.append(recording)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, recording, recording.up)),
            asyncio.create_task(self._pump(far_reader, writer, recording, recording.down)),
        ]
        try:
            # Either side's end is the other's; a frozen connection ends with the proxy.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            recording.live = False
            for pump in pumps:
                pump.cancel()
            far_writer.transport.abort()
            writer.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        recording: Recording,
        kept: bytearray,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await recording.thawed.wait()
                kept += data[: _KEPT_BYTES - len(kept)]
                if kept is recording.up:
                    recording.heard_s.append(time.monotonic())
                writer.write(data)
                await writer.drain()
        await recording.thawed.wait()


def frames_in(data: bytes) -> Iterator[SessionFrame]:
    """Yield the session frames in the bytes of one direction: an HTTP head, then WebSocket frames."""
    place = data.find(b"\r\n\r\n") + 4
    while 4 <= place <= len(data) - 2:
        opening, length = data[place] & 0x0F, data[place + 1] & 0x7F
        masked = data[place + 1] & 0x80
        place += 2
        if length >= 126:
            size = 2 if length == 126 else 8
            if len(data) < place + size:
                return
            (length,) = struct.unpack_from(">H" if size == 2 else ">Q", data, place)
            place += size
        mask = data[place : place + 4] if masked else bytes(4)
        place += 4 if masked else 0
        body = data[place : place + length]
        if len(body) < length:
            return
        place += length
        if opening == 2:
            with contextlib.suppress(CodecError):
                yield unpack(
                    (
                        np.frombuffer(body, np.uint8) ^ np.resize(np.frombuffer(mask, np.uint8), length)
                    ).tobytes()
                )
