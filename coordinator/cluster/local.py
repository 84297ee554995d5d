"""Workers as processes of this host.

A worker does not outlive the process that started it, in whatever way that ends, so what is killed can be
begun again at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Final

from coordinator.cluster.base import Call, Cluster, Worker, WorkerLostError
from coordinator.cluster.hosting import CallOutcome, HostedWorker, NamedLines, unpack
from coordinator.cluster.interrupts import signals_ignored
from edge.core import plugins

_PATIENCE_S: Final = 10.0
"""How long a worker that has been asked to end is waited for before it is killed."""
_INTERRUPT: Final = b""
"""The message that interrupts; requests are never empty."""


def serve(pipe: Connection, name: str, made_by: bytes, given: Sequence[str]) -> None:
    """Make a worker and do its calls until the other end is closed; the main function of its process."""
    # Ctrl-C in a terminal reaches every process of its group: only the parent shall pass it on, once.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stderr = NamedLines(name, sys.stderr)
    hosted = HostedWorker()
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_read, args=(pipe, requests, hosted), daemon=True).start()
    try:
        pipe.send_bytes(hosted.make(made_by, given))
        while (request := requests.get()) is not None:
            pipe.send_bytes(hosted.answer(request))
    except (BrokenPipeError, ConnectionResetError):
        return


def _read(pipe: Connection, requests: SimpleQueue[bytes | None], hosted: HostedWorker) -> None:
    """Take requests as they come, so that a parent which sends never waits for one that returns."""
    try:
        while True:
            request = pipe.recv_bytes()
            if request == _INTERRUPT:
                hosted.interrupt()
            else:
                requests.put(request)
    except (EOFError, ConnectionResetError):
        requests.put(None)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


class _Process:
    """The process of a worker, the pipe to it, and the calls that it has not returned from."""

    def __init__(self, worker: Worker, made_by: bytes, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.calls: deque[Call] = deque([worker.started])
        arguments = (theirs, worker.name, made_by, plugins.loaded())
        self.process: BaseProcess = context.Process(
            target=serve, name=worker.name, args=arguments, daemon=False
        )
        with signals_ignored(), _environment(environment):
            self.process.start()
        theirs.close()

    def send(self, message: bytes) -> None:
        """Send a message; :meth:`LocalCluster.wait` notices a process that is gone, after its last answer."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send_bytes(message)

    def lose(self, worker: Worker, how: str) -> None:
        """End the calls that have not been returned from."""
        worker.lost = how
        for call in self.calls:
            call.end(CallOutcome(error=WorkerLostError(worker.name, how)))

    def exit_of(self) -> str:
        """Return how the process ended, once its pipe is closed."""
        self.process.join(_PATIENCE_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        code = self.process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Give variables to the processes that are started within."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def runs_a_script() -> bool:
    """Whether each process that is started imports the main module of this one."""
    return getattr(sys.modules["__main__"], "__spec__", None) is None and hasattr(
        sys.modules["__main__"], "__file__"
    )


class LocalCluster(Cluster):
    """Starts workers as processes of this host."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._processes: dict[Worker, _Process] = {}

    def _start(
        self, worker: Worker, made_by: bytes, environment: Mapping[str, str], *, reserves: bool
    ) -> None:
        self._processes[worker] = _Process(worker, made_by, environment)

    def _submit(self, calls: Sequence[Call], request: bytes) -> None:
        for call in calls:
            process = self._processes[call.worker]
            process.calls.append(call)
            process.send(request)

    def wait(self, calls: Collection[Call]) -> list[Call]:
        """Return those of ``calls`` that have ended, once one has."""
        while not any(call.done for call in calls):
            workers = {self._processes[call.worker].pipe: call.worker for call in calls}
            with self.interrupts.strike():
                ready = connection.wait(list(workers))
            for pipe, worker in workers.items():
                if pipe in ready:
                    self._receive(worker)
        return [call for call in calls if call.done]

    def _receive(self, worker: Worker) -> None:
        process = self._processes[worker]
        try:
            answer = process.pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            del self._processes[worker]
            process.pipe.close()
            process.lose(worker, process.exit_of())
            return
        process.calls.popleft().end(unpack(answer))

    def interrupt(self, worker: Worker) -> None:
        """Ask a worker to end its calls in order; do not wait."""
        if worker.lost is None:
            self._processes[worker].send(_INTERRUPT)

    def _stop(self, workers: Sequence[Worker]) -> None:
        processes = [self._processes.pop(worker) for worker in workers]
        for worker, process in zip(workers, processes, strict=True):
            process.lose(worker, "stopped")
            process.pipe.close()
        until_s = time.monotonic() + _PATIENCE_S
        for process in processes:
            process.process.join(max(0.0, until_s - time.monotonic()))
            if process.process.is_alive():
                process.process.kill()
                process.process.join()
