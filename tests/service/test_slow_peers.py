"""Peers that keep connections open and say nothing, or open too many: others are served."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import pytest
from door_helpers import (
    Records,
    Service,
    closed,
    identity_in,
    masked,
    moving,
    play,
    serving,
    until,
    upgraded,
)
from service_helpers import skip

from coordinator.service.admission.limits import ArrivalLimits
from edge.core.vocabulary import Reason
from edge.wire.session_frames import (
    PROTOCOL,
    Hello,
    Welcome,
    pack,
)


class TestSlowPeers:
    """Every wait for a stranger has an end: 30 s here, the setting join_timeout."""

    async def ended(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(4096):
                pass

    async def ended_in_time(self, service: Service, reader: asyncio.StreamReader, begun_s: float) -> None:
        """Wait for the end of what began at ``begun_s`` or later: it comes after 30 s, and no sooner."""
        end = asyncio.create_task(self.ended(reader))
        skip(29.0)
        # The service has its turn, and answers somebody else.
        async with service.http.get(service.url + "/healthz") as answer:
            assert answer.status == 200
        assert not end.done() or asyncio.get_running_loop().time() >= begun_s + 30.0
        skip(1.0)
        await end

    def test_a_connection_that_says_nothing(self) -> None:
        async def story() -> None:
            async with serving() as service:
                begun_s = asyncio.get_running_loop().time()
                reader, _ = await service.raw()
                await until(lambda: service.gate.open == 1)
                await self.ended_in_time(service, reader, begun_s)
                await service.http.close()
                await until(lambda: service.gate.open == 0)

        play(story())

    def test_a_request_that_comes_byte_by_byte(self) -> None:
        async def story() -> None:
            async with serving() as service:
                begun_s = asyncio.get_running_loop().time()
                reader, writer = await service.raw()

                async def trickle() -> None:
                    writer.write(b"GET /v1/join HTTP/1.1\r\n")
                    while True:
                        writer.write(b"X-Header: a\r\n")
                        await asyncio.sleep(0.05)

                slow = asyncio.create_task(trickle())
                await self.ended_in_time(service, reader, begun_s)
                slow.cancel()

        play(story())

    def test_no_hello(self) -> None:
        async def story() -> None:
            async with serving() as service:
                socket = await service.connect()
                skip(30.0)
                assert await closed(socket) == (aiohttp.WSCloseCode.TRY_AGAIN_LATER, "no hello in time")
                assert service.guests.refused == [(None, "no hello in time")]

        play(story())

    def test_a_hello_that_comes_byte_by_byte_between_pings(self) -> None:
        async def story() -> None:
            async with serving() as service:
                begun_s = asyncio.get_running_loop().time()
                reader, writer = await upgraded(service)

                async def trickle() -> None:
                    writer.write(b"\x82\xfd\x00\x00\x00\x00")  # 125 masked bytes will come
                    while True:
                        writer.write(b"\x00")
                        await asyncio.sleep(0.05)

                slow = asyncio.create_task(trickle())
                await self.ended_in_time(service, reader, begun_s)
                slow.cancel()
                assert service.guests.refused == [(None, "no hello in time")]

        play(story())

    def test_a_tls_handshake_that_does_not_begin(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with serving(identity=identity_in(tmp_path)) as service:
                begun_s = asyncio.get_running_loop().time()
                reader, _ = await service.raw()
                await until(lambda: service.gate.open == 1)
                await self.ended_in_time(service, reader, begun_s)
                await service.http.close()
                await until(lambda: service.gate.open == 0)

        play(story())

    def test_two_hundred_of_them_keep_nobody_else_out(self) -> None:
        async def story() -> None:
            async with serving() as service:
                idle = [await service.raw() for _ in range(200)]
                await service.join(1)
                skip(30.0)
                await asyncio.gather(*(self.ended(reader) for reader, _ in idle))
                await until(lambda: service.gate.open == 1)

        play(story())

    def test_one_that_takes_nothing_is_cut_off_when_its_session_ends(self) -> None:
        async def story() -> None:
            async with serving(frame_bytes=1 << 26) as service:
                connection = sockets.socket()
                connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
                connection.connect(("127.0.0.1", service.port))
                connection.setblocking(False)
                reader, writer = await upgraded(service, connection)
                writer.write(masked(pack(Hello(PROTOCOL, 1, "", "", "", 0))))
                await until(lambda: service.guests.joined == [1])
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                session = service.sessions.of(1)
                assert session is not None
                session._session.send(bytes(16 << 20))
                session._conversation.wake()  # type: ignore[union-attr]
                conversation = session._conversation
                assert conversation is not None
                transport = conversation._socket._writer.transport  # type: ignore[attr-defined]
                await until(lambda: transport.get_write_buffer_size() > 0)
                service.sessions.end(session, Reason.SESSION_ENDED, "enough")
                await moving(lambda: service.gate.open == 0)
                writer.close()

        play(story())


def closed_by_peer(connections: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> int:
    """Return how many connections their peer has closed."""
    return sum(reader.at_eof() or reader.exception() is not None for reader, _ in connections)


class TestLimits:
    def closed_at_once(self, limits: ArrivalLimits, tries: int) -> Callable[[], int]:
        counted = [0]

        async def story() -> None:
            async with serving(limits=limits) as service:
                # One after the other: what is counted are those that the service closed by itself.
                connections = [await service.raw() for _ in range(tries)]
                await until(lambda: service.gate.open + closed_by_peer(connections) == tries)
                counted[0] = closed_by_peer(connections)
                for _, writer in connections:
                    writer.close()

        play(story())
        return lambda: counted[0]

    def test_connections_at_one_time(self) -> None:
        assert self.closed_at_once(ArrivalLimits(connections=5), 20)() == 15

    def test_connections_at_one_time_from_one_address(self) -> None:
        assert self.closed_at_once(ArrivalLimits(connections_per_address=7), 20)() == 13

    def test_connections_a_second(self) -> None:
        limits = ArrivalLimits(arrivals_per_s=0.001, burst_s=3000.0)
        assert self.closed_at_once(limits, 20)() == 17

    def test_devices_that_are_inside_leave_their_address_to_others(self) -> None:
        async def story() -> None:
            records = Records()
            token = records.issue(0, 9)
            limits = ArrivalLimits(connections_per_address=2)
            async with serving(limits=limits, enrolments=records, now_s=lambda: 0.0) as service:
                for device in (1, 2):
                    await service.join(device, token)
                for _ in range(2):
                    await service.raw()
                await until(lambda: service.gate.open == 4)
                with pytest.raises(aiohttp.ClientError):
                    await service.hello(3, token)
                service.writers[0].close()
                await until(lambda: service.gate.open == 3)
                await service.join(3, token)

        play(story())

    def test_there_is_room_again_when_one_leaves(self) -> None:
        async def story() -> None:
            async with serving(limits=ArrivalLimits(connections=1)) as service:
                _, writer = await service.raw()
                await until(lambda: service.gate.open == 1)
                with pytest.raises(aiohttp.ClientError):
                    await service.hello(1)
                writer.close()
                await until(lambda: service.gate.open == 0)
                _, answer = await service.hello(1)
                assert isinstance(answer, Welcome)

        play(story())
