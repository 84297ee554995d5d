"""Where connections arrive: admission is asked before a byte is read, and nobody may stand in the door.

asyncio's own servers hand over a connection after its TLS handshake; until then it is counted nowhere. So
connections are accepted here, counted, and then given to the web server.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from coordinator.service.hooks import Admission
from edge.network.sockets.websocket import CLOSING_S

_BACKLOG = 4096
_PAUSE_S = 0.5
"""How long nobody is let in when the system has no more files or memory for connections."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Doors:
    """The listening sockets of a service.

    Parameters
    ----------
    make_protocol : gives the web server's end of a new connection.
    admission : is asked about every connection.
    join_timeout_s : how long one may take for its TLS handshake, and then to send its request.
    """

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], admission: Admission, join_timeout_s: float
    ) -> None:
        self._make_protocol = make_protocol
        self._admission = admission
        self._join_timeout_s = join_timeout_s
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._entered: dict[asyncio.BaseProtocol, _Door] = {}
        """Connections that are open, by the web server's end of each."""

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen at all addresses of ``host``; return the first one and its port.

        Raises
        ------
        OSError : it cannot be listened there.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                chosen = self._listeners[0].getsockname()[1] if self._listeners else port
                self._listeners.append(_listener(family, kind, protocol, (address[0], chosen, *address[2:])))
        except OSError:
            self._close_listeners()
            raise
        for listener in self._listeners:
            self._start(self._accept(listener))
        name = self._listeners[0].getsockname()
        return name[0], name[1]

    async def close(self) -> None:
        """Let nobody in any more; connections that are open stay so."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_listeners()

    def begun(self, request: web.Request) -> None:
        """Respond when a connection has sent a whole request."""
        door = self._entered.get(request.protocol)
        if door is not None:
            door.stay()

    def ending(self, request: web.Request) -> None:
        """Respond when the other side has only to take what was sent to it: it may not take for ever."""
        door = self._entered.get(request.protocol)
        if door is not None:
            door.leave_within(self._join_timeout_s)

    def _start(self, story: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(story)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug, or a listening socket that is gone: whoever runs the loop decides.
            context = {"message": "while connections were accepted", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    await asyncio.sleep(_PAUSE_S)
                elif listener.fileno() == -1:
                    raise
                # Anything else is the connection's trouble, which was gone before it was accepted.
                continue
            remote = address[0]
            if self._admission.arrived(remote, loop.time()) is None:
                self._start(self._let_in(connection, remote))
            else:
                connection.close()
            # Also while connections pour in, others are served.
            await asyncio.sleep(0)

    async def _let_in(self, connection: socket.socket, remote: str) -> None:
        """Do the TLS handshake, and hand the connection over; it is counted until it has ended."""
        tls = self._admission.tls
        door = _Door(self, self._make_protocol(), remote)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                door,
                connection,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self._join_timeout_s,
                ssl_shutdown_timeout=None if tls is None else CLOSING_S,
            )
        except OSError:
            # No TLS, too slow, or gone: SSL errors are of this kind, too.
            pass
        finally:
            if not door.made:
                self._admission.left(remote)

    def entered(self, door: _Door, protocol: asyncio.BaseProtocol) -> None:
        """Respond when a connection is open."""
        self._entered[protocol] = door
        # Not one byte after another for ever: what counts is when the whole request is there.
        door.leave_within(self._join_timeout_s)

    def gone(self, protocol: asyncio.BaseProtocol, remote: str) -> None:
        """Respond when a connection has ended."""
        self._entered.pop(protocol, None)
        self._admission.left(remote)


class _Door(asyncio.Protocol):
    """Stands before the web server's end of a connection, and closes it if no request comes in time."""

    def __init__(self, doors: Doors, inner: asyncio.Protocol, remote: str) -> None:
        self._doors = doors
        self._inner = inner
        self._remote = remote
        self._transport: asyncio.Transport | None = None
        self._limit: asyncio.TimerHandle | None = None
        self.made = False

    def __call__(self) -> _Door:
        """Return itself: asyncio asks for a factory."""
        return self

    def stay(self) -> None:
        """Let the connection last as long as it wants to."""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def leave_within(self, seconds: float) -> None:
        """Cut the connection off after so long, unless it has ended or may stay."""
        self.stay()
        if self._transport is not None:
            self._limit = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.made = True
        self._transport = transport
        self._doors.entered(self, self._inner)
        self._inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.stay()
        self._transport = None
        self._doors.gone(self._inner, self._remote)
        self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def _listener(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def quiet_logger() -> logging.Logger:
    """Return the web server's logger, without a traceback for whoever sends what is no HTTP, or hangs up."""
    logger = logging.getLogger("recfleet.service")
    if not logger.filters:
        logger.addFilter(_worth_telling)
    return logger


def _worth_telling(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)
