"""The devices' sessions on the coordinator's side: one a device, each a channel to send on."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
from aiohttp import web

from coordinator.scenario.fleet_section import Sockets
from coordinator.service.hooks import Admission, ServiceObserver
from edge.codec import CodecLimits, encode
from edge.errors import CodecError, RemoteProtocolError
from edge.message_kinds import AnyMessage
from edge.session import Acknowledged, Event, Noted, Received, Sent, Session, SessionLimits
from edge.session_frames import PROTOCOL, Goodbye, Hello, Welcome, pack, unpack
from edge.transport.websocket import Conversation, Parting
from edge.vocabulary import Reason

_TOKEN_BYTES = 24
_FRAMES_KEPT = 16
"""Encoded messages that are kept, because they go to many devices."""


@dataclass(slots=True, eq=False)
class Transfer:
    """A message on its way to a device: what it is, how long its frame is, and when it was given away."""

    message: AnyMessage
    frame_bytes: int
    payload_bytes: int
    start_s: float
    sent: Sent | None = None


class SessionListener(Protocol):
    """Is told what comes from devices, and what becomes of what goes to them."""

    def joined(self, session: DeviceSession) -> None:
        """Take note of a new session."""

    def pushed(self, session: DeviceSession, transfer: Transfer) -> None:
        """Take note of a message that starts on its way."""

    def acknowledged(self, session: DeviceSession, transfer: Transfer) -> None:
        """Take note that a message has arrived."""

    def received(self, session: DeviceSession, received: Received) -> None:
        """Take a message from a device, as bytes."""

    def noted(self, session: DeviceSession, noted: Noted) -> None:
        """Take note that a device computes, or how long it has."""

    def left(self, session: DeviceSession, reason: Reason) -> None:
        """Take note that a session is over."""


class DeviceSession:
    """A device's session; the coordinator's channel to it.

    Attributes
    ----------
    device : who is at the other end.
    token : names the session; whoever shows it goes on with it.
    """

    def __init__(self, sessions: Sessions, device: int, limits: SessionLimits) -> None:
        self.device = device
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions = sessions
        self._session = Session(limits, client=False)
        self._conversation: Conversation | None = None
        self._quiet = asyncio.Event()
        """Set while there is no connection."""
        self._quiet.set()
        self._expiry: asyncio.TimerHandle | None = None
        self.over = False

    def __str__(self) -> str:
        return f"the session of device {self.device}"

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._conversation is not None

    @property
    def received_sequence(self) -> int:
        """The sequence number received last."""
        return self._session.received

    @property
    def control_bytes(self) -> int:
        """Sent in acknowledgements, pings and pongs, which belong to no message."""
        return self._session.control_bytes

    def push(self, message: AnyMessage, frame_bytes: int, payload_bytes: int) -> None:
        """Start sending a message to the device; returns at once."""
        if self.over:
            return
        sessions = self._sessions
        transfer = Transfer(message, frame_bytes, payload_bytes, asyncio.get_running_loop().time())
        sessions.listener.pushed(self, transfer)
        try:
            transfer.sent = self._session.send(sessions.encoded(message), transfer)
        except RemoteProtocolError as error:
            # Not at once: whoever sends is in the middle of something.
            asyncio.get_running_loop().call_soon(sessions.end, self, Reason.CONNECTION_LOST, str(error))
            return
        if self._conversation is not None:
            self._conversation.wake()

    async def converse(self, socket: web.WebSocketResponse, peer_received: int, total_s: float) -> Parting:
        """Carry the session over a connection until that ends; return how it did."""
        await self.disconnect("taken over by a new connection")
        loop = asyncio.get_running_loop()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for event in self._session.connected(peer_received, loop.time()):
            self._happened(event)
        conversation = self._conversation = Conversation(socket, self._session, self._happened)
        self._quiet.clear()
        limit = loop.call_later(total_s, conversation.end, "connection.sockets.total_timeout is over")
        try:
            return await conversation.run()
        finally:
            limit.cancel()
            self._conversation = None
            self._quiet.set()

    async def disconnect(self, why: str) -> None:
        """End the connection, if there is one, and wait until nothing uses it any more."""
        while self._conversation is not None:
            self._conversation.end(why)
            await self._quiet.wait()

    def expire_after(self, seconds: float) -> None:
        """End the session unless the device comes back within ``seconds``."""
        loop = asyncio.get_running_loop()
        why = "did not come back within connection.sockets.resume_window"
        self._expiry = loop.call_later(seconds, self._sessions.end, self, Reason.CONNECTION_LOST, why)

    def close(self) -> list[Transfer]:
        """End the session on this side; return what the device may not have received."""
        self.over = True
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._conversation is not None:
            self._conversation.end("the session is over")
        return [sent.label for sent in self._session.unacknowledged]

    def _happened(self, event: Event) -> None:
        listener = self._sessions.listener
        match event:
            case Received():
                listener.received(self, event)
            case Acknowledged():
                listener.acknowledged(self, event.sent.label)
            case Noted():
                listener.noted(self, event)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a welcome tells: the scenario by hash and as YAML, and how many devices there are."""

    scenario_hash: str
    scenario: str
    devices: int
    frame_bytes: int


@dataclass(slots=True)
class Sessions:
    """All sessions of a service.

    Parameters
    ----------
    offer : what devices are told.
    settings : time-outs and bounds, from the scenario.
    admission : says who may come in.
    observer : is told who comes and goes.
    listener : is told what devices say.
    crashed : is told of a bug, with where it showed.
    """

    offer: Offer
    settings: Sockets
    admission: Admission
    observer: ServiceObserver
    listener: SessionListener
    crashed: Callable[[str, BaseException], None]
    _by_device: dict[int, DeviceSession] = field(default_factory=dict)
    _encoded: OrderedDict[int, tuple[AnyMessage, bytes]] = field(default_factory=OrderedDict)
    _closing: str | None = None
    _served: int = 0
    """Connections that are open."""
    _nobody_served: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, device: int) -> DeviceSession | None:
        """Return the session of a device; None if it has none."""
        return self._by_device.get(device)

    def __len__(self) -> int:
        return len(self._by_device)

    @property
    def open(self) -> bool:
        """Whether devices may join."""
        return self._closing is None

    def encoded(self, message: AnyMessage) -> bytes:
        """Return the frame of a message; one that goes to many devices is encoded once."""
        found = self._encoded.get(id(message))
        if found is not None:
            return found[1]
        frame = encode(message, CodecLimits(frame_bytes=self.offer.frame_bytes))
        # The message is kept, so that its identity is not given to another one.
        self._encoded[id(message)] = (message, frame)
        if len(self._encoded) > _FRAMES_KEPT:
            self._encoded.popitem(last=False)
        return frame

    async def serve(self, socket: web.WebSocketResponse, remote: str) -> None:
        """Take a new connection: greet, and converse until it ends."""
        self._served += 1
        self._nobody_served.clear()
        try:
            await self._serve(socket, remote)
        finally:
            self._served -= 1
            if not self._served:
                self._nobody_served.set()

    async def _serve(self, socket: web.WebSocketResponse, remote: str) -> None:
        greeted = await self._greet(socket, remote)
        if greeted is None:
            return
        session, hello = greeted
        try:
            parting = await session.converse(socket, hello.received, self.settings.total_timeout)
        except RemoteProtocolError as error:
            parting = Parting(Parting.Kind.VIOLATION, str(error))
        except Exception as error:
            # Not the device's fault, and no web server's business: the run cannot go on.
            self.crashed(f"while device {session.device} was served", error)
            return
        if session.over:
            await _say(socket, Goodbye(self._closing or "the session is over"))
        elif parting.kind is Parting.Kind.GOODBYE:
            self.end(session, Reason.SESSION_ENDED, parting.why)
        elif parting.kind is Parting.Kind.VIOLATION:
            self.end(session, Reason.GARBAGE, parting.why)
            await _say(socket, Goodbye(parting.why[:200]))
        else:
            self.observer.on_disconnect(session.device, parting.why)
            session.expire_after(self.settings.resume_window)

    async def _greet(self, socket: web.WebSocketResponse, remote: str) -> tuple[DeviceSession, Hello] | None:
        """Read the hello and answer it; None if there is nothing more to say."""
        try:
            async with asyncio.timeout(self.settings.join_timeout):
                message = await socket.receive()
        except TimeoutError:
            await self._refuse(socket, None, remote, "no hello in time")
            return None
        if message.type is not aiohttp.WSMsgType.BINARY:
            await self._refuse(socket, None, remote, "a connection begins with a hello")
            return None
        try:
            hello = unpack(message.data)
        except CodecError as error:
            await self._refuse(socket, None, remote, str(error)[:200])
            return None
        if not isinstance(hello, Hello):
            await self._refuse(socket, None, remote, "a connection begins with a hello")
            return None
        session = await self._session_for(hello, remote)
        if isinstance(session, str):
            await self._refuse(socket, hello.device, remote, session)
            return None
        settings = self.settings
        known = hello.scenario == self.offer.scenario_hash
        welcome = Welcome(
            session=session.token,
            received=session.received_sequence,
            heartbeat_s=settings.heartbeat,
            idle_s=settings.idle_timeout,
            resume_s=settings.resume_window,
            frame_bytes=self.offer.frame_bytes,
            scenario=self.offer.scenario_hash,
            text="" if known else self.offer.scenario,
        )
        await _say(socket, welcome)
        return session, hello

    async def _session_for(self, hello: Hello, remote: str) -> DeviceSession | str:
        """Return the session that a device begins or goes on with, or why it may not."""
        if hello.protocol != PROTOCOL:
            return f"protocol {hello.protocol} is not spoken here; this side speaks {PROTOCOL}"
        if hello.device >= self.offer.devices:
            return f"there is no device {hello.device}; there are 0 to {self.offer.devices - 1}"
        refusal = self.admission.refusal(hello.device, hello.token, remote)
        if refusal is not None:
            return refusal
        if self._closing is not None:
            return self._closing
        existing = self._by_device.get(hello.device)
        if hello.session:
            if existing is None or not hmac.compare_digest(existing.token.encode(), hello.session.encode()):
                return "the session is over"
            # The old connection may be half open: whoever has the token has lost it.
            await existing.disconnect("taken over by a new connection")
            if existing.over:
                return "the session is over"
            self.observer.on_resume(hello.device)
            return existing
        if existing is not None:
            if existing.connected:
                return f"device {hello.device} has joined already"
            self.end(existing, Reason.CONNECTION_LOST, "the device began a new session")
        session = self._by_device[hello.device] = DeviceSession(self, hello.device, self._limits)
        self.observer.on_join(hello.device)
        self.listener.joined(session)
        return session

    async def _refuse(self, socket: web.WebSocketResponse, device: int | None, remote: str, why: str) -> None:
        self.observer.on_refusal(device, remote, why)
        await _say(socket, Goodbye(why))

    @property
    def _limits(self) -> SessionLimits:
        settings = self.settings
        return SessionLimits(
            frame_bytes=self.offer.frame_bytes,
            unacknowledged_bytes=settings.unacknowledged_bytes,
            heartbeat_s=settings.heartbeat,
            idle_s=settings.idle_timeout,
            computing_s=settings.computing_timeout,
        )

    def end(self, session: DeviceSession, reason: Reason, why: str) -> None:
        """End a session, if it is not over yet."""
        if session.over:
            return
        session.close()
        if self._by_device.get(session.device) is session:
            del self._by_device[session.device]
        self.observer.on_leave(session.device, reason, why)
        self.listener.left(session, reason)

    async def close(self, why: str) -> None:
        """Say goodbye to all devices, and let nobody in any more.

        A device that does not take its goodbye within ``connection.sockets.join_timeout`` goes without.
        """
        self._closing = why
        for session in list(self._by_device.values()):
            self.end(session, Reason.SESSION_ENDED, why)
        if self._served:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.join_timeout):
                    await self._nobody_served.wait()


async def _say(socket: web.WebSocketResponse, frame: Welcome | Goodbye) -> None:
    """Send a frame outside of any session; a connection that breaks meanwhile needs no answer."""
    try:
        await socket.send_bytes(pack(frame))
    except (ConnectionError, aiohttp.ClientError):
        return
