"""A run as the sections of a report see it: each table is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coordinator.engine.run_files import RESOLVED_SCENARIO
from coordinator.results.analysis.critical_path import CriticalPath, critical_path
from coordinator.results.analysis.learning_curves import Curve, learning_curves
from coordinator.results.analysis.rows import Rows, read_rows
from coordinator.results.summary import summarise
from coordinator.results.tables.reader import RunFormatError, RunTables
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.results.verdicts import read_verdicts
from coordinator.scenario.clock_words import time_name
from device_profiles.documents import read_document
from device_profiles.positions import DocumentError


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
    """

    run: RunTables
    name: str
    group: str
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any]
    verdicts: Sequence[Mapping[str, Any]]

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
