"""Fuzzes how the service handles bytes: on the socket, in requests, in frames and in messages.

Five minutes of it, from the top of the repository::

    PYTHONPATH=.:tests/service python tests/service/fuzz_frames.py --seconds 300

While strangers and bad devices send what they like, honest devices send numbered messages, and lose none. Any
exception that is not an answer to a peer, any complaint of the web server, and memory that grows fail it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import psutil
from door_helpers import DEVICES, Inbox, Records, Service, frame_from, masked, play, serving, until
from service_helpers import HANG_S

from coordinator.scenario.fleet_section import Sockets
from coordinator.service.admission.limits import ArrivalLimits
from coordinator.service.sessions import DeviceSession
from edge.core.errors import CodecError
from edge.wire.codec import CodecLimits, decode, encode
from edge.wire.messages import Accept, Model, Report
from edge.wire.session import Received
from edge.wire.session_frames import (
    PROTOCOL,
    Ack,
    Goodbye,
    Hello,
    Note,
    Piece,
    Ping,
    Pong,
    SessionFrame,
    Welcome,
    pack,
    unpack,
)

HONEST = (0, 1)
HOSTILE = range(2, DEVICES)
ATTACKERS = 6
FRAME_BYTES = 1 << 18
_LIMITS = CodecLimits(frame_bytes=FRAME_BYTES)
_NUMBERED = struct.Struct(">4sQ")
_MARK = b"mine"
_ATTACKS = frozenset(
    {"noise", "request", "websocket_frames", "changed_hello", "changed_session", "changed_messages", "joined"}
)


@dataclass
class Result:
    """What was sent, and what became of it."""

    attacks: Counter[str] = field(default_factory=Counter)
    honest_messages: int = 0
    garbage_messages: int = 0
    valid_messages: int = 0
    rss_bytes: list[int] = field(default_factory=list)
    """Of this process, once a second, clients included."""

    @property
    def seen_all(self) -> bool:
        """Whether everything was tried, and came to what it can come to, at least once."""
        counts = (self.honest_messages, self.garbage_messages, self.valid_messages)
        return self.attacks.keys() >= _ATTACKS and all(counts)

    @property
    def growth_bytes(self) -> int:
        """Difference of the medians of the last and the second quarter."""
        quarter = max(1, len(self.rss_bytes) // 4)
        early, late = self.rss_bytes[quarter : 2 * quarter], self.rss_bytes[-quarter:]
        return int(np.median(late) - np.median(early))


@dataclass
class Decoding(Inbox):
    """Decodes messages as a run does, and keeps none of the hostile ones."""

    result: Result = field(default_factory=Result)
    expected: dict[int, int] = field(default_factory=lambda: dict.fromkeys(HONEST, 0))

    def received(self, session: DeviceSession, received: Received) -> None:
        if session.device in HONEST:
            assert _NUMBERED.unpack(received.frame) == (_MARK, self.expected[session.device])
            self.expected[session.device] += 1
            self.result.honest_messages += 1
            return
        try:
            decode(received.frame, _LIMITS)
        except CodecError:
            self.result.garbage_messages += 1
        else:
            self.result.valid_messages += 1

    def noted(self, session: DeviceSession, noted: object) -> None:
        pass


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few of them changed, left out, doubled or added."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if place < len(changed):
                changed[place] = rng.randrange(256)
            case 1 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                del changed[place : place + rng.randrange(1, 20)]
            case 3:
                changed[place:place] = changed[place : place + rng.randrange(1, 40)]
            case _:
                changed[place:place] = rng.randbytes(rng.randrange(1, 10))
    return bytes(changed)


class Attacker:
    """Attacks again and again, with a random stream of its own."""

    def __init__(self, service: Service, rng: random.Random, tokens: dict[int, str], result: Result) -> None:
        self._service = service
        self._rng = rng
        self._tokens = tokens
        self._result = result
        self._messages = messages_to_change()
        self._opened: list[Callable[[], None]] = []
        """Ends what the attack has opened, whatever became of that."""

    async def run(self) -> None:
        """Attack until cancelled."""
        attacks: list[Callable[[], Awaitable[None]]] = [
            self.noise,
            self.request,
            self.websocket_frames,
            self.changed_hello,
            self.changed_session,
            self.changed_session,
            self.changed_messages,
            self.changed_messages,
        ]
        while True:
            attack = self._rng.choice(attacks)
            self._result.attacks[attack.__name__] += 1
            try:
                # What being refused looks like.
                with contextlib.suppress(ConnectionError, aiohttp.ClientError, TimeoutError, EOFError):
                    async with asyncio.timeout(5.0):
                        await attack()
            finally:
                for abort in self._opened:
                    abort()
                self._opened.clear()

    # -- kinds of attacks --------------------------------------------------------------------------------

    async def noise(self) -> None:
        """Send noise to the socket."""
        _, writer = await self._open()
        await self._send_in_parts(writer, self._rng.randbytes(self._rng.randrange(5000)))

    async def request(self) -> None:
        """Send a request with changes."""
        path = self._rng.choice(["/v1/join", "/healthz", "/readyz", "/metrics", "/"])
        text = (
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        reader, writer = await self._open()
        await self._send_in_parts(writer, self.changed(text.encode()) * self._rng.choice([1, 1, 3]))
        async with asyncio.timeout(0.2):
            await reader.read(4096)

    async def websocket_frames(self) -> None:
        """Send WebSocket frames with any header, before or after a hello."""
        reader, writer = await self._upgrade()
        if self._rng.random() < 0.5:
            writer.write(masked(pack(self._hello())))
            await reader.read(4096)
        for _ in range(self._rng.randrange(1, 20)):
            data = self._rng.randbytes(self._rng.choice([0, 1, 10, 125, 126, 1000, 70_000]))
            frame = bytearray(masked(data, opening=self._rng.randrange(256)))
            if self._rng.random() < 0.3:
                frame[1] = self._rng.randrange(256)
            await self._send_in_parts(writer, bytes(frame))
        if self._rng.random() < 0.5:
            writer.transport.abort()

    async def changed_hello(self) -> None:
        """Send a hello with changes."""
        reader, writer = await self._upgrade()
        writer.write(masked(self.changed(pack(self._hello()))))
        async with asyncio.timeout(0.2):
            await reader.read(4096)

    async def changed_session(self) -> None:
        """Join, and send session frames that are right, almost right, or not at all."""
        socket, sequence = await self._join()
        for _ in range(self._rng.randrange(1, 60)):
            frame = self._session_frame(sequence)
            if isinstance(frame, Piece | Note):
                sequence = frame.sequence
            packed = pack(frame)
            await socket.send_bytes(self.changed(packed) if self._rng.random() < 0.1 else packed)
        await self._leave(socket)

    async def changed_messages(self) -> None:
        """Join, and send messages with changes in proper session frames."""
        socket, sequence = await self._join()
        for _ in range(self._rng.randrange(1, 20)):
            data = self.changed(self._rng.choice(self._messages))
            while data:
                size = self._rng.choice([1 + len(data) // 2, len(data)])
                sequence += 1
                await socket.send_bytes(pack(Piece(sequence, len(data) - size, data[:size])))
                data = data[size:]
        await self._leave(socket)

    # -- parts of them -----------------------------------------------------------------------------------

    def changed(self, data: bytes) -> bytes:
        """Return bytes with changes."""
        return changed_bytes(data, self._rng)

    def _hello(self) -> Hello:
        device = self._rng.choice(list(HOSTILE))
        token = self._tokens[device] if self._rng.random() < 0.9 else self._tokens[HONEST[0]]
        session = "" if self._rng.random() < 0.8 else "A" * 32
        return Hello(PROTOCOL, device, token, session, "", self._rng.choice([0, 0, 0, 1, 2**40]))

    def _session_frame(self, sequence: int) -> SessionFrame:
        rng = self._rng
        following = sequence + rng.choice([1, 1, 1, 1, 1, 1, 1, 1, 0, 2])
        number = rng.choice([0, 1, sequence, 2**31, 2**63 - 1])
        left = rng.choice([0, 0, 0, 1, 1000, FRAME_BYTES, 2**62])
        frames: list[SessionFrame] = [
            Piece(following, left, rng.randbytes(rng.choice([1, 10, 60_000]))),
            Note(following, rng.choice([0, 1, 200, 2**62]), rng.choice([-1.0, 0.0, 1e300, -2.0])),
            Ack(rng.choice([0, 0, number])),
            Ping(number),
            Pong(number),
            self._hello(),
            Goodbye("x" * rng.randrange(100)),
            Welcome("s", number, 1.0, 1.0, 1.0, 1, "h", "t", "run"),
        ]
        return rng.choices(frames, [30, 10, 10, 10, 10, 1, 1, 1])[0]

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._service.port)
        # The writer itself: one that is forgotten while it is open complains.
        self._opened.append(writer.close)
        self._opened.append(writer.transport.abort)
        return reader, writer

    async def _upgrade(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._open()
        writer.write(
            b"GET /v1/join HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer

    async def _send_in_parts(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while data:
            size = self._rng.choice([len(data), 1 + self._rng.randrange(len(data))])
            writer.write(data[:size])
            await writer.drain()
            data = data[size:]

    async def _join(self) -> tuple[aiohttp.ClientWebSocketResponse, int]:
        socket = await self._service.http.ws_connect(
            self._service.url + "/v1/join", compress=0, max_msg_size=2**21, autoping=False
        )
        self._opened.append(socket._response.close)
        device = self._rng.choice(list(HOSTILE))
        await socket.send_bytes(pack(Hello(PROTOCOL, device, self._tokens[device], "", "", 0)))
        answer = await frame_from(socket)
        if not isinstance(answer, Welcome):
            await socket.close()
            raise ConnectionError("another attacker is this device now")
        self._result.attacks["joined"] += 1
        return socket, answer.received

    async def _leave(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        if self._rng.random() < 0.5:
            await socket.close()
        elif socket._response.connection is not None and socket._response.connection.transport is not None:
            socket._response.connection.transport.abort()  # type: ignore[attr-defined]
            await socket.close()


def messages_to_change() -> list[bytes]:
    """Return frames of messages as they are sent in a run."""
    arrays = {"a": np.arange(12.0).reshape(3, 4), "b": np.arange(3, dtype=np.int64)}
    made: list[bytes] = []
    for kind in (Accept, Model, Report):
        values = {name: {"run_id": "run", "arrays": arrays, "stage": 1}.get(name, 1) for name in kind._fields}
        made.append(encode(kind(**values), _LIMITS))
    return made


async def _be_honest(
    service: Service, device: int, token: str, over: Callable[[], bool], sent: dict[int, int]
) -> None:
    """Send numbered messages."""
    socket, _ = await service.join(device, token)
    reading = asyncio.create_task(_read(socket))
    number = 0
    while not over():
        data = _NUMBERED.pack(_MARK, number)
        number += 1
        sent[device] = number
        await socket.send_bytes(pack(Piece(number, 0, data)))
        await asyncio.sleep(0.01)
    reading.cancel()


async def _read(socket: aiohttp.ClientWebSocketResponse) -> None:
    async for message in socket:
        frame = unpack(message.data)
        assert isinstance(frame, Ack | Ping)
        if isinstance(frame, Ping):
            await socket.send_bytes(pack(Pong(frame.number)))


async def _watch(result: Result) -> None:
    process = psutil.Process()
    while True:
        gc.collect()
        result.rss_bytes.append(process.memory_info().rss)
        await asyncio.sleep(1.0)


async def fuzz(seconds: float, seed: int, garbage: int = 1) -> Result:
    """Attack a service for so long, and until everything was seen, and so much garbage; return what happened,
    or fail."""
    result = Result()
    records = Records()
    tokens = {device: records.issue(device, device) for device in range(DEVICES)}
    inbox = Decoding(result=result)
    settings = Sockets.model_validate({"join_timeout": "30 s", "resume_window": "1 s"})
    limits = ArrivalLimits(connections=4096, arrivals_per_s=1e6, arrivals_per_s_per_address=1e6)
    sent: dict[int, int] = {}
    async with serving(
        enrolments=records,
        now_s=lambda: 1.0,
        sockets=settings,
        limits=limits,
        frame_bytes=FRAME_BYTES,
        inbox=inbox,
        quiet_guests=True,
    ) as service:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds

        def over() -> bool:
            return loop.time() >= until_s and result.seen_all and result.garbage_messages >= garbage

        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(Attacker(service, random.Random(f"{seed}/{one}"), tokens, result).run())
                for one in range(ATTACKERS)
            ]
            others.append(group.create_task(_watch(result)))
            await asyncio.gather(
                *(_be_honest(service, device, tokens[device], over, sent) for device in HONEST)
            )
            for task in others:
                task.cancel()
        await until(lambda: inbox.expected == sent)
    return result


def main() -> None:
    """Fuzz for as long as is wanted, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    wanted = parser.parse_args()
    print(f"seed {wanted.seed}", flush=True)
    results: list[Result] = []

    async def story() -> None:
        results.append(await fuzz(wanted.seconds, wanted.seed))

    play(story(), wanted.seconds + HANG_S)
    result = results[0]
    for name, number in result.attacks.most_common():
        print(f"{number:>8} × {name}")
    print(
        f"{result.honest_messages} honest messages, none lost; {result.valid_messages} valid hostile ones, "
        f"{result.garbage_messages} that were none"
    )
    mib = 1024 * 1024
    print(
        f"RSS {result.rss_bytes[0] / mib:.1f} MiB at first, {result.rss_bytes[-1] / mib:.1f} MiB at last, "
        f"growth from the second to the last quarter {result.growth_bytes / mib:+.2f} MiB"
    )


if __name__ == "__main__":
    main()
