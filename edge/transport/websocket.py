"""Sessions over WebSockets: the pump that both ends use, and the device's client.

Nothing here decides anything about the protocol: :class:`~edge.session.Session` does. This moves its bytes,
keeps its timers, and on the device's side comes back after a broken connection.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from edge.errors import CodecError, RecfleetError, RemoteProtocolError
from edge.session import Ended, Event, Sent, Session, SessionLimits
from edge.session_frames import (
    MESSAGE_BYTES,
    PROTOCOL,
    WELCOME_BYTES,
    Goodbye,
    Hello,
    Welcome,
    pack,
    unpack,
)
from edge.transport.shaping import ShapedLink

SERVER_MESSAGE_BYTES = MESSAGE_BYTES + 1
"""``max_msg_size`` of the coordinator's WebSockets: a longer message is refused by its header."""
_CLIENT_MESSAGE_BYTES = WELCOME_BYTES + 1
CLOSING_S = 1.0
"""How long the closing handshake of a WebSocket may take: nothing depends on it."""


class JoinError(RecfleetError):
    """The coordinator does not let the device in, or is not there; the message says why."""


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

    class Kind(enum.Enum):
        """Who ended it."""

        LOST = "lost"
        """The connection broke, or this side broke it off; the session goes on."""
        GOODBYE = "goodbye"
        """The other side ended the session."""
        VIOLATION = "violation"
        """The other side broke the protocol."""

    kind: Kind
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
        self._end(Parting.Kind.LOST, why)

    def _end(self, kind: Parting.Kind, why: str) -> None:
        if not self._over.done():
            self._over.set_result(Parting(kind, why))
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
            self._end(Parting.Kind.VIOLATION, str(error))
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
                    self._take(message.data)
                else:
                    due_s = self._link.down.carry(len(message.data), self._loop.time())
                    self._late += 1
                    self._none_late.clear()
                    self._loop.call_at(due_s, self._take_late, message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                raise CodecError("garbage", "a text message; frames are binary")
            else:
                if self._late:
                    await self._none_late.wait()
                return

    def _take(self, data: bytes) -> None:
        self._stirred.set()
        for event in self._session.receive(data, self._loop.time()):
            self._handle(event)
            if isinstance(event, Ended):
                self._end(Parting.Kind.GOODBYE, event.reason)
        if self._session.waiting:
            self._wake.set()

    def _take_late(self, data: bytes) -> None:
        self._late -= 1
        if not self._late:
            self._none_late.set()
        if self._over.done():
            return
        try:
            self._take(data)
        except RemoteProtocolError as error:
            self._end(Parting.Kind.VIOLATION, str(error))
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
                due_s = self._link.up.carry(len(data), self._loop.time())
                await self._delayed.put((due_s, data))
                # The bucket fills no faster than the link empties it.
                await asyncio.sleep(self._link.up.free_s - self._loop.time())

    async def _write_delayed(self) -> None:
        while True:
            due_s, data = await self._delayed.get()
            await asyncio.sleep(due_s - self._loop.time())
            await self._socket.send_bytes(data)


def join_url(url: str) -> str:
    """Return where devices join the coordinator at ``url``.

    Raises
    ------
    JoinError : that is no address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise JoinError(f"'{url:.80}' is no address of a coordinator; write http://host:port")
    return url.rstrip("/") + "/v1/join"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a device comes back after a broken connection: for ``patience_s`` in vain, with growing pauses.

    The first pause is ``first_s``, each other ``factor`` times as long as the one before, and ``longest_s``
    at most.
    """

    patience_s: float
    first_s: float
    factor: float
    longest_s: float


def _distrust(error: aiohttp.ServerFingerprintMismatch | aiohttp.ClientConnectorCertificateError) -> str:
    if isinstance(error, aiohttp.ServerFingerprintMismatch):
        return f"its certificate has the fingerprint sha256:{error.got.hex()}, not the one that is pinned"
    return f"its certificate is not trusted here: {error.certificate_error}"


class Listener(Protocol):
    """Is told what happens on a device's session."""

    def welcomed(self, welcome: Welcome) -> None:
        """Take note of the coordinator's welcome, the first one and those after broken connections."""

    def session_lost(self) -> None:
        """Take note that the session is gone, with all that was under way; a new one may begin."""

    def happened(self, event: Event) -> None:
        """Take an event of the session."""


class DeviceClient:
    """A device's session with a coordinator: joins, stays, and comes back after broken connections.

    Parameters
    ----------
    http : makes connections; shared by the devices of a process.
    url : of the coordinator, ``http://host:port``; raises ``JoinError`` if it is none.
    device : its id.
    token : says that it may come in; empty where none is asked for.
    scenario : hash of the scenario that the device has; empty for none.
    listener : is told what happens.
    backoff : how it comes back.
    join_s : how long connecting may take, and the welcome, seconds.
    unacknowledged_bytes : most that is kept for the coordinator.
    link : what its link is made to look like; None: as it is. Known only after the first welcome where the
        scenario comes with that: :attr:`link` may be set then.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        device: int,
        *,
        token: str,
        scenario: str,
        listener: Listener,
        backoff: Backoff,
        join_s: float,
        unacknowledged_bytes: int,
        link: ShapedLink | None = None,
    ) -> None:
        self.device = device
        self.link = link
        self._http = http
        self._url = join_url(url)
        self._token = token
        self._scenario = scenario
        self._listener = listener
        self._backoff = backoff
        self._join_s = join_s
        self._unacknowledged_bytes = unacknowledged_bytes
        self._session: Session | None = None
        self._session_token = ""
        self._welcomed = False
        """Whether it has ever been let in."""
        self._conversation: Conversation | None = None
        self._farewell: str | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._conversation is not None

    def send(self, frame: bytes) -> Sent:
        """Queue a message for the coordinator; it survives broken connections."""
        assert self._session is not None, "nothing can be sent before the welcome"
        sent = self._session.send(frame)
        self._go_on()
        return sent

    def note(self, stage: int, seconds: float | None = None) -> None:
        """Say that a computation for a stage begins, or how long it took."""
        assert self._session is not None, "nothing can be sent before the welcome"
        self._session.note(stage, seconds)
        self._go_on()

    def _go_on(self) -> None:
        if self._conversation is not None:
            self._conversation.wake()

    def break_off(self) -> None:
        """Break the connection; the session goes on with the next one."""
        if self._conversation is not None:
            self._conversation.end("broken off")

    async def run(self) -> str:
        """Stay in the session until the coordinator says goodbye; return why it did.

        Raises
        ------
        JoinError : the coordinator does not let the device in, or cannot be reached any more.
        """
        failures, failing_s, loop = 0, 0.0, asyncio.get_running_loop()
        while True:
            before = self._progress
            why = "the connection was closed at once"
            try:
                await self._connect()
            except (aiohttp.ServerFingerprintMismatch, aiohttp.ClientConnectorCertificateError) as error:
                # Not the coordinator, and it will not become it: nothing was told to it.
                raise JoinError(f"device {self.device}: {self._url}: {_distrust(error)}") from error
            except (ConnectionError, TimeoutError, aiohttp.ClientError) as error:
                why = str(error) or type(error).__name__
            if self._farewell is not None:
                return self._farewell
            if self._progress != before:
                failures = 0
                continue
            backoff = self._backoff
            failing_s = failing_s if failures else loop.time()
            failures += 1
            pause_s = min(backoff.first_s * backoff.factor ** (failures - 1), backoff.longest_s)
            if loop.time() + pause_s > failing_s + backoff.patience_s:
                raise JoinError(f"device {self.device}: {self._url} cannot be reached: {why}")
            await asyncio.sleep(pause_s)

    @property
    def _progress(self) -> tuple[str, int]:
        """What has changed if a connection was of any use."""
        return self._session_token, 0 if self._session is None else self._session.received

    async def _connect(self) -> None:
        """Open a connection, greet, and converse until it ends."""
        async with asyncio.timeout(self._join_s):
            socket = await self._http.ws_connect(
                self._url, max_msg_size=_CLIENT_MESSAGE_BYTES, compress=0, timeout=_CLOSE
            )
        try:
            async with asyncio.timeout(self._join_s):
                await self._greet(socket)
            if self._session is None:
                return
            self._conversation = Conversation(socket, self._session, self._happened, self.link)
            await self._conversation.run()
        finally:
            self._conversation = None
            await socket.close()

    async def _greet(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        session = self._session
        received = 0 if session is None else session.received
        hello = Hello(PROTOCOL, self.device, self._token, self._session_token, self._scenario, received)
        await socket.send_bytes(pack(hello))
        answer = await socket.receive()
        if answer.type is not aiohttp.WSMsgType.BINARY:
            raise ConnectionResetError("the connection was closed in place of a welcome")
        frame = unpack(answer.data)
        if isinstance(frame, Goodbye):
            self._refused(frame.reason)
            return
        if not isinstance(frame, Welcome):
            raise RemoteProtocolError("wrong-stage", f"a {type(frame).__name__} in place of a welcome")
        now_s = asyncio.get_running_loop().time()
        if session is None:
            # The coordinator is never told that it has time: it does not compute for one device alone.
            limits = SessionLimits(
                frame_bytes=frame.frame_bytes,
                unacknowledged_bytes=self._unacknowledged_bytes,
                heartbeat_s=frame.heartbeat_s,
                idle_s=frame.idle_s,
                computing_s=frame.idle_s,
            )
            session = self._session = Session(limits, client=True)
            self._session_token = frame.session
            self._welcomed = True
        elif frame.session != self._session_token:
            raise RemoteProtocolError("wrong-session", "the coordinator goes on with another session")
        self._scenario = frame.scenario
        self._listener.welcomed(frame)
        for event in session.connected(frame.received, now_s):
            self._listener.happened(event)

    def _refused(self, reason: str) -> None:
        """Take a goodbye in answer to a hello: a session that is gone may be begun anew."""
        if self._session is not None:
            self._listener.session_lost()
            self._session = None
            self._session_token = ""
        elif self._welcomed:
            self._farewell = reason
        else:
            raise JoinError(f"device {self.device} is not let in: {reason}")

    def _happened(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._farewell = event.reason
        self._listener.happened(event)


_CLOSE = aiohttp.ClientWSTimeout(ws_close=CLOSING_S)
