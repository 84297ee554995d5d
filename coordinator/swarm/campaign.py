"""A swarm from its first scenario to its last: hands scenarios to processes and gathers what they find."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from coordinator.swarm.generator import document, text_of
from coordinator.swarm.invariants.registry import REPLAYS, Violation
from coordinator.swarm.verdict import Coverage, Verdict
from coordinator.swarm.workers import Digest, Judge, Worker, started


@dataclass(frozen=True, slots=True)
class Plan:
    """What a swarm shall do.

    Attributes
    ----------
    seed : of the swarm.
    indices : scenarios to run, in this order.
    seconds : wall time after which none is begun any more; None: no limit.
    workers : processes.
    keep_going : whether to go on after a failure.
    thorough : repeat every run.
    """

    seed: int
    indices: Iterable[int]
    seconds: float | None = None
    workers: int = 1
    keep_going: bool = False
    thorough: bool = False


@dataclass(slots=True)
class Findings:
    """What a swarm has found so far.

    Attributes
    ----------
    scenarios : how many were run.
    repeated : how many of them a second process has repeated.
    failures : what does not hold, by scenario.
    coverage : what they covered, together.
    wall_s : how long it took.
    busy_s : how long the scenarios took, added up over processes.
    interrupted : whether it was ended before its time.
    """

    scenarios: int = 0
    repeated: int = 0
    failures: dict[int, list[Violation]] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Counter)
    wall_s: float = 0.0
    busy_s: float = 0.0
    interrupted: bool = False

    @property
    def per_minute(self) -> float:
        """Scenarios per minute of wall time."""
        return 60.0 * self.scenarios / self.wall_s if self.wall_s > 0 else 0.0


class _Campaign:
    def __init__(self, plan: Plan, progress: Callable[[Findings], object]) -> None:
        self._plan = plan
        self._progress = progress
        self._found = Findings()
        self._start_s = time.monotonic()
        self._todo = iter(plan.indices)
        self._asked: dict[int, tuple[int, str | None]] = {}
        """What each worker does, by its number: the scenario, and the digest that a repetition must have."""
        self._repeats: deque[tuple[int, str, int]] = deque()
        """Runs to repeat: the scenario, its digest, and the worker that has run it."""

    def run(self) -> Findings:
        plan, found = self._plan, self._found
        # A run is repeated by another process than its own; where there is one only, by a second.
        with started(plan.workers) as workers, started(int(plan.workers == 1), plan.workers) as second:
            try:
                self._run([*workers, *second], {worker.number for worker in workers})
            except KeyboardInterrupt:
                found.interrupted = True
        found.wall_s = time.monotonic() - self._start_s
        return found

    def _run(self, workers: list[Worker], judges: set[int]) -> None:
        """Keep all workers at work until there is nothing left; only ``judges`` are given new scenarios."""
        by_connection: dict[Any, Worker] = {worker.connection: worker for worker in workers}
        idle = workers
        while True:
            idle = [worker for worker in idle if not self._give(worker, judges)]
            if not self._asked:
                break
            busy = [one.connection for one in workers if one.number in self._asked]
            for connection in wait(busy):
                worker = by_connection[connection]
                self._take(worker)
                idle.append(worker)
            self._found.wall_s = time.monotonic() - self._start_s
            self._progress(self._found)

    def _give(self, worker: Worker, judges: set[int]) -> bool:
        """Give a worker something to do; return whether there was anything."""
        for place, (index, digest, by) in enumerate(self._repeats):
            if by != worker.number:
                del self._repeats[place]
                self._asked[worker.number] = index, digest
                worker.ask(Digest(text_of(document(self._plan.seed, index))))
                return True
        if worker.number not in judges or self._is_over():
            return False
        index_or_none = next(self._todo, None)
        if index_or_none is None:
            return False
        self._asked[worker.number] = index_or_none, None
        worker.ask(Judge(self._plan.seed, index_or_none, self._plan.thorough))
        return True

    def _is_over(self) -> bool:
        plan = self._plan
        if self._found.failures and not plan.keep_going:
            return True
        return plan.seconds is not None and time.monotonic() - self._start_s >= plan.seconds

    def _take(self, worker: Worker) -> None:
        index, expected = self._asked.pop(worker.number)
        answer, found = worker.answer(), self._found
        if not isinstance(answer, Verdict):
            found.repeated += 1
            if answer != expected:
                message = f"the digest is {expected}, and {answer} in a process with another PYTHONHASHSEED"
                found.failures.setdefault(index, []).append(Violation(REPLAYS, message))
            return
        found.scenarios += 1
        found.busy_s += answer.wall_s
        found.coverage.update(answer.coverage)
        if answer.violations:
            found.failures.setdefault(index, []).extend(answer.violations)
        elif answer.elsewhere:
            self._repeats.append((index, answer.digest, worker.number))


def run_campaign(plan: Plan, progress: Callable[[Findings], object]) -> Findings:
    """Run a swarm and return what it found.

    Parameters
    ----------
    plan : what it shall do.
    progress : called with what has been found, after every scenario.

    Raises
    ------
    WorkerError : a process failed outside of any run.
    """
    return _Campaign(plan, progress).run()
