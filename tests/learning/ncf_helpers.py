"""Small problems for the tests of FedNCF and FedRecGEL."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.learning.base import Problem, Ratings, Recommender
from edge.learning.methods.fedncf.algorithm import FedNCF
from edge.learning.methods.fedncf.settings import FedNCFSettings
from edge.learning.methods.fedrecgel import FedRecGEL, FedRecGELSettings

N_ITEMS = 60
SMALL = {"gmf_factors": 3, "mlp_factors": 4, "layers": [6, 5], "negatives": 2, "user_learning_rate": 0.5}
BATCHES = {
    "method": "mini-batches",
    "batch_size": 7,
    "epochs": 2,
    "learning_rate": 0.3,
    "regularization": 0.01,
}
STEPS = {"method": "gradient-steps", "steps": 3, "learning_rate": 0.3, "regularization": 0.02}


def fedncf(n_items: int = N_ITEMS, kept_back: int = 0, dtype: Any = np.float32, **settings: Any) -> FedNCF:
    model = FedNCFSettings.model_validate({"algorithm": "fedncf", **SMALL, **settings})
    return FedNCF(model, Problem(n_items=n_items, kept_back=kept_back), dtype)


def sharp(
    base: dict[str, Any], shared: float, local: float, n_items: int = N_ITEMS, dtype: Any = np.float32
) -> Any:
    settings = FedRecGELSettings.model_validate(
        {"algorithm": "fedrecgel", "base": base, "shared_radius": shared, "local_radius": local}
    )
    return FedRecGEL.create(settings, Problem(n_items=n_items, rating_mean=3.0), dtype)


def some_rows(algorithm: Recommender, users: int, seed: int = 5) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.5, (users, algorithm.local_width)).astype(np.float32)


def planted(seed: int, users: int, n_items: int, each: int) -> tuple[Ratings, npt.NDArray[np.int64]]:
    """Return positives of users of two tastes, each for half of the items, and one held-out item a user."""
    rng = np.random.default_rng(seed)
    half = n_items // 2
    items, held_out = [], []
    for user in range(users):
        liked = (user % 2) * half + rng.choice(half, each + 1, replace=False)
        items.append(np.sort(liked[:-1]))
        held_out.append(int(liked[-1]))
    batch = Ratings(
        np.arange(users + 1) * each,
        np.concatenate(items).astype(np.uint16),
        np.ones(users * each, np.float32),
    )
    return batch, np.array(held_out)
