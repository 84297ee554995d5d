"""A device's client: joins a coordinator, stays in its session, and comes back after broken connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp

from edge.core.errors import RecfleetError, RemoteProtocolError
from edge.network.loss import TransferFailedError
from edge.network.shaping import ShapedLink
from edge.network.sockets.websocket import CLOSING_S, Conversation
from edge.wire.session import Event, Sent, Session, SessionEnded, SessionLimits
from edge.wire.session_frames import PROTOCOL, WELCOME_BYTES, Goodbye, Hello, Welcome, pack, unpack

_MESSAGE_BYTES = WELCOME_BYTES + 1
_CLOSE = aiohttp.ClientWSTimeout(ws_close=CLOSING_S)


class JoinError(RecfleetError):
    """The coordinator does not let the device in, or is not there; the message says why."""


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

    def pause_s(self, failures: int, failing_for_s: float) -> float | None:
        """Return how long to wait after so many failures in a row, seconds; None: no longer.

        ``failing_for_s`` is the time since the first of them.
        """
        pause_s = min(self.first_s * self.factor ** (failures - 1), self.longest_s)
        return pause_s if failing_for_s + pause_s <= self.patience_s else None


def _distrust(error: aiohttp.ServerFingerprintMismatch | aiohttp.ClientConnectorCertificateError) -> str:
    if isinstance(error, aiohttp.ServerFingerprintMismatch):
        return f"its certificate has the fingerprint sha256:{error.got.hex()}, not the one that is pinned"
    return f"its certificate is not trusted here: {error.certificate_error}"


class Listener(Protocol):
    """Is told what happens on a device's session."""

    def welcomed(self, welcome: Welcome) -> None:
        """Handle the coordinator's welcome, the first one and those after broken connections."""

    def session_lost(self) -> None:
        """Respond when the session is gone, with all that was under way; a new one may begin."""

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
    listener : receives what happens.
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

    @property
    def moment_s(self) -> float | None:
        """The device's own time on a shaped link, absolute seconds; None: it has none but the host's."""
        return None if self.link is None else self.link.moment_s

    def tell_time(self, when_s: float) -> None:
        """Say when, by the device's own time, it does what comes next."""
        assert self.link is not None, "only a shaped device has a time of its own"
        self.link.moment_s = when_s

    def send(self, frame: bytes) -> Sent:
        """Queue a message for the coordinator; it survives broken connections."""
        assert self._session is not None, "nothing can be sent before the welcome"
        sent = self._session.send(frame, at_s=self._own_s())
        if self.link is not None:
            self.link.promise()
        self._go_on()
        return sent

    def note(self, stage: int, seconds: float | None = None) -> None:
        """Say that a computation for a stage begins, or how long it took."""
        assert self._session is not None, "nothing can be sent before the welcome"
        self._session.note(stage, seconds, at_s=self._own_s())
        if self.link is not None:
            self.link.promise()
        self._go_on()

    def _own_s(self) -> float:
        """Return the time at which the device does what it does now, absolute seconds."""
        return asyncio.get_running_loop().time() if self.link is None else self.link.moment_s

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
            except (ConnectionError, TimeoutError, TransferFailedError, aiohttp.ClientError) as error:
                why = str(error) or type(error).__name__
            if self._farewell is not None:
                return self._farewell
            if self._progress != before:
                failures = 0
                continue
            failing_s = failing_s if failures else loop.time()
            failures += 1
            pause_s = self._backoff.pause_s(failures, loop.time() - failing_s)
            if pause_s is None:
                raise JoinError(f"device {self.device}: {self._url} cannot be reached: {why}")
            await asyncio.sleep(pause_s)

    @property
    def _progress(self) -> tuple[str, int]:
        """What has changed if a connection was of any use."""
        return self._session_token, 0 if self._session is None else self._session.received

    async def _connect(self) -> None:
        """Open a connection, greet, and converse until it ends."""
        loop = asyncio.get_running_loop()
        if self.link is not None:
            await asyncio.sleep(self.link.opening_s(loop.time()))
        async with asyncio.timeout(self._join_s):
            socket = await self._http.ws_connect(
                self._url, max_msg_size=_MESSAGE_BYTES, compress=0, timeout=_CLOSE
            )
        try:
            async with asyncio.timeout(self._join_s):
                await self._greet(socket)
            if self._session is None or self._farewell is not None:
                return
            if self.link is not None:
                self.link.opened(loop.time())
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
        if answer.type is aiohttp.WSMsgType.CLOSE and answer.data == aiohttp.WSCloseCode.GOING_AWAY:
            self._farewell = answer.extra or "the coordinator goes away"
            return
        if answer.type is aiohttp.WSMsgType.CLOSE and answer.data == aiohttp.WSCloseCode.TRY_AGAIN_LATER:
            raise ConnectionResetError(f"it lets nobody in for now: {answer.extra or 'it does not say why'}")
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
        if isinstance(event, SessionEnded):
            self._farewell = event.reason
        self._listener.happened(event)
