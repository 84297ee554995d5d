"""Small behaviour with times, and LIPM on it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from learning_helpers import offsets_of, random_ratings

from edge.learning.base import Problem
from edge.learning.methods.lipm.algorithm import LIPM, LIPMSettings


class TimedRatings(NamedTuple):
    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[Any]
    ratings: npt.NDArray[Any]
    timestamps: npt.NDArray[np.int64]


def timed_ratings(seed: int, counts: list[int], n_items: int, dtype: Any = np.float32) -> TimedRatings:
    plain = random_ratings(seed, counts, n_items, dtype)
    times = np.random.default_rng(seed + 1).integers(0, 1 + len(plain.items) // 2, len(plain.items))
    return TimedRatings(*plain, times)


def take_timed(batch: TimedRatings, users: list[int]) -> TimedRatings:
    parts = [np.arange(batch.indptr[user], batch.indptr[user + 1]) for user in users]
    rows = np.concatenate([*parts, np.zeros(0, np.int64)])
    return TimedRatings(
        offsets_of(np.diff(batch.indptr)[users]),
        batch.items[rows],
        batch.ratings[rows],
        batch.timestamps[rows],
    )


def lipm(n_items: int, dtype: Any = np.float32, **settings: Any) -> LIPM:
    model = LIPMSettings.model_validate({"algorithm": "lipm", "interest_width": 3, "window": 6, **settings})
    return LIPM(model, Problem(n_items=n_items, rating_mean=3.0), dtype)


def lively_state(method: LIPM, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Give a state without zeros, so that weights differ."""
    rng = np.random.default_rng(seed)
    state = dict(method.initial_state(seed))
    for name, array in state.items():
        if name != "rating_mean":
            state[name] = (array + rng.normal(0, 0.3, array.shape)).astype(array.dtype)
    return state
