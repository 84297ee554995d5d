"""The numbers of many devices, computed together.

An actor awaits ``queue.run(kernel, client, seconds)`` as if its device computed alone. Requests for the same
kernel wait for each other and run as one batch no later than the first completion in virtual time; those that
are foreseen when a round starts join before they are made. How long the batch takes on this host plays no
part: ``seconds`` comes from the device's compute model.

A kernel is a pure function of arrays whose value for one client does not depend on the others, so batch size,
executor and number of workers cannot change a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.clock.virtual import sleep

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


def run_task(task: Callable[[], Iterable[R]]) -> Iterable[R]:
    """Return the results of a task.

    Of a model that has run away, values overflow. That is no surprise: whoever uses a result that is not
    finite finds out and says so by name.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return task()


class InlineExecutor:
    """Runs tasks here, in this thread."""

    def run(self, kernel: Kernel[R], clients: Clients) -> Iterable[R]:
        """Return the results of ``clients``, in order."""
        return run_task(kernel(clients))


class _Batch(Generic[R]):
    """Clients that are computed together, and their results until these are fetched."""

    __slots__ = ("clients", "kernel", "results")

    def __init__(self, kernel: Kernel[R], clients: Iterable[int]) -> None:
        self.kernel = kernel
        self.clients = dict.fromkeys(clients)
        self.results: dict[int, R] | None = None


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
        self.size = batch
        """Most clients in one call of a kernel."""
        self._wait = wait
        self._batches: dict[int, dict[int, _Batch[Any]]] = {}
        """Of a kernel (by identity; the batches keep it alive): the batch of each client."""
        self._filling: dict[int, _Batch[Any]] = {}
        """Of a kernel: the batch that clients which were not foreseen still join."""
        self.computed = 0
        """Clients computed so far."""
        self.calls = 0
        """Kernel calls made so far."""

    def foresee(self, kernel: Kernel[Any], clients: Sequence[int]) -> None:
        """Announce that these clients will ask for ``kernel``, so that they can be computed together.

        A kernel's inputs are known from the start of a round: the first client to finish may as well take
        along those that will begin later. :meth:`forget` ends the announcement.
        """
        batches = self._batches.setdefault(id(kernel), {})
        for start in range(0, len(clients), self.size):
            batch = _Batch(kernel, clients[start : start + self.size])
            batches.update(dict.fromkeys(batch.clients, batch))

    def together(self, kernel: Kernel[R], clients: Clients) -> Iterable[R]:
        """Compute ``clients`` (int64 [n]) in one batch, at once; return their results in order."""
        self.computed += len(clients)
        self.calls += 1
        return self._executor.run(kernel, clients)

    def forget(self, kernel: Kernel[Any]) -> None:
        """Drop whatever was announced or computed for ``kernel`` and not fetched."""
        self._batches.pop(id(kernel), None)
        self._filling.pop(id(kernel), None)

    async def run(self, kernel: Kernel[R], client: int, seconds: float) -> R:
        """Return the kernel's result for ``client`` after ``seconds`` of simulated time.

        A caller that is cancelled meanwhile takes its request back, unless the batch has run already.
        """
        batch = self._batch_of(kernel, client)
        try:
            await self._wait(seconds)
        except BaseException:
            self._take_back(batch, client)
            raise
        if batch.results is None:
            self._compute(batch)
        assert batch.results is not None
        del self._batches[id(kernel)][client]
        return batch.results.pop(client)

    def _batch_of(self, kernel: Kernel[R], client: int) -> _Batch[R]:
        batches = self._batches.setdefault(id(kernel), {})
        found = batches.get(client)
        if found is None:
            found = self._filling.get(id(kernel))
            if found is None or found.results is not None or len(found.clients) >= self.size:
                found = self._filling[id(kernel)] = _Batch(kernel, ())
            found.clients[client] = None
            batches[client] = found
        return found

    def _take_back(self, batch: _Batch[Any], client: int) -> None:
        if batch.results is None:
            del batch.clients[client]
        else:
            batch.results.pop(client, None)
        self._batches.get(id(batch.kernel), {}).pop(client, None)

    def _compute(self, batch: _Batch[Any]) -> None:
        clients = np.fromiter(batch.clients, np.int64, len(batch.clients))
        results = self._executor.run(batch.kernel, clients)
        batch.results = dict(zip(batch.clients, results, strict=True))
        self.computed += len(clients)
        self.calls += 1
