"""Interfaces of the service: admission, and observers."""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager
from typing import Protocol

from aiohttp import web

from edge.core.errors import RecfleetError
from edge.core.vocabulary import Direction, Reason
from edge.wire.messages import AnyMessage


class AdmissionError(RecfleetError):
    """Admission cannot be decided now; the message says why."""


class Admission(Protocol):
    """Says who may come in."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What connections are encrypted with; None: they are not."""

    def arrived(self, remote: str, now_s: float) -> str | None:
        """Return why a new connection from the address ``remote`` is closed at once; None: it is not.

        ``now_s`` is the loop's time. One that is not closed is told of when it has :meth:`left`.
        """

    def left(self, remote: str) -> None:
        """Respond when a connection is over."""

    def proved(self, device: int, remote: str, now_s: float) -> AbstractContextManager[None]:
        """Count a connection, in the context, for a device that may be here in place of its address."""

    def turned_away(self, request: web.Request) -> web.StreamResponse | None:
        """Answer a request that may go no further; None lets it through."""

    def refusal(self, device: int, token: str) -> str | None:
        """Return why a device may not be here with ``token``; None: it may.

        Asked of every connection, also of one that goes on with a session, and of every session now and then:
        a token that is revoked while a device is here ends its stay.

        Raises
        ------
        AdmissionError : it cannot be told now: whoever is here stays, and nobody else comes in.
        """


class ServiceObserver:
    """Hooks between devices and coordinator, which do nothing by default; they change nothing in the run."""

    def on_join(self, device: int) -> None:
        """Respond when a device has joined with a new session."""

    def on_resume(self, device: int) -> None:
        """Respond when a device goes on with its session on a new connection."""

    def on_disconnect(self, device: int, why: str) -> None:
        """Respond when a connection has broken; the session goes on for a while."""

    def on_leave(self, device: int, reason: Reason, why: str) -> None:
        """Respond when a session is over."""

    def on_refusal(self, device: int | None, remote: str, why: str) -> None:
        """Respond when somebody was not let in; ``device`` is what it said it was."""

    def on_frame(
        self, round_number: int, device: int, direction: Direction, message: AnyMessage, reason: Reason
    ) -> None:
        """Handle a message: one that was sent down, or one from a device and what it was judged."""

    def on_handled(self, seconds: float) -> None:
        """Add the time that this host has worked on a message from a device."""
