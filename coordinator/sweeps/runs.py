"""Runs on the workers of a cluster, each an ordinary run directory.

A worker lives for many runs, since importing everything takes about as long as a short run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.cluster.base import Cluster, Worker
from coordinator.cluster.jobs import Job, run_jobs
from coordinator.engine.host import system_trouble
from coordinator.engine.progress import InterruptibleProgress, RunObserver
from coordinator.engine.run_files import ENDED, Status
from coordinator.results.figures import run_figures
from coordinator.results.sweep import Result, RunStatus
from coordinator.results.tables.reader import open_run
from coordinator.results.verdicts import read_verdicts
from coordinator.run.assembling import assemble
from coordinator.run.baseline import is_run_of
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import LoadedScenario
from device_profiles.errors import ProfileError, TraceError, UnknownProfileError
from edge.core.errors import DeadlockError, LocalProtocolError, RecfleetError

_REFUSALS: Final = (RecfleetError, ProfileError, TraceError, UnknownProfileError)


@dataclass(frozen=True)
class Task:
    """One run to do: the scenario, and where its finished directory shall lie."""

    loaded: LoadedScenario
    target: Path


def perform(task: Task, progress: RunObserver) -> Result:
    """Do a run, or take the finished one that lies there already."""
    try:
        return _perform(task, progress)
    except KeyboardInterrupt:
        return Result("interrupted", error="interrupted by the user")
    except Exception as error:
        first_line = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, _REFUSALS) and not isinstance(error, LocalProtocolError | DeadlockError):
            return Result("refused", error=first_line)
        trouble = system_trouble(error)
        if trouble is not None:
            return Result("failed", error=trouble)
        trace = "".join(traceback.format_exception(error))
        return Result("failed", error=f"{type(error).__name__}: {first_line}", trace=trace)


def _perform(task: Task, progress: RunObserver) -> Result:
    assembly = assemble(task.loaded)
    kept = is_run_of(task.target, task.loaded, assembly.data_facts)
    directory = task.target
    if not kept:
        outcome = run_assembled(task.loaded, assembly, target=task.target, observer=progress)
        directory = outcome.directory
        if outcome.status == "interrupted":
            return Result("interrupted", directory, error=outcome.reason)
        if outcome.status not in ENDED:
            # Its baseline missed its own thresholds.
            return Result("missed", directory, error=outcome.reason)
    return finished_result(directory, kept=kept)


def finished_result(directory: Path, *, kept: bool) -> Result:
    """Return the result of the finished run in a directory.

    Raises
    ------
    RunFormatError : there is none.
    """
    verdicts = tuple(read_verdicts(directory))
    run = open_run(directory)
    status = _status(run.manifest["status"], verdicts)
    return Result(status, directory, kept, verdicts, run_figures(run, verdicts))


def _status(status: Status, verdicts: Sequence[Mapping[str, Any]]) -> RunStatus:
    """Return what became of a run that went to its end, by the status of its manifest and its verdicts."""
    missed = [record for record in verdicts if not record["held"]]
    unlearnt = any(record["implicit"] for record in missed)
    match status:
        case "no-round-completed" | "diverged" if unlearnt:
            return status
    return "missed" if missed else "held"


class RunWorker:
    """Does runs, and ends the one it is at in order when it is interrupted."""

    def __init__(self) -> None:
        self._progress = InterruptibleProgress()

    def perform(self, task: Task) -> Result:
        """Do a run, or take the finished one that lies there already."""
        return perform(task, self._progress)

    def interrupt(self) -> None:
        """Let the run end at its next round or evaluation, and those that follow at once."""
        self._progress.interrupt()


@dataclass(eq=False, slots=True, kw_only=True)
class _RunJob(Job):
    number: int


class _Runs:
    """The runs to do, in their order."""

    def __init__(
        self,
        tasks: Iterable[Task],
        on_result: Callable[[int, Result], None],
        on_lost: Callable[[int, str], None],
    ) -> None:
        self._tasks = enumerate(tasks)
        self._on_result = on_result
        self._on_lost = on_lost

    def next(self) -> _RunJob | None:
        """Return the next run."""
        drawn = next(self._tasks, None)
        return None if drawn is None else _RunJob("perform", drawn[1:], number=drawn[0])

    def done(self, job: _RunJob, value: Any, worker: Worker) -> None:
        """Report the result of a run."""
        self._on_result(job.number, value)

    def lost(self, job: _RunJob, how: str) -> None:
        """Report a run that is tried again."""
        self._on_lost(job.number, how)

    def failed(self, job: _RunJob, error: str) -> None:
        """Report a run that has failed without leaving a result."""
        self._on_result(job.number, Result("failed", error=error))


def run_all(
    tasks: Iterable[Task],
    cluster: Cluster,
    on_result: Callable[[int, Result], None],
    on_lost: Callable[[int, str], None],
) -> bool:
    """Do all runs on the workers of a cluster.

    Parameters
    ----------
    tasks : in the order in which they are begun. Each is asked for when a worker is free for it, so a
        generator has seen the results that were reported by then.
    cluster : whose workers do them.
    on_result : receives the index of each task with its result, in the order in which they end.
    on_lost : receives the index of a task that is tried again, and how its worker was lost.

    Returns
    -------
    Whether a ``KeyboardInterrupt`` ended it; what was running has then been ended in order and reported.
    """

    def start(number: int) -> Worker:
        return cluster.start(f"runs-{number}", RunWorker)

    return run_jobs(cluster, start, _Runs(tasks, on_result, on_lost))
