"""Runs small scenarios for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from coordinator.engine.assembly import Assembly
from coordinator.engine.facts import MetricValue, RoundRow
from coordinator.results.report.page import report_of
from coordinator.results.tables.reader import RunTables, open_run
from coordinator.run import runner
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_assembled, run_scenario
from coordinator.scenario.load import LoadedScenario, load

IDEAL_PROFILES = Path(__file__).with_name("ideal_profiles.yaml")
"""Devices and networks without chance, a file for ``fleet.profiles``."""
SCENARIOS = Path(__file__).parents[2] / "scenarios"
"""The scenarios that are shipped."""

SMALL = """
format: 2
title: small
seed: 3
data: {source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 12}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 3, cohort: 20, deadline: 120 s}
evaluation: {every: 2}
"""


class Silent:
    """Observes and keeps what it is told."""

    def __init__(self) -> None:
        self.rounds: list[RoundRow] = []
        self.evaluations: list[tuple[int, Sequence[MetricValue]]] = []
        self.status = ""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Ignore the start."""

    def on_round(self, row: RoundRow) -> None:
        """Keep the round."""
        self.rounds.append(row)

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Keep the evaluation."""
        self.evaluations.append((round_number, values))

    def on_end(self, status: str) -> None:
        """Keep the status."""
        self.status = status


def run_loaded(scenario: LoadedScenario, target: Path) -> tuple[RunOutcome, Assembly]:
    """Run a scenario; return the outcome, and what the run was assembled of."""
    assembly = assemble(scenario)
    return run_assembled(scenario, assembly, target=target, observer=Silent()), assembly


def run_text(folder: Path, text: str, overrides: Sequence[str] = (), name: str = "run") -> RunOutcome:
    """Run the scenario in ``text`` below ``folder``; report and trace, a third of its time, are left out."""
    file = folder / f"{name}.yaml"
    file.write_text(text)
    with patch.object(runner, "write_report"), patch.object(runner, "write_trace"):
        return run_scenario(load(file, overrides), target=folder / f"{name}-out", observer=Silent())


def report_on(outcome: RunOutcome) -> str:
    """Return the report of a run."""
    return report_of([outcome.directory])


def tables_of(outcome: RunOutcome) -> RunTables:
    """Open the tables of a run."""
    return open_run(outcome.directory)


def rows_of(outcome: RunOutcome, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    rows: list[dict[str, Any]] = tables_of(outcome).read(table).to_pylist()
    return rows
