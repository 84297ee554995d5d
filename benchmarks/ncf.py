"""FedNCF and FedRecGEL on implicit feedback: leave-one-out, one held-out item among 99 others.

    python benchmarks/ncf.py DATA                  every dataset: reference lines, then both methods with
                                                   seeds 1 to 3, scored on the test part
    python benchmarks/ncf.py DATA ml-1m --seeds 1  one dataset, one seed
    python benchmarks/ncf.py DATA --validation     what rounds and settings were chosen by: seed 1, scored on
                                                   a validation part, which then does not train
    python benchmarks/ncf.py DATA ml-100k --validation --set learning_rate=0.01
                                                   what another setting would do, in both methods
    python benchmarks/ncf.py DATA --speed          client updates a second, in batches and one by one; and
                                                   100 rounds of MovieLens 1M in the simulator

DATA is a folder with ``ml-100k``, ``ml-1m`` (with the published split beside it), ``amazon-video`` and
``filmtrust``. Every rating is a positive. MovieLens 1M uses the published held-out items and negatives; on
the other sets a user's last rating is held out (FilmTrust has no times: a random one) and negatives are
drawn.

HR@10 and NDCG@10 are over all users with a held-out item. ``rise`` is how much a device's loss rises at the
worst point within 0.02 of the shared, and of the local block, a mean over devices after the last round.
Accuracy needs no fleet: devices are drawn at random, and none leaves. The settings of the reference lines
were not searched on validation data: those of item-KNN and iALS are a handful tried on MovieLens 100K's test
part, which flatters them, if anything.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ranking_references import ImplicitLeastSquares, ItemKnn, popularity

from coordinator.assembly import Assembly, assemble
from coordinator.evaluation import RatingEvaluator
from coordinator.progress import SilentProgress
from coordinator.runner import run_scenario
from coordinator.scenario.load import load
from coordinator.workload import RatingWorkload
from edge.evaluation.ranking import ranks_among
from edge.learning.base import State
from edge.learning.sharpness import Radii
from edge.rng import hashed_bits, stream, stream_key

RADIUS = 0.02
NETWORK = {"gmf_factors": 32, "mlp_factors": 128, "layers": [128, 64, 32], "negatives": 4}
SMALL = {"gmf_factors": 8, "mlp_factors": 8, "layers": [16, 8], "negatives": 4}


@dataclass(frozen=True)
class Dataset:
    """A dataset, how it is read, and what was chosen on its validation part."""

    source: str
    path: str
    settings: dict[str, Any]
    rounds: int
    knn: ItemKnn
    als: ImplicitLeastSquares
    cohort: int = 100
    every: int = 20
    published: bool = False


RATES = {"user_learning_rate": 5, "learning_rate": 0.006}
# Few ratings a user: items begin almost alike, so that what is learned first is how popular they are.
SPARSE = {"user_learning_rate": 20, "user_steps": 1, "learning_rate": 0.003, "initial_scale": 0.01}
EVERY_ITEM = 1 << 20
DATASETS = {
    "ml-100k": Dataset(
        "movielens-100k", "ml-100k", RATES, 140, ItemKnn(20), ImplicitLeastSquares(32, 10, 30)
    ),
    "ml-1m": Dataset(
        "movielens-1m",
        "ml-1m",
        RATES,
        300,
        ItemKnn(100),
        ImplicitLeastSquares(32, 10, 30),
        every=50,
        published=True,
    ),
    "amazon-video": Dataset(
        "plain",
        "amazon-video/ratings.dat",
        SPARSE,
        100,
        ItemKnn(EVERY_ITEM),
        ImplicitLeastSquares(32, 10, 30),
        cohort=400,
    ),
    "filmtrust": Dataset(
        "plain", "filmtrust/ratings.txt", RATES, 100, ItemKnn(EVERY_ITEM), ImplicitLeastSquares(32, 10, 30)
    ),
}


def scenario_of(
    dataset: Dataset, data: Path, learning: dict[str, Any], rounds: int, seed: int, *, validation: bool
) -> str:
    """Return a scenario file; JSON is YAML."""
    kind = "published-leave-one-out" if dataset.published else "leave-one-out"
    written = {
        "format": 1,
        "seed": seed,
        "data": {
            "source": dataset.source,
            "path": str(data / dataset.path),
            "split": {"kind": kind, "validation": "true" if validation else "false"},
        },
        "fleet": {"mix": "global_android_2024", "availability": "always_on"},
        "learning": learning,
        "rounds": {"count": rounds, "cohort": dataset.cohort, "deadline": "600 s"},
        "evaluation": {
            "every": rounds,
            "on": "validation" if validation else "test",
            "ranking": {"k": [10], "negatives": 99},
        },
        "record": {"events": "none"},
    }
    return json.dumps(written)


def learning_of(method: str, dataset: Dataset, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``learning`` of a method."""
    ncf = {"algorithm": "fedncf", **NETWORK, **dataset.settings, **changes}
    if method == "fedncf":
        return ncf
    return {"algorithm": "fedrecgel", "base": ncf, "shared_radius": RADIUS, "local_radius": RADIUS}


def assembled(text: str) -> Assembly:
    """Return what a run of the scenario would work with."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(text)
        return assemble(load(file))


@dataclass(frozen=True)
class Measured:
    """What a model is worth after some rounds."""

    rounds: int
    hr: float
    ndcg: float
    loss: float
    cpu_s: float


def measured(assembly: Assembly, state: State) -> tuple[float, float]:
    """Return HR@10 and NDCG@10 of all users."""
    values = {v.metric: v.value for v in assembly.evaluator.evaluate(state) if v.tag == "all"}
    return values["hr@10/99neg"], values["ndcg@10/99neg"]


class Training:
    """Rounds of a method without a fleet: random cohorts of which every device reports."""

    def __init__(self, assembly: Assembly, seed: int) -> None:
        workload = assembly.workload
        assert isinstance(workload, RatingWorkload)
        self.assembly, self.workload, self.algorithm = assembly, workload, workload.algorithm
        self.seed = seed
        self.state: State = self.algorithm.initial_state(seed)
        self.optimizer_state = self.algorithm.initial_optimizer_state(self.state)
        self.loss = float("nan")

    def round(self, number: int, cohort: int) -> None:
        """Take one round."""
        drawn = stream(self.seed, "benchmark", "cohort", number)
        clients = np.sort(drawn.choice(self.workload.n_clients, cohort, replace=False)).astype(np.int64)
        accumulator = self.algorithm.accumulator(self.state)
        updates = self.workload.training(self.state, number)(clients)()
        for client, update in zip(clients.tolist(), updates, strict=True):
            if self.workload.keep is not None and update.local is not None:
                self.workload.keep(client, update.local)
            accumulator.add(update)
        aggregate = accumulator.result()
        self.loss = aggregate.loss
        self.state, self.optimizer_state = self.algorithm.server_update(
            self.state, self.optimizer_state, aggregate, number
        )

    def curve(self, rounds: int, cohort: int, every: int) -> Iterator[Measured]:
        """Yield what the model is worth every so many rounds and at the end."""
        start_s = time.process_time()
        for number in range(rounds):
            self.round(number, cohort)
            if (number + 1) % every == 0 or number + 1 == rounds:
                hr, ndcg = measured(self.assembly, self.state)
                yield Measured(number + 1, hr, ndcg, self.loss, time.process_time() - start_s)

    def rises(self) -> tuple[float, float]:
        """Return the mean rise of devices' losses at the worst shared and the worst local block nearby."""
        users = self.workload.clients.users
        algorithm: Any = self.algorithm
        found = []
        for first in range(0, len(users), 512):
            part = users[first : first + 512]
            batch = self.workload.training_batch(part, 0)
            keys = hashed_bits(stream_key(self.seed, "benchmark", "sharpness"), part)
            kept = self.workload.kept_of(part)
            found.append(algorithm.sharpness(self.state, batch, keys, kept, Radii(RADIUS, RADIUS)))
        shared, local = (np.concatenate(values) for values in zip(*found, strict=True))
        return float(shared.mean()), float(local.mean())


def ranked(scores: npt.NDArray[Any], table: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return HR@10 and NDCG@10 of the first candidate of every row among the others."""
    ranks = ranks_among(scores[:, 0], scores[:, 1:], table[:, 0], table[:, 1:])
    gains = np.where(ranks < 10, 1.0 / np.log2(ranks + 2.0), 0.0)
    return float(np.mean(ranks < 10)), float(gains.mean())


def print_references(name: str, dataset: Dataset, assembly: Assembly) -> None:
    """Print the lines that need no federation."""
    workload = assembly.workload
    assert isinstance(workload, RatingWorkload)
    train = workload.split.train
    assert isinstance(assembly.evaluator, RatingEvaluator)
    users, table = assembly.evaluator.candidates()
    everyone = np.zeros((train.n_users, table.shape[1]), np.int64)
    everyone[users] = table
    for line, scores in (
        ("popularity", popularity(train, everyone)),
        ("item-KNN", dataset.knn.scores(train, everyone)),
        ("iALS k=32", dataset.als.scores(train, everyone)),
    ):
        hr, ndcg = ranked(scores[users], table)
        print(f"{name:13} {line:12} {hr:6.4f}            {ndcg:6.4f}", flush=True)


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):6.4f} ± {deviation:.4f}"


def print_test(name: str, dataset: Dataset, data: Path, seeds: Sequence[int], methods: Sequence[str]) -> None:
    """Print reference lines and both methods, scored on the test part."""
    text = scenario_of(dataset, data, learning_of("fedncf", dataset, {}), dataset.rounds, 1, validation=False)
    print_references(name, dataset, assembled(text))
    for method in methods:
        rounds = dataset.rounds
        ends, rises, start_s = [], [], time.process_time()
        for seed in seeds:
            learning = learning_of(method, dataset, {})
            text = scenario_of(dataset, data, learning, rounds, seed, validation=False)
            training = Training(assembled(text), seed)
            *_, end = training.curve(rounds, dataset.cohort, rounds)
            ends.append(end)
            rises.append(training.rises())
        shared, local = (statistics.fmean(values) for values in zip(*rises, strict=True))
        cpu_s = (time.process_time() - start_s) / len(seeds)
        cells = [spread([getattr(end, metric) for end in ends]) for metric in ("hr", "ndcg")]
        print(
            f"{name:13} {method:12} {cells[0]:17} {cells[1]:17} {rounds:6} rounds,"
            f" rise {shared:.4f} {local:.4f}, {cpu_s:.0f} s CPU a run",
            flush=True,
        )


def print_validation(
    name: str, dataset: Dataset, data: Path, changes: dict[str, Any], methods: Sequence[str]
) -> None:
    """Print the curves that rounds are chosen by, a fifth longer than what was chosen."""
    for method in methods:
        rounds = dataset.rounds + dataset.rounds // 5
        learning = learning_of(method, dataset, changes)
        training = Training(assembled(scenario_of(dataset, data, learning, rounds, 1, validation=True)), 1)
        for at in training.curve(rounds, dataset.cohort, dataset.every):
            print(
                f"{name:13} {method:12} {at.rounds:5} rounds  HR {at.hr:.4f}  NDCG {at.ndcg:.4f}"
                f"  loss {at.loss:.4f}  {at.cpu_s:.0f} s CPU",
                flush=True,
            )


def print_rates(name: str, dataset: Dataset, data: Path, network: dict[str, Any], label: str) -> None:
    """Print client updates a second of one core, in batches of 256 and one by one."""
    learning = learning_of("fedncf", dataset, network)
    training = Training(assembled(scenario_of(dataset, data, learning, 1, 1, validation=False)), 1)
    clients = np.arange(min(512, training.workload.n_clients))
    kernel = training.workload.training(training.state, 0)
    batches = [clients[first : first + 256] for first in range(0, len(clients), 256)]
    singles = [clients[client : client + 1] for client in range(128)]
    rates = []
    for parts in (batches, singles):
        best_s = float("inf")
        for _ in range(3):
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
    text = scenario_of(dataset, data, learning_of("fedncf", dataset, {}), 100, 1, validation=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(text)
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        outcome = run_scenario(load(file), target=Path(folder) / "run", observer=SilentProgress())
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
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--methods", nargs="+", choices=("fedncf", "fedrecgel"), default=("fedncf", "fedrecgel")
    )
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
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
    if changes and not options.validation:
        parser.error("settings are tried on validation data; write --validation too")
    print(f"{'':26} {'HR@10':17} NDCG@10" if not options.validation else "scored on validation")
    for name in options.datasets:
        if options.validation:
            print_validation(name, DATASETS[name], options.data, changes, options.methods)
        else:
            seeds = range(1, options.seeds + 1)
            print_test(name, DATASETS[name], options.data, seeds, options.methods)


if __name__ == "__main__":
    main()
