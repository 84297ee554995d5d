"""Runs scenarios over real sockets on loopback, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.assembly import assemble
from coordinator.metrics.reader import open_run
from coordinator.runner import RunOutcome, run_assembled
from coordinator.scenario.load import LoadedScenario, load
from coordinator.service.conducting import RealTime
from coordinator.service.local_run import along

SMALL = """
format: 1
title: small
seed: 3
data: {source: synthetic-ratings, users: 12, items: 40, ratings_per_user: 8}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 3, cohort: 6, over_select: 150%, deadline: 60 s}
evaluation: {every: 2}
"""
MASKED = """
secure_aggregation: {mode: secagg-plus, clip: 1}
"""


class Silent:
    """Observes nothing."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Ignore the start."""

    def on_round(self, summary: Any) -> None:
        """Ignore the round."""

    def on_evaluation(self, round_number: int, values: Sequence[Any]) -> None:
        """Ignore the evaluation."""

    def on_end(self, status: str) -> None:
        """Ignore the end."""


def loaded_text(folder: Path, text: str, overrides: Sequence[str] = ()) -> LoadedScenario:
    """Load the scenario in ``text`` from a file below ``folder``."""
    file = folder / "scenario.yaml"
    file.write_text(text)
    return load(file, overrides)


def run_real(loaded: LoadedScenario, target: Path, conductor: RealTime | None = None) -> RunOutcome:
    """Run a scenario over sockets, with all of its devices in this process unless the conductor says else."""
    assembly = assemble(loaded)
    if conductor is None:
        conductor = RealTime(wait_for=assembly.fleet.n, company=along(shaped=False))
    return run_assembled(loaded, assembly, target=target, observer=Silent(), conductor=conductor)


def run_virtual(loaded: LoadedScenario, target: Path) -> RunOutcome:
    """Simulate a scenario."""
    return run_assembled(loaded, assemble(loaded), target=target, observer=Silent())


def rows_of(outcome: RunOutcome, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    rows: list[dict[str, Any]] = open_run(outcome.directory).read(table).to_pylist()
    return rows
