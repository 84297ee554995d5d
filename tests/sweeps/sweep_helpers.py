"""A small scenario with a sweep, and how tests run it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from coordinator.cluster.opening import ClusterChoice
from coordinator.results.sweep import Result
from coordinator.scenario import EngineName
from coordinator.scenario.load import load
from coordinator.scenario.sweep import Cell, load_cells
from coordinator.sweeps.execution import SweepOutcome, run_sweep

SCENARIO = """\
format: 2
seed: 3
data: {source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 12}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 4}
rounds: {count: 2, cohort: 20, quorum: 1, deadline: 60 s}
evaluation: {every: 2}
thresholds:
  round.completed: [rate == 100%]
  device.wasted_work: [rate < 5%]
"""
SWEEP = """\
sweep:
  rounds.over_select: [100%, 150%]
  repeat: 2
"""


def cells_of(folder: Path, text: str = SCENARIO + SWEEP) -> tuple[Cell, ...]:
    file = folder / "small.yaml"
    file.write_text(text, encoding="utf-8")
    return load_cells(load(file))


class Sweep:
    """Runs a sweep and keeps what it is told."""

    def __init__(
        self, cells: tuple[Cell, ...], target: Path, jobs: int = 2, engine: EngineName = "local"
    ) -> None:
        self.told: list[tuple[int, int, Result]] = []
        self.lost: list[tuple[int, int]] = []
        self.outcome: SweepOutcome = run_sweep(
            cells,
            target=target,
            choice=ClusterChoice(engine, jobs),
            on_result=self._note,
            on_lost=self._note_loss,
        )
        self.table: dict[str, Any] = json.loads((target / "sweep.json").read_text(encoding="utf-8"))

    def _note(self, cell: Cell, seed: int, result: Result, _: float | None) -> None:
        self.told.append((cell.number, seed, result))

    def _note_loss(self, cell: Cell, seed: int, how: str) -> None:
        self.lost.append((cell.number, seed))

    def kept(self) -> int:
        """Return how many runs were there already."""
        return sum(result.kept for _, _, result in self.told)


def die_at_once(*_: object) -> None:
    """End the process of a worker."""
    os._exit(9)
