"""One device's session on the coordinator's side: a channel to send on, which outlives its connections."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from edge.errors import RemoteProtocolError
from edge.message_kinds import AnyMessage
from edge.session import Acknowledged, Event, Noted, Received, Sent, Session, SessionLimits
from edge.transport.websocket import Conversation, Parting
from edge.vocabulary import Reason

if TYPE_CHECKING:
    from coordinator.service.sessions import Sessions

_TOKEN_BYTES = 24
_SILENCE_S = 3.0
"""A connection that does not answer for so long gives its session up to another one with the same token."""


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

    def acknowledged(self, session: DeviceSession, transfer: Transfer, arrival_s: float) -> None:
        """Take note that a message has arrived, and when."""

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
