"""The protocol of a cluster: start workers, call them without waiting, collect what they return.

A worker is an object of any class that can be imported, made in another process after the plug-ins of this
one have been loaded there. It does its calls one after the other. What it is given and what it returns is
pickled; data never is: a worker reads or generates its own from the scenario.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

from coordinator.cluster.hosting import PICKLE_PROTOCOL, CallOutcome
from coordinator.cluster.interrupts import Interrupts
from edge.core.errors import LocalProtocolError, RecfleetError

STARTED: Final = ""
"""The method of the call that ends when a worker has been made."""


class ClusterError(RecfleetError):
    """An engine cannot be reached or started, or a worker cannot live where it has put it."""


class WorkerLostError(RecfleetError):
    """A worker is gone, and with it its state and the calls that it had not returned from.

    Attributes
    ----------
    worker : its name.
    how : its signal, its exit code, or what the engine says of it.
    """

    def __init__(self, worker: str, how: str) -> None:
        super().__init__(f"worker {worker} was lost ({how})")
        self.worker = worker
        self.how = how


class Interruptible(Protocol):
    """What a worker's class may have besides its methods, for :meth:`Cluster.interrupt`."""

    def interrupt(self) -> None:
        """End what goes on in order, and whatever comes after; called from another thread than the calls."""


class Worker:
    """A worker, seen from the process that calls it.

    Attributes
    ----------
    name : in logs and errors.
    started : the call that ends once it has been made, with an error if that failed.
    lost : how it was lost; None as long as it is there.
    """

    __slots__ = ("lost", "name", "started")

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = Call(self, STARTED)
        self.lost: str | None = None


class Call:
    """One call of a method of a worker."""

    __slots__ = ("_outcome", "method", "worker")

    def __init__(self, worker: Worker, method: str) -> None:
        self.worker = worker
        self.method = method
        self._outcome: CallOutcome | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._outcome is not None

    def end(self, outcome: CallOutcome) -> None:
        """Set how it ended; for engines."""
        self._outcome = outcome

    def result(self) -> Any:
        """Return what the method returned.

        Raises
        ------
        WorkerLostError : the worker was lost before it returned.
        Exception : that the method raised, or the class of the worker when it was made.
        """
        if self._outcome is None:
            raise LocalProtocolError(f"{self.method} of {self.worker.name} has not ended; wait for it first")
        return self._outcome.result()


class Cluster(ABC):
    """Starts workers and calls them; a context manager that ends what it has started.

    One thread uses it.

    Parameters
    ----------
    limit : most workers at a time, 1 or more; those that were lost or stopped do not count.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a cluster has at least 1 worker, not {limit}")
        self.limit = limit
        self.interrupts = Interrupts()
        """When Ctrl-C strikes; see :meth:`Interrupts.noted`."""
        self._workers: list[Worker] = []

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers that are there, in the order in which they were started."""
        return tuple(worker for worker in self._workers if worker.lost is None)

    def start(
        self,
        name: str,
        factory: Callable[..., object],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        reserves: bool = True,
    ) -> Worker:
        """Start a worker, without waiting for it.

        Parameters
        ----------
        name : in logs and errors.
        factory, arguments : what makes it, there; a class or function of a module.
        environment : variables that its process has beside those of this one.
        reserves : whether it waits for a processor of its own, where the engine gives them out. One that the
            others wait for, and that replaces a lost one, might wait for ever: its node may be gone.
        """
        if len(self.workers) >= self.limit:
            raise LocalProtocolError(f"{name} would be one worker more than the {self.limit} asked for")
        worker = Worker(name)
        made_by = pickle.dumps((factory, arguments), PICKLE_PROTOCOL)
        self._start(worker, made_by, dict(environment or {}), reserves=reserves)
        self._workers.append(worker)
        return worker

    def call(self, worker: Worker, method: str, *arguments: Any) -> Call:
        """Call a method of a worker, without waiting; a worker does its calls in the order of asking."""
        return self.call_all([worker], method, *arguments)[0]

    def call_all(self, workers: Sequence[Worker], method: str, *arguments: Any) -> list[Call]:
        """Call a method of several workers with the same arguments, which are pickled once."""
        request = pickle.dumps((method, arguments), PICKLE_PROTOCOL)
        calls = [Call(worker, method) for worker in workers]
        for call in calls:
            if call.worker.lost is not None:
                call.end(CallOutcome(error=WorkerLostError(call.worker.name, call.worker.lost)))
        self._submit([call for call in calls if not call.done], request)
        return calls

    @abstractmethod
    def wait(self, calls: Collection[Call]) -> list[Call]:
        """Return those of ``calls`` that have ended, in their order, once one has.

        Raises
        ------
        KeyboardInterrupt : Ctrl-C, within :meth:`Interrupts.noted`; no answer is lost by it.
        """

    def gather(self, calls: Sequence[Call]) -> list[Any]:
        """Wait for all calls; return what they returned, in their order.

        Raises
        ------
        WorkerLostError : a worker was lost; its other calls have ended so, too.
        Exception : that a method raised.
        """
        for call in self.as_completed(calls):
            call.result()
        return [call.result() for call in calls]

    def as_completed(self, calls: Sequence[Call]) -> Iterator[Call]:
        """Yield calls as they end."""
        left = list(calls)
        while left:
            ended = self.wait(left)
            left = [call for call in left if not call.done]
            yield from ended

    @abstractmethod
    def interrupt(self, worker: Worker) -> None:
        """Ask a worker to end its calls in order, if its class is :class:`Interruptible`; do not wait."""

    def stop(self, *workers: Worker) -> None:
        """End workers: at once when they are idle, after the call they are at, or by force after a while."""
        self._stop([worker for worker in workers if worker.lost is None])
        self._workers = [worker for worker in self._workers if worker.lost is None]

    def close(self) -> None:
        """End all workers, and the engine if it was started for this cluster."""
        self.stop(*self.workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _start(
        self, worker: Worker, made_by: bytes, environment: Mapping[str, str], *, reserves: bool
    ) -> None:
        """Start a worker; ``made_by`` is its pickled factory with its arguments."""

    @abstractmethod
    def _submit(self, calls: Sequence[Call], request: bytes) -> None:
        """Send the pickled method and arguments to the worker of each call."""

    @abstractmethod
    def _stop(self, workers: Sequence[Worker]) -> None:
        """End workers that are there; they are lost then, and their calls have ended."""
