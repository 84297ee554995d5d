"""Sessions over WebSockets: the pump that both ends use.

Nothing here decides anything about the protocol: :class:`~edge.wire.session.Session` does. This moves its
bytes and keeps its timers.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from edge.core.errors import CodecError, RemoteProtocolError
from edge.network.loss import TransferFailedError
from edge.network.shaping import ShapedLink
from edge.wire.session import Event, Session, SessionEnded
from edge.wire.session_frames import (
    MESSAGE_BYTES,
)

SERVER_MESSAGE_BYTES = MESSAGE_BYTES + 1
"""``max_msg_size`` of the coordinator's WebSockets: a longer message is refused by its header."""
CLOSING_S = 1.0
"""How long the closing handshake of a WebSocket may take: nothing depends on it."""


class WebSocket(Protocol):
    """What the pump needs of aiohttp's WebSockets, of either side."""

    async def receive(self) -> aiohttp.WSMessage:
        """Return the next message."""

    async def send_bytes(self, data: bytes) -> None:
        """Send a binary message."""

    async def close(self) -> Any:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Parting:
    """How a connection ended, and why in words."""

    class Cause(enum.Enum):
        """Who ended it."""

        LOST = "lost"
        """The connection broke, or this side broke it off; the session goes on."""
        GOODBYE = "goodbye"
        """The other side ended the session."""
        VIOLATION = "violation"
        """The other side broke the protocol."""

    cause: Cause
    why: str


class Conversation:
    """One connection of a session, from the greetings to its end.

    Parameters
    ----------
    socket : the connection, after the greetings.
    session : whose bytes it carries.
    handle : is given every event, in order.
    link : what the connection is made to look like; None: as it is.
    """

    def __init__(
        self,
        socket: WebSocket,
        session: Session,
        handle: Callable[[Event], None],
        link: ShapedLink | None = None,
    ) -> None:
        self._socket = socket
        self._session = session
        self._handle = handle
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._stirred = asyncio.Event()
        """Set when anything comes, and when the connection ends."""
        self._over: asyncio.Future[Parting] = self._loop.create_future()
        """How the connection ended."""
        self._check: asyncio.TimerHandle | None = None
        self._late = 0
        """Messages that have come and, on a slow link, would not be here yet."""
        self._none_late = asyncio.Event()
        self._delayed: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)

    def wake(self) -> None:
        """Send what the session has to send."""
        self._wake.set()

    def end(self, why: str) -> None:
        """End the connection, not the session."""
        self._end(Parting.Cause.LOST, why)

    def _end(self, cause: Parting.Cause, why: str) -> None:
        if not self._over.done():
            self._over.set_result(Parting(cause, why))
            self._stirred.set()

    async def shows_life(self, silence_s: float, longest_s: float) -> bool:
        """Ask whether the other end is still there; return False after so much silence, or if it ends.

        Only the answer counts as one. What else comes may have been sent before the connection broke, so it
        only makes us wait on; whoever still sends after ``longest_s`` is there.
        """
        silence_s = min(silence_s, 0.5 * longest_s)
        number = secrets.randbits(62)
        self._session.challenge(number)
        self._wake.set()
        until_s = self._loop.time() + longest_s
        while not self._over.done():
            if self._session.has_answered(number):
                return True
            left_s = until_s - self._loop.time()
            if left_s <= 0.0:
                return True
            self._stirred.clear()
            try:
                async with asyncio.timeout(min(silence_s, left_s)):
                    await self._stirred.wait()
            except TimeoutError:
                if silence_s <= left_s:
                    return False
        return False

    async def run(self) -> Parting:
        """Carry bytes until the connection ends; return how it did."""
        tasks = [self._loop.create_task(self._read()), self._loop.create_task(self._write())]
        if self._link is not None:
            tasks.append(self._loop.create_task(self._write_delayed()))
        for task in tasks:
            task.add_done_callback(self._task_done)
        self._keep_watch()
        try:
            return await self._over
        finally:
            if self._check is not None:
                self._check.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._over.done():
            return
        error = task.exception()
        if error is None or isinstance(error, ConnectionError | aiohttp.ClientError):
            self.end("connection lost")
        elif isinstance(error, RemoteProtocolError):
            self._end(Parting.Cause.VIOLATION, str(error))
        else:
            self._over.set_exception(error)

    def _keep_watch(self) -> None:
        if not self._session.check(self._loop.time()):
            self.end("no sign of life")
            return
        if self._session.waiting:
            self._wake.set()
        self._check = self._loop.call_at(self._session.next_check_s(), self._keep_watch)

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                if self._link is None:
                    self._take(message.data, self._loop.time())
                else:
                    try:
                        due_s = self._link.came(message.data, self._loop.time())
                    except TransferFailedError as error:
                        await self._give_up(error)
                        return
                    self._late += 1
                    self._none_late.clear()
                    self._loop.call_at(due_s, self._take_late, message.data, due_s)
            elif message.type is aiohttp.WSMsgType.TEXT:
                raise CodecError("garbage", "a text message; frames are binary")
            else:
                if self._late:
                    await self._none_late.wait()
                return

    def _take(self, data: bytes, now_s: float) -> None:
        self._stirred.set()
        for event in self._session.receive(data, now_s):
            self._handle(event)
            if isinstance(event, SessionEnded):
                self._end(Parting.Cause.GOODBYE, event.reason)
        if self._session.waiting:
            self._wake.set()

    def _take_late(self, data: bytes, due_s: float) -> None:
        assert self._link is not None
        self._link.moment_s = due_s
        self._late -= 1
        if not self._late:
            self._none_late.set()
        if self._over.done():
            return
        try:
            self._take(data, due_s)
        except RemoteProtocolError as error:
            self._end(Parting.Cause.VIOLATION, str(error))
        except Exception as error:
            self._over.set_exception(error)

    async def _write(self) -> None:
        while True:
            data = self._session.next_frame(self._loop.time())
            if data is None:
                self._wake.clear()
                await self._wake.wait()
            elif self._link is None:
                await self._socket.send_bytes(data)
            else:
                try:
                    due_s = self._link.sent(data, self._loop.time())
                except TransferFailedError as error:
                    await self._give_up(error)
                    return
                await self._delayed.put((due_s, data))
                # The bucket fills no faster than the link empties it.
                await asyncio.sleep(self._link.up.free_s - self._loop.time())

    async def _give_up(self, error: TransferFailedError) -> None:
        """Break the connection when TCP would have given it up; nothing passes it until then."""
        await asyncio.sleep(error.after_s)
        self.end(str(error))

    async def _write_delayed(self) -> None:
        while True:
            due_s, data = await self._delayed.get()
            await asyncio.sleep(due_s - self._loop.time())
            await self._socket.send_bytes(data)
