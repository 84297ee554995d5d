"""What each way of aggregating is worth against each poisoning fault, on ratings of real people.

    python benchmarks/robust.py DATA               every rule against every fault, on test ratings
    python benchmarks/robust.py DATA --share 20%   with a fifth of the phones poisoned instead of a tenth
    python benchmarks/robust.py DATA --validation  on validation ratings: how the bound was chosen
    python benchmarks/robust.py DATA --secure      norm bounds under secure aggregation instead
    python benchmarks/robust.py DATA --sgd         with plain averaging by the server instead of Adam
    python benchmarks/robust.py DATA --rule median --rule mean     these rows alone

DATA is a folder with ``ml-100k``, as grouplens.org has it. Settings and rounds are those of the scenario
``movielens_100k``, which were chosen on validation ratings; every update weighs 1, since a rule counts each
once. Printed are means and standard deviations of the RMSE over the seeds, a row a rule and a column a fault,
that of no fault first; under it the lines of item and user means alone, and of the model before training.
Attackers are the same phones in every round, and sit in every cohort by chance: more or fewer than their
share. A table takes half an hour.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rating_references import Shrinkage, biases, task_of
from secure_training import Quiet

from coordinator.engine.stop_reason import StopReason
from coordinator.engine.workload import RatingWorkload
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load

SCENARIO = Path(__file__).resolve().parents[1] / "scenarios" / "movielens_100k.yaml"
SEEDS = (1, 2, 3)
COMMON = (
    "learning.weighting=uniform",
    "rounds.quorum=80%",
    "thresholds=null",
    "record.events=none",
)
SGD = ("learning.optimizer={kind: sgd}", "learning.learning_rate=1.0")
SHRINKAGE = Shrinkage(2, 4)
"""As in benchmarks/accuracy.py, which chose it on validation ratings."""
NORM_BOUND = 0.3
"""Above the norm of nearly all honest updates: on validation ratings it changes nothing without attackers."""

FAULTS: dict[str, str | None] = {
    "none": None,
    "NaN": "{kind: nan}",
    "×1,000,000": "{kind: huge-norm}",
    "×10": "{kind: huge-norm, scale: 10}",
    "×−1": "{kind: sign-flip}",
    "×−10": "{kind: sign-flip, scale: 10}",
    "×−10 unclipped": "{kind: sign-flip, scale: 10, ignores_bound: true}",
}
RULES: dict[str, tuple[str, ...]] = {
    "mean": (),
    "mean, norm bound": (f"aggregation={{rule: mean, norm_bound: {NORM_BOUND}}}",),
    "median": ("aggregation={rule: median}",),
    "median, every row": ("aggregation={rule: median, min_senders: 1}",),
    "median, dense upload": ("aggregation={rule: median}", "learning.upload=dense"),
    "trimmed mean, 20%": ("aggregation={rule: trimmed-mean, trim: 20%}",),
    "krum, 20%": ("aggregation={rule: krum, attackers: 20%}",),
    "multi-krum, 20%": ("aggregation={rule: multi-krum, attackers: 20%}",),
    "trimmed mean, norm bound": (f"aggregation={{rule: trimmed-mean, trim: 20%, norm_bound: {NORM_BOUND}}}",),
}
MASKED = (
    "learning.upload=dense",
    f"secure_aggregation={{mode: secagg-plus, crypto: modelled, clip: {NORM_BOUND}}}",
)
SECURE: dict[str, tuple[str, ...]] = {
    "secure sum": MASKED,
    "secure sum, norm bound": (*MASKED, f"aggregation={{rule: mean, norm_bound: {NORM_BOUND}}}"),
}


def poisoned(fault: str | None, share: str) -> tuple[str, ...]:
    """Return the setting that lets a share of the fleet poison its updates."""
    if fault is None:
        return ()
    attackers = f"{{name: attackers, on: {{fraction: {share}, fixed: true}}, poisoned_updates: {fault}}}"
    return (f"faults=[{attackers}]",)


def rmse(settings: Sequence[str]) -> tuple[float, float]:
    """Run a scenario; return its RMSE before training, and after."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_scenario(load(SCENARIO, settings), target=Path(folder) / "run", observer=Quiet())
        rows = open_run(run.directory).read("evaluations").to_pylist()
    values = [row["value"] for row in rows if row["metric"] == "rmse" and row["tag"] == "all"]
    return values[0], float("inf") if run.reason == StopReason.DIVERGED else values[-1]


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    if not all(np.isfinite(values)):
        return "diverged"
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def study(rules: Mapping[str, tuple[str, ...]], common: Sequence[str], share: str) -> None:
    """Print the table of rules and faults, and the lines beside it."""
    widths = [max(map(len, rules)) + 2, *(max(len(fault), 15) + 2 for fault in FAULTS)]
    print("".join(text.ljust(width) for text, width in zip(("", *FAULTS), widths, strict=True)))
    untrained = []
    for rule, settings in rules.items():
        line = rule.ljust(widths[0])
        for (name, fault), width in zip(FAULTS.items(), widths[1:], strict=True):
            found = [rmse((*common, *settings, *poisoned(fault, share), f"seed={seed}")) for seed in SEEDS]
            line += spread([after for _, after in found]).ljust(width)
            if name == "none":
                untrained = [before for before, _ in found]
        print(line, flush=True)
    print("before training".ljust(widths[0]) + spread(untrained))


def reference(common: Sequence[str], *, validation: bool) -> str:
    """Return the RMSE of item and user means alone, which see the same ratings."""
    values = []
    for seed in SEEDS:
        workload = assemble(load(SCENARIO, [*common, f"seed={seed}"])).workload
        assert isinstance(workload, RatingWorkload), "the scenario is of ratings"
        task = task_of(workload.split, unseen=False, validation=validation)
        errors = biases(task, SHRINKAGE) - task.query.ratings
        values.append(float(np.sqrt(np.mean(errors**2))))
    return spread(values)


def main() -> None:
    """Print the study that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", default="10%")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--secure", action="store_true")
    parser.add_argument("--sgd", action="store_true")
    parser.add_argument(
        "--rule", action="append", help="only these: " + "; ".join((*RULES, *SECURE)).replace("%", "%%")
    )
    asked = parser.parse_args()
    rules = SECURE if asked.secure else RULES
    for name in asked.rule or ():
        if name not in rules:
            parser.error(f"there is no {name!r}; there are {', '.join(rules)}")
    part = "validation" if asked.validation else "test"
    common = (
        *COMMON,
        *(SGD if asked.sgd else ()),
        f"data.path={asked.data / 'ml-100k'}",
        f"evaluation={{every: 1000, on: {part}}}",
        *(["data.split.validation=10%"] if asked.validation else ()),
    )
    start_s = time.perf_counter()
    print(f"RMSE on {part} ratings after 200 rounds, {asked.share} of the phones poisoned, seeds {SEEDS}")
    study({name: rules[name] for name in asked.rule or rules}, common, asked.share)
    print("item and user means alone: " + reference(common, validation=asked.validation))
    print(f"{time.perf_counter() - start_s:.0f} s")


if __name__ == "__main__":
    main()
