"""How near `recfleet tune` comes to the best of a full grid with a quarter of its runs, on two scenarios.

    python benchmarks/tuning.py [TRIALS]

Two keys of each scenario are varied. The grid has six values of each, 36 runs; the search has nine, three
times, with other seeds. Beside it stands how often nine cells of the grid by chance would do as well. Every
run counts, those that miss a threshold, too.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.host import processors
from coordinator.results.tables.reader import open_run
from coordinator.scenario.load import load
from coordinator.scenario.shipped import shipped_files
from coordinator.scenario.sweep import load_cells
from coordinator.sweeps.execution import run_sweep
from coordinator.tuning.request import read_request
from coordinator.tuning.tuning import TuningPlan, run_tuning

NEAR = 1.05
SEEDS = (1, 2, 3)


class Study(NamedTuple):
    """A shipped scenario, settings laid over it, and two keys with their range and six values of each."""

    scenario: str
    settings: tuple[str, ...]
    minimise: str
    vary: Mapping[str, tuple[str, str]]


STUDIES = (
    Study(
        "quickstart",
        ("rounds.quorum=60%", 'thresholds."model.rmse"=[last < 0.9 * first]'),
        "up bytes",
        {
            "rounds.cohort": ("10..60", "[10, 20, 30, 40, 50, 60]"),
            "rounds.count": ("5..30", "[5, 10, 15, 20, 25, 30]"),
        },
    ),
    Study(
        "stragglers",
        ("rounds.quorum=60%",),
        "simulated time",
        {
            "rounds.cohort": ("20..120", "[20, 40, 60, 80, 100, 120]"),
            "rounds.over_select": ("100%..200%", "[100%, 120%, 140%, 160%, 180%, 200%]"),
        },
    ),
)


def grid_of(study: Study, folder: Path) -> list[float]:
    """Run the grid; return the figure of each cell, infinite where it missed a threshold."""
    lists = ", ".join(f"{key}: {values}" for key, (_, values) in study.vary.items())
    loaded = load(shipped_files()[study.scenario], (*study.settings, f"sweep={{{lists}}}"))
    outcome = run_sweep(
        load_cells(loaded),
        target=folder / "grid",
        choice=ClusterChoice(workers=processors()),
        on_result=lambda *_: None,
        on_lost=lambda *_: None,
    )
    _, goal = read_request(None, ["rounds.cohort=1..2"], study.minimise, None)
    found = []
    for cell in outcome.cells:
        (result,) = cell.results.values()
        figure = None
        if result.status == "held" and result.directory is not None:
            figure = goal.figure(result, open_run(result.directory))
        found.append(math.inf if figure is None else figure.value)
    return found


def tuned(study: Study, seed: int, trials: int, folder: Path) -> tuple[float, str]:
    """Search with one worker; return the best figure and its settings."""
    ranges = [f"{key}={values}" for key, (values, _) in study.vary.items()]
    space, goal = read_request(None, ranges, study.minimise, None)
    plan = TuningPlan(load(shipped_files()[study.scenario], study.settings), space, goal, trials, seed=seed)
    best = run_tuning(
        plan,
        target=folder / f"tune{seed}",
        choice=ClusterChoice(workers=1),
        on_trial=lambda *_: None,
        on_lost=lambda *_: None,
    ).best
    if best is None or best.ended.value is None:
        return math.inf, "none"
    return best.ended.value, best.cell.label


def by_chance(grid: Sequence[float], trials: int) -> float:
    """Return how likely so many cells of the grid, without repetition, hold one near to the best."""
    far = sum(value > NEAR * min(grid) for value in grid)
    return 1.0 - math.comb(far, trials) / math.comb(len(grid), trials)


def main() -> None:
    """Run both studies and print a table of each."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    for study in STUDIES:
        started_s = time.perf_counter()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            grid = grid_of(study, folder)
            held = [value for value in grid if math.isfinite(value)]
            values = [values.strip("[]").split(", ") for _, values in study.vary.values()]
            at = list(itertools.product(*values))[grid.index(min(grid))]
            print(f"{study.scenario}: minimise {study.minimise}, {len(held)} of {len(grid)} cells hold")
            print(f"  grid: {min(grid):.6g} at {', '.join(at)}; the worst that holds {max(held):.6g}")
            for seed in SEEDS:
                best, label = tuned(study, seed, trials, folder)
                print(f"  {trials} trials, seed {seed}: {best:.6g}, {best / min(grid):.3f} of it, at {label}")
            print(
                f"  {trials} cells by chance come within 5 % with probability {by_chance(grid, trials):.2f}"
            )
        print(f"  took {time.perf_counter() - started_s:.0f} s")


if __name__ == "__main__":
    main()
