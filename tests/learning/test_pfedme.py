"""pFedMe: a model of every device's own, near the shared one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import assert_same_update, keys_for, random_ratings, take_users
from pydantic import ValidationError

from edge.learning import joint_descent
from edge.learning.base import Problem
from edge.learning.joint_descent import Pair, PairShape
from edge.learning.methods.fedavg_mf import FedAvgMF, FedAvgMFSettings
from edge.learning.methods.pfedme import PFedMe, PFedMeSettings, envelope_gradient

N_ITEMS, FACTORS, MEAN = 30, 3, 3.0
COUNTS = [9, 1, 14, 0, 6]
FULL = {"method": "gradient-steps", "steps": 3, "learning_rate": 0.5, "regularization": 0.05}
BATCHES = {"method": "mini-batches", "batch_size": 4, "epochs": 2, "learning_rate": 0.2}


def problem(users: int) -> Problem:
    return Problem(n_items=N_ITEMS, rating_mean=MEAN, n_users=users)


def make(dtype: Any = np.float64, users: int = len(COUNTS), **written: Any) -> PFedMe:
    model = PFedMeSettings.model_validate({"algorithm": "pfedme", "factors": FACTORS, **written})
    return PFedMe(model, problem(users), dtype)


def fedavg(client: dict[str, Any]) -> FedAvgMF:
    written = {"algorithm": "fedavg-mf", "factors": FACTORS, "client": client}
    return FedAvgMF(FedAvgMFSettings.model_validate(written), problem(len(COUNTS)), np.float64)


def trained_state(algorithm: FedAvgMF, seed: int) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    state = dict(algorithm.initial_state(seed))
    for name in ("item_bias", "user_table"):
        state[name] = rng.normal(0, 0.4, state[name].shape).astype(state[name].dtype)
    return state


@pytest.mark.parametrize("client", [FULL, BATCHES], ids=["full", "batches"])
@pytest.mark.parametrize(("inner_steps", "proximity"), [(1, 15.0), (4, 1e12)])
def test_the_limit_is_fedavg(client: dict[str, Any], inner_steps: int, proximity: float) -> None:
    """λ → ∞, η_p = 1/λ: the envelope's gradient is that of the loss; one inner step reaches it for any λ."""
    plain = fedavg(client)
    algorithm = make(
        client=client, proximity=proximity, inner_steps=inner_steps, inner_learning_rate=1 / proximity
    )
    state, batch, keys = trained_state(plain, 1), random_ratings(1, COUNTS, N_ITEMS), keys_for(1, 5)
    expected = plain.client_update(state, batch, keys, local=state["user_table"])
    found = algorithm.client_update(state, batch, keys, local=state["user_table"])
    np.testing.assert_allclose(found.ragged["item_rows"], expected.ragged["item_rows"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.stacked["user_row"], expected.stacked["user_row"], rtol=0, atol=1e-10)
    assert np.abs(expected.stacked["user_row"]).max() > 0.1


def test_the_way_to_the_limit_is_as_one_over_lambda() -> None:
    plain = fedavg(FULL)
    state, batch, keys = trained_state(plain, 2), random_ratings(2, COUNTS, N_ITEMS), keys_for(2, 5)
    expected = plain.client_update(state, batch, keys, local=state["user_table"]).stacked["user_row"]
    gaps = []
    for proximity in (1e2, 1e4, 1e6):
        algorithm = make(client=FULL, proximity=proximity, inner_steps=3, inner_learning_rate=1 / proximity)
        rows = algorithm.client_update(state, batch, keys, local=state["user_table"]).stacked["user_row"]
        gaps.append(float(np.abs(rows - expected).max()))
    np.testing.assert_allclose(np.divide(gaps[:-1], gaps[1:]), 100, rtol=0.05)


def pieces(seed: int) -> tuple[Pair, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    counts = np.array([4, 1, 6])
    pair = Pair(rng.normal(size=(11, FACTORS + 1)), rng.normal(size=(3, FACTORS + 1)))

    def slope(at: Pair, targets: Any, sizes: Any) -> Pair:
        return joint_descent.gradient(at, targets, sizes, PairShape(FACTORS, 0.1))

    return pair, joint_descent.Targets(rng.normal(size=11)), counts, slope


def test_steps_are_those_of_the_paper() -> None:
    w, targets, counts, slope = pieces(3)
    theta = w
    for _ in range(5):
        at = slope(theta, targets, counts)
        theta = Pair(*(t - 0.02 * (f + 6.0 * (t - v)) for t, f, v in zip(theta, at, w, strict=True)))
    found = envelope_gradient(slope, w, targets, counts, proximity=6.0, steps=5, rate=0.02)
    for side in (0, 1):
        np.testing.assert_allclose(found[side], 6.0 * (w[side] - theta[side]), rtol=0, atol=1e-12)


def test_many_steps_reach_the_model_near_the_shared_one() -> None:
    """Where f + ½λ|θ − w|² is least, its gradient ∇f(θ) − g vanishes."""
    w, targets, counts, slope = pieces(4)
    found = envelope_gradient(slope, w, targets, counts, proximity=8.0, steps=400, rate=0.1)
    theta = Pair(*(v - g / 8.0 for v, g in zip(w, found, strict=True)))
    for one, other in zip(slope(theta, targets, counts), found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
    assert np.abs(found.users).max() > 0.1


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    client=st.sampled_from([FULL, BATCHES]),
    seed=st.integers(0, 99),
)
def test_a_client_does_not_depend_on_the_others(counts: list[int], client: dict[str, Any], seed: int) -> None:
    n = len(counts)
    algorithm = make(np.float32, users=n, client=client)
    state, batch, keys = trained_state(algorithm, seed), random_ratings(seed, counts, N_ITEMS), keys_for(1, n)
    rows = state["user_table"]
    whole = algorithm.client_update(state, batch, keys, local=rows)
    predicted = algorithm.predict(state, batch, batch, keys, rows)
    for user in range(n):
        one = take_users(batch, [user])
        assert_same_update(
            whole, user, algorithm.client_update(state, one, keys[[user]], local=rows[[user]]), 0
        )
        alone = algorithm.predict(state, one, one, keys[[user]], rows[[user]])
        assert alone.tobytes() == predicted[batch.indptr[user] : batch.indptr[user + 1]].tobytes()


def test_predictions_are_those_of_the_own_model() -> None:
    algorithm = make(proximity=2.0, inner_steps=8, inner_learning_rate=0.5)
    state, keys = trained_state(algorithm, 5), keys_for(5, 5)
    support, query = random_ratings(5, COUNTS, N_ITEMS), random_ratings(6, COUNTS, N_ITEMS)
    rows = state["user_table"]
    predicted = algorithm.predict(state, support, query, keys, rows)
    shared = fedavg(FULL).predict(state, support, query, keys, rows)
    no_ratings = slice(int(support.indptr[3]), int(support.indptr[4]))
    np.testing.assert_array_equal(predicted[no_ratings], shared[no_ratings])
    assert np.abs(predicted - shared).max() > 0.05
    on_support = [
        float(np.mean((a.predict(state, support, support, keys, rows) - support.ratings) ** 2))
        for a in (algorithm, fedavg(FULL))
    ]
    assert on_support[0] < on_support[1]
    scores = algorithm.scores(state, support, keys, rows)
    owners = np.repeat(np.arange(5), COUNTS)
    np.testing.assert_allclose(scores[owners, query.items], predicted, rtol=1e-5)


def test_inner_steps_cost_flops() -> None:
    examples = np.array([10])
    one, five = (make(inner_steps=steps).work(examples).flops.sum() for steps in (1, 5))
    assert five == pytest.approx(5 * one)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"inner_learning_rate": 0.2}, "overshoot with a proximity of 15; write less than 0.133333"),
        ({"proximity": 100}, "overshoot with a proximity of 100; write less than 0.02"),
        ({"proximal": 0.1}, "leave it out"),
        ({"fine_tuning": {"method": "ridge"}}, "leave it out"),
    ],
)
def test_bad_settings_are_refused(written: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make(**written)
