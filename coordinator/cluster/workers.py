"""Worker processes that do one run at a time, and the process that hands runs out to them.

A worker lives for many runs, since importing everything takes about as long as a short run. It does not
outlive its parent, in whatever way that ends, so a sweep that is killed can be resumed at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Final

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
from edge.core import plugins
from edge.core.errors import DeadlockError, LocalProtocolError, RecfleetError

READY: Final = "ready"
"""The first message of a worker: from now on it can be interrupted."""
_REFUSALS: Final = (RecfleetError, ProfileError, TraceError, UnknownProfileError)
TRIES: Final = 3
"""How often a run is begun whose process dies."""
_UNGUARDED: Final = "; each imports the script that runs: call a sweep under if __name__ == '__main__':"
_PATIENCE_S: Final = 10.0
"""How long a worker that has been asked to end is waited for before it is killed."""


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


def serve(requests: Connection, given: Sequence[str]) -> None:
    """Do the runs that arrive until the other end is closed; the main function of a worker.

    ``given`` are the plug-ins to load first.
    """
    # Ctrl-C in a terminal reaches every process of its group: only the parent shall pass it on, once.
    os.setsid()
    plugins.load_all(given)
    progress = InterruptibleProgress()
    signal.signal(signal.SIGINT, lambda *_: progress.interrupt())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        requests.send(READY)
        while True:
            requests.send(perform(requests.recv(), progress))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


class _Worker:
    """A worker process and the task that it is at."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=serve, args=(theirs, plugins.loaded()), daemon=False
        )
        with _signals_ignored():
            self.process.start()
        theirs.close()
        self.task: int | None = None
        self.dead = False

    def begin(self, number: int, task: Task) -> bool:
        """Hand it a task; return False when it has died while it was idle."""
        try:
            self.pipe.send(task)
        except (BrokenPipeError, ConnectionResetError):
            self.dead = True
            return False
        self.task = number
        return True

    def receive(self) -> Result | str | None:
        """Return the result that it sent, or how it died; None when it is ready for its first task."""
        try:
            received = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.dead = True
            self.process.join()
            code = self.process.exitcode
            return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return None if received == READY else received

    def interrupt(self) -> None:
        """Ask it to end its run in order."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)

    def end(self) -> None:
        self.pipe.close()
        self.process.join(_PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _handles_signals() -> bool:
    """Whether this thread is the one that sets handlers, and that Ctrl-C strikes."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Let a process be born deaf to Ctrl-C, until it has a group of its own."""
    if not _handles_signals():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class _Interrupts:
    """Ctrl-C, which strikes while messages are waited for and at no other moment: there nothing is lost.

    Between the message of a worker and what is noted of it, a ``KeyboardInterrupt`` would lose a result.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._asked = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Interrupt a wait, or the next one; a handler for :func:`signal.signal`."""
        if self._waiting:
            raise KeyboardInterrupt
        self._asked = True

    def wait(self, pipes: Sequence[Connection]) -> list[Any]:
        """Return those of the pipes that have a message, once one has.

        Raises ``KeyboardInterrupt`` for a Ctrl-C since the last wait, or during this one.
        """
        self._waiting = True
        try:
            if self._asked:
                self._asked = False
                raise KeyboardInterrupt
            return connection.wait(pipes)
        finally:
            self._waiting = False


@contextmanager
def _interrupts_noted() -> Iterator[_Interrupts]:
    """Let Ctrl-C strike waits alone; where a shell has it ignored it stays so."""
    interrupts, previous = _Interrupts(), signal.getsignal(signal.SIGINT)
    if not _handles_signals():
        yield interrupts
        return
    if previous is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupts.note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)


def run_all(tasks: Iterable[Task], jobs: int, on_result: Callable[[int, Result], None]) -> bool:
    """Do all runs in up to ``jobs`` processes at a time.

    Parameters
    ----------
    tasks : in the order in which they are begun. Each is asked for when a process is free for it, so a
        generator has seen the results that were reported by then.
    jobs : worker processes, 1 or more.
    on_result : receives the index of each task with its result, in the order in which they end.

    Returns
    -------
    Whether a ``KeyboardInterrupt`` ended it; what was running has then been ended in order and reported.
    """
    handing = _HandingOut(tasks, on_result)
    workers: list[_Worker] = []
    with _interrupts_noted() as interrupts:
        try:
            while True:
                busy = sum(worker.task is not None for worker in workers)
                handing.draw(jobs - busy)
                if not handing.waiting and not busy:
                    break
                while len(workers) < min(jobs, busy + len(handing.waiting)):
                    workers.append(_Worker())
                try:
                    ready = interrupts.wait([worker.pipe for worker in workers])
                except KeyboardInterrupt:
                    if handing.interrupted:
                        raise
                    handing.interrupt()
                    for worker in workers:
                        worker.interrupt()
                else:
                    handing.collect(workers, ready)
        finally:
            for worker in workers:
                worker.end()
    return handing.interrupted


def _runs_a_script() -> bool:
    """Whether each process that is started imports the main module of this one."""
    return getattr(sys.modules["__main__"], "__spec__", None) is None and hasattr(
        sys.modules["__main__"], "__file__"
    )


class _HandingOut:
    """Which runs have been drawn and are waiting, and how often the process of each has died.

    A run whose process was killed, by hand or for want of memory, is begun anew: its results depend on its
    scenario alone, and are those of an undisturbed run.
    """

    def __init__(self, tasks: Iterable[Task], on_result: Callable[[int, Result], None]) -> None:
        self.waiting: deque[int] = deque()
        self.interrupted = False
        self._undrawn = iter(tasks)
        self._tasks: list[Task] = []
        self._on_result = on_result
        self._deaths: Counter[int] = Counter()
        self._stillborn = 0
        """Processes that died before they were ready, since the last that was."""

    def draw(self, most: int) -> None:
        """Draw tasks until so many wait, as long as there are more."""
        while len(self.waiting) < most:
            task = next(self._undrawn, None)
            if task is None:
                return
            self.waiting.append(len(self._tasks))
            self._tasks.append(task)

    def interrupt(self) -> None:
        """Begin no further run."""
        self.interrupted = True
        self.waiting.clear()
        self._undrawn = iter(())

    def collect(self, workers: list[_Worker], ready: Sequence[Connection]) -> None:
        """Report results from ``ready`` pipes, and give their workers the next tasks; the dead are let go."""
        for worker in [worker for worker in workers if worker.pipe in ready]:
            received, number = worker.receive(), worker.task
            worker.task = None
            if isinstance(received, str):
                self._died(number, received)
            elif received is None:
                self._stillborn = 0
            else:
                assert number is not None
                self._on_result(number, received)
            if not worker.dead:
                self.draw(1)
            waiting = self.waiting
            if waiting and not worker.dead and worker.begin(waiting[0], self._tasks[waiting[0]]):
                waiting.popleft()
            if worker.dead:
                workers.remove(worker)
                worker.end()

    def _died(self, number: int | None, how: str) -> None:
        """Let a run be tried again whose process has died; one that has been often enough has failed."""
        if number is None:
            self._stillborn += 1
            if self._stillborn >= TRIES:
                error = (
                    f"no process could be started: {TRIES} have died at once, the last by {how}"
                    f"{_UNGUARDED if _runs_a_script() else ''}"
                )
                while self.waiting:
                    self._on_result(self.waiting.popleft(), Result("failed", error=error))
                    self.draw(1)
            return
        self._deaths[number] += 1
        if self._deaths[number] < TRIES and not self.interrupted:
            self.waiting.appendleft(number)
            return
        times = "" if self._deaths[number] == 1 else f" {self._deaths[number]} times, the last time"
        error = f"the process of the run died{times} ({how})"
        self._on_result(number, Result("failed", error=error))
