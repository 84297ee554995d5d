"""What strangers, thieves and bad devices try on a service; each attack says whether it got somewhere."""

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from chaos_proxy import Proxy, Recording, frames_in
from chaos_wire import HUGE_HEADER, REQUEST, Ledger, NotNowError, masked, trickle

from edge.wire.session_frames import (
    MESSAGE_BYTES,
    PROTOCOL,
    Ack,
    Goodbye,
    Hello,
    Note,
    Piece,
    SessionFrame,
    Welcome,
    pack,
    unpack,
)

STRANGER = "127.0.0.2"
FLOODERS = ("127.0.0.3", "127.0.0.4")
"""Addresses of their own, so that the limits of an address are theirs and not the devices'."""
_REFUSED = (OSError, aiohttp.ClientError, EOFError)
SILENCE_S = 2.5
"""A connection that does not answer for so long gives its session up: half of join_timeout, or 3 s."""


@dataclass
class Attackers:
    """All that attack one service.

    Attributes
    ----------
    address : of the service.
    tokens : the valid enrolment token of each device.
    dead_tokens : tokens of the first victim that are no longer valid, by what is wrong with them.
    victims : honest devices that are there all the time; their connections pass ``tap``.
    bad : devices that have a valid token each, and nothing good in mind.
    idle_s : silence after which a connection counts as broken.
    patience_s : how long the service may take to end what it should end.
    """

    address: tuple[str, int]
    tokens: Mapping[int, str]
    dead_tokens: Mapping[str, str]
    victims: list[int]
    bad: list[int]
    tap: Proxy
    idle_s: float
    patience_s: float
    chance: random.Random
    http: aiohttp.ClientSession
    ledger: Ledger = field(default_factory=Ledger)
    _locks: dict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def run(self) -> None:
        """Try everything, again and again."""
        attacks: dict[str, Callable[[], Awaitable[tuple[str, bool]]]] = {
            **{f"enrolment token: {what}": self._shown(token) for what, token in self.dead_tokens.items()},
            "enrolment token: none": self._shown(""),
            "enrolment token: another device's": self._shown(self.tokens[self.bad[0]]),
            "stolen session, no enrolment token": self.session_without_token,
            "stolen session, another device's token": self.session_with_anothers_token,
            "stolen session, as the thief's own": self.session_as_the_thief,
            "stolen session and token, owner there": self.session_with_everything,
            "a second device with one identity": self.twin,
            "replay of a connection, byte by byte": self.replay,
            "replay of messages by another device": self.replay_in_own_session,
            "garbage for a session frame": self.garbage_frame,
            "garbage for a message": self.garbage_message,
            "a gap in the sequence": self.gap,
            "oversize frame": self.oversize_frame,
            "oversize message, by its first piece": self.oversize_message,
            "oversize WebSocket header, in a session": self.oversize_header,
            "oversize WebSocket header, no hello": self.oversize_header_of_a_stranger,
            "oversize HTTP header": self.oversize_request,
        }
        while True:
            for name in self.chance.sample(list(attacks), len(attacks)):
                with contextlib.suppress(NotNowError):
                    answer, got_in = await attacks[name]()
                    self.ledger.note(name, answer, got_in=got_in)
                await asyncio.sleep(0.02)

    # -- who may not come in ----------------------------------------------------------------------------

    def _shown(self, token: str) -> Callable[[], Awaitable[tuple[str, bool]]]:
        return lambda: self._says_hello(self.victims[0], token)

    async def session_without_token(self) -> tuple[str, bool]:
        """Go on with a stolen session without an enrolment token."""
        victim, session = self._stolen()
        return await self._says_hello(victim, "", session)

    async def session_with_anothers_token(self) -> tuple[str, bool]:
        """Go on with it with another device's enrolment token."""
        victim, session = self._stolen()
        return await self._says_hello(victim, self.tokens[self.bad[0]], session)

    async def session_as_the_thief(self) -> tuple[str, bool]:
        """Go on with it under the thief's own name."""
        _, session = self._stolen()
        thief = self.chance.choice(self.bad)
        async with self._locks[thief]:
            return await self._says_hello(thief, self.tokens[thief], session)

    async def session_with_everything(self) -> tuple[str, bool]:
        """Go on with it with the right token, while its owner is there."""
        victim, session = self._stolen()
        return await self._from_its_owner(victim, session, SILENCE_S)

    async def twin(self) -> tuple[str, bool]:
        """Join as a device that is there."""
        victim, _ = self._stolen()
        return await self._from_its_owner(victim, "", self.idle_s)

    async def _from_its_owner(self, victim: int, session: str, silence_s: float) -> tuple[str, bool]:
        """Show the right tokens of a device; that works once it is silent for so long, and not before."""
        began_s = time.monotonic()
        owners = [one for one in self._taps() if one.hello is not None and one.hello.device == victim]
        answer, got_in = await self._says_hello(victim, self.tokens[victim], session)
        if got_in and all(owner.silence_s(began_s - silence_s) >= silence_s for owner in owners):
            return "taken over from an owner that was silent", False
        return answer, got_in

    async def replay(self) -> tuple[str, bool]:
        """Send all that a device has sent on a connection again, while it is there."""
        recording = self.chance.choice(self._taps())
        data = bytes(recording.up)
        async with self._raw() as (reader, writer):
            writer.write(data)
            answered, ended = await self._until_ended(reader)
        frames = list(frames_in(answered))
        got_in = not ended or any(isinstance(frame, Welcome) for frame in frames)
        return ("refused" if frames else "closed"), got_in

    async def replay_in_own_session(self) -> tuple[str, bool]:
        """Send another device's messages, of this round and all before; the tables show what came of it."""
        pieces = self.chance.choice(self._taps()).pieces
        if not pieces:
            raise NotNowError
        async with self._joined() as socket:
            for sequence, piece in enumerate(pieces, 1):
                await socket.send_bytes(pack(Piece(sequence, piece.left, piece.data)))
            await socket.send_bytes(pack(Goodbye("that was all")))
            return await self._ends(socket, "its messages are in no sum")

    # -- what is no frame -------------------------------------------------------------------------------

    async def garbage_frame(self) -> tuple[str, bool]:
        """Join, and send what is no session frame."""
        async with self._joined() as socket:
            if self.chance.random() < 0.2:
                await socket.send_str("text")
            else:
                await socket.send_bytes(b"\xc1" + self.chance.randbytes(self.chance.randrange(2000)))
            return await self._ends(socket, "session ended")

    async def garbage_message(self) -> tuple[str, bool]:
        """Join, and send what is no message in proper session frames."""
        async with self._joined() as socket:
            for sequence in range(1, 1 + self.chance.randrange(1, 20)):
                await socket.send_bytes(pack(Piece(sequence, 0, self.chance.randbytes(50))))
            await socket.send_bytes(pack(Goodbye("that was all")))
            return await self._ends(socket, "refused, session ended")

    async def gap(self) -> tuple[str, bool]:
        """Join, and leave numbers out, or acknowledge what was never sent."""
        frames: list[SessionFrame] = [Piece(7, 0, b"x"), Note(9, 2, -1.0), Ack(2**40)]
        async with self._joined() as socket:
            await socket.send_bytes(pack(self.chance.choice(frames)))
            return await self._ends(socket, "session ended")

    async def oversize_frame(self) -> tuple[str, bool]:
        """Join, and send a longer frame than there may be."""
        async with self._joined() as socket:
            await socket.send_bytes(bytes(MESSAGE_BYTES + self.chance.randrange(1, 1 << 20)))
            return await self._ends(socket, "session ended")

    async def oversize_message(self) -> tuple[str, bool]:
        """Join, and begin a message of a terabyte."""
        async with self._joined() as socket:
            await socket.send_bytes(pack(Piece(1, 2**40, bytes(1000))))
            return await self._ends(socket, "session ended")

    async def oversize_header(self) -> tuple[str, bool]:
        """Join, and announce a frame of four exabytes."""
        device = self.chance.choice(self.bad)
        async with self._locks[device], self._raw() as (reader, writer):
            hello = Hello(PROTOCOL, device, self.tokens[device], "", "", 0)
            writer.write(REQUEST + masked(pack(hello)) + HUGE_HEADER)
            return await self._closed(reader)

    async def oversize_header_of_a_stranger(self) -> tuple[str, bool]:
        """Announce such a frame in place of a hello."""
        async with self._raw() as (reader, writer):
            writer.write(REQUEST + HUGE_HEADER)
            return await self._closed(reader)

    async def oversize_request(self) -> tuple[str, bool]:
        """Send a header of HTTP that does not end."""
        async with self._raw() as (reader, writer):
            writer.write(b"GET /v1/join HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + bytes(b"x" * (1 << 17)))
            return await self._closed(reader)

    # -- who keeps the door open ------------------------------------------------------------------------

    async def slow_loris(self, number: int) -> None:
        """Send requests and hellos one byte after the other, ``number`` connections at once, for ever."""

        async def one(name: str, before: bytes, slowly: bytes) -> None:
            while True:
                with contextlib.suppress(NotNowError):
                    async with self._raw() as (reader, writer):
                        writer.write(before)
                        trickling = asyncio.create_task(trickle(writer, slowly))
                        try:
                            _, got_in = await self._closed(reader)
                        finally:
                            trickling.cancel()
                    self.ledger.note(name, "cut off", got_in=got_in)
                await asyncio.sleep(0.1)

        hello = masked(pack(Hello(PROTOCOL, self.victims[0], "x" * 400, "", "", 0)))
        long_request = REQUEST[:-2] + b"X-Slow: and so on\r\n" * 10_000
        async with asyncio.TaskGroup() as group:
            for _ in range(number):
                group.create_task(one("slow-loris: the request", b"", long_request))
                group.create_task(one("slow-loris: the hello", REQUEST, hello))

    async def idle_flood(self, number: int) -> None:
        """Open so many connections from each of two addresses, and say nothing on them."""
        name = "idle connections, thousands"

        async def one(source: str, opened: asyncio.Semaphore) -> None:
            with contextlib.suppress(NotNowError):
                async with opened:
                    connection = self._raw(source)
                    reader, _ = await connection.__aenter__()
                try:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await reader.read(1)
                        self.ledger.note(name, "closed at once, above the limits", got_in=False)
                        return
                    _, ended = await self._until_ended(reader)
                    self.ledger.note(name, "cut off after join_timeout", got_in=not ended)
                except OSError:
                    self.ledger.note(name, "closed at once, above the limits", got_in=False)
                finally:
                    await connection.__aexit__(None, None, None)

        opened = asyncio.Semaphore(100)
        await asyncio.gather(*(one(source, opened) for source in FLOODERS for _ in range(number)))

    # -- parts of them ----------------------------------------------------------------------------------

    def _taps(self) -> list[Recording]:
        """Return the connections of victims that are there, and have been welcomed."""
        found = [one for one in self.tap.recordings if one.live and one.welcome is not None]
        if not found:
            raise NotNowError
        return found

    def _stolen(self) -> tuple[int, str]:
        """Return a device that is there, and the name of its session."""
        recording = self.chance.choice(self._taps())
        hello, welcome = recording.hello, recording.welcome
        assert hello is not None
        assert welcome is not None
        return hello.device, welcome.session

    async def _says_hello(self, device: int, token: str, session: str = "") -> tuple[str, bool]:
        """Say hello where the answer should be a goodbye."""
        try:
            async with asyncio.timeout(self.patience_s), self._socket() as socket:
                await socket.send_bytes(pack(Hello(PROTOCOL, device, token, session, "", 0)))
                answer = await socket.receive()
                frame = unpack(answer.data) if answer.type is aiohttp.WSMsgType.BINARY else None
        except TimeoutError:
            return "no answer", True
        except _REFUSED:
            raise NotNowError from None
        return ("closed" if frame is None else type(frame).__name__.lower()), isinstance(frame, Welcome)

    @asynccontextmanager
    async def _socket(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        host, port = self.address
        socket = await self.http.ws_connect(
            f"http://{host}:{port}/v1/join", compress=0, max_msg_size=1 << 21, timeout=_QUICKLY
        )
        try:
            yield socket
        finally:
            await socket.close()

    @asynccontextmanager
    async def _joined(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Join as one of the bad devices."""
        device = self.chance.choice(self.bad)
        async with self._locks[device]:
            try:
                async with self._socket() as socket:
                    await socket.send_bytes(pack(Hello(PROTOCOL, device, self.tokens[device], "", "", 0)))
                    answer = await socket.receive()
                    if answer.type is not aiohttp.WSMsgType.BINARY or not isinstance(
                        unpack(answer.data), Welcome
                    ):
                        raise NotNowError  # its session before that is not over yet, or the run is
                    yield socket
            except _REFUSED:
                raise NotNowError from None

    async def _ends(self, socket: aiohttp.ClientWebSocketResponse, how: str) -> tuple[str, bool]:
        """Return whether the service ends a session, as it should."""
        try:
            async with asyncio.timeout(self.patience_s):
                while (await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                    pass
        except TimeoutError:
            return "still there", True
        return how, False

    @asynccontextmanager
    async def _raw(
        self, source: str = STRANGER
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await asyncio.open_connection(*self.address, local_addr=(source, 0))
        except OSError:
            raise NotNowError from None
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _until_ended(self, reader: asyncio.StreamReader) -> tuple[bytes, bool]:
        """Return what comes until the service ends the connection, and whether it does."""
        data = b""
        try:
            async with asyncio.timeout(self.patience_s):
                while more := await reader.read(1 << 16):
                    data += more
        except TimeoutError:
            return data, False
        except OSError:
            pass
        return data, True

    async def _closed(self, reader: asyncio.StreamReader) -> tuple[str, bool]:
        _, ended = await self._until_ended(reader)
        return ("closed" if ended else "still open"), not ended


_QUICKLY = aiohttp.ClientWSTimeout(ws_close=1.0)
