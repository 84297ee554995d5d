"""All sessions of a service: who begins one, who goes on with one, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
from aiohttp import web

from coordinator.scenario.fleet_section import Sockets
from coordinator.service.doors import quiet_logger
from coordinator.service.greeting import JoinRefusal, Offer, read_hello, refuse, say_goodbye, say_welcome
from coordinator.service.hooks import Admission, AdmissionError, ServiceObserver
from edge.core.errors import RemoteProtocolError
from edge.core.vocabulary import Reason
from edge.network.sockets.websocket import Conversation, Parting
from edge.wire.codec import CodecLimits, encode
from edge.wire.messages import AnyMessage
from edge.wire.session import Acknowledged, Event, Noted, Received, Sent, Session, SessionLimits
from edge.wire.session_frames import PROTOCOL, Hello

_TOKEN_BYTES = 24
_SILENCE_S = 3.0
"""A connection that does not answer for so long gives its session up to another one with the same token."""
_LOGGER = quiet_logger()
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
    """Hooks on messages from devices, and on the fate of those to them."""

    def joined(self, session: DeviceSession) -> None:
        """Handle a new session."""

    def pushed(self, session: DeviceSession, transfer: Transfer) -> None:
        """Handle a message that starts on its way."""

    def acknowledged(self, session: DeviceSession, transfer: Transfer, arrival_s: float) -> None:
        """Respond when a message has arrived, and when."""

    def received(self, session: DeviceSession, received: Received) -> None:
        """Take a message from a device, as bytes."""

    def noted(self, session: DeviceSession, noted: Noted) -> None:
        """Handle that a device computes, or how long it has."""

    def left(self, session: DeviceSession, reason: Reason) -> None:
        """Respond when a session is over."""


class DeviceSession:
    """A device's session; the coordinator's channel to it.

    Attributes
    ----------
    device : who is at the other end.
    token : names the session; whoever shows it, beside the right to be here, goes on with it.
    enrolment : what the device has shown for the right to be here.
    over, why : whether the session has ended, and why.
    """

    def __init__(self, sessions: Sessions, device: int, limits: SessionLimits) -> None:
        self.device = device
        self.enrolment = ""
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions = sessions
        self._session = Session(limits, client=False)
        self._conversation: Conversation | None = None
        self._quiet = asyncio.Event()
        """Set while there is no connection."""
        self._quiet.set()
        self._expiry: asyncio.TimerHandle | None = None
        self.over = False
        self.why = ""

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

    def begin(self, socket: web.WebSocketResponse, peer_received: int) -> Conversation:
        """Begin on a new connection, whose other end received ``peer_received`` last; there is no old one.

        Raises
        ------
        RemoteProtocolError : the other end claims what was never sent.
        """
        assert self._conversation is None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for event in self._session.connected(peer_received, asyncio.get_running_loop().time()):
            self._happened(event)
        # The first answer says how far away the device is, and what its clock shows.
        self._session.challenge(secrets.randbits(62))
        self._conversation = Conversation(socket, self._session, self._happened)
        self._quiet.clear()
        return self._conversation

    async def converse(self, conversation: Conversation, total_s: float) -> Parting:
        """Carry the session over the connection that was begun, until that ends; return how it did."""
        why = "connection.sockets.total_timeout is over"
        limit = asyncio.get_running_loop().call_later(total_s, conversation.end, why)
        try:
            return await conversation.run()
        finally:
            limit.cancel()
            self._conversation = None
            self._quiet.set()

    async def shows_life(self, longest_s: float) -> bool:
        """Return whether there is a connection whose other end answers."""
        conversation = self._conversation
        return conversation is not None and await conversation.shows_life(_SILENCE_S, longest_s)

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

    def close(self, why: str) -> list[Transfer]:
        """End the session on this side; return what the device may not have received."""
        self.over = True
        self.why = why
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
                listener.acknowledged(self, event.sent.label, event.at_s)
            case Noted():
                listener.noted(self, event)


@dataclass(slots=True)
class Sessions:
    """All sessions of a service.

    Parameters
    ----------
    offer : what devices are offered.
    settings : time-outs and bounds, from the scenario.
    admission : says who may come in.
    observer : receives who comes and goes.
    listener : receives what devices say.
    crashed : receives a bug, with where it showed.
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
    _joining: defaultdict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Held while a device joins or comes back: of two that do so at once, one waits for the other."""
    _served: int = 0
    """Devices that have been let in, and whose connection is open."""
    _nobody_served: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, device: int) -> DeviceSession | None:
        """Return the session of a device; None if it has none."""
        return self._by_device.get(device)

    def all(self) -> list[DeviceSession]:
        """Return all sessions that are not over."""
        return list(self._by_device.values())

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
        hello = await read_hello(socket, self.settings.join_timeout)
        if isinstance(hello, JoinRefusal):
            await self._refuse(socket, None, remote, hello)
            return
        objection = self._objection(hello)
        if objection is not None:
            await self._refuse(socket, hello.device, remote, objection)
            return
        with self.admission.proved(hello.device, remote, asyncio.get_running_loop().time()):
            # Strangers are not counted: nobody waits for them when the service closes.
            self._served += 1
            self._nobody_served.clear()
            try:
                await self._serve(socket, hello, remote)
            finally:
                self._served -= 1
                if not self._served:
                    self._nobody_served.set()

    async def _serve(self, socket: web.WebSocketResponse, hello: Hello, remote: str) -> None:
        async with self._joining[hello.device]:
            begun = await self._begin(socket, hello)
        if isinstance(begun, JoinRefusal):
            await self._refuse(socket, hello.device, remote, begun)
            return
        if begun is None:
            return
        session, conversation = begun
        try:
            parting = await session.converse(conversation, self.settings.total_timeout)
        except Exception as error:
            # Not the device's fault, and no web server's business: the run cannot go on.
            self.crashed(f"while device {session.device} was served", error)
            return
        if session.over:
            await say_goodbye(socket, session.why)
        elif parting.cause is Parting.Cause.GOODBYE:
            self.end(session, Reason.SESSION_ENDED, parting.why)
        elif parting.cause is Parting.Cause.VIOLATION:
            await self._violated(socket, session, parting.why)
        else:
            self._lost(session, parting.why)

    async def _begin(
        self, socket: web.WebSocketResponse, hello: Hello
    ) -> tuple[DeviceSession, Conversation] | JoinRefusal | None:
        """Welcome a device that may be here; None if that led to nothing."""
        session = await self._session_for(hello)
        if isinstance(session, JoinRefusal):
            return session
        session.enrolment = hello.token
        try:
            welcome = self.offer.welcome(hello, session.token, session.received_sequence, self.settings)
            await say_welcome(socket, welcome, self.settings.idle_timeout)
            if session.over:
                await say_goodbye(socket, session.why)
                return None
            return session, session.begin(socket, hello.received)
        except TimeoutError:
            self._lost(session, "the welcome was not taken")
        except RemoteProtocolError as error:
            await self._violated(socket, session, str(error))
        return None

    async def _violated(self, socket: web.WebSocketResponse, session: DeviceSession, why: str) -> None:
        """End the session of a device that has broken the protocol."""
        self.end(session, Reason.GARBAGE, why)
        await say_goodbye(socket, why)

    def _lost(self, session: DeviceSession, why: str) -> None:
        """Give a device whose connection has broken the time to come back."""
        self.observer.on_disconnect(session.device, why)
        session.expire_after(self.settings.resume_window)

    def _objection(self, hello: Hello) -> JoinRefusal | None:
        """Return why a device may not be here; None: it may."""
        if hello.protocol != PROTOCOL:
            return JoinRefusal(f"protocol {hello.protocol} is not spoken here; this side speaks {PROTOCOL}")
        try:
            refusal = self.admission.refusal(hello.device, hello.token)
        except AdmissionError:
            _LOGGER.exception("device %d could not be let in", hello.device)
            return JoinRefusal("who may come in cannot be told now", aiohttp.WSCloseCode.TRY_AGAIN_LATER)
        # Only who may be here learns more.
        if refusal is not None:
            return JoinRefusal(refusal)
        if hello.device >= self.offer.devices:
            return JoinRefusal(f"there is no device {hello.device}; there are 0 to {self.offer.devices - 1}")
        return self._farewell

    @property
    def _farewell(self) -> JoinRefusal | None:
        """What is said to devices that come too late; None as long as they may join."""
        return None if self._closing is None else JoinRefusal(self._closing, aiohttp.WSCloseCode.GOING_AWAY)

    async def _session_for(self, hello: Hello) -> DeviceSession | JoinRefusal:
        """Return the session that a device begins or goes on with, or why it may not."""
        existing = self._by_device.get(hello.device)
        if hello.session:
            if existing is None or not hmac.compare_digest(existing.token.encode(), hello.session.encode()):
                return JoinRefusal("the session is over")
            # Somebody with a stolen token finds its owner there; an owner who comes back, nobody.
            if await existing.shows_life(self.settings.join_timeout):
                return JoinRefusal(f"device {hello.device} is here, and goes on with its session")
            await existing.disconnect("taken over by a new connection")
            if existing.over:
                return JoinRefusal("the session is over")
            self.observer.on_resume(hello.device)
            return existing
        if existing is not None:
            # One that was started again, or never got its welcome, has left a connection that is half open.
            if await existing.shows_life(self.settings.join_timeout):
                return JoinRefusal(f"device {hello.device} has joined already")
            self.end(existing, Reason.CONNECTION_LOST, "the device began a new session")
        if self._farewell is not None:
            return self._farewell
        session = self._by_device[hello.device] = DeviceSession(self, hello.device, self._limits)
        self.observer.on_join(hello.device)
        self.listener.joined(session)
        return session

    async def _refuse(
        self, socket: web.WebSocketResponse, device: int | None, remote: str, refusal: JoinRefusal
    ) -> None:
        self.observer.on_refusal(device, remote, refusal.why)
        await refuse(socket, refusal)

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
        session.close(why)
        if self._by_device.get(session.device) is session:
            del self._by_device[session.device]
        self.observer.on_leave(session.device, reason, why)
        self.listener.left(session, reason)

    async def close(self, why: str) -> None:
        """Say goodbye to all devices, and let nobody in any more.

        A device that does not take its goodbye within ``connection.sockets.join_timeout`` goes without.
        """
        self._closing = why
        for session in self.all():
            self.end(session, Reason.SESSION_ENDED, why)
        if self._served:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.join_timeout):
                    await self._nobody_served.wait()
