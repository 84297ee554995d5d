"""Small random data for the learning tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning.base import Problem, Ratings
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings
from edge.learning.updates import Accumulator, ClientUpdate, UpdateBatch


class Samples(NamedTuple):
    indptr: npt.NDArray[np.int64]
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]


def offsets_of(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def random_ratings(seed: int, counts: list[int], n_items: int, dtype: Any = np.float32) -> Ratings:
    rng = np.random.default_rng(seed)
    items = [np.sort(rng.choice(n_items, count, replace=False)) for count in counts]
    return Ratings(
        offsets_of(np.array(counts, dtype=np.int64)),
        np.concatenate([*items, np.zeros(0)]).astype(np.uint16),
        rng.integers(1, 6, sum(counts)).astype(dtype),
    )


def low_rank_ratings(seed: int, users: int, n_items: int, each: int) -> Ratings:
    rng = np.random.default_rng(seed)
    taste, items_taste = rng.normal(size=(users, 3)), rng.normal(size=(n_items, 3))
    items = np.concatenate([np.sort(rng.choice(n_items, each, replace=False)) for _ in range(users)])
    owners = np.repeat(np.arange(users), each)
    ratings = 3.0 + np.einsum("nk,nk->n", taste[owners], items_taste[items]) + rng.normal(0, 0.3, len(items))
    return Ratings(np.arange(users + 1) * each, items.astype(np.uint16), ratings.astype(np.float32))


def keys_for(seed: int, n: int) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)


def take_users(batch: Ratings, users: list[int]) -> Ratings:
    counts = np.diff(batch.indptr)[users]
    rows = np.concatenate(
        [np.arange(batch.indptr[user], batch.indptr[user + 1]) for user in users] + [np.zeros(0, np.int64)]
    )
    return Ratings(offsets_of(counts), batch.items[rows], batch.ratings[rows])


def fedrecon(n_items: int, mean: float = 3.0, dtype: Any = np.float32, **settings: Any) -> FedRecon:
    model = FedReconSettings.model_validate({"algorithm": "fedrecon", **settings})
    return FedRecon(model, Problem(n_items=n_items, rating_mean=mean), dtype)


def trained_looking_state(algorithm: FedRecon, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Give a state with biases that are not zero."""
    state = dict(algorithm.initial_state(seed))
    if "item_bias" in state:
        bias = np.random.default_rng(seed).normal(0, 0.5, len(state["item_bias"]))
        state["item_bias"] = bias.astype(state["item_bias"].dtype)
    return state


def assert_same_update(left: UpdateBatch, i: int, right: UpdateBatch, j: int) -> None:
    one, other = left.client(i), right.client(j)
    assert one.arrays.keys() == other.arrays.keys()
    for name in one.arrays:
        assert one.arrays[name].dtype == other.arrays[name].dtype
        assert one.arrays[name].tobytes() == other.arrays[name].tobytes(), name
    assert one[1:4] == other[1:4]
    assert (one.local is None) == (other.local is None)
    if one.local is not None and other.local is not None:
        assert one.local.tobytes() == other.local.tobytes()


def add_all(accumulator: Accumulator, updates: Iterable[ClientUpdate]) -> None:
    for client, update in enumerate(updates):
        accumulator.add(update, client)
