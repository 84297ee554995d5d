"""What virtual ratings cost FedRec, and what they hide: accuracy beside an audit of the uploads.

    python benchmarks/virtual_ratings.py DATA              every line, seeds 1 to 3
    python benchmarks/virtual_ratings.py DATA --seeds 1    one seed

DATA is a folder with ``ml-100k``, as grouplens.org has it. 200 rounds of 100 users drawn at random, learning
alone, without a fleet: 80% of each user's ratings train, the rest is scored. Then the coordinator reads one
more upload of every user, in the clear, and takes as many of its items for rated as there are: those with the
largest rows, or those named most often in the uploads that it has seen of this user. Both are granted the
number of rated items.

Columns: test RMSE; items in an upload for each rated one; the share of rated items that a guess by chance
finds, and what rows and names find.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from accuracy import loaded, spread
from rated_set import rated_set_attack

from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from edge.core.rng import hashed_bits, stream
from edge.data.split import Split
from edge.learning.base import Problem
from edge.learning.methods.fedrec import FedRec, FedRecSettings

ROUNDS, COHORT = 200, 100
SHARES = (0.0, 1.0, 3.0)
WAYS = tuple(itertools.product(("user-mean", "hybrid"), ("once", "every-round")))


@dataclass(frozen=True)
class Found:
    """A trained model's error, and the share of rated items found in uploads."""

    rmse: float
    named: float
    chance: float
    by_rows: float
    by_names: float


def settings(share: float, filling: str, draw: str) -> FedRecSettings:
    """Return the settings of a line: those of persistent factors in persistent_factors.py, one step."""
    return FedRecSettings.model_validate(
        {
            "algorithm": "fedrec",
            "factors": 20,
            "item_bias": True,
            "user_bias": True,
            "initial_scale": 0.02,
            "virtual_share": share,
            "filling": filling,
            "draw": draw,
            "reconstruction": {
                "method": "gradient-steps",
                "steps": 1,
                "learning_rate": 1,
                "bias_learning_rate": 0.9,
                "regularization": 24,
                "bias_regularization": 4,
            },
            "client": {"method": "gradient-steps", "steps": 1, "learning_rate": 1, "regularization": 0.02},
            "optimizer": {"kind": "adam", "beta2": 0.99, "epsilon": 1e-5},
            "learning_rate": 0.016,
            "schedule": {"kind": "cosine", "rounds": ROUNDS, "final": "2%"},
        }
    )


def learn(split: Split, written: FedRecSettings, seed: int) -> Found:
    """Train, score, and attack one more upload of every user."""
    train = split.train
    algorithm = FedRec(written, Problem(n_items=train.n_items, rating_mean=train.mean()))
    state = algorithm.initial_state(seed)
    optimizer_state = algorithm.initial_optimizer_state(state)
    local = np.zeros((train.n_users, algorithm.local_width), np.float32)
    times: npt.NDArray[np.int64] = np.zeros((train.n_users, train.n_items), np.int64)
    draws, key = stream(seed, "benchmark", "cohorts"), seed + 1
    for number in range(ROUNDS):
        users = np.sort(draws.choice(split.seen_users, COHORT, replace=False))
        updates = algorithm.client_update(
            state, train.gather(users), hashed_bits(key, users, np.array([number])), local=local[users]
        )
        assert updates.local is not None
        local[users] = updates.local
        accumulator = algorithm.accumulator(state)
        for user, update in zip(users.tolist(), updates, strict=True):
            times[user, update.arrays["items"]] += 1
            accumulator.add(update, user)
        state, optimizer_state = algorithm.server_update(state, optimizer_state, accumulator.result(), number)
    users = split.seen_users
    support, query, keys = train.gather(users), split.test.gather(users), hashed_bits(key, users)
    predicted = algorithm.predict(state, support, query, keys, local[users])
    rmse = float(np.sqrt(np.mean(np.square(predicted - query.ratings, dtype=np.float64))))
    last = algorithm.client_update(state, support, keys, local=local[users])
    items, rows = last.ragged["items"].astype(np.int64), last.ragged["item_rows"]
    owners = np.repeat(np.arange(len(users)), np.diff(last.offsets))
    rated = np.zeros((len(users), train.n_items), np.bool_)
    rated[np.repeat(np.arange(len(users)), np.diff(support.indptr)), support.items] = True
    truth = rated[owners, items]
    times[users[owners], items] += 1
    by_rows = rated_set_attack(last.offsets, np.linalg.norm(rows, axis=1), truth)
    by_names = rated_set_attack(last.offsets, times[users[owners], items], truth)
    return Found(
        rmse,
        len(items) / np.count_nonzero(truth),
        by_rows.chance.metric().value,
        by_rows.attack.metric().value,
        by_names.attack.metric().value,
    )


def print_row(*cells: str) -> None:
    print(
        "  ".join(f"{cell:{w}}" for cell, w in zip(cells, (5, 10, 12, 16, 7, 7, 7, 7), strict=True)),
        flush=True,
    )


def main() -> None:
    """Print a row for each share, filling and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1")
    arguments = parser.parse_args()
    splits = {}
    for seed in range(1, arguments.seeds + 1):
        scenario = loaded(arguments.data.resolve(), "movielens_100k", (), seed, validation=False)
        workload = assemble(scenario).workload
        assert isinstance(workload, RatingWorkload)
        splits[seed] = workload.split
    print_row("rho", "filling", "draw", "test RMSE", "items", "chance", "rows", "names")
    for share in SHARES:
        for filling, draw in WAYS if share else WAYS[:1]:
            written = settings(share, filling, draw)
            found = [learn(split, written, seed) for seed, split in splits.items()]
            mean = [
                f"{statistics.fmean(getattr(f, name) for f in found):.3f}"
                for name in ("named", "chance", "by_rows", "by_names")
            ]
            print_row(
                f"{share:g}",
                filling if share else "",
                draw if share else "",
                spread([f.rmse for f in found]),
                *mean,
            )


if __name__ == "__main__":
    main()
