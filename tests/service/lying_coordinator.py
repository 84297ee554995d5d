"""A coordinator that says what it likes, written from docs/protocol.md, for honest devices to meet.

It keeps a session with each device over a WebSocket of its own, and leaves it to the test which message goes
to whom.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgpack
from aiohttp import WSMsgType, web

from coordinator.engine.assembly import Assembly
from coordinator.scenario.load import LoadedScenario
from coordinator.secure.secagg.server import SecAggServer
from coordinator.secure.secagg.unmasking import SecAggResult
from coordinator.secure.sums.masked import MaskedSums
from coordinator.service.local_devices import LocalDevices
from edge.core.vocabulary import Reason
from edge.secagg.states import COORDINATOR_FINAL
from edge.wire.codec import decode, encode
from edge.wire.messages import Accept, AcceptBare, Acknowledge, Decline, Invite, Model, Report

HELLO, WELCOME, PIECE, NOTE, ACK, PING, PONG, GOODBYE = range(1, 9)
PIECE_BYTES = 65_536
RUN = "A-lie_01"
REPORT_WITHIN_S = 60.0


@dataclass
class Session:
    """What passes between the coordinator and one device."""

    socket: web.WebSocketResponse
    heard: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    sent: int = 0
    received: int = 0
    buffer: bytes = b""

    async def tell(self, message: Any) -> None:
        """Send a message in pieces."""
        frame = encode(message)
        for start in range(0, len(frame), PIECE_BYTES):
            data = frame[start : start + PIECE_BYTES]
            self.sent += 1
            left = len(frame) - start - len(data)
            await self.socket.send_bytes(msgpack.packb([PIECE, self.sent, left, data]))

    async def took(self, kind: int, *fields: Any) -> None:
        """Take a session frame of the device."""
        if kind in (PIECE, NOTE):
            self.received = fields[0]
            await self.socket.send_bytes(msgpack.packb([ACK, self.received]))
        if kind == PING:
            await self.socket.send_bytes(msgpack.packb([PONG, fields[0]]))
        if kind == PIECE:
            self.buffer += fields[2]
            if fields[1] == 0:
                frame, self.buffer = self.buffer, b""
                self.heard.put_nowait(decode(frame))


@dataclass
class LyingCoordinator:
    """All sessions; ``run_id`` and ``scenario`` are what its welcomes say."""

    loaded: LoadedScenario
    run_id: str = RUN
    url: str = ""
    sessions: dict[int, Session] = field(default_factory=dict)
    joined: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def join(self, request: web.Request) -> web.WebSocketResponse:
        """Welcome a device into a new session, and hear it until its connection ends."""
        socket = web.WebSocketResponse(max_msg_size=2**21)
        await socket.prepare(request)
        kind, _, device, _, session, scenario, _ = msgpack.unpackb((await socket.receive()).data)
        assert kind == HELLO
        if session:
            await socket.send_bytes(msgpack.packb([GOODBYE, "the session is over"]))
            return socket
        text = "" if scenario == self.loaded.hash else self.loaded.resolved
        welcome = [WELCOME, f"session {device}", 0, 15.0, 60.0, 30.0, 1 << 26, self.loaded.hash, text]
        await socket.send_bytes(msgpack.packb([*welcome, self.run_id]))
        found = Session(socket)
        async with self.joined:
            self.sessions[device] = found
            self.joined.notify_all()
        async for data in socket:
            if data.type is not WSMsgType.BINARY:
                break
            await found.took(*msgpack.unpackb(data.data))
        async with self.joined:
            if self.sessions.get(device) is found:
                del self.sessions[device]
            self.joined.notify_all()
        return socket

    async def until(self, there: Callable[[], bool]) -> None:
        """Wait until something holds of the sessions."""
        async with self.joined:
            await self.joined.wait_for(there)

    async def say_goodbye(self, why: str) -> None:
        """End all sessions, and wait until their connections are closed."""
        for session in list(self.sessions.values()):
            await session.socket.send_bytes(msgpack.packb([GOODBYE, why]))
        await self.until(lambda: not self.sessions)

    async def tell(self, device: int, message: Any) -> None:
        """Send a message to a device."""
        await self.sessions[device].tell(message)

    async def hear(self, device: int) -> Any:
        """Return the next message of a device."""
        return await self.sessions[device].heard.get()

    async def invite(
        self, number: int, devices: Iterable[int], *, task: str = "a task", run_id: str | None = None
    ) -> dict[int, Reason]:
        """Invite devices to a round; return why each declines, ``NONE`` for one that accepts."""
        run = self.run_id if run_id is None else run_id
        answers = {}
        for device in devices:
            await self.tell(device, Invite(run, number, task, REPORT_WITHIN_S, 1000))
            answer = await self.hear(device)
            assert (answer.run_id, answer.round_number, answer.device) == (run, number, device)
            if isinstance(answer, Decline):
                answers[device] = Reason(answer.reason)
            else:
                assert isinstance(answer, Accept | AcceptBare)
                answers[device] = Reason.NONE
        return answers

    async def report(self, device: int, model: Model) -> Report:
        """Send the model to a device that has accepted; return its report, which is not acknowledged."""
        await self.tell(device, model)
        answer = await self.hear(device)
        assert isinstance(answer, Report)
        return answer

    async def acknowledge(self, number: int, devices: Iterable[int]) -> None:
        """Tell devices that their reports count."""
        for device in devices:
            await self.tell(device, Acknowledge(self.run_id, number, 0))

    async def secure_sum(self, sums: MaskedSums, model: Model, devices: list[int]) -> SecAggResult:
        """Take devices that have accepted through a secure sum, as the protocol has it."""
        server = SecAggServer(
            sums.config,
            run_id=model.run_id,
            round_number=model.round_number,
            model_hash=hashlib.sha256(encode(model)).digest(),
            devices=devices,
            roster=sums.roster,
        )
        for device in devices:
            await self.tell(device, model)
        heard: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        async def listen(device: int) -> None:
            while True:
                heard.put_nowait((device, await self.hear(device)))

        listeners = [asyncio.create_task(listen(device)) for device in devices]
        try:
            while server.state not in COORDINATOR_FINAL:
                step = server.receive(*await heard.get())
                assert step.refused is None
                for receiver, message in step.send:
                    await self.tell(receiver, message)
        finally:
            for listener in listeners:
                listener.cancel()
        await self.acknowledge(model.round_number, devices)
        assert server.result is not None, server.failure
        return server.result


@asynccontextmanager
async def lying(loaded: LoadedScenario, run_id: str = RUN) -> AsyncIterator[LyingCoordinator]:
    """Serve a coordinator on loopback."""
    coordinator = LyingCoordinator(loaded, run_id)
    app = web.Application()
    app.router.add_get("/v1/join", coordinator.join)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        coordinator.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield coordinator
    finally:
        await runner.cleanup()


@asynccontextmanager
async def meeting(
    coordinator: LyingCoordinator,
    devices: Iterable[int],
    known: tuple[LoadedScenario, Assembly] | None = None,
    **how: Any,
) -> AsyncIterator[LocalDevices]:
    """Let honest devices of this process join, and end them afterwards as a crash would: without a word."""
    wanted = list(devices)
    ours = LocalDevices(coordinator.url, wanted, shaped=False, known=known, **how)
    life = asyncio.create_task(ours.run())
    there = asyncio.create_task(coordinator.until(lambda: set(wanted) <= coordinator.sessions.keys()))
    try:
        await asyncio.wait((life, there), return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            there.cancel()
            await life
        yield ours
    finally:
        life.cancel()
        await asyncio.wait((life,))
        coordinator.sessions.clear()
    if not life.cancelled():
        await life
