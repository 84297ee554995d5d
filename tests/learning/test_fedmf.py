"""FedMF: factors that stay on devices, by the steps of its paper."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from learning_helpers import (
    add_all,
    assert_same_update,
    fedrecon,
    keys_for,
    random_ratings,
    take_users,
    trained_looking_state,
)
from pydantic import ValidationError

from edge.learning.base import Problem
from edge.learning.methods.fedmf import FedMF, FedMFSettings
from edge.learning.updates import Aggregate

N_ITEMS, FACTORS, MEAN = 30, 3, 3.0
COUNTS = [9, 1, 14, 6]
GAMMA, DECAY = 0.02, 0.1


def make(dtype: Any = np.float64, **settings: Any) -> FedMF:
    given: dict[str, Any] = {"algorithm": "fedmf", "factors": FACTORS, "optimizer": {"kind": "sgd"}}
    model = FedMFSettings.model_validate({**given, **settings})
    return FedMF(model, Problem(n_items=N_ITEMS, rating_mean=MEAN), dtype)


def plain_steps(gamma: float = GAMMA) -> dict[str, Any]:
    return {
        "method": "gradient-steps",
        "steps": 1,
        "learning_rate": gamma,
        "regularization": DECAY,
        "normalized": False,
    }


def test_rounds_are_the_equations_of_the_paper() -> None:
    """Every user on its device, rating by rating; the coordinator subtracts the sum of the gradients."""
    algorithm = make(reconstruction=plain_steps(), learning_rate=GAMMA)
    batch, keys = random_ratings(1, COUNTS, N_ITEMS, np.float64), keys_for(1, len(COUNTS))
    state = algorithm.initial_state(1)
    assert set(state) == {"item_factors", "rating_mean"}
    q, users = np.array(state["item_factors"]), np.zeros((len(COUNTS), FACTORS))
    optimizer_state, local = algorithm.initial_optimizer_state(state), None
    for round_number in range(5):
        updates = algorithm.client_update(state, batch, keys, local=local)
        local = updates.local
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, updates)
        state, optimizer_state = algorithm.server_update(
            state, optimizer_state, accumulator.result(), round_number
        )
        total = np.zeros_like(q)
        for u, p in enumerate(users):
            mine = range(batch.indptr[u], batch.indptr[u + 1])
            rated = [(int(batch.items[n]), batch.ratings[n] - MEAN) for n in mine]
            users[u] = p - GAMMA * sum(DECAY * p - (r - p @ q[i]) * q[i] for i, r in rated)
            for i, r in rated:
                total[i] += DECAY * q[i] - (r - users[u] @ q[i]) * users[u]
        q = q - GAMMA * total
    np.testing.assert_allclose(state["item_factors"], q, rtol=0, atol=1e-12)
    assert local is not None
    np.testing.assert_allclose(local, users, rtol=0, atol=1e-12)
    assert np.abs(users).max() > 1e-3


def test_shrinking_takes_its_part_of_the_sum_of_the_gradients() -> None:
    algorithm = make(learning_rate=0.5)
    state = algorithm.initial_state(1)
    rows = np.arange(N_ITEMS * FACTORS, dtype=np.float64).reshape(N_ITEMS, FACTORS)
    plain = Aggregate({"item_rows": rows}, weight=0.25, clients=4, examples=0, loss=float("nan"))
    for shrinkage, kept in ((0.0, 1.0), (0.75, 0.25)):
        shrunk = dataclasses.replace(plain, shrinkage=shrinkage)
        after, _ = algorithm.server_update(state, {}, shrunk, 0)
        np.testing.assert_allclose(
            after["item_factors"] - state["item_factors"], 0.5 * kept * rows, atol=1e-12
        )


def test_updates_are_those_of_fedrecon_with_persistent_factors() -> None:
    steps = {"method": "gradient-steps", "steps": 2, "regularization": 3}
    shared = {"reconstruction": steps, "item_bias": True, "user_bias": True, "optimizer": {"kind": "adam"}}
    one = make(np.float32, **shared)
    other = fedrecon(
        N_ITEMS,
        MEAN,
        factors=FACTORS,
        user_factors="persistent",
        client={"method": "gradient-steps", "steps": 1, "learning_rate": 1, "regularization": 0.1},
        **shared,
    )
    state, batch, keys = trained_looking_state(other, 2), random_ratings(2, COUNTS, N_ITEMS), keys_for(2, 4)
    rows = np.random.default_rng(0).normal(0, 0.1, (4, FACTORS + 1)).astype(np.float32)
    left, right = (a.client_update(state, batch, keys, local=rows) for a in (one, other))
    for user in range(4):
        assert_same_update(left, user, right, user)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_plain_steps_do_not_depend_on_the_others(dtype: Any) -> None:
    algorithm = make(dtype, reconstruction={**plain_steps(), "steps": 3})
    state, batch, keys = (
        trained_looking_state(algorithm, 3),
        random_ratings(3, COUNTS, N_ITEMS),
        keys_for(3, 4),
    )
    whole = algorithm.client_update(state, batch, keys)
    for user in range(4):
        one = algorithm.client_update(state, take_users(batch, [user]), keys[[user]])
        assert_same_update(whole, user, one, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"reconstruction": {"method": "ridge"}},
        {"user_factors": "reconstructed"},
        {"split": "support-query"},
    ],
)
def test_what_is_not_fedmf_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FedMFSettings.model_validate({"algorithm": "fedmf", **settings})
