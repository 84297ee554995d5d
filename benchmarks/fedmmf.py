"""FedMMF beside the same factorisation without masks, as runs on a fleet.

    python benchmarks/fedmmf.py DATA [ml-100k | ml-1m | lastfm-2k] [SEEDS] [--tuned]

DATA is the folder that holds the data sets. Each row is a mean over seeds: errors on test ratings after the
last round, simulated hours, bytes a device round, p50 and p99 of the rounds, and on how many seeds the
error is below that of the twin, which has the same settings and no mask. Settings were chosen on ratings kept
back for validation. Beside them is what biases alone predict, all ratings in one place, shrunk as far as
validation ratings of the first seed say. Then what the audits find of each kind of mask, first seed.

``--tuned`` sets one-order masks beside a twin that has settings of its own: for each of the two, server
learning rate and λ of the user factors are those of ``RATES`` and ``PENALTIES`` that do best on validation
ratings of the first seed, a tenth of all.

Published for ML-100K (Yang et al. 2021): FedMF .9491, FedMMF one-order .9340, two-order .9218; none for
the other two.
"""

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rating_references import Shrinkage, Task, biases, task_of

from coordinator.engine.facts import MetricValue, RoundRow
from coordinator.engine.workload import RatingWorkload
from coordinator.results.summary import summarise
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load

SCENARIOS = Path(__file__).parents[1] / "scenarios"
SHARED = ("learning.learning_rate=0.014", "learning.reconstruction.regularization=16")
MASKS = {
    "zero-order": "{kind: zero-order, regularization: null}",
    "one-order": "{kind: one-order, regularization: 150}",
    "two-order": "{kind: two-order, regularization: 150, factor_regularization: 150}",
    "high-order": "{kind: high-order, weight_decay: 28, regularization: null}",
}
SETS = {
    "ml-100k": (),
    "ml-1m": ("data.source=movielens-1m", "rounds.count=300", "learning.schedule.rounds=300"),
    "lastfm-2k": (
        "data.source=lastfm",
        "data.features={kind: lastfm-tags}",
        "rounds.deadline=10 min",
        "learning.learning_rate=0.007",
        "learning.reconstruction.regularization=8",
    ),
}
VALIDATION = "data.split={kind: ratio, test: 20%, validation: 10%}"
RATES, PENALTIES = (0.01, 0.014, 0.02, 0.028, 0.04), (12, 16, 24)
SHRINKAGES = [Shrinkage(item, user) for item, user in itertools.product((1, 2, 5, 10), (2, 4, 8))]


class Quiet:
    """Observes and says nothing."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Say nothing."""

    def on_round(self, row: RoundRow) -> None:
        """Say nothing."""

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        """Say nothing."""

    def on_end(self, status: str) -> None:
        """Say nothing."""


def run(scenario: str, settings: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        loaded = load(SCENARIOS / f"{scenario}.yaml", [*settings, "thresholds=null", "record.events=none"])
        outcome = run_scenario(loaded, target=Path(folder, "run"), observer=Quiet())
        return summarise(open_run(outcome.directory))


def figure(summary: dict[str, Any], metric: str) -> float:
    return next(float(row["last"]) for row in summary["accuracy"] if row["metric"] == metric)


def row(name: str, summaries: list[dict[str, Any]], twin: list[float] | None) -> list[float]:
    errors = [figure(summary, "rmse") for summary in summaries]
    count = summaries[0]["device_rounds"]
    below = "" if twin is None else f"{sum(a < b for a, b in zip(errors, twin, strict=True))}/{len(errors)}"
    print(
        f"{name:<24} {np.mean(errors):.4f} ± {np.std(errors):.4f} "
        f"{np.mean([figure(s, 'mae') for s in summaries]):.4f} {below:>6}"
        f" {np.mean([s['simulated_s'] for s in summaries]) / 3600:>7.2f}"
        f" {np.mean([s['bytes']['down'] / count for s in summaries]) / 1024:>9.1f}"
        f" {np.mean([s['bytes']['up'] / count for s in summaries]) / 1024:>7.2f}"
        f" {np.mean([s['rounds']['duration_s']['p50'] for s in summaries]):>7.1f}"
        f" {np.mean([s['rounds']['duration_s']['p99'] for s in summaries]):>7.1f}",
        flush=True,
    )
    return errors


def task(settings: Sequence[str], seed: int, *, validation: bool = False) -> Task:
    split = [VALIDATION] if validation else []
    workload = assemble(load(SCENARIOS / "movielens_100k.yaml", [*settings, *split, f"seed={seed}"])).workload
    assert isinstance(workload, RatingWorkload)
    return task_of(workload.split, unseen=False, validation=validation)


def errors_of_biases(task: Task, shrinkage: Shrinkage) -> tuple[float, float]:
    apart = biases(task, shrinkage) - task.query.ratings
    return float(np.sqrt(np.mean(apart**2))), float(np.mean(np.abs(apart)))


def bias_only(settings: Sequence[str], seeds: range) -> None:
    kept_back = task(settings, seeds[0], validation=True)
    shrinkage = min(SHRINKAGES, key=lambda tried: errors_of_biases(kept_back, tried))
    found = np.array([errors_of_biases(task(settings, seed), shrinkage) for seed in seeds])
    (rmse, mae), (spread, _) = found.mean(axis=0), found.std(axis=0)
    print(f"{'biases alone, centralised':<24} {rmse:.4f} ± {spread:.4f} {mae:.4f}", flush=True)


def tuned(common: Sequence[str], name: str, seeds: range) -> None:
    """Print one-order masks and the twin without, with b_i, each with the settings that are best for it."""
    settings = [*common, "learning.item_bias=true"]
    without = [s for s in settings if not s.startswith("data.features")]
    twin = None
    for kind, scenario, mine in (
        ("no mask", "movielens_100k", without),
        ("one-order", "fedmmf_one_order", [*settings, f"learning.mask={MASKS['one-order']}"]),
    ):
        tried = {}
        for rate, penalty in itertools.product(RATES, PENALTIES):
            own = (f"learning.learning_rate={rate}", f"learning.reconstruction.regularization={penalty}")
            kept_back = (f"seed={seeds[0]}", VALIDATION, "evaluation.on=validation")
            tried[own] = figure(run(scenario, [*mine, *own, *kept_back]), "rmse")
        best = min(tried, key=lambda own: tried[own])
        print(f"{name}, {kind} + b_i: {', '.join(best)}, validation {tried[best]:.4f}")
        errors = row(f"{kind} + b_i", [run(scenario, [*mine, *best, f"seed={s}"]) for s in seeds], twin)
        twin = errors if twin is None else twin


def main() -> None:
    """Print the table of one set, or that of tuned twins."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("name", nargs="?", choices=SETS, default="ml-100k")
    parser.add_argument("seeds", nargs="?", type=int, default=5)
    parser.add_argument("--tuned", action="store_true")
    arguments = parser.parse_args()
    name, seeds = arguments.name, range(1, 1 + arguments.seeds)
    common = [f"data.path={arguments.data / name}", *SHARED, *SETS[name]]
    print(f"{name}, {len(seeds)} seeds")
    print(
        f"{'':<24} {'RMSE':>15} {'MAE':>6} {'better':>6} {'hours':>7} {'KiB down':>9} {'KiB up':>7}"
        f"{'p50 s':>8}{'p99 s':>8}"
    )
    if arguments.tuned:
        tuned(common, name, seeds)
        return
    first: dict[str, dict[str, Any]] = {}
    for bias, label in (("true", " + b_i"), ("false", ", plain")):
        settings = [*common, f"learning.item_bias={bias}"]
        without = [s for s in settings if not s.startswith("data.features")]
        if bias == "true":
            bias_only(without, seeds)
        plain = [run("movielens_100k", [*without, f"seed={seed}"]) for seed in seeds]
        twin = row("no mask" + label, plain, None)
        for kind, mask in MASKS.items():
            found = [
                run("fedmmf_one_order", [*settings, f"learning.mask={mask}", f"seed={s}"]) for s in seeds
            ]
            first.setdefault(kind, found[0])
            row(kind + label, found, twin)
    print("\naudits, first seed (share recovered, share of the first ten, J)")
    for kind, summary in first.items():
        print(
            f"{kind:<12}"
            + "".join(f" {key.removeprefix('audit.')} {value:.3f}" for key, value in summary["audit"].items())
        )


if __name__ == "__main__":
    main()
