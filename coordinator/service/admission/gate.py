"""The gate of a service: tokens, limits, TLS and the viewers' token behind the one hook of the service."""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

from coordinator.service.admission.arrivals import Arrivals
from coordinator.service.admission.certificates import ServiceIdentity
from coordinator.service.admission.enrolment import EnrolmentError, judge, key_of
from coordinator.service.admission.enrolment_store import EnrolmentStore
from coordinator.service.admission.limits import ArrivalLimits
from coordinator.service.admission.viewing import (
    COOKIE,
    QUERY,
    Viewing,
    is_for_viewers,
    judge_viewer,
)
from coordinator.service.hooks import AdmissionError
from edge.core.errors import RecfleetError

_JOIN = "/v1/join"


class ExposureError(RecfleetError):
    """A service that would be open to more people than it should be; the message says what to add."""


class Gate:
    """Says who may come in; implements :class:`~coordinator.service.hooks.Admission`.

    Parameters
    ----------
    limits : on connections.
    enrolments : records of enrolment tokens; None: no device needs one, on this host alone.
    identity : for TLS; None: plain HTTP.
    view_token : what those who watch must have; None: nobody needs one, on this host alone.
    local : whether the service listens on this host alone.
    now_s : gives the time of day, seconds since 1970, by which tokens expire.
    """

    def __init__(
        self,
        *,
        limits: ArrivalLimits,
        enrolments: EnrolmentStore | None = None,
        identity: ServiceIdentity | None = None,
        view_token: str | None = None,
        local: bool = True,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._arrivals = Arrivals(limits, 0.0)
        self._enrolments = enrolments
        self._identity = identity
        self._view_token = view_token
        self._local = local
        self._now_s = now_s

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What connections are encrypted with."""
        return None if self._identity is None else self._identity.context

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return self._arrivals.open

    def arrived(self, remote: str, now_s: float) -> str | None:
        """Return why a new connection is closed at once; None: it is not."""
        return self._arrivals.arrived(remote, now_s)

    def left(self, remote: str) -> None:
        """Respond when a connection is over."""
        self._arrivals.left(remote)

    @contextmanager
    def proved(self, device: int, remote: str, now_s: float) -> Iterator[None]:
        """Count a connection, in the context, for the device that has proved who it is.

        Without tokens no identity can be proved, and connections count for their addresses.
        """
        counted = self._enrolments is not None and self._arrivals.proved(remote, device, now_s)
        try:
            yield
        finally:
            if counted:
                self._arrivals.forgotten(remote, device)

    def refusal(self, device: int, token: str) -> str | None:
        """Return why a device may not be here; None: it may.

        Raises
        ------
        AdmissionError : the records cannot be read.
        """
        if self._enrolments is None:
            return None
        key = key_of(token)
        try:
            record = None if key is None else self._enrolments.find(key)
        except EnrolmentError as error:
            raise AdmissionError(str(error)) from error
        return judge(token, record, device, self._now_s())

    def turned_away(self, request: web.Request) -> web.StreamResponse | None:
        """Answer a request that may go no further; None lets it through."""
        if self._local and not is_loopback(_host_of(request.headers.get("Host", ""))):
            # A web page whose name was made to point to this host (DNS rebinding) would come from it, too.
            return web.Response(status=403, text="this service is for this host alone\n")
        if request.path == _JOIN and "Origin" in request.headers:
            # Browsers let any page open a WebSocket, even to this host; and they always say where it is from.
            return web.Response(status=403, text="devices join, not web pages\n")
        if not is_for_viewers(request.path):
            return None
        match judge_viewer(self._view_token, request.headers, request.cookies, request.query):
            case Viewing.ALLOWED:
                return None
            case Viewing.TO_COOKIE:
                return self._to_cookie(request)
        challenge = {"WWW-Authenticate": 'Bearer realm="recfleet"'}
        return web.Response(status=401, headers=challenge, text="this needs the viewers' token\n")

    def _to_cookie(self, request: web.Request) -> web.StreamResponse:
        """Take the token out of the address, where histories and logs would keep it."""
        assert self._view_token is not None
        rest = request.rel_url.without_query_params(QUERY)
        # The path alone: '//elsewhere/' would be another host.
        answer = web.Response(status=303, headers={"Location": "/" + str(rest).lstrip("/")})
        answer.set_cookie(
            COOKIE,
            self._view_token,
            httponly=True,
            secure=self._identity is not None,
            # Not "Strict": who follows a link in a mail would be sent on without it. Viewers change nothing.
            samesite="Lax",
        )
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["Cache-Control"] = "no-store"
        return answer


_NO_LIMITS = ArrivalLimits(
    connections=2**31, connections_per_address=2**31, arrivals_per_s=1e9, arrivals_per_s_per_address=1e9
)


def local_gate() -> Gate:
    """Return the gate of a service that brings its devices along: on this host alone, as many as they are."""
    return Gate(limits=_NO_LIMITS)


def require_safe(host: str, *, encrypted: bool, insecure: bool, enrolled: bool) -> None:
    """Refuse a service that would be open to more people than it should be.

    Parameters
    ----------
    host : where it listens.
    encrypted : whether it speaks TLS.
    insecure : whether somebody has said that it need not.
    enrolled : whether devices need tokens.

    Raises
    ------
    ExposureError : with what to add.
    """
    if encrypted and insecure:
        raise ExposureError("--insecure is for plain HTTP, and TLS was asked for; leave one of them out")
    if is_loopback(host):
        return
    if not enrolled:
        raise ExposureError(
            f"--host {host or repr(host)} is open to other hosts, and without enrolment tokens "
            "anybody could join; issue some with 'recfleet enroll issue DIR', and add --enrolment DIR"
        )
    if not encrypted and not insecure:
        raise ExposureError(
            f"--host {host or repr(host)} is open to other hosts, and without TLS anybody in between "
            "could read tokens and change the model; add --tls, or --certificate FILE "
            "--key FILE, or --insecure where something else protects the connections"
        )


def _host_of(header: str) -> str:
    """Return the host in a header, without its port."""
    if header.startswith("["):
        return header.partition("]")[0].removeprefix("[")
    return header.partition(":")[0]


def is_loopback(address: str) -> bool:
    """Return whether an address is one of this host's own; a name other than localhost is not."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
