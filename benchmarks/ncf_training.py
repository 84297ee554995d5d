"""What the benchmark of FedNCF and FedRecGEL trains on, with what was chosen for it, and how it trains."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ranking_references import ImplicitLeastSquares, ItemKnn
from rises import rises

from coordinator.engine.assembly import Assembly
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from edge.core.rng import hashed_bits, stream, stream_key
from edge.learning.base import State
from edge.learning.sharpness import Radii

REFERENCE_RADII = Radii(0.02, 0.02)
"""FedRecGEL's own, within which sharpness is measured, too."""
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
    radii: Radii = REFERENCE_RADII
    cohort: int = 100
    every: int = 20
    published: bool = False


RATES = {"user_learning_rate": 5, "learning_rate": 0.006}
# Few ratings a user: items begin almost alike, so that what is learned first is how popular they are.
SPARSE = {"user_learning_rate": 20, "user_steps": 1, "learning_rate": 0.003, "initial_scale": 0.01}
WIDE = Radii(0.1, 0.1)
EVERY_ITEM = 1 << 20
DATASETS = {
    "ml-100k": Dataset(
        "movielens-100k", "ml-100k", RATES, 160, ItemKnn(20), ImplicitLeastSquares(32, 10, 30), WIDE
    ),
    "ml-1m": Dataset(
        "movielens-1m",
        "ml-1m",
        RATES,
        300,
        ItemKnn(100),
        ImplicitLeastSquares(32, 10, 30),
        WIDE,
        every=50,
        published=True,
    ),
    "amazon-video": Dataset(
        "plain",
        "amazon-video/ratings.dat",
        SPARSE,
        80,
        ItemKnn(EVERY_ITEM),
        ImplicitLeastSquares(32, 10, 30),
        WIDE,
        cohort=400,
    ),
    "filmtrust": Dataset(
        "plain", "filmtrust/ratings.txt", RATES, 140, ItemKnn(EVERY_ITEM), ImplicitLeastSquares(32, 10, 30)
    ),
}


def scenario_of(
    dataset: Dataset, data: Path, learning: dict[str, Any], rounds: int, seed: int, *, validation: bool
) -> str:
    """Return a scenario file; JSON is YAML."""
    kind = "published-leave-one-out" if dataset.published else "leave-one-out"
    written = {
        "format": 2,
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


def learning_of(method: str, dataset: Dataset, changes: dict[str, Any], radii: Radii) -> dict[str, Any]:
    """Return the section ``learning`` of a method; ``radii`` are FedRecGEL's."""
    ncf = {"algorithm": "fedncf", **NETWORK, **dataset.settings, **changes}
    if method == "fedncf":
        return ncf
    return {"algorithm": "fedrecgel", "base": ncf, "shared_radius": radii.shared, "local_radius": radii.local}


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
            accumulator.add(update, client)
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
            found.append(rises(algorithm, self.state, batch, keys, kept, REFERENCE_RADII))
        shared, local = (np.concatenate(values) for values in zip(*found, strict=True))
        return float(shared.mean()), float(local.mean())
