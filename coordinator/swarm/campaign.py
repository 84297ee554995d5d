"""A swarm from its first scenario to its last: hands scenarios to workers and gathers what they find."""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any

from coordinator.cluster.base import Worker
from coordinator.cluster.jobs import Job, run_jobs
from coordinator.cluster.opening import ClusterChoice
from coordinator.swarm.generator import document, text_of
from coordinator.swarm.invariants.registry import ENDS, REPLAYS, Violation
from coordinator.swarm.verdict import Coverage, Verdict
from coordinator.swarm.workers import start_judging


@dataclass(frozen=True, slots=True)
class Plan:
    """What a swarm shall do.

    Attributes
    ----------
    seed : of the swarm.
    indices : scenarios to run, in this order.
    seconds : wall time after which none is begun any more; None: no limit.
    choice : where scenarios are run, and how many at a time.
    keep_going : whether to go on after a failure.
    thorough : repeat every run.
    """

    seed: int
    indices: Iterable[int]
    seconds: float | None = None
    choice: ClusterChoice = field(default_factory=ClusterChoice)
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
    lost : workers that were lost; what they were at is tried again.
    left_s : about how long it still takes; None where that is not known.
    interrupted : whether it was ended before its time.
    """

    scenarios: int = 0
    repeated: int = 0
    failures: dict[int, list[Violation]] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Counter)
    wall_s: float = 0.0
    busy_s: float = 0.0
    lost: int = 0
    left_s: float | None = None
    interrupted: bool = False

    @property
    def per_minute(self) -> float:
        """Scenarios per minute of wall time."""
        return 60.0 * self.scenarios / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(eq=False, slots=True, kw_only=True)
class _SwarmJob(Job):
    """A scenario to run; of a repetition, the digest that it must have."""

    scenario: int
    expected: str | None = None


class _Campaign:
    """What is left to do of a swarm, and what it has found."""

    def __init__(self, plan: Plan, progress: Callable[[Findings], object]) -> None:
        self.found = Findings()
        self._plan = plan
        self._progress = progress
        self._start_s = time.monotonic()
        self._scenarios = iter(plan.indices)
        self._repeats: deque[_SwarmJob] = deque()

    def next(self) -> _SwarmJob | None:
        """Return a run to repeat, or the next scenario as long as there is time."""
        if self._repeats:
            return self._repeats.popleft()
        if self._is_over():
            return None
        scenario = next(self._scenarios, None)
        if scenario is None:
            return None
        return _SwarmJob("judge", (self._plan.seed, scenario, self._plan.thorough), scenario=scenario)

    def _is_over(self) -> bool:
        plan = self._plan
        if self.found.failures and not plan.keep_going:
            return True
        return plan.seconds is not None and self.elapsed_s() >= plan.seconds

    def done(self, job: _SwarmJob, value: Any, worker: Worker) -> None:
        """Add a verdict, or compare the digest of a run that was repeated."""
        found = self.found
        if isinstance(value, Verdict):
            found.scenarios += 1
            found.busy_s += value.wall_s
            found.coverage.update(value.coverage)
            if value.violations:
                found.failures.setdefault(job.scenario, []).extend(value.violations)
            elif value.elsewhere:
                # Another process repeats it: in this one, sets have the same order again.
                text = text_of(document(self._plan.seed, job.scenario))
                again = _SwarmJob("digest", (text,), worker, scenario=job.scenario, expected=value.digest)
                self._repeats.append(again)
        else:
            found.repeated += 1
            if value != job.expected:
                message = (
                    f"the digest is {job.expected}, and {value} in a process with another PYTHONHASHSEED"
                )
                found.failures.setdefault(job.scenario, []).append(Violation(REPLAYS, message))
        self._report()

    def lost(self, job: _SwarmJob, how: str) -> None:
        """Count a worker that was lost."""
        self.found.lost += 1

    def failed(self, job: _SwarmJob, error: str) -> None:
        """Add the failure of a scenario that no worker survived."""
        self.found.failures.setdefault(job.scenario, []).append(Violation(ENDS, error))
        self._report()

    def _report(self) -> None:
        found, plan = self.found, self._plan
        found.wall_s = self.elapsed_s()
        limits_s = [] if plan.seconds is None else [max(0.0, plan.seconds - found.wall_s)]
        if isinstance(plan.indices, Sized) and found.scenarios:
            limits_s.append((len(plan.indices) - found.scenarios) * found.wall_s / found.scenarios)
        found.left_s = min(limits_s, default=None)
        self._progress(self.found)

    def elapsed_s(self) -> float:
        """Return the wall time since the swarm began, seconds."""
        return time.monotonic() - self._start_s


def run_campaign(plan: Plan, progress: Callable[[Findings], object]) -> Findings:
    """Run a swarm and return what it found.

    Parameters
    ----------
    plan : what it shall do.
    progress : called with what has been found, after every scenario.
    """
    campaign = _Campaign(plan, progress)
    found = campaign.found
    with plan.choice.open() as cluster:
        try:
            found.interrupted = run_jobs(cluster, functools.partial(start_judging, cluster), campaign)
        except KeyboardInterrupt:
            found.interrupted = True
    found.wall_s = campaign.elapsed_s()
    return found
