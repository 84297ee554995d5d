"""The loss around a trained model, over two random directions in its items, with and without sharp steps.

    python benchmarks/loss_surface.py DATA OUT.html

DATA is a folder with ``ml-100k``, as grouplens.org has it. FedRecGEL around FedRecon with five gradient
steps (settings of ``accuracy.py``) trains with each of ``RADII``, 0 being FedRecon. User factors are fitted
to the items that are left, and stay; then each item row moves by a times one random direction and b times
another, both as long as the row itself. The loss is ½·mean(e²) over all training ratings, RMSE is on test
ratings. Prints what both rise by with the distance, a mean over four sides, and writes the surface as a
chart: loss against a, a line for each b.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from accuracy import STEPS_100K
from fedmmf import Quiet

import recfleet
from coordinator.engine.workload import RatingWorkload
from coordinator.results.report.axes import Scale, from_zero, number_axis
from coordinator.results.report.blocks import Contents, SectionBlock, TableBlock, TableCell
from coordinator.results.report.charts import Line, line_plot
from coordinator.results.report.html import page
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import LoadedScenario, load_text
from edge.core.rng import stream
from edge.learning.base import RatingBatch
from edge.learning.methods.fedrecon.algorithm import FedRecon

SCENARIO = """\
format: 2
seed: 1
data: {{source: movielens-100k, path: {path}, split: {{kind: ratio, test: 20%}}}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {learning}
rounds: {{count: 200, cohort: 100, deadline: 60 s}}
evaluation: {{every: 200}}
record: {{events: none}}
"""
RADII = (0.0, 0.1, 0.5, 2.0)
STEPS = np.linspace(-1, 1, 9)
LINES = (0.0, 0.5, 1.0)
FACTORS = "item_factors"
Floats = npt.NDArray[np.float64]
State = Mapping[str, npt.NDArray[Any]]


class Landscape:
    """Training loss and test error of models near one, with the user factors that are fitted to that one."""

    def __init__(self, workload: RatingWorkload, state: State) -> None:
        test, users = workload.split.test, workload.split.seen_users
        assert isinstance(workload.algorithm, FedRecon)
        assert test is not None
        self._method = workload.algorithm
        self._train, self._test = workload.split.train.gather(users), test.gather(users)
        self._users = self._method.reconstruct(state, self._train, np.zeros(len(users), np.uint64))

    def loss(self, state: State) -> float:
        """Return ½·mean(e²) over the training ratings."""
        return 0.5 * self._square(state, self._train)

    def rmse(self, state: State) -> float:
        """Return the RMSE on the test ratings."""
        return math.sqrt(self._square(state, self._test))

    def _square(self, state: State, batch: RatingBatch) -> float:
        said = self._method.predict_from(state, self._users, batch.items, np.diff(batch.indptr))
        return float(np.mean(np.square(said.astype(np.float64) - batch.ratings)))


def scenario(folder: Path, radius: float) -> LoadedScenario:
    """Return the training with both radii at this value; 0 is the method that they are put around."""
    around = f"{{algorithm: fedrecgel, shared_radius: {radius}, local_radius: {radius}, base: {STEPS_100K}}}"
    return load_text(SCENARIO.format(path=folder, learning=around if radius else STEPS_100K), "surface")


def directions(table: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield two random directions, each of its rows as long as that of ``table``, [items, k]."""
    draws = stream(1, "benchmark", "directions")
    for _ in range(2):
        found = draws.standard_normal(table.shape)
        found *= np.linalg.norm(table, axis=1)[:, None] / np.linalg.norm(found, axis=1)[:, None]
        yield found.astype(table.dtype)


def moved(state: State, first: npt.NDArray[Any], second: npt.NDArray[Any], a: float, b: float) -> State:
    """Return a model with its item factors elsewhere."""
    table = state[FACTORS]
    return {**state, FACTORS: (table + a * first + b * second).astype(table.dtype)}


def main() -> None:
    """Train, measure, print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("page", type=Path)
    asked = parser.parse_args()
    folder = (asked.data / "ml-100k").resolve()
    plain = assemble(scenario(folder, 0.0)).workload
    assert isinstance(plain, RatingWorkload)
    lines, rows = [], []
    print("radii   loss   rise at 0.5   rise at 1   test RMSE   rise at 0.5   rise at 1")
    for radius in RADII:
        with tempfile.TemporaryDirectory() as kept:
            run_scenario(scenario(folder, radius), target=Path(kept, "run"), observer=Quiet())
            state = dict(recfleet.open_run(Path(kept, "run")).model)
        landscape = Landscape(plain, state)
        first, second = directions(state[FACTORS])
        name = f"radii {radius:g}"
        for b in LINES:
            found = np.array([landscape.loss(moved(state, first, second, float(a), b)) for a in STEPS])
            tips = [
                f"{name}, a = {a:g}, b = {b:g}: {value:.4f}" for a, value in zip(STEPS, found, strict=True)
            ]
            lines.append(Line(f"{name}, b = {b:g}", STEPS, found, tips, group=name, marks=True))
            rows.append(
                (TableCell(f"{name}, b = {b:g}"), *(TableCell(f"{value:.4f}", value) for value in found))
            )
        sides = [(a, 0.0) for a in (-1.0, 1.0)] + [(0.0, b) for b in (-1.0, 1.0)]
        shown = []
        for measure in (landscape.loss, landscape.rmse):
            here = measure(state)
            shown.append(f"{here:.4f}")
            for far in (0.5, 1.0):
                away = [measure(moved(state, first, second, far * a, far * b)) for a, b in sides]
                shown.append(f"{np.mean(away) - here:+.4f}")
        print(f"{radius:<7g} " + "   ".join(shown), flush=True)
    scales = Scale(-1.05, 1.05), from_zero(max(float(line.y.max()) for line in lines))
    axes = number_axis(scales[0], "a, in lengths of a row"), number_axis(scales[1], "loss")
    table = TableBlock("Loss", ("radii and b", *(f"a = {a:g}" for a in STEPS)), tuple(rows), wide=True)
    chart = line_plot(
        "Loss over two directions", "Chart of the loss around trained models.", lines, scales, axes, table
    )
    section = SectionBlock("surface", "Loss surface", (chart,))
    asked.page.write_text(
        page(Contents("Loss around FedRecGEL's models", sections=(section,))), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
