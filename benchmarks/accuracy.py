"""Accuracy on real ratings: scenarios run through the simulator, with references beside them.

    python benchmarks/accuracy.py DATA                       every line, seeds 1 to 5, scored on the test part
    python benchmarks/accuracy.py DATA 1m-unseen-ridge       one of them
    python benchmarks/accuracy.py DATA --validation          what the number of rounds and the settings were
                                                             chosen by: scored on a validation part, which
                                                             then does not train, every tenth of the rounds
    python benchmarks/accuracy.py DATA 100k-seen-ridge --validation --set learning.learning_rate=0.02
                                                             what another setting would do

DATA is a folder with ``ml-100k`` and ``ml-1m``, as grouplens.org has them. A line is a shipped scenario, or
one with a few settings changed. In those, no phone leaves; the lines with dropouts let 8% of those that take
part vanish, and invite 130% of the cohort. The references need no federation and see the same splits; their
own settings are chosen on the validation part of seed 1, which ``--validation`` prints as well.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rating_references import LeastSquares, Shrinkage, Task, biases, item_means, least_squares, task_of

from coordinator.engine.facts import MetricValue, RoundRow
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import LoadedScenario, load
from edge.metrics.rating_errors import RatingErrors

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
FOLDERS = {"movielens_100k": "ml-100k", "movielens_1m": "ml-1m"}

STEPS_100K = """{algorithm: fedrecon, factors: 20, initial_scale: 0.02,
  reconstruction: {method: gradient-steps, steps: 5, learning_rate: 1, bias_learning_rate: 0.9,
                   regularization: 12, bias_regularization: 4},
  client: {method: gradient-steps, steps: 1, learning_rate: 1, regularization: 0.02},
  optimizer: {kind: adam, beta2: 99%, epsilon: 1e-5},
  learning_rate: 0.013, schedule: {kind: cosine, rounds: 200, final: 2%}}"""
UNSEEN_100K = """{algorithm: fedrecon, factors: 10, initial_scale: 0.02,
  reconstruction: {method: ridge, regularization: 4, bias_regularization: 0.5},
  client: {method: gradient-steps, steps: 1, learning_rate: 1, regularization: 0.1},
  optimizer: {kind: adam, beta2: 99%, epsilon: 1e-3},
  learning_rate: 0.066, schedule: {kind: cosine, rounds: 200, final: 2%}}"""
STEPS_1M = """{algorithm: fedrecon, factors: 20, initial_scale: 0.05,
  reconstruction: {method: gradient-steps, steps: 5, learning_rate: 1.5, bias_learning_rate: 0.7,
                   regularization: 4, bias_regularization: 1},
  client: {method: gradient-steps, steps: 1, learning_rate: 1, regularization: 0.02},
  optimizer: {kind: adam, beta2: 99%, epsilon: 1e-4},
  learning_rate: 0.04, schedule: {kind: cosine, rounds: 500, final: 2%}}"""
# Published for mean squared error as 0.1 and 0.5; a loss with the factor 1/2 doubles both. The number of
# passes of the reconstruction is not part of the configuration: see docs/methods/fedrecon.md.
PUBLISHED_1M = """{algorithm: fedrecon, factors: 50, item_bias: false, user_bias: false, subtract_mean: false,
  initial_scale: 0.1, split: support-query,
  reconstruction: {method: mini-batches, batch_size: 5, epochs: 2, learning_rate: 0.2},
  client: {method: mini-batches, batch_size: 5, learning_rate: 1},
  optimizer: {kind: sgd}, learning_rate: 1}"""
# A mapping is merged into what is there: take that away first.
UNSEEN = ("data.split=null", "data.split={kind: users, unseen: 20%}")


def learning(text: str) -> tuple[str, ...]:
    """Return the settings that put another method in the place of a scenario's."""
    return "learning=null", f"learning={text}"


DROPOUTS = ("fleet.availability=bernoulli_google", "rounds.over_select=130%", "rounds.quorum=80")


@dataclass(frozen=True)
class Line:
    """A line of the table: a shipped scenario, what is changed in it, and the RMSE that is wanted.

    ``most`` is a bound; ``near`` is a value to come within 0.01 of. Neither is for lines that only inform.
    """

    scenario: str
    reference: str
    settings: tuple[str, ...] = ()
    most: float | None = None
    near: float | None = None

    @property
    def unseen(self) -> bool:
        """Whether users are scored that never trained."""
        return "unseen" in self.reference

    def target(self) -> str:
        """Return what is wanted, to print."""
        if self.near is not None:
            return f"{self.near:.4f} ± .01"
        return "" if self.most is None else f"<= {self.most:.3f}"

    def met(self, rmse: float) -> str:
        """Return yes or no, to print."""
        if self.near is not None:
            return "yes" if abs(rmse - self.near) <= 0.01 else "no"
        return "" if self.most is None else "yes" if rmse <= self.most else "no"


LINES = {
    "100k-seen-ridge": Line("movielens_100k", "100k-seen", (), most=0.920),
    "100k-seen-5-steps": Line("movielens_100k", "100k-seen", learning(STEPS_100K), most=0.917),
    "100k-seen-ridge-dropouts": Line("movielens_100k", "100k-seen", DROPOUTS),
    "100k-unseen-ridge": Line("movielens_100k", "100k-unseen", (*UNSEEN, *learning(UNSEEN_100K)), most=0.940),
    "1m-unseen-ridge": Line("movielens_1m", "1m-unseen", (), most=0.870),
    "1m-unseen-5-steps": Line("movielens_1m", "1m-unseen", learning(STEPS_1M), most=0.890),
    "1m-unseen-ridge-dropouts": Line("movielens_1m", "1m-unseen", DROPOUTS),
    "1m-unseen-published": Line(
        "movielens_1m",
        "1m-unseen",
        (*learning(PUBLISHED_1M), "data.max_ratings_per_user=300"),
        near=0.9272,
    ),
}


@dataclass(frozen=True)
class Reference:
    """The settings of the references for one split of one dataset, chosen by ``--validation``."""

    scenario: str
    settings: tuple[str, ...]
    shrinkage: Shrinkage
    factorisation: LeastSquares


REFERENCES = {
    "100k-seen": Reference("movielens_100k", (), Shrinkage(2, 4), LeastSquares(40, 0.14)),
    "100k-unseen": Reference("movielens_100k", UNSEEN, Shrinkage(5, 4), LeastSquares(40, 0.14)),
    "1m-unseen": Reference("movielens_1m", (), Shrinkage(2, 8), LeastSquares(40, 0.08)),
}
SHRINKAGES = [Shrinkage(item, user) for item, user in itertools.product((1, 2, 5, 10), (2, 4, 8))]
FACTORISATIONS = [
    LeastSquares(factors, weight)
    for factors, weight in itertools.product((10, 20, 40), (0.04, 0.06, 0.08, 0.1, 0.14, 0.18))
]


@dataclass
class Curve:
    """Observes a run: the metrics of all users at each evaluation, by round."""

    population: str
    at: dict[int, dict[str, float]] = field(default_factory=dict)

    def on_start(self, name: str, rounds: int | None) -> None:
        """Ignore the start."""

    def on_round(self, row: RoundRow) -> None:
        """Ignore a round."""

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Keep the metrics of all users together."""
        self.at[round_number] = {
            v.metric: v.value for v in values if v.tag == "all" and v.population == self.population
        }

    def on_end(self, status: str) -> None:
        """Ignore the end."""


@dataclass(frozen=True)
class Result:
    """One run: metrics by round, and what it cost."""

    at: dict[int, dict[str, float]]
    rounds: int
    simulated_s: float
    down_mb: float
    up_mb: float
    wall_s: float

    @property
    def last(self) -> dict[str, float]:
        """Metrics at the end."""
        return self.at[max(self.at)]


def loaded(
    data: Path, scenario: str, settings: Sequence[str], seed: int, *, validation: bool
) -> LoadedScenario:
    """Load a scenario for one seed; with ``validation`` a tenth more is kept back, and scored instead."""
    file = SCENARIOS / f"{scenario}.yaml"
    common = [f"data.path={data / FOLDERS[scenario]}", "thresholds=null", "record.events=none"]
    rounds = load(file, [*common, *settings]).scenario.round_count
    assert rounds is not None, "the scenario counts its rounds"
    scored = [f"evaluation.every={rounds // 10 if validation else rounds}"]
    if validation:
        scored += ["evaluation.on=validation", "data.split.validation=10%"]
    return load(file, [*common, *settings, *scored, f"seed={seed}"])


def run(scenario: LoadedScenario, *, unseen: bool) -> Result:
    """Run a scenario and return its figures; bytes are a device's mean over the whole run."""
    curve = Curve("unseen" if unseen else "seen")
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_scenario(scenario, target=Path(folder) / "run", observer=curve)
        assert (outcome.status, outcome.reason) == ("finished", None), outcome.reason
        summary: dict[str, Any] = json.loads((outcome.directory / "summary.json").read_text())
        manifest: dict[str, Any] = json.loads((outcome.directory / "manifest.json").read_text())
    devices = manifest["data"]["clients"]
    return Result(
        curve.at,
        summary["rounds"]["completed"],
        summary["simulated_s"],
        summary["bytes"]["down"] / devices / 1e6,
        summary["bytes"]["up"] / devices / 1e6,
        manifest["measured"]["run_s"],
    )


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.4f} ± {deviation:.4f}"


def print_row(*cells: str) -> None:
    widths = (25, 16, 7, 7, 13, 4, 7, 7, 14, 7)
    print(
        "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=False)).rstrip(), flush=True
    )


def print_header(part: str) -> None:
    print_row(
        "", f"{part} RMSE", "MAE", "<= .5", "target", "met", "rounds", "sim. h", "MB down + up", "wall s"
    )


def print_line(name: str, line: Line, results: Sequence[Result], *, validation: bool) -> None:
    """Print the row of a line; the last column is the median wall time of a run."""
    mean = statistics.fmean
    rmse = [result.last["rmse"] for result in results]
    print_row(
        name,
        spread(rmse),
        f"{mean(r.last['mae'] for r in results):.4f}",
        f"{mean(r.last['accuracy'] for r in results):.3f}",
        # Targets are for the test part.
        *(("", "") if validation else (line.target(), line.met(mean(rmse)))),
        f"{mean(r.rounds for r in results):g}",
        f"{mean(r.simulated_s for r in results) / 3600:.2f}",
        f"{mean(r.down_mb for r in results):.1f} + {mean(r.up_mb for r in results):.1f}",
        f"{statistics.median(r.wall_s for r in results):.1f}",
    )


def print_curve(results: Sequence[Result]) -> None:
    """Print the mean RMSE by round."""
    means = {n: statistics.fmean(result.at[n]["rmse"] for result in results) for n in results[0].at}
    best = min(means, key=lambda n: means[n])
    print(
        "    " + "  ".join(f"{n}: {value:.4f}" for n, value in means.items()) + f"; best at {best}",
        flush=True,
    )


def score(task: Task, predicted: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return RMSE, MAE and the share within half a star."""
    errors = RatingErrors()
    errors.add(predicted, task.query.ratings)
    return {name: float(values[0]) for name, values in errors.results().items()}


def tasks(data: Path, name: str, seeds: Sequence[int], *, validation: bool) -> list[Task]:
    """Return the task of a reference for each seed."""
    reference, found = REFERENCES[name], []
    for seed in seeds:
        scenario = loaded(data, reference.scenario, reference.settings, seed, validation=validation)
        workload = assemble(scenario).workload
        assert isinstance(workload, RatingWorkload)
        found.append(task_of(workload.split, unseen="unseen" in name, validation=validation))
    return found


def print_references(name: str, each: Sequence[Task]) -> None:
    """Print the rows of the references on these tasks."""
    settings = REFERENCES[name]
    how = settings.factorisation
    rows = {
        "item means (popularity)": [item_means(task) for task in each],
        "biases only": [biases(task, settings.shrinkage) for task in each],
        f"centralised, k = {how.factors}": [least_squares(task, how, seed) for seed, task in enumerate(each)],
    }
    for label, predictions in rows.items():
        scores = [score(task, predicted) for task, predicted in zip(each, predictions, strict=True)]
        print_row(
            f"  {label}",
            spread([s["rmse"] for s in scores]),
            f"{statistics.fmean(s['mae'] for s in scores):.4f}",
            f"{statistics.fmean(s['accuracy'] for s in scores):.3f}",
        )


def print_choice(task: Task) -> None:
    """Print what the settings of the references were chosen from."""
    for shrinkage in SHRINKAGES:
        print(f"    {shrinkage}: {score(task, biases(task, shrinkage))['rmse']:.4f}", flush=True)
    for how in FACTORISATIONS:
        print(f"    {how}: {score(task, least_squares(task, how, 0))['rmse']:.4f}", flush=True)


def main() -> None:
    """Print a row for each line, then the references of its data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=", ".join(LINES))
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 1")
    parser.add_argument("--validation", action="store_true", help="score on the validation part")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="change a setting")
    parser.add_argument("--references", action="store_true", help="only the references")
    arguments = parser.parse_intermixed_args()
    unknown = [name for name in arguments.lines if name not in LINES]
    if unknown:
        parser.error(f"no line {unknown[0]!r}; there are {', '.join(LINES)}")
    data, validation = arguments.data.resolve(), arguments.validation
    seeds = range(1, arguments.seeds + 1)
    print_header("valid." if validation else "test")
    for reference in REFERENCES:
        names = [name for name in arguments.lines or LINES if LINES[name].reference == reference]
        for name in names if not arguments.references else ():
            line = LINES[name]
            settings = [*line.settings, *arguments.settings]
            results = [
                run(loaded(data, line.scenario, settings, seed, validation=validation), unseen=line.unseen)
                for seed in seeds
            ]
            print_line(name, line, results, validation=validation)
            if validation:
                print_curve(results)
        if names and not arguments.settings:
            each = tasks(data, reference, seeds, validation=validation)
            print_references(reference, each)
            if validation:
                print_choice(each[0])


if __name__ == "__main__":
    main()
