"""Garbage, frames that are too long, and replays over real sockets: nobody gets in, nothing breaks."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import aiohttp
import pytest
from door_helpers import (
    DEVICES,
    frame_from,
    masked,
    message,
    play,
    serving,
    stay,
    until,
    upgraded,
)

from edge.core.vocabulary import Reason
from edge.wire.session_frames import (
    MESSAGE_BYTES,
    PROTOCOL,
    Ack,
    Goodbye,
    Hello,
    Note,
    Piece,
    Ping,
    Pong,
    Welcome,
    pack,
    unpack,
)


class TestGarbage:
    GARBAGE = (
        b"",
        b"\x00",
        b"\xc1",
        b"not msgpack at all",
        b"\x96" + b"\x01" * 6,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 2000,
        pack(Ack(0)),
        pack(Piece(1, 0, b"x")),
        pack(Goodbye("bye")),
        pack(Hello(PROTOCOL + 1, 1, "", "", "", 0)),
        pack(Hello(PROTOCOL, DEVICES, "", "", "", 0)),
        pack(Hello(PROTOCOL, 2**62, "", "", "", 0)),
        pack(Hello(PROTOCOL, 1, "", "", "", 0)) + b"\x00",
    )

    @pytest.mark.parametrize("garbage", GARBAGE)
    def test_in_place_of_a_hello(self, garbage: bytes) -> None:
        async def story() -> None:
            async with serving() as service:
                socket = await service.connect()
                await socket.send_bytes(garbage)
                assert isinstance(await frame_from(socket), Goodbye)
                assert service.guests.joined == []
                assert len(service.guests.refused) == 1

        play(story())

    def test_text_in_place_of_a_hello(self) -> None:
        async def story() -> None:
            async with serving() as service:
                socket = await service.connect()
                await socket.send_str("hello")
                assert await frame_from(socket) == Goodbye("a connection begins with a hello")

        play(story())

    @pytest.mark.parametrize(
        "garbage",
        [
            b"\xc1",
            pack(Hello(PROTOCOL, 1, "", "", "", 0)),
            message(2),
            pack(Ack(7)),
            pack(Note(1, 0, -3.0)),
            message(1, b"x", left=2**62),
            message(1, b"x", left=1 << 20),
        ],
        ids=["no-frame", "second-hello", "gap", "ack-of-nothing", "negative-time", "huge", "too-large"],
    )
    def test_in_a_session_ends_it(self, garbage: bytes) -> None:
        async def story() -> None:
            async with serving(frame_bytes=1 << 20) as service:
                socket, _ = await service.join(1)
                await socket.send_bytes(garbage)
                assert isinstance(await frame_from(socket), Goodbye)
                assert [(device, reason) for device, reason, _ in service.guests.left] == [
                    (1, Reason.GARBAGE)
                ]
                assert service.inbox.messages == []

        play(story())

    def test_whoever_claims_to_have_received_what_was_never_sent_is_refused(self) -> None:
        async def story() -> None:
            async with serving() as service:
                socket = await service.connect()
                await socket.send_bytes(pack(Hello(PROTOCOL, 1, "", "", "", 5)))
                assert isinstance(await frame_from(socket), Welcome)
                assert isinstance(await frame_from(socket), Goodbye)
                assert service.sessions.of(1) is None

        play(story())

    def test_a_frame_that_is_too_long_is_refused_by_its_header(self) -> None:
        async def story() -> None:
            async with serving() as service:
                reader, writer = await upgraded(service)
                writer.write(masked(pack(Hello(PROTOCOL, 1, "", "", "", 0))))
                await until(lambda: service.guests.joined == [1])
                # Only a header: 16 exabytes are said to follow.
                writer.write(b"\x82\xff" + struct.pack(">Q", 2**60) + bytes(4))
                assert struct.pack(">H", aiohttp.WSCloseCode.MESSAGE_TOO_BIG) in await reader.read()
                await until(lambda: service.gate.open == 0)
                assert service.inbox.messages == []

        play(story())

    @pytest.mark.parametrize("fragments", [1, 40])
    def test_a_frame_one_byte_too_long_is_refused(self, fragments: int) -> None:
        async def story() -> None:
            async with serving() as service:
                reader, writer = await upgraded(service)
                size = MESSAGE_BYTES + 1
                step = -(-size // fragments)
                for start in range(0, size, step):
                    part = bytes(min(step, size - start))
                    last = start + step >= size
                    writer.write(masked(part, first=start == 0, last=last))
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
                await until(lambda: service.gate.open == 0)
                assert service.guests.refused == [(None, "a connection begins with a hello")]

        play(story())

    def test_a_flood_of_pings_ends_the_session(self) -> None:
        async def story() -> None:
            async with serving() as service:
                reader, writer = await upgraded(service)
                writer.write(masked(pack(Hello(PROTOCOL, 1, "", "", "", 0))))
                await until(lambda: service.guests.joined == [1])
                writer.write(masked(pack(Ping(1))) * 1000)
                await reader.read()
                assert [reason for _, reason, _ in service.guests.left] == [Reason.GARBAGE]

        play(story())


class TestReplays:
    def test_a_message_that_comes_twice_counts_once(self) -> None:
        async def story() -> None:
            async with serving() as service:
                socket, _ = await service.join(1)
                for _ in range(3):
                    await socket.send_bytes(message(1, b"once"))
                await socket.send_bytes(message(2, b"twice"))
                await until(lambda: len(service.inbox.messages) == 2)
                assert service.inbox.messages == [(1, b"once"), (1, b"twice")]

        play(story())

    def test_a_recorded_conversation_is_worth_nothing(self) -> None:
        """Somebody plays all frames of a device again: while it is there, and after it has left."""

        async def story() -> None:
            async with serving() as service:
                owner, welcome = await service.join(1)
                recorded = [
                    pack(Hello(PROTOCOL, 1, "", welcome.session, "", 0)),
                    message(1, b"an update"),
                ]
                await owner.send_bytes(recorded[1])
                await until(lambda: len(service.inbox.messages) == 1)
                alive = asyncio.create_task(stay(owner))
                for left in (False, True):
                    if left:
                        await owner.send_bytes(pack(Goodbye("done")))
                        await alive
                    thief = await service.connect()
                    for frame in recorded:
                        await thief.send_bytes(frame)
                    assert isinstance(await frame_from(thief), Goodbye)
                assert service.inbox.messages == [(1, b"an update")]
                assert (service.guests.joined, service.guests.resumed) == ([1], [])

        play(story())


def test_frames_by_hand_are_what_they_seem() -> None:
    assert masked(b"ab") == b"\x82\x82\x00\x00\x00\x00ab"
    assert unpack(pack(Pong(3))) == Pong(3)
