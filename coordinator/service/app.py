"""The web application of the service: where devices join, and whether it is alive and ready."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from coordinator.service.doors import Doors, quiet_logger
from coordinator.service.hooks import Admission
from coordinator.service.sessions import Sessions
from edge.network.sockets.websocket import CLOSING_S, SERVER_MESSAGE_BYTES


def guarded(admission: Admission) -> Middleware:
    """Return what lets through only whom ``admission`` does."""

    @web.middleware
    async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not all(value.isascii() for value in request.headers.values()):
            # aiohttp stumbles over bytes that are no text where it takes headers apart.
            return web.Response(status=400)
        refused = admission.turned_away(request)
        return await handler(request) if refused is None else refused

    return admitted


def make_app(sessions: Sessions, admission: Admission) -> web.Application:
    """Return the application; others add their routes to it before it starts.

    ``/healthz`` answers as long as the process does, ``/readyz`` as long as devices may join, ``/v1/join`` is
    where they do.
    """

    async def healthz(request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "alive"})

    async def readyz(request: web.Request) -> web.StreamResponse:
        facts: dict[str, Any] = {"status": "ready" if sessions.open else "closing", "devices": len(sessions)}
        return web.json_response(facts, status=200 if sessions.open else 503)

    async def join(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            max_msg_size=SERVER_MESSAGE_BYTES, compress=False, timeout=CLOSING_S, autoping=True
        )
        await socket.prepare(request)
        await sessions.serve(socket, request.remote or "")
        # Whoever takes nothing any more, or does not answer the closing handshake, is not waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSING_S):
                await socket.close()
        return socket

    app = web.Application(middlewares=[guarded(admission)])
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/v1/join", join)
    return app


class Listening:
    """The application on a socket: a context manager.

    Parameters
    ----------
    app : from :func:`make_app`.
    admission : is asked about every connection.
    host, port : where; port 0 lets the system choose.
    join_timeout_s : how long a connection may take for its TLS handshake, then to send its request, and then
        to take the answer and send the next one.

    Attributes
    ----------
    url : known once it listens.
    """

    def __init__(
        self, app: web.Application, admission: Admission, host: str, port: int, join_timeout_s: float
    ) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=quiet_logger(),
            keepalive_timeout=join_timeout_s,
            shutdown_timeout=CLOSING_S,
        )
        self._admission = admission
        self._host = host
        self._port = port
        self._join_timeout_s = join_timeout_s
        self._doors: Doors

        @web.middleware
        async def at_the_door(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._doors.begun(request)
            try:
                return await handler(request)
            finally:
                # However its handler ended: what is sent has to be taken, and the next request to come.
                self._doors.ending(request)

        app.middlewares.insert(0, at_the_door)
        self.url = ""

    async def __aenter__(self) -> Listening:
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._doors = Doors(server, self._admission, self._join_timeout_s)
        host, port = await self._doors.open(self._host, self._port)
        scheme = "http" if self._admission.tls is None else "https"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        await self._doors.close()
        await self._runner.cleanup()
