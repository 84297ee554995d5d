"""Small data for the tests of the mask models."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning.masks.base import MaskModel
from edge.learning.masks.high_order import HighOrder, HighOrderSettings
from edge.learning.masks.one_order import OneOrder, OneOrderSettings
from edge.learning.masks.two_order import TwoOrder, TwoOrderSettings
from edge.learning.masks.zero_order import ZeroOrder, ZeroOrderSettings

KINDS = ("zero-order", "one-order", "two-order", "high-order")


def all_models() -> dict[str, MaskModel]:
    """Make a model of every kind, with little regularisation so that there is something to see."""
    return {
        "zero-order": ZeroOrder(ZeroOrderSettings(shrinkage=1.5)),
        "one-order": OneOrder(OneOrderSettings(regularization=2.0)),
        "two-order": TwoOrder(
            TwoOrderSettings(factors=2, regularization=2.0, factor_regularization=0.5, max_sweeps=6)
        ),
        "high-order": HighOrder(HighOrderSettings(width=3, weight_decay=0.5, epochs=12, check_every=4)),
    }


class Batch(NamedTuple):
    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[Any]
    ratings: npt.NDArray[np.float32]

    def user(self, number: int) -> Batch:
        part = slice(int(self.indptr[number]), int(self.indptr[number + 1]))
        return Batch(np.array([0, part.stop - part.start]), self.items[part], self.ratings[part])


def ratings_of(*users: dict[int, float]) -> Batch:
    indptr = np.cumsum([0, *(len(user) for user in users)]).astype(np.int64)
    items = np.array([item for user in users for item in sorted(user)], dtype=np.uint16)
    ratings = np.array([user[item] for user in users for item in sorted(user)], dtype=np.float32)
    return Batch(indptr, items, ratings)


def random_batch(seed: int, counts: list[int], n_items: int) -> Batch:
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(n_items, count, replace=False).tolist() for count in counts]
    return ratings_of(*({item: float(rng.integers(1, 6)) for item in items} for items in chosen))


def random_features(seed: int, n_items: int, d: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(n_items, d)).astype(np.float32)


def keys_of(n: int, seed: int = 0) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**63, n).astype(np.uint64)
