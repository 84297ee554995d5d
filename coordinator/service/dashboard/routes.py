"""What a browser and a collector of metrics ask for: the dashboard as one file, its events, and figures."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

from coordinator.results import report
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.metrics import exposition
from edge.core.errors import MissingExtraError

_TEMPLATES: Final = Path(__file__).parent / "templates"
_ASSETS: Final = Path(report.__file__).parent / "assets"
_REPORT_STYLES: Final = ("report.css", "drawing.css")
"""Reports and dashboard look alike."""
_STYLE_PLACE: Final = "/* style */"
_SCRIPT_PLACE: Final = "/* script */"
DASHBOARD: Final = "/dashboard"
EVENTS: Final = "/dashboard/events"
METRICS: Final = "/metrics"
REFRESH_S: Final = 0.25
"""A reader receives updates so often at most; what happens in between comes together."""
HEARTBEAT_S: Final = 10.0
"""Silence after which something is sent, so that a reader that is gone is noticed."""
STALL_S: Final = 10.0
"""A reader that takes nothing for so long is dropped."""
MOST_READERS: Final = 32


class Page(NamedTuple):
    """The page, and what a browser may do for it: run its own script, and ask its own server."""

    html: str
    policy: str


def _source(text: str) -> str:
    """Return what names an inline style or script in a content security policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@lru_cache(maxsize=1)
def dashboard_page() -> Page:
    """Return the page, which is the same for every run: what it shows comes as events."""
    html, style, script = (
        (_TEMPLATES / name).read_text(encoding="utf-8")
        for name in ("dashboard.html", "dashboard.css", "dashboard.js")
    )
    shared = (_ASSETS / name for name in _REPORT_STYLES)
    style = "".join((*(file.read_text(encoding="utf-8") for file in shared), style))
    policy = (
        f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.replace(_STYLE_PLACE, style).replace(_SCRIPT_PLACE, script), policy)


class Dashboard:
    """The routes of the dashboard and of the metrics.

    Parameters
    ----------
    state : what is shown.
    stall_s : how long a reader may take nothing.
    """

    def __init__(self, state: LiveState, *, stall_s: float = STALL_S) -> None:
        self._state = state
        self._stall_s = stall_s
        self.readers = 0
        """How many there are now."""

    def add_to(self, app: web.Application) -> None:
        """Add the routes to an application that has not started."""
        app.router.add_get("/", self._root)
        app.router.add_get(DASHBOARD, self._page)
        app.router.add_get(EVENTS, self._events)
        app.router.add_get(METRICS, self._metrics)
        app.on_shutdown.append(self._closing)

    async def settle(self) -> None:
        """Say that the results are being written; after that nothing may be sent for a while."""
        self._state.writing()
        # Each reader receives an update within this time, unless it is slow.
        await asyncio.sleep(2 * REFRESH_S)

    async def _closing(self, _: web.Application) -> None:
        self._state.closing()

    async def _root(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(DASHBOARD + (f"?{request.query_string}" if request.query_string else ""))

    async def _page(self, request: web.Request) -> web.StreamResponse:
        page = dashboard_page()
        headers = {
            "Content-Security-Policy": page.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return web.Response(text=page.html, content_type="text/html", charset="utf-8", headers=headers)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        try:
            body, content_type = exposition(self._state)
        except MissingExtraError as error:
            return web.Response(text=f"{error}\n", status=501)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self.readers >= MOST_READERS:
            text = f"there are {MOST_READERS} readers already\n"
            return web.Response(text=text, status=503, headers={"Retry-After": "10"})
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "X-Accel-Buffering": "no",
            }
        )
        self.readers += 1
        try:
            await response.prepare(request)
            await self._tell(response)
            async with asyncio.timeout(self._stall_s):
                await response.write_eof()
        except TimeoutError:
            # Whatever is still on its way to it would keep the connection open.
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # it has gone, which needs no answer
        finally:
            self.readers -= 1
        return response

    async def _tell(self, response: web.StreamResponse) -> None:
        """Send the present state, then what changes, until nothing will change any more."""
        loop = asyncio.get_running_loop()
        state, since, said_s = self._state, -1, loop.time()
        while True:
            over = state.over
            if state.version != since:
                found = state.changes(since)
                name = "state" if since < 0 else "change"
                since, said_s = found["version"], loop.time()
                text = json.dumps(found, separators=(",", ":"), allow_nan=False)
                await self._send(response, f"event: {name}\ndata: {text}\n\n")
            elif over:
                await self._send(response, "event: over\ndata: \n\n")
                return
            elif loop.time() - said_s >= HEARTBEAT_S:
                said_s = loop.time()
                await self._send(response, ":\n\n")
            if not over:
                await asyncio.sleep(REFRESH_S)

    async def _send(self, response: web.StreamResponse, text: str) -> None:
        async with asyncio.timeout(self._stall_s):
            await response.write(text.encode())
