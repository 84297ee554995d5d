"""The first and the last words on a connection, on the coordinator's side: hello, welcome, goodbye."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from coordinator.scenario.fleet_section import Sockets
from edge.core.errors import CodecError
from edge.network.sockets.websocket import CLOSING_S
from edge.wire.session_frames import Goodbye, Hello, Welcome, pack, unpack

_WHY_LETTERS = 120
"""Of a reason: in a session frame, a letter may take four bytes."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The content of a welcome: the run, its scenario by hash and as YAML, and the number of devices."""

    run_id: str
    scenario_hash: str
    scenario: str
    devices: int
    frame_bytes: int

    def welcome(self, hello: Hello, session: str, received: int, settings: Sockets) -> Welcome:
        """Return the answer to a hello: the session by its token, and what this side received last in it."""
        return Welcome(
            session=session,
            received=received,
            heartbeat_s=settings.heartbeat,
            idle_s=settings.idle_timeout,
            resume_s=settings.resume_window,
            frame_bytes=self.frame_bytes,
            scenario=self.scenario_hash,
            text="" if hello.scenario == self.scenario_hash else self.scenario,
            run_id=self.run_id,
        )


@dataclass(frozen=True, slots=True)
class JoinRefusal:
    """Why a device is not let in.

    ``code`` closes its connection: ``TRY_AGAIN_LATER`` if nothing is wrong with the device, ``GOING_AWAY`` if
    nobody is let in any more. None: it is refused for good, by a goodbye.
    """

    why: str
    code: aiohttp.WSCloseCode | None = None


async def read_hello(socket: web.WebSocketResponse, timeout_s: float) -> Hello | JoinRefusal:
    """Return the first frame of a connection, or why it is not what it should be."""
    try:
        async with asyncio.timeout(timeout_s):
            message = await socket.receive()
    except TimeoutError:
        # A slow link or a busy host is no intruder.
        return JoinRefusal("no hello in time", aiohttp.WSCloseCode.TRY_AGAIN_LATER)
    if message.type is not aiohttp.WSMsgType.BINARY:
        return JoinRefusal("a connection begins with a hello")
    try:
        hello = unpack(message.data)
    except CodecError as error:
        return JoinRefusal(str(error))
    return hello if isinstance(hello, Hello) else JoinRefusal("a connection begins with a hello")


async def say_welcome(socket: web.WebSocketResponse, welcome: Welcome, timeout_s: float) -> None:
    """Tell a device what it needs to know.

    Raises
    ------
    TimeoutError : it does not take it.
    """
    async with asyncio.timeout(timeout_s):
        await _send(socket, welcome)


async def say_goodbye(socket: web.WebSocketResponse, why: str) -> None:
    """Send the last frame; whoever does not take it need not know."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSING_S):
            await _send(socket, Goodbye(why[:_WHY_LETTERS]))


async def refuse(socket: web.WebSocketResponse, refusal: JoinRefusal) -> None:
    """Send the only frame to whoever is not let in; one who does not take it need not know."""
    if refusal.code is None:
        await say_goodbye(socket, refusal.why)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2 * CLOSING_S):
            await socket.close(code=refusal.code, message=refusal.why.encode())


async def _send(socket: web.WebSocketResponse, frame: Welcome | Goodbye) -> None:
    """Send a frame outside of any session; a connection that breaks meanwhile needs no answer."""
    try:
        await socket.send_bytes(pack(frame))
    except (ConnectionError, aiohttp.ClientError):
        return
