"""The runs of a report: those named or in directories such as a sweep's, and each as the sections read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.engine.run_files import MANIFEST, RESOLVED_SCENARIO, time_name
from coordinator.results.analysis.critical_path import CriticalPath, critical_path
from coordinator.results.analysis.learning_curves import Curve, learning_curves
from coordinator.results.analysis.rows import Rows, read_rows
from coordinator.results.summary import summarise
from coordinator.results.tables.reader import RunFormatError, RunTables
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.results.verdicts import read_verdicts
from device_profiles.documents import read_document
from device_profiles.errors import DocumentError

if TYPE_CHECKING:
    from coordinator.results.report.sweep_table import SweepTable


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
    from coordinator.results.report.sweep_table import read_sweep_table  # noqa: PLC0415

    found = (read_sweep_table(path) for path in paths if not (path / MANIFEST).is_file())
    return [sweep for sweep in found if sweep is not None]


def _runs_at(path: Path) -> Iterator[ChosenRun]:
    inside = [] if (path / MANIFEST).is_file() or not path.is_dir() else _runs_in(path)
    if not inside:
        name = path.resolve().name  # of a run, or of what will be refused as none
        yield ChosenRun(path, name, name)
        return
    from coordinator.results.report.sweep_table import read_sweep_table  # noqa: PLC0415

    sweep = read_sweep_table(path)
    settings = {} if sweep is None else sweep.names()
    rank = {name: at for at, name in enumerate(settings)}
    for run in sorted(inside, key=lambda run: (rank.get(run.name, len(rank)), run.name)):
        name, group = settings.get(run.name, (run.name, run.name))
        yield ChosenRun(run, name, group)


def _runs_in(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if (entry / MANIFEST).is_file()]


@dataclass(frozen=True)
class RunView:
    """One run.

    Attributes
    ----------
    run : its tables.
    name : distinguishes it from the others of the report.
    group : what it has in common with its repeats; its name when it has none.
    summary : from :func:`~coordinator.results.summary.summarise`.
    manifest : of the run.
    verdicts : records of the verdicts on its thresholds; none when the process that ran it did not judge it.
    resolved : the resolved scenario, where it is known; else it is read from the directory.
    """

    run: RunTables
    name: str
    group: str
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any]
    verdicts: Sequence[Mapping[str, Any]]
    resolved: Mapping[str, Any] | None = None

    @property
    def title(self) -> str:
        """What the scenario calls itself, else the name of the run."""
        return str(self.manifest.get("title") or self.name)

    @property
    def time_name(self) -> str:
        """What the time of the run is called."""
        return time_name([self.summary])

    @cached_property
    def curves(self) -> list[Curve]:
        """The learning curves of the run."""
        return learning_curves(self.run)

    @cached_property
    def path(self) -> CriticalPath:
        """Who held its rounds up."""
        return critical_path(self.run)

    @cached_property
    def rounds(self) -> Rows:
        """The table of rounds."""
        return self.read("rounds", SCHEMAS["rounds"].names)

    def read(self, table: str, columns: Sequence[str]) -> Rows:
        """Return columns of a table."""
        return read_rows(self.run, table, columns)

    @cached_property
    def scenario(self) -> Mapping[str, Any]:
        """The resolved scenario, every scalar as text; empty where the directory holds none."""
        if self.resolved is not None:
            return self.resolved
        path = self.run.directory / RESOLVED_SCENARIO
        if not path.exists():
            return {}
        try:
            root = read_document(path).root
        except DocumentError as error:
            raise RunFormatError(f"{error}; write the report of an unchanged run directory") from error
        return root if isinstance(root, Mapping) else {}


def view_of(run: RunTables, name: str, group: str | None = None) -> RunView:
    """Return the view of a run on disk: summarised from its tables, with its verdicts.

    Raises
    ------
    RunFormatError : its verdicts cannot be read.
    """
    verdicts = read_verdicts(run.directory)
    return RunView(run, name, group or name, summarise(run), run.manifest, verdicts)
