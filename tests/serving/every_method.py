"""Small instances of every method that recommends, and users for them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from coordinator.scenario.registered_sections import Learning
from edge.learning.base import Problem, Recommender, State
from edge.learning.registry import create
from edge.learning.sampled_negatives import ImplicitBatch

N_ITEMS, WIDTH, MEAN = 30, 5, 3.25
STEPS: Final = {"method": "gradient-steps", "steps": 2}
NETWORK: Final = {"gmf_factors": 3, "mlp_factors": 4, "layers": [6, 5], "user_learning_rate": 0.5}
SHARP: Final = {"reconstruction": STEPS, "client": {**STEPS, "learning_rate": 0.1}}

METHODS: Final[dict[str, dict[str, Any]]] = {
    "fedrecon": {"algorithm": "fedrecon"},
    "fedprox": {"algorithm": "fedrecon", "proximal": 0.1, "client": {**STEPS, "learning_rate": 0.1}},
    "kept rows": {"algorithm": "fedrecon", "user_factors": "persistent", "reconstruction": STEPS},
    "fedmmf": {"algorithm": "fedmmf", "mask": {"kind": "two-order", "factors": 2}},
    "fedmf": {"algorithm": "fedmf"},
    "fedmf with biases": {"algorithm": "fedmf", "user_bias": True, "item_bias": True},
    "fedrec": {"algorithm": "fedrec"},
    "fedrec, every draw": {"algorithm": "fedrec", "draw": "every-round", "user_bias": True},
    "pfedrec": {"algorithm": "pfedrec"},
    "colr": {"algorithm": "colr", "rank": 2},
    "fcf": {"algorithm": "fcf"},
    "fcf of strengths": {"algorithm": "fcf", "strength": "rating", "confidence": 2.0},
    "dp-mf": {"algorithm": "dp-mf"},
    "fedavg-mf": {"algorithm": "fedavg-mf"},
    "fedavg-mf, tuned": {"algorithm": "fedavg-mf", "fine_tuning": STEPS},
    "fedavg-mf, no bias": {"algorithm": "fedavg-mf", "user_bias": False, "new_users": "initial"},
    "pfedme": {"algorithm": "pfedme"},
    "blur": {"algorithm": "blur", "norm_bound": 1.0},
    "lipm": {"algorithm": "lipm"},
    "lipm, tuned": {"algorithm": "lipm", "fine_tuning": {**STEPS, "learning_rate": 0.1}},
    "fedncf": {"algorithm": "fedncf", **NETWORK},
    "fedncf, anew": {"algorithm": "fedncf", **NETWORK, "user_embeddings": "reconstructed"},
    "fedncf, as kept": {"algorithm": "fedncf", **NETWORK, "user_steps": 0, "layers": [4]},
    "fedrecgel of a factorisation": {"algorithm": "fedrecgel", "base": {"algorithm": "fedrecon", **SHARP}},
    "fedrecgel of a network": {"algorithm": "fedrecgel", "base": {"algorithm": "fedncf", **NETWORK}},
    "federated linear": {"algorithm": "federated-context"},
    "federated, items alone": {"algorithm": "federated-context", "user_features": False},
    "federated machine": {
        "algorithm": "federated-context",
        "model": {"kind": "factorization-machine", "factors": 3},
    },
    "federated network": {"algorithm": "federated-context", "model": {"kind": "network", "width": 4}},
    "local mean": {"algorithm": "local-context", "model": {"kind": "zero-order"}},
    "local linear": {"algorithm": "local-context", "model": {"kind": "one-order"}},
    "local machine": {"algorithm": "local-context", "model": {"kind": "two-order", "factors": 2}},
    "local network": {"algorithm": "local-context", "model": {"kind": "high-order", "width": 3}},
}
USERS = 4
INDPTR = np.array([0, 4, 4, N_ITEMS, N_ITEMS + 1])
"""The second user has rated nothing, the third all but four items."""


def method(name: str) -> Recommender:
    features = np.random.default_rng(2).normal(size=(N_ITEMS, WIDTH)).astype(np.float32) * 2
    problem = Problem(N_ITEMS, rating_mean=MEAN, features=features, kept_back=1, n_users=USERS)
    settings = METHODS[name]
    if "factors" not in settings and settings["algorithm"] not in (
        "fedncf", "fedrecgel", "federated-context", "local-context",
    ):  # fmt: skip
        settings = {**settings, "factors": 3}
    made: Recommender = create(TypeAdapter(Learning).validate_python(settings), problem)
    return made


def some_state(algorithm: Recommender, rng: np.random.Generator) -> State:
    """Return global parameters that have moved from where they begin."""
    state = dict(algorithm.initial_state(3))
    for name, array in state.items():
        if array.dtype == np.float32 and name != "rating_mean":
            state[name] = array + rng.normal(0.0, 0.3, array.shape).astype(np.float32)
    return state


def some_ratings(rng: np.random.Generator) -> ImplicitBatch:
    items = np.concatenate([
        np.sort(rng.choice(N_ITEMS, count, replace=False)) for count in np.diff(INDPTR).tolist()
    ]).astype(np.uint16)  # fmt: skip
    kept = np.zeros(USERS + 1, np.int64)
    ratings = rng.integers(1, 6, len(items)).astype(np.float32)
    return ImplicitBatch(INDPTR, items, ratings, kept, np.zeros(0, np.uint16))


def some_rows(
    algorithm: Recommender, state: State, rng: np.random.Generator
) -> npt.NDArray[np.float32] | None:
    """Return the rows that devices begin with: their own, those that they are sent, or none."""
    if "user_table" in state:
        return np.asarray(state["user_table"])
    if not algorithm.local_width:
        return None
    return rng.normal(0.0, 0.5, (USERS, algorithm.local_width)).astype(np.float32)
