"""The numbers of many devices, computed together.

An actor awaits ``queue.run(kernel, client, seconds)`` as if its device computed alone. The request is queued
when the computation starts, and everything queued for the same kernel runs as one batch no later than the
first completion in virtual time. How long the batch takes on this host plays no part: ``seconds`` comes from
the device's compute model.

A kernel is a pure function of arrays whose value for one client does not depend on the others, so batch size,
executor and number of workers cannot change a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor as _PoolExecutor
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.clock import sleep

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

Clients = npt.NDArray[np.int64]


class Kernel(Protocol[R_co]):
    """Computes many clients at once.

    ``kernel(clients int64[n])`` gathers their data and returns a task; calling the task gives one result a
    client, in order. A task holds arrays and module-level functions only, so it can be sent to a worker.
    """

    def __call__(self, clients: Clients) -> Callable[[], Iterable[R_co]]:
        """Return the task that computes ``clients``."""


class Executor(Protocol):
    """Where tasks run; the result never depends on it."""

    def run(self, kernel: Kernel[R], clients: Clients) -> Iterable[R]:
        """Return the results of ``clients``, in order."""


class InlineExecutor:
    """Runs tasks here, in this thread."""

    def run(self, kernel: Kernel[R], clients: Clients) -> Iterable[R]:
        """Return the results of ``clients``, in order."""
        return kernel(clients)()


class PooledExecutor:
    """Splits a batch over the workers of a ``concurrent.futures`` pool and waits for all of them.

    Parameters
    ----------
    pool : a thread or process pool, owned by the caller.
    workers : number of parts a batch is split into.
    """

    def __init__(self, pool: _PoolExecutor, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"a pool has at least 1 worker, not {workers}")
        self._pool = pool
        self._workers = workers

    def run(self, kernel: Kernel[R], clients: Clients) -> Iterable[R]:
        """Return the results of ``clients``, in order, computed in parts."""
        parts = [part for part in np.array_split(clients, self._workers) if len(part)]
        futures = [self._pool.submit(kernel(part)) for part in parts]
        return [result for future in futures for result in future.result()]


class _Ticket(Generic[R]):
    __slots__ = ("client", "result")

    def __init__(self, client: int) -> None:
        self.client = client
        self.result: R | None = None


class ComputeQueue:
    """Queues computations and runs them in batches of at most ``batch`` clients.

    Parameters
    ----------
    executor : where batches run.
    batch : most clients in one call of a kernel; bounds the memory of a batch, never changes a result.
    wait : how to wait simulated seconds; the virtual clock's sleep by default.
    """

    def __init__(self, executor: Executor, batch: int = 256, wait: Callable[[float], Any] = sleep) -> None:
        if batch < 1:
            raise ValueError(f"a batch holds at least 1 client, not {batch}")
        self._executor = executor
        self._batch = batch
        self._wait = wait
        self._pending: dict[int, tuple[Kernel[Any], list[_Ticket[Any]]]] = {}
        self.computed = 0
        """Clients computed so far."""
        self.batches = 0
        """Kernel calls made so far."""

    async def run(self, kernel: Kernel[R], client: int, seconds: float) -> R:
        """Return the kernel's result for ``client`` after ``seconds`` of simulated time.

        A caller that is cancelled meanwhile takes its request back, unless the batch has run already.
        """
        ticket: _Ticket[R] = _Ticket(client)
        pending = self._pending.get(id(kernel))
        if pending is None:
            self._pending[id(kernel)] = (kernel, [ticket])
        else:
            pending[1].append(ticket)
        try:
            await self._wait(seconds)
        except BaseException:
            if ticket.result is None:
                self._take_back(kernel, ticket)
            raise
        if ticket.result is None:
            self._flush(kernel)
        assert ticket.result is not None, "a kernel gave no result for a client of its batch"
        return ticket.result

    def _take_back(self, kernel: Kernel[R], ticket: _Ticket[R]) -> None:
        _, tickets = self._pending[id(kernel)]
        tickets.remove(ticket)
        if not tickets:
            del self._pending[id(kernel)]

    def _flush(self, kernel: Kernel[R]) -> None:
        _, tickets = self._pending.pop(id(kernel))
        for start in range(0, len(tickets), self._batch):
            part = tickets[start : start + self._batch]
            clients = np.fromiter((ticket.client for ticket in part), np.int64, len(part))
            results = self._executor.run(kernel, clients)
            for ticket, result in zip(part, results, strict=True):
                ticket.result = result
            self.computed += len(part)
            self.batches += 1
