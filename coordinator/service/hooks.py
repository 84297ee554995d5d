"""Where others plug into the service: who may come in, and who watches."""

from __future__ import annotations

import ipaddress
from typing import Protocol

from aiohttp import web

from edge.message_kinds import AnyMessage
from edge.vocabulary import Direction, Reason


class Admission(Protocol):
    """Says who may come in."""

    def turned_away(self, request: web.Request) -> web.StreamResponse | None:
        """Answer a request that may not even open a connection; None lets it through."""

    def refusal(self, device: int, token: str, remote: str) -> str | None:
        """Return why a device may not join with ``token`` from the address ``remote``; None: it may.

        Asked of every connection, also of one that goes on with a session.
        """


class LoopbackAdmission:
    """Lets in whoever is on this host, without a token."""

    def turned_away(self, request: web.Request) -> web.StreamResponse | None:
        """Turn away who is not on this host."""
        return None if is_loopback(request.remote or "") else web.Response(status=403)

    def refusal(self, device: int, token: str, remote: str) -> str | None:
        """Ask for no token."""
        return None


def is_loopback(address: str) -> bool:
    """Return whether an address is one of this host's own; a name other than localhost is not."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class ServiceObserver(Protocol):
    """Is told what happens between devices and coordinator; nothing it does changes the run."""

    def on_join(self, device: int) -> None:
        """Take note that a device has joined with a new session."""

    def on_resume(self, device: int) -> None:
        """Take note that a device goes on with its session on a new connection."""

    def on_disconnect(self, device: int, why: str) -> None:
        """Take note that a connection has broken; the session goes on for a while."""

    def on_leave(self, device: int, reason: Reason, why: str) -> None:
        """Take note that a session is over."""

    def on_refusal(self, device: int | None, remote: str, why: str) -> None:
        """Take note that somebody was not let in; ``device`` is what it said it was."""

    def on_frame(
        self, round_number: int, device: int, direction: Direction, message: AnyMessage, reason: Reason
    ) -> None:
        """Take note of a message: one that was sent down, or one from a device and what it was judged."""

    def on_handled(self, seconds: float) -> None:
        """Take note of how long this host has worked on a message from a device."""


class NobodyWatches:
    """The observer of a service that nobody watches."""

    def on_join(self, device: int) -> None:
        """Do nothing."""

    def on_resume(self, device: int) -> None:
        """Do nothing."""

    def on_disconnect(self, device: int, why: str) -> None:
        """Do nothing."""

    def on_leave(self, device: int, reason: Reason, why: str) -> None:
        """Do nothing."""

    def on_refusal(self, device: int | None, remote: str, why: str) -> None:
        """Do nothing."""

    def on_frame(
        self, round_number: int, device: int, direction: Direction, message: AnyMessage, reason: Reason
    ) -> None:
        """Do nothing."""

    def on_handled(self, seconds: float) -> None:
        """Do nothing."""
