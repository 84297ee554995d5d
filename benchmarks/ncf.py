"""FedNCF and FedRecGEL on implicit feedback: leave-one-out, one held-out item among 99 others.

    python benchmarks/ncf.py DATA                  every dataset: reference lines, then both methods with
                                                   seeds 1 to 3, scored on the test part
    python benchmarks/ncf.py DATA ml-1m --seeds 2  one dataset, seed 2 alone
    python benchmarks/ncf.py DATA --validation     what rounds and settings were chosen by: seed 1, scored on
                                                   a validation part, which then does not train
    python benchmarks/ncf.py DATA ml-100k --validation --set learning_rate=0.01
                                                   what another setting would do, in both methods
    python benchmarks/ncf.py DATA ml-1m --validation --rounds 900 --methods fedncf \
        --set learning_rate=0.012 --set 'schedule={"kind": "cosine", "rounds": 900}'
                                                   more rounds, at a rate that falls
    python benchmarks/ncf.py DATA ml-1m --validation --references
                                                   iALS with other factors and penalties
    python benchmarks/ncf.py DATA --methods fedrecgel --radii 0.02 0.02
                                                   FedRecGEL with other radii than those chosen
    python benchmarks/ncf.py DATA --speed          client updates a second, in batches and one by one; and
                                                   100 rounds of MovieLens 1M in the simulator

DATA is a folder with ``ml-100k``, ``ml-1m`` (with the published split beside it), ``amazon-video`` and
``filmtrust``. Every rating is a positive. MovieLens 1M uses the published held-out items and negatives; on
the other sets a user's last rating is held out (FilmTrust has no times: a random one) and negatives are
drawn.

HR@10 and NDCG@10 are over all users with a held-out item. ``rise`` is how much a device's loss rises at the
worst point within 0.02 of the shared, and of the local block, a mean over devices after the last round.
Held-out items are drawn as negatives, like all others (``data.held_out_negatives: drawn``). Accuracy needs no
fleet: devices are drawn at random, and none leaves. The settings of the reference lines
were not searched on validation data: those of item-KNN and iALS are a handful tried on MovieLens 100K's test
part, which flatters them, if anything.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ncf_training import (
    DATASETS,
    NETWORK,
    REFERENCE_RADII,
    SMALL,
    Dataset,
    Training,
    assembled,
    learning_of,
    scenario_of,
)
from ranking_references import Candidates, Scores, popularity

from coordinator.engine.assembly import Assembly
from coordinator.engine.evaluation import RatingEvaluator
from coordinator.engine.progress import RunObserver
from coordinator.engine.workload import RatingWorkload
from coordinator.results.intervals import estimate
from coordinator.run.runner import run_scenario
from coordinator.scenario.load import load
from edge.data.store import RatingStore
from edge.learning.sharpness import Radii
from edge.metrics.ranking import ranks_among

FACTORS = (16, 32, 64, 128)
PENALTIES = (10.0, 30.0, 100.0, 300.0)
"""What iALS is searched over."""


def ranked(scores: npt.NDArray[Any], table: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return HR@10 and NDCG@10 of the first candidate of every row among the others."""
    ranks = ranks_among(scores[:, 0], scores[:, 1:], table[:, 0], table[:, 1:])
    gains = np.where(ranks < 10, 1.0 / np.log2(ranks + 2.0), 0.0)
    return float(np.mean(ranks < 10)), float(gains.mean())


def scored_references(
    assembly: Assembly, lines: Mapping[str, Callable[[RatingStore, Candidates], Scores]]
) -> Iterator[tuple[str, float, float]]:
    """Yield each line that needs no federation with its HR@10 and NDCG@10."""
    workload = assembly.workload
    assert isinstance(workload, RatingWorkload)
    train = workload.split.train
    assert isinstance(assembly.evaluator, RatingEvaluator)
    users, table = assembly.evaluator.candidates()
    everyone = np.zeros((train.n_users, table.shape[1]), np.int64)
    everyone[users] = table
    for line, scores in lines.items():
        yield line, *ranked(scores(train, everyone)[users], table)


def print_references(name: str, dataset: Dataset, assembly: Assembly) -> None:
    """Print the lines that need no federation."""
    lines = {"popularity": popularity, "item-KNN": dataset.knn.scores, "iALS k=32": dataset.als.scores}
    for line, hr, ndcg in scored_references(assembly, lines):
        print(f"{name:13} {line:12} {hr:6.4f}            {ndcg:6.4f}", flush=True)


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):6.4f} ± {deviation:.4f}"


@dataclass(frozen=True)
class Tested:
    """What a method reaches on the test part with one seed, and how sharp the minimum is."""

    hr: float
    ndcg: float
    shared_rise: float
    local_rise: float


def tested(dataset: Dataset, data: Path, method: str, radii: Radii, seed: int) -> Tested:
    """Train with one seed and score on the test part."""
    learning = learning_of(method, dataset, {}, radii)
    text = scenario_of(dataset, data, learning, dataset.rounds, seed, validation=False)
    training = Training(assembled(text), seed)
    *_, end = training.curve(dataset.rounds, dataset.cohort, dataset.rounds)
    return Tested(end.hr, end.ndcg, *training.rises())


def print_test(
    name: str, dataset: Dataset, data: Path, seeds: Sequence[int], methods: Sequence[str], radii: Radii
) -> None:
    """Print reference lines, the methods scored on the test part, and how they differ with the same seed."""
    learning = learning_of("fedncf", dataset, {}, radii)
    print_references(
        name, dataset, assembled(scenario_of(dataset, data, learning, dataset.rounds, 1, validation=False))
    )
    found: dict[str, list[Tested]] = {method: [] for method in methods}
    for seed in seeds:
        for method, results in found.items():
            start_s = time.process_time()
            one = tested(dataset, data, method, radii, seed)
            cpu_s = time.process_time() - start_s
            results.append(one)
            print(
                f"{name:13} {method:12} seed {seed}: HR {one.hr:.4f}  NDCG {one.ndcg:.4f}"
                f"  rise {one.shared_rise:.4f} {one.local_rise:.4f}  {cpu_s:.0f} s CPU",
                flush=True,
            )
    for method, results in found.items():
        cells = [spread([getattr(one, metric) for one in results]) for metric in ("hr", "ndcg")]
        rises = [
            statistics.fmean(getattr(one, f"{block}_rise") for one in results)
            for block in ("shared", "local")
        ]
        of = f" ({radii.shared:g}, {radii.local:g})" if method == "fedrecgel" else ""
        print(
            f"{name:13} {method:12} {cells[0]:17} {cells[1]:17} {dataset.rounds} rounds,"
            f" rise {rises[0]:.4f} {rises[1]:.4f}{of}",
            flush=True,
        )
    if len(found) == 2:
        print_differences(name, found["fedncf"], found["fedrecgel"])


def print_differences(name: str, plain: Sequence[Tested], sharp: Sequence[Tested]) -> None:
    """Print FedRecGEL less FedNCF, paired by seed, with 95 % intervals."""
    for metric in ("hr", "ndcg", "shared_rise", "local_rise"):
        changes = [
            getattr(one, metric) - getattr(other, metric) for one, other in zip(sharp, plain, strict=True)
        ]
        found = estimate(changes)
        interval = "" if found.half_width is None else f" ± {found.half_width:.4f}"
        each = " ".join(f"{change:+.4f}" for change in changes)
        print(
            f"{name:13} FedRecGEL − FedNCF, {metric:11} {found.mean:+.4f}{interval}   by seed {each}",
            flush=True,
        )


def print_validation(
    name: str,
    dataset: Dataset,
    data: Path,
    changes: dict[str, Any],
    methods: Sequence[str],
    radii: Radii,
    rounds: int,
) -> None:
    """Print the curves that rounds are chosen by."""
    for method in methods:
        learning = learning_of(method, dataset, changes, radii)
        training = Training(assembled(scenario_of(dataset, data, learning, rounds, 1, validation=True)), 1)
        for at in training.curve(rounds, dataset.cohort, dataset.every):
            print(
                f"{name:13} {method:12} {at.rounds:5} rounds  HR {at.hr:.4f}  NDCG {at.ndcg:.4f}"
                f"  loss {at.loss:.4f}  {at.cpu_s:.0f} s CPU",
                flush=True,
            )


def print_searched_references(name: str, dataset: Dataset, data: Path) -> None:
    """Print iALS scored on the validation part, by factors and penalty."""
    learning = learning_of("fedncf", dataset, {}, REFERENCE_RADII)
    assembly = assembled(scenario_of(dataset, data, learning, 1, 1, validation=True))
    for factors, regularization in itertools.product(FACTORS, PENALTIES):
        als = replace(dataset.als, factors=factors, regularization=regularization)
        ((line, hr, ndcg),) = scored_references(assembly, {f"iALS k={factors}": als.scores})
        print(f"{name:13} {line:12} penalty {regularization:3.0f}  HR {hr:.4f}  NDCG {ndcg:.4f}", flush=True)


def print_rates(name: str, dataset: Dataset, data: Path, network: dict[str, Any], label: str) -> None:
    """Print client updates a second of one core, of the same 256 clients in one batch and one by one."""
    learning = learning_of("fedncf", dataset, network, REFERENCE_RADII)
    training = Training(assembled(scenario_of(dataset, data, learning, 1, 1, validation=False)), 1)
    clients = np.arange(256)
    kernel = training.workload.training(training.state, 0)
    rates = []
    for parts in ([clients], np.split(clients, len(clients))):
        best_s = float("inf")
        for _ in range(5):
            start_s = time.process_time()
            for part in parts:
                for _ in kernel(part)():
                    pass
            best_s = min(best_s, (time.process_time() - start_s) / sum(map(len, parts)))
        rates.append(1.0 / best_s)
    ratio = rates[0] / rates[1]
    print(
        f"{name:13} {label:20} {rates[0]:8.0f} in batches  {rates[1]:8.0f} one by one  {ratio:.1f} x",
        flush=True,
    )


def print_speed(data: Path) -> None:
    """Print client updates a second, and how long 100 rounds of MovieLens 1M take in the simulator."""
    print("client updates a second of CPU time")
    for name, dataset in DATASETS.items():
        print_rates(name, dataset, data, NETWORK, "32, 128, 128-64-32")
        print_rates(name, dataset, data, SMALL, "8, 8, 16-8")
    dataset = DATASETS["ml-1m"]
    learning = learning_of("fedncf", dataset, {}, REFERENCE_RADII)
    text = scenario_of(dataset, data, learning, 100, 1, validation=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(text)
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        outcome = run_scenario(load(file), target=Path(folder) / "run", observer=RunObserver())
        wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        summary: dict[str, Any] = json.loads((outcome.directory / "summary.json").read_text())
    print(
        f"ml-1m, 100 rounds of 100 phones in the simulator, evaluated at the end: {wall_s:.0f} s,"
        f" {cpu_s:.0f} s CPU; {summary['rounds']['completed']} rounds completed,"
        f" {summary['simulated_s'] / 3600:.2f} simulated hours,"
        f" {summary['bytes']['up'] / 1e6 / 10_000:.2f} MB up a report"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("datasets", nargs="*", default=list(DATASETS), metavar="DATASET")
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3), metavar="SEED")
    parser.add_argument(
        "--methods", nargs="+", choices=("fedncf", "fedrecgel"), default=("fedncf", "fedrecgel")
    )
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--references", action="store_true")
    parser.add_argument("--rounds", type=int, metavar="N")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--radii", nargs=2, type=float, metavar=("SHARED", "LOCAL"))
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    unknown = set(options.datasets) - DATASETS.keys()
    if unknown:
        parser.error(f"no dataset {', '.join(sorted(unknown))}; there are {', '.join(DATASETS)}")
    if options.speed:
        print_speed(options.data)
        return
    changes: dict[str, Any] = {}
    for change in options.set:
        key, _, value = change.partition("=")
        changes[key] = json.loads(value) if value[:1] in "[{" else value
    if (changes or options.rounds or options.references) and not options.validation:
        parser.error("settings are tried on validation data; write --validation too")
    print(f"{'':26} {'HR@10':17} NDCG@10" if not options.validation else "scored on validation")
    for name in options.datasets:
        dataset = DATASETS[name]
        radii = dataset.radii if options.radii is None else Radii(*options.radii)
        if options.references:
            print_searched_references(name, dataset, options.data)
        elif options.validation:
            rounds = options.rounds or dataset.rounds + dataset.rounds // 5
            print_validation(name, dataset, options.data, changes, options.methods, radii, rounds)
        else:
            print_test(name, dataset, options.data, options.seeds, options.methods, radii)


if __name__ == "__main__":
    main()
