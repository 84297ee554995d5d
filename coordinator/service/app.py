"""The web application of the service: where devices join, and whether it is alive and ready."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from coordinator.service.hooks import Admission
from coordinator.service.sessions import Sessions
from edge.transport.websocket import CLOSING_S, SERVER_MESSAGE_BYTES


def guarded(admission: Admission) -> Middleware:
    """Return what lets through only whom ``admission`` does."""

    @web.middleware
    async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
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
        # Whoever does not answer the closing handshake is cut off after the time-out.
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
    host, port : where; port 0 lets the system choose.
    join_timeout_s : how long a connection may take to send its request.

    Attributes
    ----------
    url : known once it listens.
    """

    def __init__(self, app: web.Application, host: str, port: int, join_timeout_s: float) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=join_timeout_s, shutdown_timeout=CLOSING_S
        )
        self._host = host
        self._port = port
        self.url = ""

    async def __aenter__(self) -> Listening:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=4096)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._runner.cleanup())
