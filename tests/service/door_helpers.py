"""A service on loopback whose devices are played by the tests, so that they can misbehave."""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from service_helpers import HANG_S, skip

from coordinator.scenario.fleet_section import Sockets
from coordinator.service.admission.certificates import ServiceIdentity, generated_identity
from coordinator.service.admission.enrolment import Enrolment, issue
from coordinator.service.admission.gate import Gate
from coordinator.service.admission.limits import ArrivalLimits
from coordinator.service.app import Listening, make_app
from coordinator.service.greeting import Offer
from coordinator.service.hooks import ServiceObserver
from coordinator.service.sessions import DeviceSession, Sessions, Transfer
from edge.clock import real as real_clock
from edge.core.vocabulary import Reason
from edge.wire.session import Noted, Received
from edge.wire.session_frames import (
    PROTOCOL,
    Goodbye,
    Hello,
    Piece,
    Ping,
    Pong,
    SessionFrame,
    Welcome,
    pack,
    unpack,
)

DEVICES = 10
SCENARIO = "title: a scenario\n"


@dataclass
class Guestbook(ServiceObserver):
    """Notes who came, who went and who was not let in."""

    joined: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    left: list[tuple[int, Reason, str]] = field(default_factory=list)
    refused: list[tuple[int | None, str]] = field(default_factory=list)

    def on_join(self, device: int) -> None:
        self.joined.append(device)

    def on_resume(self, device: int) -> None:
        self.resumed.append(device)

    def on_leave(self, device: int, reason: Reason, why: str) -> None:
        self.left.append((device, reason, why))

    def on_refusal(self, device: int | None, remote: str, why: str) -> None:
        self.refused.append((device, why))


@dataclass
class Inbox:
    """Listens to the sessions, and keeps what devices say."""

    messages: list[tuple[int, bytes]] = field(default_factory=list)
    notes: list[Noted] = field(default_factory=list)

    def joined(self, session: DeviceSession) -> None:
        pass

    def pushed(self, session: DeviceSession, transfer: Transfer) -> None:
        pass

    def acknowledged(self, session: DeviceSession, transfer: Transfer, arrival_s: float) -> None:
        pass

    def received(self, session: DeviceSession, received: Received) -> None:
        self.messages.append((session.device, received.frame))

    def noted(self, session: DeviceSession, noted: Noted) -> None:
        self.notes.append(noted)

    def left(self, session: DeviceSession, reason: Reason) -> None:
        pass


class Records:
    """Enrolments in memory, in place of a file."""

    def __init__(self) -> None:
        self.by_key: dict[str, Enrolment] = {}

    def issue(self, first: int, last: int, now_s: float = 0.0, lifetime_s: float = 1000.0) -> str:
        token, record = issue(first, last, now_s, lifetime_s)
        self.by_key[record.key] = record
        return token

    def find(self, key: str) -> Enrolment | None:
        return self.by_key.get(key)


@dataclass
class Service:
    """A service that runs."""

    url: str
    sessions: Sessions
    gate: Gate
    guests: Guestbook
    inbox: Inbox
    http: aiohttp.ClientSession
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    kept: list[aiohttp.ClientWebSocketResponse] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def connect(self, **options: Any) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket and say nothing."""
        socket = await self.http.ws_connect(
            self.url + "/v1/join", compress=0, max_msg_size=2**21, autoping=False, **options
        )
        # One that nobody holds would close itself.
        self.kept.append(socket)
        return socket

    async def hello(
        self, device: int, token: str = "", session: str = "", received: int = 0
    ) -> tuple[aiohttp.ClientWebSocketResponse, SessionFrame]:
        """Open a WebSocket, say hello, and return the answer."""
        socket = await self.connect()
        await socket.send_bytes(pack(Hello(PROTOCOL, device, token, session, "", received)))
        return socket, await frame_from(socket)

    async def join(self, device: int, token: str = "") -> tuple[aiohttp.ClientWebSocketResponse, Welcome]:
        """Open a WebSocket, say hello, and return the welcome; the ping that follows it has come."""
        socket, answer = await self.hello(device, token)
        assert isinstance(answer, Welcome), answer
        assert isinstance(unpack((await socket.receive()).data), Ping)
        return socket, answer

    async def raw(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TCP connection and say nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        self.writers.append(writer)
        return reader, writer


async def frame_from(socket: aiohttp.ClientWebSocketResponse) -> SessionFrame:
    """Return the next frame that says more than a sign of life, which is neither returned nor answered."""
    while True:
        message = await socket.receive()
        assert message.type is aiohttp.WSMsgType.BINARY, message
        frame = unpack(message.data)
        if isinstance(frame, Goodbye | Welcome | Piece):
            return frame


async def closed(socket: aiohttp.ClientWebSocketResponse) -> tuple[int, str]:
    """Return with which code and words a connection is closed, on which nothing else is said."""
    message = await socket.receive()
    assert message.type is aiohttp.WSMsgType.CLOSE, message
    return message.data, message.extra


async def stay(socket: aiohttp.ClientWebSocketResponse) -> str:
    """Answer pings, like a device that has nothing to do, until the connection ends; return why it did."""
    why = "closed"
    while True:
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return why
        frame = unpack(message.data)
        match frame:
            case Goodbye():
                why = frame.reason
            case _ if type(frame).__name__ == "Ping":
                await socket.send_bytes(pack(Pong(frame.number)))  # type: ignore[union-attr]


def message(sequence: int, data: bytes = b"hello", left: int = 0) -> bytes:
    """Return a session frame that carries a message, or the beginning of one."""
    return pack(Piece(sequence, left, data))


def identity_in(folder: Path) -> ServiceIdentity:
    """Return a certificate of the test's own."""
    return generated_identity(folder, "127.0.0.1", datetime.datetime.now(datetime.UTC))


async def upgraded(
    service: Service, connection: socket.socket | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection that has become a WebSocket, whose frames are written by hand."""
    if connection is None:
        reader, writer = await service.raw()
    else:
        reader, writer = await asyncio.open_connection(sock=connection)
        service.writers.append(writer)
    writer.write(
        b"GET /v1/join HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 101 " in head
    return reader, writer


def masked(data: bytes, *, first: bool = True, last: bool = True, opening: int | None = None) -> bytes:
    """Return a WebSocket frame as a client sends it, with a mask of zeros (RFC 6455, section 5.2).

    ``opening`` is its first byte; None: that of a binary message, or of a part of one.
    """
    start = bytes([(0x80 if last else 0) | (0x02 if first else 0) if opening is None else opening])
    if len(data) < 126:
        length = bytes([0x80 | len(data)])
    elif len(data) < 1 << 16:
        length = b"\xfe" + struct.pack(">H", len(data))
    else:
        length = b"\xff" + struct.pack(">Q", len(data))
    return start + length + bytes(4) + data


class Complaints(logging.Handler):
    """Keeps what the web server and asyncio log as an error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@asynccontextmanager
async def serving(
    *,
    limits: ArrivalLimits = ArrivalLimits(),  # noqa: B008 (it is frozen)
    frame_bytes: int = 1 << 20,
    sockets: Sockets | None = None,
    expected_complaints: int = 0,
    inbox: Inbox | None = None,
    quiet_guests: bool = False,
    **gate: Any,
) -> AsyncIterator[Service]:
    """Run a service; fails if anything went wrong that is not for the other side to put right."""
    loop = asyncio.get_running_loop()
    wrong: list[str] = []
    loop.set_exception_handler(lambda _, context: wrong.append(repr(context)))
    complaints = Complaints()
    loggers = [logging.getLogger(name) for name in ("recfleet.service", "asyncio", "aiohttp")]
    for logger in loggers:
        logger.addHandler(complaints)
    door = Gate(limits=limits, **gate)
    inbox = Inbox() if inbox is None else inbox
    guests = Guestbook()
    observer = ServiceObserver() if quiet_guests else guests

    def crashed(where: str, error: BaseException) -> None:
        wrong.append(f"{where}: {error!r}")

    settings = sockets or Sockets.model_validate({"join_timeout": "30 s", "resume_window": "60 s"})
    offer = Offer("a-run_01", "0" * 64, SCENARIO, DEVICES, frame_bytes)
    sessions = Sessions(offer, settings, door, observer, inbox, crashed)
    app = make_app(sessions, door)
    app.router.add_get("/metrics", _metrics)
    try:
        async with Listening(app, door, "127.0.0.1", 0, settings.join_timeout) as listening:
            connector = aiohttp.TCPConnector(limit=0, ssl=False)
            async with aiohttp.ClientSession(connector=connector) as http:
                service = Service(listening.url, sessions, door, guests, inbox, http)
                try:
                    yield service
                    await sessions.close("the test is over")
                finally:
                    for writer in service.writers:
                        writer.close()
    finally:
        for logger in loggers:
            logger.removeHandler(complaints)
    await until(lambda: door.open == 0)
    assert not wrong
    assert len(complaints.records) == expected_complaints, complaints.records


async def _metrics(request: aiohttp.web.Request) -> aiohttp.web.Response:
    return aiohttp.web.Response(text="a figure\n")


def play(story: Coroutine[Any, Any, None], longest_s: float = HANG_S) -> None:
    """Run a story on the real clock."""

    async def limited() -> None:
        async with asyncio.timeout(longest_s):
            await story

    real_clock.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


async def moving(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, on a clock that is moved by hand, a second at a time."""
    while not condition():
        skip(1.0)
        await asyncio.sleep(0.01)
