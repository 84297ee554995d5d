"""Independent jobs on the workers of a cluster: spread over them, and done again when a worker is lost.

A job's result depends on its arguments alone, so one that is done again has that of an undisturbed worker.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from coordinator.cluster.base import Call, Cluster, Worker, WorkerLostError
from coordinator.cluster.local import runs_a_script

TRIES: Final = 3
"""How often a job is begun whose worker is lost."""
_STARTS: Final = 24
"""How many workers in a row may be lost before they are ready, where one has been ready before."""
_UNGUARDED: Final = "; each imports the script that runs: call it under if __name__ == '__main__':"


@dataclass(eq=False, slots=True)
class Job:
    """A call to make on any worker.

    Attributes
    ----------
    method, arguments : what is called.
    not_by : the worker that shall not do it; None: any may.
    losses : workers that were lost while they were at it.
    """

    method: str
    arguments: tuple[Any, ...]
    not_by: Worker | None = None
    losses: int = 0


J = TypeVar("J", bound=Job)


class Jobs(Protocol[J]):
    """What is to be done, and what becomes of it."""

    def next(self) -> J | None:
        """Return the next job, for a worker that is free for it; None when there is none at present.

        It is asked again when a job has ended.
        """

    def done(self, job: J, value: Any, worker: Worker) -> None:
        """Handle what a job returned, and who did it."""

    def lost(self, job: J, how: str) -> None:
        """Handle a job whose worker was lost, and how; it is tried again."""

    def failed(self, job: J, error: str) -> None:
        """Handle a job that was given up, and why; the others go on."""


def run_jobs(cluster: Cluster, start: Callable[[int], Worker], jobs: Jobs[J]) -> bool:
    """Do jobs on the workers of a cluster, as many at a time as it may have.

    Parameters
    ----------
    cluster : where workers are started, as they are needed; they are stopped at the end.
    start : starts a worker of that cluster, by its number: 1, 2, …
    jobs : what is to be done.

    Returns
    -------
    Whether Ctrl-C ended it; what was running has then been ended in order and reported.

    Raises
    ------
    Exception : that a job raised, or that kept a worker from being made.
    KeyboardInterrupt : a second Ctrl-C.
    """
    spread = _Spread(cluster, start, jobs)
    with cluster.interrupts.noted():
        try:
            while calls := spread.assign():
                try:
                    ended = cluster.wait(calls)
                except KeyboardInterrupt:
                    if spread.interrupted:
                        raise
                    spread.interrupt()
                else:
                    for call in ended:
                        spread.take(call)
        finally:
            cluster.stop(*cluster.workers)
    return spread.interrupted


class _Spread(Generic[J]):
    """Which jobs wait, and what each worker is at."""

    def __init__(self, cluster: Cluster, start: Callable[[int], Worker], jobs: Jobs[J]) -> None:
        self.interrupted = False
        self._cluster = cluster
        self._start = start
        self._jobs = jobs
        self._numbers = itertools.count(1)
        self._waiting: deque[J] = deque()
        self._idle: list[Worker] = []
        self._starting: dict[Call, Worker] = {}
        self._busy: dict[Call, J] = {}
        self._unready = 0
        """Workers that were lost before they were ready, since the last that was."""
        self._starts = TRIES

    def assign(self) -> list[Call]:
        """Give jobs to idle workers, and start more for jobs that wait; return the calls to wait for."""
        for worker in tuple(self._idle):
            job = self._job_for(worker)
            if job is not None:
                self._idle.remove(worker)
                self._waiting.remove(job)
                self._busy[self._cluster.call(worker, job.method, *job.arguments)] = job
        while len(self._waiting) > len(self._starting) or (self._has_room() and self._draw()):
            if not self._has_room():
                if self._busy or not self._idle:
                    break
                # None of those that are there may do what waits.
                self._cluster.stop(self._idle.pop())
            worker = self._start(next(self._numbers))
            self._starting[worker.started] = worker
        return [*self._busy, *self._starting] if self._busy or self._waiting else []

    def _has_room(self) -> bool:
        return len(self._cluster.workers) < self._cluster.limit

    def _draw(self) -> bool:
        """Let one more job wait, if there is one."""
        job = None if self.interrupted else self._jobs.next()
        if job is not None:
            self._waiting.append(job)
        return job is not None

    def _job_for(self, worker: Worker) -> J | None:
        """Return the first waiting job that a worker may do; draw more until there is one."""
        while True:
            for job in self._waiting:
                if job.not_by is not worker:
                    return job
            if not self._draw():
                return None

    def interrupt(self) -> None:
        """Begin no further job, and ask workers to end in order."""
        self.interrupted = True
        self._waiting.clear()
        for worker in self._cluster.workers:
            self._cluster.interrupt(worker)

    def take(self, call: Call) -> None:
        """Take the end of a call: report its job, or let it wait again."""
        job = self._busy.pop(call, None)
        if job is None:
            del self._starting[call]
        try:
            value = call.result()
        except WorkerLostError as lost:
            if job is None:
                self._stillborn(lost.how)
            else:
                self._lost(job, lost.how)
            return
        self._idle.append(call.worker)
        if job is None:
            self._unready, self._starts = 0, _STARTS
        else:
            self._jobs.done(job, value, call.worker)

    def _stillborn(self, how: str) -> None:
        """Give up all that waits when one worker after the other does not come up."""
        self._unready += 1
        if self._unready < self._starts:
            return
        error = (
            f"no worker could be started: {self._unready} have died at once, the last by {how}"
            f"{_UNGUARDED if runs_a_script() else ''}"
        )
        while self._waiting or self._draw():
            self._jobs.failed(self._waiting.popleft(), error)

    def _lost(self, job: J, how: str) -> None:
        """Let a job be tried again whose worker is gone, or give it up."""
        job.losses += 1
        if job.losses < TRIES and not self.interrupted:
            self._waiting.appendleft(job)
            self._jobs.lost(job, how)
            return
        times = "" if job.losses == 1 else f" {job.losses} times, the last time"
        self._jobs.failed(job, f"its worker died{times} ({how})")
