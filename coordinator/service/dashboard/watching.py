"""A dashboard beside a run of this process, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from aiohttp import web

from coordinator.service.admission.gate import local_gate
from coordinator.service.app import Listening, guarded
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.routes import Dashboard

_HOST = "127.0.0.1"
_REQUEST_S = 10.0


class Watching:
    """Serves the dashboard on loopback while the context lasts.

    The run and its clock know nothing of it: it reads the state when it wants to.

    Parameters
    ----------
    state : what is shown.
    port : 0 lets the system choose.

    Attributes
    ----------
    url : of the page, once the context has been entered.

    Entering raises ``OSError`` if the port cannot be had.
    """

    def __init__(self, state: LiveState, port: int = 0) -> None:
        self._state = state
        self._port = port
        self.url = ""
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)
        self._ready = threading.Event()
        self._end: Callable[[], Any] = lambda: None
        self._failure: BaseException | None = None

    def __enter__(self) -> Watching:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._end = lambda: loop.call_soon_threadsafe(ended.set)
        gate = local_gate()
        app = web.Application(middlewares=[guarded(gate)])
        Dashboard(self._state).add_to(app)
        async with Listening(app, gate, _HOST, self._port, _REQUEST_S) as listening:
            self.url = f"{listening.url}/dashboard"
            self._ready.set()
            await ended.wait()
