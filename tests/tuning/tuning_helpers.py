"""A small scenario to tune, and a tuning whose runs are done in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from coordinator.cluster.base import Cluster
from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.progress import RunObserver
from coordinator.results.sweep import Result
from coordinator.scenario.load import load
from coordinator.sweeps.runs import Task, perform
from coordinator.tuning import tuning
from coordinator.tuning.request import read_request
from coordinator.tuning.tuning import EndedTrial, TuningOutcome, TuningPlan, run_tuning

SCENARIO = """\
format: 2
seed: 3
data: {source: synthetic-ratings, users: 40, items: 50, ratings_per_user: 8}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 2}
rounds: {count: 2, cohort: 12, quorum: 1, deadline: 60 s}
thresholds:
  round.completed: [rate == 100%]
  device.wasted_work: [rate < 30%]
"""
VARY = ("rounds.cohort=4..30", "rounds.over_select=100%..200%")


class Stopped(Exception):  # noqa: N818 - not an error: what a kill is to the tests
    """Ends a tuning as a kill would: nothing that comes after it is done."""


def write(folder: Path, text: str = SCENARIO, name: str = "small") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def plan_of(
    file: Path,
    *vary: str,
    minimise: str | None = "round.duration p95",
    maximise: str | None = None,
    trials: int = 5,
    repeat: int = 1,
    seed: int = 1,
) -> TuningPlan:
    space, goal = read_request(None, vary or VARY, minimise, maximise)
    return TuningPlan(load(file), space, goal, trials, repeat, seed)


class InProcess:
    """Does the runs of tunings here; ``stop_after`` so many, the next one stops the tuning."""

    def __init__(self) -> None:
        self.stop_after: int | None = None
        self.interrupt_after: int | None = None
        self.runs: list[str] = []

    def run_all(
        self,
        tasks: Iterable[Task],
        cluster: Cluster,
        on_result: Callable[[int, Result], None],
        on_lost: Callable[[int, str], None],
    ) -> bool:
        """Take the place of the pool of processes."""
        for number, task in enumerate(tasks):
            if self.stop_after is not None and len(self.runs) >= self.stop_after:
                raise Stopped
            if self.interrupt_after is not None and len(self.runs) >= self.interrupt_after:
                on_result(number, Result("interrupted"))
                return True
            result = perform(task, RunObserver())
            if not result.kept:
                self.runs.append(task.target.name)
            on_result(number, result)
        return False


def here(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    made = InProcess()
    monkeypatch.setattr(tuning, "run_all", made.run_all)
    return made


def tuned(plan: TuningPlan, target: Path) -> tuple[TuningOutcome, list[EndedTrial]]:
    """Return the outcome of a tuning, and the trials that it told of."""
    told: list[EndedTrial] = []
    return run_tuning(
        plan,
        target=target,
        choice=ClusterChoice(workers=1),
        on_trial=lambda trial, _: told.append(trial),
        on_lost=lambda *_: None,
    ), told
