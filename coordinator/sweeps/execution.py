"""A sweep from its cells to its table: resumable, in parallel, every run an ordinary run directory.

The directory of a sweep holds the runs, ``sweep.json`` and ``sweep.csv``. A finished run that lies there
is taken as it is if scenario, data and version are the same; whatever else there is of it is run again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.progress import TimeLeft
from coordinator.engine.run_files import MANIFEST, SWEEP_TABLE, write_atomically
from coordinator.results.run_directory import RunDirectoryError, make_folder, run_name, write_json
from coordinator.results.sweep import UNHELD, CellResult, Result, csv_text, json_table
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.sweep import Cell
from coordinator.sweeps.runs import Task, run_all

CSV_TABLE = "sweep.csv"


@dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended: its cells with the results of their runs, and the exit code that they earn."""

    cells: tuple[CellResult, ...]
    exit_code: ExitCode


def run_sweep(
    cells: Sequence[Cell],
    *,
    target: Path,
    choice: ClusterChoice,
    on_result: Callable[[Cell, int, Result, float | None], None],
    on_lost: Callable[[Cell, int, str], None],
) -> SweepOutcome:
    """Do the runs of a sweep and write its tables.

    Parameters
    ----------
    cells : of the sweep, at least one.
    target : its directory.
    choice : where runs are done, and how many at a time. Workers have the environment of this process, and
        with it how many threads BLAS uses.
    on_result : receives the cell, the seed and the result of each run, in the order in which they end, and
        about how many seconds the others still take, if that is known.
    on_lost : receives the cell and the seed of a run that is tried again, and how its worker was lost.

    A ``KeyboardInterrupt`` ends what is running in order; the tables then hold what has been finished.

    Raises
    ------
    RunDirectoryError : the directory cannot be written or is that of a run, or another process is at a sweep
        there.
    """
    if (target / MANIFEST).exists():
        raise RunDirectoryError(f"{target}: is the directory of a run; give another --out")
    make_folder(target)
    places = [(cell, loaded) for cell in cells for loaded in cell.runs]
    tasks = [
        Task(loaded, target / run_name(loaded.name, loaded.scenario.seed, loaded.hash))
        for _, loaded in places
    ]
    found: dict[int, Result] = {}

    def note(number: int, result: Result) -> None:
        found[number] = result
        if result.kept:
            time_left.skipped()
        else:
            time_left.done()
        note_error(tasks[number].target, result)
        cell, loaded = places[number]
        on_result(cell, loaded.scenario.seed, result, time_left.left_s())

    def note_loss(number: int, how: str) -> None:
        cell, loaded = places[number]
        on_lost(cell, loaded.scenario.seed, how)

    with alone(target, "a sweep"), choice.open() as cluster:
        time_left = TimeLeft(len(tasks), cluster.limit)
        interrupted = run_all(tasks, cluster, note, note_loss)
        results = tuple(_cell_results(cells, found))
        repeat = len(cells[0].runs)
        write_json(target / SWEEP_TABLE, json_table(cells[0].runs[0].name, repeat, results, target))
        write_atomically(target / CSV_TABLE, csv_text(results).encode())
    return SweepOutcome(results, ExitCode.INTERRUPTED if interrupted else _exit_code(found))


def _cell_results(cells: Sequence[Cell], found: Mapping[int, Result]) -> Iterator[CellResult]:
    number = 0
    for cell in cells:
        results: dict[int, Result] = {}
        for loaded in cell.runs:
            if number in found:
                results[loaded.scenario.seed] = found[number]
            number += 1
        yield CellResult(cell, results)


def note_error(target: Path, result: Result) -> None:
    """Keep the traceback of a bug beside the run; a run that went well removes an earlier one."""
    file = target.with_name(target.name + ".error.txt")
    if result.trace is not None:
        write_atomically(file, result.trace.encode())
    else:
        file.unlink(missing_ok=True)


def _exit_code(found: Mapping[int, Result]) -> ExitCode:
    statuses = {result.status for result in found.values()}
    if "failed" in statuses:
        return ExitCode.INTERNAL_ERROR
    if "refused" in statuses:
        return ExitCode.INVALID_SCENARIO
    return ExitCode.HELD if statuses.isdisjoint(UNHELD) else ExitCode.THRESHOLD_MISSED


@contextmanager
def alone(target: Path, work: str) -> Iterator[None]:
    """Hold the directory of a sweep, or of other work on many runs; the hold ends with the process.

    Raises
    ------
    RunDirectoryError : another process holds it.
    """
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{target}: another process is at {work} here; wait for it, or give another --out"
            raise RunDirectoryError(message) from None
        yield
    finally:
        os.close(descriptor)
