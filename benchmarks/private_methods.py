"""What privacy costs on MovieLens 1M: DP-FedAvg, LIPM, DPPS, both, and BLUR + LUS, at their true epsilon.

    python benchmarks/private_methods.py DATA                    every table, seeds 1 to 3
    python benchmarks/private_methods.py DATA --validation       what the rounds were chosen by
    python benchmarks/private_methods.py DATA lines --seeds 1    one table, one seed

DATA is a folder with ``ml-1m``, as grouplens.org has it. Its 6,040 users are phones, 1,000 a round, that
train a factorisation with four factors and biases on 80% of their ratings; the RMSE is on the rest. All
updates weigh the same. Noise multipliers z are in units of the clipping norm, 0.1. ``lines`` sets the methods
side by side, ``noise`` sweeps z, ``naive`` sets a claimed epsilon beside the true one.

Epsilon is the run's own, at delta 1e-5, over all rounds, of the device that reported most: zero-out /
replace-one. Mind whose view it is. With the central mechanism it is that of somebody who sees the models, the
coordinator being trusted; with personal budgets that of the coordinator, which sees single updates: the
largest of the tiers, whose own are printed behind it. The two cannot be compared. The lines to beat are a
user's own mean, which a device knows by itself, and item and user means, shrunk; there is no privacy in the
latter.

Rounds are chosen at seed 1 on ratings kept back for validation, out of every fourth of 24, for each line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import Curve, spread
from rating_references import Shrinkage, biases, task_of

from coordinator.engine.run_files import ENDED
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load

MOST_ROUNDS, EVERY = 24, 4
SCENARIO = """
format: 2
data: {{source: movielens-1m, path: {path}, split: {{kind: ratio, test: 20%{kept}}}}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning:
  algorithm: {algorithm}
  factors: 4
  initial_scale: 0.05
  upload: dense
  weighting: uniform
  reconstruction: {{method: ridge, regularization: 8, bias_regularization: 1}}
  client: {{method: gradient-steps, steps: {steps}, learning_rate: 1, regularization: 0.02}}
  optimizer: {{kind: adam, beta1: 90%, beta2: 99%, epsilon: 1e-4}}
  learning_rate: 0.05
  schedule: {{kind: cosine, rounds: {rounds}, final: 10%}}
{learning}
rounds: {{count: {rounds}, cohort: 1000, deadline: 10 min}}
record: {{events: none}}
evaluation: {{every: {every}, on: {on}, final: true}}
{privacy}
"""
BLUR = "  norm_bound: 0.1\n  norm_penalty: 0.5\n  keep: 50%"
LIPM = "  attention_bound: 1\n  attention_scale: 0.02\n  interest_learning_rate: 0.05\n"
"""A weight takes a fifth of the clipping norm, and the step on the GRU is short beside it."""


@dataclass(frozen=True)
class Line:
    """A line of a table: method, how it is made private, and the rounds that were chosen."""

    algorithm: str = "fedrecon"
    privacy: str = ""
    rounds: int = MOST_ROUNDS
    steps: int = 1

    def scenario(self, data: Path, *, validation: bool) -> str:
        """Return the scenario of the line."""
        rounds = MOST_ROUNDS if validation else self.rounds
        return SCENARIO.format(
            path=data / "ml-1m",
            kept=", validation: 10%" if validation else "",
            algorithm=self.algorithm,
            learning={"fedrecon": "", "lipm": LIPM, "blur": BLUR}[self.algorithm],
            steps=self.steps,
            rounds=rounds,
            every=EVERY if validation else rounds,
            on="validation" if validation else "test",
            privacy=f"privacy: {{{self.privacy}}}" if self.privacy else "",
        )


def central(multiplier: float, clip_norm: float = 0.1) -> str:
    """Return the section of DP-FedAvg with a trusted coordinator."""
    return f"mechanism: central-gaussian, clip_norm: {clip_norm}, noise_multiplier: {multiplier}"


def personal(multiplier: float, clip_norm: float = 0.1) -> str:
    """Return the section of DPPS: the heaviest users have this noise, the lightest four times as much."""
    return (
        f"mechanism: personal-gaussian, clip_norm: {clip_norm}, tiers: ["
        f"{{name: casual, up_to: 60, noise_multiplier: {4 * multiplier}}}, "
        f"{{name: regular, up_to: 200, noise_multiplier: {2 * multiplier}}}, "
        f"{{name: heavy, noise_multiplier: {multiplier}}}]"
    )


def naive(claimed: float) -> str:
    """Return the section whose noise is that of a naive claim."""
    return f"mechanism: central-gaussian, clip_norm: 0.1, calibration: naive, claimed_epsilon: {claimed}"


TABLES: dict[str, dict[str, Line]] = {
    "lines": {
        "plain": Line(),
        "LIPM": Line("lipm"),
        "DP-FedAvg, z = 1": Line("fedrecon", central(1)),
        "BLUR + LUS, z = 1": Line("blur", central(1), steps=3),
        "LIPM, z = 1": Line("lipm", central(1)),
        "DPPS, z = 1 to 4": Line("fedrecon", personal(1), rounds=4),
        "LIPM + DPPS, z = 1 to 4": Line("lipm", personal(1), rounds=4),
    },
    "noise": {
        **{f"DP-FedAvg, z = {z:g}": Line("fedrecon", central(z)) for z in (0.5, 2, 4, 8)},
        "DPPS, z = 0.25 to 1": Line("fedrecon", personal(0.25)),
    },
    "naive": {f"claimed {claimed:g}": Line("fedrecon", naive(claimed)) for claimed in (1, 8)},
}


@dataclass(frozen=True)
class Result:
    """RMSE by round; ε of the run and of each tier, zero-out and replace-one."""

    at: dict[int, float]
    epsilon: str
    tiers: dict[str, str]


def run(line: Line, data: Path, seed: int, *, validation: bool) -> Result:
    """Run a line at a seed."""
    curve = Curve("seen")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "private.yaml"
        file.write_text(line.scenario(data, validation=validation), encoding="utf-8")
        outcome = run_scenario(load(file, [f"seed={seed}"]), target=Path(folder) / "run", observer=curve)
        assert outcome.status in ENDED, outcome.reason
        summary: dict[str, Any] = json.loads((outcome.directory / "summary.json").read_text())
    tiers = (summary["privacy"] or {}).get("tiers", {})
    return Result(
        {number: metrics["rmse"] for number, metrics in curve.at.items()},
        both_epsilons(summary),
        {name: both_epsilons(tier) for name, tier in tiers.items()},
    )


def references(data: Path, seeds: Sequence[int]) -> None:
    """Print the lines without a model: a user's own mean, and shrunk item and user means."""
    found: dict[str, list[float]] = {"user mean": [], "biases": []}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "private.yaml"
            file.write_text(Line().scenario(data, validation=False), encoding="utf-8")
            workload = assemble(load(file, [f"seed={seed}"])).workload
        assert isinstance(workload, RatingWorkload)
        task = task_of(workload.split, unseen=False, validation=False)
        counts = np.diff(task.train.indptr)
        owners = np.repeat(np.arange(len(counts)), counts)
        # As if everybody had given two more ratings, of the mean of all.
        alone = np.bincount(owners, task.train.ratings - task.mean, len(counts)) / (counts + 2)
        guesses = {
            "user mean": task.mean + np.repeat(alone, np.diff(task.query.indptr)),
            "biases": biases(task, Shrinkage(2, 8)),
        }
        for name, guess in guesses.items():
            found[name].append(float(np.sqrt(np.mean((task.query.ratings - guess) ** 2))))
    for name, values in found.items():
        row(name, "", spread(values), "none", "")


def row(*cells: str) -> None:
    print(
        "  ".join(f"{cell:{width}}" for cell, width in zip(cells, (26, 6, 16, 15, 0), strict=True)),
        flush=True,
    )


def both_epsilons(facts: Mapping[str, Any]) -> str:
    """Return ε under both relations between neighbours, to print."""
    found = (facts["epsilon"], facts["epsilon_replace_one"])
    if found[0] is None:
        return "none"
    return " / ".join(epsilon if isinstance(epsilon, str) else f"{epsilon:.1f}" for epsilon in found)


def measure(name: str, line: Line, data: Path, seeds: Sequence[int]) -> None:
    """Print what a line reaches on the test part."""
    results = [run(line, data, seed, validation=False) for seed in seeds]
    last = results[-1]
    tiers = ", ".join(f"{tier} {epsilon}" for tier, epsilon in last.tiers.items())
    rmse = spread([result.at[max(result.at)] for result in results])
    row(name, str(line.rounds), rmse, last.epsilon, tiers)


def choose(name: str, line: Line, data: Path) -> None:
    """Print the RMSE on the validation part by round."""
    at = run(line, data, 1, validation=True).at
    best = min((number for number in at if number), key=at.__getitem__)
    print(
        f"{name:26}  best {best:3}  " + "  ".join(f"{number}: {value:.4f}" for number, value in at.items()),
        flush=True,
    )


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--validation", action="store_true", help="show what rounds are chosen by")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    arguments = parser.parse_intermixed_args()
    unknown = [table for table in arguments.tables if table not in TABLES]
    if unknown:
        parser.error(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    data, seeds = arguments.data.resolve(), range(1, arguments.seeds + 1)
    if not arguments.validation:
        row("", "rounds", "test RMSE", "epsilon", "by tier")
        references(data, seeds)
    for table in arguments.tables or TABLES:
        for name, line in TABLES[table].items():
            if arguments.validation:
                choose(name, line, data)
            else:
                measure(name, line, data, seeds)


if __name__ == "__main__":
    main()
