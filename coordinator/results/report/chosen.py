"""Which runs a report is about: those named, and those in directories that hold runs, such as a sweep's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.engine.run_files import MANIFEST
from coordinator.results.report.sweep_table import SweepTable, read_sweep_table


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run to report on.

    Attributes
    ----------
    directory : where it lies.
    name : distinguishes it from the others: its directory, or what a sweep varied and the seed.
    group : what it has in common with its repeats: what a sweep varied; else its name.
    """

    directory: Path
    name: str
    group: str


def chosen_runs(paths: Sequence[Path]) -> list[ChosenRun]:
    """Return the runs that paths stand for, in their order; runs of equal names are called after their paths.

    Raises
    ------
    RunFormatError : the table of a sweep cannot be read.
    """
    found = [run for path in paths for run in _runs_at(path)]
    names = [run.name for run in found]
    return [
        run if names.count(run.name) == 1 else replace(run, name=str(run.directory), group=str(run.directory))
        for run in found
    ]


def chosen_sweeps(paths: Sequence[Path]) -> list[SweepTable]:
    """Return the tables of the sweeps among paths, in their order.

    Raises
    ------
    RunFormatError : one of them cannot be read.
    """
    found = (read_sweep_table(path) for path in paths if not (path / MANIFEST).is_file())
    return [sweep for sweep in found if sweep is not None]


def _runs_at(path: Path) -> Iterator[ChosenRun]:
    inside = [] if (path / MANIFEST).is_file() or not path.is_dir() else _runs_in(path)
    if not inside:
        name = path.resolve().name  # of a run, or of what will be refused as none
        yield ChosenRun(path, name, name)
        return
    sweep = read_sweep_table(path)
    settings = {} if sweep is None else sweep.names()
    rank = {name: at for at, name in enumerate(settings)}
    for run in sorted(inside, key=lambda run: (rank.get(run.name, len(rank)), run.name)):
        name, group = settings.get(run.name, (run.name, run.name))
        yield ChosenRun(run, name, group)


def _runs_in(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if (entry / MANIFEST).is_file()]
