"""What the methods are worth as recommenders on MovieLens 1M, under one protocol, at their true epsilon.

    python benchmarks/methods.py DATA                      every line, seeds 1 to 3, scored on the test part
    python benchmarks/methods.py DATA FedMF LIPM --seeds 1 two of them, one seed
    python benchmarks/methods.py DATA FedMF --search       what settings and rounds were chosen by: seed 1,
                                                           scored on a validation part, which then does not
                                                           train
    python benchmarks/methods.py DATA --out runs/methods   keep the runs; `recfleet compare runs/methods` and
                                                           `recfleet report runs/methods` set them side by
                                                           side against time, bytes, energy and epsilon

DATA is a folder with ``ml-1m``, as grouplens.org has it. The protocol: ratings of 4 and 5 stars are
positives, the others are as if never given. 20% of each user's positives are the test part. A device draws
four other items for each of its positives in every round, uniformly from all that it has not taken to, those
of the test part included: it cannot know them. Every round has 600 of 6,038 phones. A model ranks all items
but those that the user trains on; a test item among the first ten is a hit. NDCG, recall and precision are
means over users.

Settings are found one after another, each from the few values in ``tried``, all others as they are, by NDCG
on the validation part at the best of every tenth of 60 rounds; so is the number of rounds. ``CHOSEN`` is what
that search printed; DPPS and the noisy LIPM take over what their counterparts chose, and of FedNCF the first
values stand, the higher of two rates. Epsilon is over the whole run, at delta 1e-5, of the device that
reported most, zero-out / replace-one: with the central mechanism of somebody who sees the models, the
coordinator being trusted; with personal budgets of the coordinator, by tier. The two cannot be compared.
Settings of item-KNN and iALS are one guess, not searched.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import Curve
from private_methods import both_epsilons, central, personal
from ranking_references import ImplicitLeastSquares, ItemKnn, popularity

from coordinator.engine.run_files import ENDED
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load
from edge.metrics.ranking import RankingSums, rank_fully

MOST_ROUNDS, EVERY = 60, 10
METRICS = ("ndcg@10", "recall@10", "precision@10")
SCENARIO = """
format: 2
title: {title}
data:
  source: movielens-1m
  path: {path}
  positive: 4
  {negatives}
  held_out_negatives: drawn
  split: {{kind: ratio, test: 20%{kept}}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {learning}
rounds: {{count: {rounds}, cohort: 600, deadline: 10 min}}
record: {{events: none}}
evaluation: {{every: {every}, on: {on}, ranking: {{k: [10]}}}}
{privacy}
"""
SERVER = "optimizer: {{kind: adam, beta2: 99%, epsilon: {epsilon}}}, learning_rate: {rate}"
FACTORS = "factors: {factors}, initial_scale: {scale}, " + SERVER
ITEMS = "client: {{method: gradient-steps, steps: 1, learning_rate: 1, regularization: {decay}}}"
RIDGE = "reconstruction: {{method: ridge, regularization: {user}, bias_regularization: 1}}"
STEPS = """reconstruction: {{method: gradient-steps, steps: 5, learning_rate: 1, bias_learning_rate: 0.9,
  regularization: {user}, bias_regularization: 4}}"""
SUMMED = "upload: dense, weighting: uniform"
FACTORISATION: dict[str, tuple[float, ...]] = {
    "scale": (0.02, 0.005, 0.1),
    "rate": (0.1, 0.03, 0.3),
    "user": (1, 0.3, 4),
    "decay": (0.02, 0.002),
    "factors": (16, 32),
}
NOISY: dict[str, tuple[float, ...]] = {
    "clip": (0.01, 0.003, 0.03),
    "factors": (32, 4),
    "rate": (0.1, 0.03),
}
ONLY_CLIP: dict[str, tuple[float, ...]] = {"clip": (0.003, 0.001, 0.01)}


@dataclass(frozen=True)
class Line:
    """A method: its settings, with names in the place of what is chosen, and what is tried for those.

    All others are those of the line that it is ``like``, of which it is a variant.
    ``multiplier`` is the noise, in clipping norms: central, or personal, that of the most active tier.
    """

    learning: str
    tried: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: FACTORISATION)
    like: str = ""
    multiplier: float | None = None
    is_personal: bool = False
    draws_zeros: bool = True

    def scenario(self, title: str, data: Path, chosen: Mapping[str, float], *, validation: bool) -> str:
        """Return the scenario of the line."""
        rounds = MOST_ROUNDS if validation else int(chosen["rounds"])
        privacy = ""
        if self.multiplier is not None:
            of = personal if self.is_personal else central
            privacy = f"privacy: {{{of(self.multiplier, chosen['clip'])}}}"
        return SCENARIO.format(
            title=json.dumps(title),
            path=data / "ml-1m",
            kept=", validation: 10%" if validation else "",
            negatives="negatives: 4" if self.draws_zeros else "",
            learning="{" + self.learning.format(**chosen) + "}",
            rounds=rounds,
            every=EVERY,
            on="validation" if validation else "test",
            privacy=privacy,
        )


FEDRECON = f"algorithm: fedrecon, {FACTORS}, {ITEMS}, {RIDGE}, {SUMMED}"
LIPM = f"algorithm: lipm, interest_learning_rate: 0.05, {FACTORS}, {ITEMS}, {RIDGE}, weighting: uniform"
# A weight takes a fifth of the clipping norm.
NOISY_LIPM = LIPM + ", attention_scale: {attention}"
LINES = {
    "FedRecon": Line(FEDRECON),
    "FedMF": Line(
        f"algorithm: fedmf, item_bias: true, user_bias: true, {FACTORS}, {ITEMS}, {STEPS}",
        FACTORISATION | {"epsilon": (0.1, 0.01)},
    ),
    "FedRec": Line(
        "algorithm: fedrec, item_bias: true, user_bias: true, virtual_share: {share},"
        f" predict_after: {{after:.0f}}, {FACTORS}, {ITEMS}, {STEPS}",
        {"epsilon": (1e-6, 1e-4), "after": (10, 60), "share": (1, 0.5)} | FACTORISATION,
    ),
    "pFedMe": Line(
        f"algorithm: pfedme, {FACTORS}, proximity: {{near}}, inner_learning_rate: 0.02, client: {{{{method:"
        " gradient-steps, steps: {steps:.0f}, learning_rate: {client}, regularization: {decay}}}",
        {
            "epsilon": (1e-6, 1e-4),
            "scale": (0.02, 0.1),
            "rate": (0.1, 0.03),
            "client": (2, 8),
            "steps": (8, 20),
            "near": (30, 10),
            "decay": (0.02, 0.002),
            "factors": (16, 32),
        },
    ),
    "FedNCF": Line(
        f"algorithm: fedncf, user_learning_rate: {{client}}, initial_scale: {{scale}}, {SERVER}, client: {{{{"
        "method: gradient-steps, steps: {steps:.0f}, learning_rate: 1, regularization: 0}}",
        {
            "epsilon": (1e-6,),
            "rate": (0.02, 0.006),
            "client": (5,),
            "scale": (0.1,),
            "steps": (1,),
        },
        draws_zeros=False,
    ),
    "LIPM": Line(LIPM, {"rate": FACTORISATION["rate"]}, "FedRecon"),
    "DP-FedAvg, z = 1": Line(FEDRECON, NOISY, "FedRecon", multiplier=1),
    "DP-FedAvg, z = 4": Line(FEDRECON, ONLY_CLIP, "DP-FedAvg, z = 1", multiplier=4),
    "LIPM, z = 1": Line(NOISY_LIPM, {}, "DP-FedAvg, z = 1", multiplier=1),
    "DPPS, z = 1 to 4": Line(FEDRECON, ONLY_CLIP, "DP-FedAvg, z = 1", multiplier=1, is_personal=True),
    "LIPM + DPPS, z = 1 to 4": Line(NOISY_LIPM, {}, "DPPS, z = 1 to 4", multiplier=1, is_personal=True),
}
COMMON = {"epsilon": 1e-4, "scale": 0.02, "decay": 0.02, "user": 1, "rounds": MOST_ROUNDS}
CHOSEN: dict[str, dict[str, float]] = {
    "FedRecon": {"scale": 0.005, "rate": 0.1, "user": 1, "decay": 0.02, "factors": 32, "rounds": 30},
    "FedMF": {
        "scale": 0.1, "rate": 0.03, "user": 0.3, "decay": 0.02, "factors": 32, "epsilon": 0.1, "rounds": 60,
    },
    "pFedMe": {
        "epsilon": 1e-4, "scale": 0.1, "rate": 0.1, "client": 2, "steps": 20, "near": 30, "decay": 0.02,
        "factors": 32, "rounds": 60,
    },
    "FedNCF": {"epsilon": 1e-6, "rate": 0.02, "client": 5, "scale": 0.1, "steps": 1, "rounds": 40},
    "LIPM": {"rate": 0.03, "rounds": 60},
    "DP-FedAvg, z = 1": {"clip": 0.003, "factors": 32, "rate": 0.1, "rounds": 60},
    "DP-FedAvg, z = 4": {"clip": 0.001, "rounds": 40},
    "FedRec": {
        "epsilon": 1e-6, "after": 60, "share": 0.5, "scale": 0.1, "rate": 0.03, "user": 0.3, "decay": 0.002,
        "factors": 32, "rounds": 50,
    },
}  # fmt: skip
"""What ``--search`` chose in the place of the first values, by line."""


def settings_of(line: str) -> dict[str, float]:
    """Return the settings of a line, with those that have been chosen for it."""
    like = LINES[line].like
    first = {name: values[0] for name, values in LINES[line].tried.items()}
    start = first | settings_of(like) if like else COMMON | first
    return completed(start | CHOSEN.get(line, {}))


def completed(settings: dict[str, float]) -> dict[str, float]:
    """Return settings with what follows from others."""
    return settings | {"attention": settings.get("clip", 1.0) / 5}


@dataclass(frozen=True)
class Result:
    """The metrics by round; ε of the run and of each tier, zero-out and replace-one."""

    at: dict[int, dict[str, float]]
    epsilon: str
    tiers: dict[str, str]


def run(
    line: str,
    settings: Mapping[str, float],
    data: Path,
    seed: int,
    *,
    validation: bool,
    out: Path | None = None,
) -> Result:
    """Run a line, and keep the run in ``out``; a model that diverges has what it had until then."""
    curve = Curve("seen")
    with tempfile.TemporaryDirectory() as folder:
        name = re.sub(r"[^A-Za-z0-9]+", "-", line)
        file = Path(folder) / f"{name}.yaml"  # by which a comparison calls it
        file.write_text(LINES[line].scenario(line, data, settings, validation=validation), encoding="utf-8")
        target = (out or Path(folder)) / f"{name}-{seed}"
        with np.errstate(all="ignore"):  # a step too far is a bad choice, and no more
            outcome = run_scenario(load(file, [f"seed={seed}"]), target=target, observer=curve)
        assert validation or outcome.status in ENDED, outcome.reason
        summary: dict[str, Any] = json.loads((outcome.directory / "summary.json").read_text())
    tiers = (summary.get("privacy") or {}).get("tiers", {})
    by_tier = {name: both_epsilons(tier) for name, tier in tiers.items()}
    return Result(curve.at, both_epsilons(summary), by_tier)


def search(line: str, data: Path) -> None:
    """Print what each setting that is tried comes to on the validation part, and what is chosen."""

    def best_of(settings: dict[str, float]) -> tuple[float, int]:
        at = run(line, completed(settings), data, 1, validation=True).at
        # A model that diverged has no ranking.
        return max((float(np.nan_to_num(metrics["ndcg@10"])), -number) for number, metrics in at.items())

    best = settings_of(line)
    found = best_of(best)
    print(f"{line}: {found[0]:.4f} after {-found[1]} rounds with {best}", flush=True)
    for name, values in LINES[line].tried.items():
        start = best[name]
        for value in values:
            if value == start:
                continue
            other = best_of({**best, name: value})
            print(f"    {other[0]:.4f} after {-other[1]:2} rounds  {name}: {value:g}", flush=True)
            if other > found:
                best, found = {**best, name: value}, other
    chosen = {name: best[name] for name in LINES[line].tried} | {"rounds": -found[1]}
    print(f'    "{line}": {chosen},  # {found[0]:.4f}', flush=True)


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.4f} ± {deviation:.4f}"


def row(*cells: str) -> None:
    widths = (24, 6, 15, 15, 15, 15, 0)
    print(
        "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True
    )


def references(data: Path, seeds: Sequence[int]) -> None:
    """Print the lines that need no federation."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "method.yaml"
            text = LINES["FedRecon"].scenario("references", data, settings_of("FedRecon"), validation=False)
            file.write_text(text, encoding="utf-8")
            workload = assemble(load(file, [f"seed={seed}"])).workload
        assert isinstance(workload, RatingWorkload)
        train, test = workload.split.train, workload.split.test
        assert test is not None
        users = np.flatnonzero(test.counts)
        catalogue = np.broadcast_to(np.arange(train.n_items), (train.n_users, train.n_items))
        for name, score in (
            ("popularity", popularity),
            ("item-KNN", ItemKnn(100).scores),
            ("iALS k=32", ImplicitLeastSquares(32, 10, 30).scores),
        ):
            sums = RankingSums((10,))
            scores = score(train, catalogue)[users]
            sums.add(rank_fully(scores, test.gather(users), train.gather(users), places=10))
            values = {metric: float(of_groups[0]) for metric, of_groups in sums.results().items()}
            found.setdefault(name, []).append(values)
    for name, results in found.items():
        row(name, "", *(spread([values[metric] for values in results]) for metric in METRICS), "none", "")


def measure(line: str, data: Path, seeds: Sequence[int], out: Path | None) -> None:
    """Print what a line reaches on the test part."""
    settings = settings_of(line)
    results = [run(line, settings, data, seed, validation=False, out=out) for seed in seeds]
    ends = [result.at[max(result.at)] for result in results]
    tiers = ", ".join(f"{tier} {epsilon}" for tier, epsilon in results[-1].tiers.items())
    cells = [spread([end[metric] for end in ends]) for metric in METRICS]
    row(line, f"{settings['rounds']:.0f}", *cells, results[-1].epsilon, tiers)


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("lines", nargs="*", metavar="LINE", help="; ".join(LINES))
    parser.add_argument("--search", action="store_true", help="choose settings on the validation part")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--out", type=Path, help="a folder for the runs, which are not kept otherwise")
    arguments = parser.parse_intermixed_args()
    for line in arguments.lines:
        if line not in LINES:
            parser.error(f"no line {line!r}; there are {'; '.join(LINES)}")
    data, lines = arguments.data.resolve(), arguments.lines or list(LINES)
    if arguments.search:
        for line in lines:
            search(line, data)
        return
    row("", "rounds", *(metric.upper() for metric in METRICS), "epsilon", "by tier")
    if not arguments.lines:
        references(data, range(1, arguments.seeds + 1))
    for line in lines:
        measure(line, data, range(1, arguments.seeds + 1), arguments.out)


if __name__ == "__main__":
    main()
