"""Ratios of the time that an update takes to be added up: alone, with its batch, and as before groups.

Run ``python benchmarks/sums.py``. A round of 1,024 updates in batches of 256, of 100 rows × 17 float32 each,
and of whole tables; the alternatives take turns in the same process, by CPU time, best of several rounds.
``before`` is one sum the size of the table, each update added to it in order of arrival.

Then the learning of a whole round of FedRecon by catalogue: updates of 1,024 users with 100 ratings each,
their sum, the server step of SGD and the check of the model; no links and no rows of results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.learning.accumulators import DenseAccumulator, RowAccumulator
from edge.learning.base import Problem, Ratings
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings
from edge.learning.updates import ITEMS, ROWS, Accumulator, DenseUpdateBatch, UpdateBatch

BATCH, BATCHES, RATINGS, WIDTH = 256, 4, 100, 17
SINGLE, INDEX = np.dtype(np.float32), np.dtype(np.uint32)
REPEATS = 7
Clients = npt.NDArray[np.int64]


def batches_of(n_items: int, kind: str, batch: int, rng: np.random.Generator) -> list[UpdateBatch]:
    """Return the batches of a round."""
    found = []
    for _ in range(BATCH * BATCHES // batch):
        fields: dict[str, Any] = {
            "stacked": {},
            "ragged": {},
            "offsets": np.arange(batch + 1) * RATINGS,
            "weights": np.ones(batch),
            "examples": np.full(batch, RATINGS),
            "losses": np.ones(batch),
        }
        if kind == "whole":
            tables = rng.standard_normal((batch, n_items, WIDTH), SINGLE)
            found.append(UpdateBatch(**fields | {"stacked": {ROWS: tables}}))
            continue
        chosen = [np.sort(rng.choice(n_items, RATINGS, replace=False)) for _ in range(batch)]
        fields["ragged"] = {
            ITEMS: np.concatenate(chosen).astype(INDEX),
            ROWS: rng.standard_normal((batch * RATINGS, WIDTH), SINGLE),
        }
        found.append(
            DenseUpdateBatch(**fields, n_items=n_items) if kind == "laid out" else UpdateBatch(**fields)
        )
    return found


def empty(n_items: int, kind: str) -> Accumulator:
    """Return an accumulator of a kind of updates."""
    if kind != "rows":
        return DenseAccumulator({ROWS: (SINGLE, (n_items, WIDTH))})
    return RowAccumulator(ROWS, ITEMS, index_dtype=INDEX, dtype=SINGLE, rows=n_items, width=WIDTH)


def before(n_items: int, kind: str, batches: list[UpdateBatch], clients: Clients) -> None:
    """Add a round up as it was before."""
    total = np.zeros((n_items, WIDTH), SINGLE)
    elements = total.view(np.dtype((np.void, WIDTH * SINGLE.itemsize))).ravel()
    examples, weight, loss_sum = 0, 0.0, 0.0
    for batch in batches:
        for update in batch:
            with np.errstate(over="ignore", invalid="ignore"):
                if kind == "rows":
                    index = update.arrays[ITEMS].astype(np.intp)
                    rows = elements.take(index)
                    values = rows.view(SINGLE).reshape(len(index), WIDTH)
                    values += update.arrays[ROWS]
                    np.put(elements, index, rows)
                else:
                    np.add(total, update.arrays[ROWS], out=total)
            examples += update.examples
            weight += update.weight
            loss_sum += update.loss * update.examples
    total.copy()


def alone(n_items: int, kind: str, batches: list[UpdateBatch], clients: Clients) -> None:
    """Add a round up an update at a time."""
    accumulator, numbers = empty(n_items, kind), iter(clients.tolist())
    for batch in batches:
        for update in batch:
            accumulator.add(update, next(numbers))
    accumulator.result()


def together(n_items: int, kind: str, batches: list[UpdateBatch], clients: Clients) -> None:
    """Add a round up a batch at a time."""
    accumulator, first = empty(n_items, kind), 0
    for batch in batches:
        accumulator.add_many(batch, np.arange(len(batch)), clients[first : first + len(batch)])
        first += len(batch)
    accumulator.result()


class Rounds:
    """Rounds of FedRecon with random ratings of a catalogue."""

    def __init__(self, n_items: int, rng: np.random.Generator) -> None:
        settings = {"algorithm": "fedrecon", "factors": WIDTH - 1, "optimizer": {"kind": "sgd"}}
        self.method = FedRecon(FedReconSettings.model_validate(settings), Problem(n_items=n_items))
        self.state = self.method.initial_state(1)
        self.rng, self.number = rng, 0
        self.seconds = dict.fromkeys(("updates", "sums", "step"), 0.0)

    def take(self, batches: int) -> None:
        """Take a round of so many batches."""
        n_items, began = self.method.n_items, self.state
        accumulator = self.method.accumulator(self.state)
        for batch in range(batches):
            chosen = [np.sort(self.rng.choice(n_items, RATINGS, replace=False)) for _ in range(BATCH)]
            ratings = Ratings(
                np.arange(BATCH + 1) * RATINGS,
                np.concatenate(chosen).astype(self.method.layout.item_dtype),
                self.rng.integers(1, 6, BATCH * RATINGS).astype(np.float32),
            )
            clients = np.arange(batch * BATCH, batch * BATCH + BATCH)
            start = time.process_time()
            updates = self.method.client_update(self.state, ratings, clients.astype(np.uint64))
            self.seconds["updates"] += time.process_time() - start
            start = time.process_time()
            assert accumulator.check_many(updates)
            accumulator.add_many(updates, np.arange(BATCH), clients)
            self.seconds["sums"] += time.process_time() - start
        start = time.process_time()
        aggregate = accumulator.result()
        self.seconds["sums"] += time.process_time() - start
        start = time.process_time()
        assert aggregate.finite()
        self.state, _ = self.method.server_update(self.state, {}, aggregate, self.number)
        assert self.method.finite(began, self.state, aggregate)
        self.seconds["step"] += time.process_time() - start
        self.number += 1


def by_catalogue() -> None:
    """Print what the learning of a device-round costs, µs of CPU, for catalogues of many sizes."""
    rng, best = np.random.default_rng(2), dict[int, dict[str, float]]()
    rounds = {n_items: Rounds(n_items, rng) for n_items in (1000, 10_000, 100_000, 1_000_000)}
    for _ in range(REPEATS + 2):
        for n_items, one in rounds.items():
            one.seconds = dict.fromkeys(one.seconds, 0.0)
            one.take(BATCHES)
            if one.number > 2:  # tables and versions are made in the first two
                before = best.setdefault(n_items, one.seconds)
                best[n_items] = {name: min(before[name], taken) for name, taken in one.seconds.items()}
    print(f"{'items':>9}" + "".join(f"{name:>10}" for name in (*one.seconds, "together", "ratio")))
    for n_items, seconds in best.items():
        each = [taken / (BATCH * BATCHES) * 1e6 for taken in seconds.values()]
        ratio = sum(seconds.values()) / sum(best[1000].values())
        print(f"{n_items:>9,}" + "".join(f"{value:>10.2f}" for value in (*each, sum(each), ratio)))


def main() -> None:
    rng = np.random.default_rng(1)
    ways: list[Callable[[int, str, list[UpdateBatch], Clients], None]] = [before, alone, together]
    print(
        f"{'updates':>10} {'items':>9} {'batch':>6} {'together, µs':>13} {'before':>8} {'alone':>8}  (ratios)"
    )
    for kind, n_items, batch in (
        *(("rows", n_items, BATCH) for n_items in (1000, 1682, 10_000, 100_000, 1_000_000)),
        ("laid out", 1682, BATCH),
        ("whole", 1682, BATCH),
        ("whole", 1682, 16),
    ):
        batches, clients = batches_of(n_items, kind, batch, rng), rng.integers(0, 10**6, BATCH * BATCHES)
        times: list[list[float]] = [[] for _ in ways]
        for _ in range(REPEATS):
            for way, taken in zip(ways, times, strict=True):
                begin = time.process_time()
                way(n_items, kind, batches, clients)
                taken.append((time.process_time() - begin) / len(clients) * 1e6)
        was, single, many = (min(taken) for taken in times)
        print(f"{kind:>10} {n_items:>9,} {batch:>6} {many:>13.2f} {was / many:>8.2f} {single / many:>8.2f}")
    by_catalogue()


if __name__ == "__main__":
    main()
