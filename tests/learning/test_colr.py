"""CoLR: with all ranks the factorisation without it, with few its projection."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import assert_same_update, fedrecon, keys_for, random_ratings, take_users
from pydantic import ValidationError

from edge.learning.base import Problem, Recommender, State
from edge.learning.methods.colr import CoLR, CoLRSettings
from edge.learning.updates import ITEMS, ROWS, UpdateBatch

N_ITEMS = 25
COUNTS = [5, 0, 9, 1, 14]
FITTED = {"method": "gradient-steps", "steps": 2, "learning_rate": 0.5}
STEP = {"method": "gradient-steps", "steps": 1, "learning_rate": 0.4, "regularization": 0.05}
PLAIN: dict[str, Any] = {"optimizer": {"kind": "sgd"}, "learning_rate": 1.0}


def colr(dtype: Any = np.float64, **values: Any) -> CoLR:
    given_ones = {"algorithm": "colr", "factors": 6, "rank": 2, "reconstruction": FITTED, "client": STEP}
    made = CoLRSettings.model_validate({**PLAIN, **given_ones, **values})
    return CoLR(made, Problem(n_items=N_ITEMS, rating_mean=3.0), dtype)


def without(dtype: Any = np.float64, **values: Any) -> Recommender:
    """Return the factorisation that CoLR narrows."""
    plain = {"item_bias": False, "user_bias": False, "weighting": "uniform", "user_factors": "persistent"}
    given_ones = {**plain, **PLAIN, "factors": 6, "reconstruction": FITTED, "client": STEP}
    return fedrecon(N_ITEMS, dtype=dtype, **{**given_ones, **values})


def moved(algorithm: Recommender, state: State, updates: UpdateBatch) -> npt.NDArray[Any]:
    """Return how a round changes the items."""
    total = algorithm.accumulator(state)
    total.add_many(updates, np.arange(len(updates)), np.arange(len(updates)))
    after, _ = algorithm.server_update(state, algorithm.initial_optimizer_state(state), total.result(), 0)
    return np.asarray(after["item_factors"] - state["item_factors"])


def some_local(width: int = 6, users: int = 5) -> npt.NDArray[Any]:
    return np.random.default_rng(5).normal(0, 0.5, (users, width))


@pytest.mark.parametrize("upload", ["sparse", "dense"])
@pytest.mark.parametrize("bias", [False, True])
def test_with_all_ranks_it_is_the_factorisation_without_it(upload: str, bias: bool) -> None:
    algorithm = colr(rank=6, average="cohort", upload=upload, item_bias=bias)
    other = without(upload=upload, item_bias=bias)
    batch, keys, local = random_ratings(3, COUNTS, N_ITEMS, np.float64), keys_for(1, 5), some_local()
    state = algorithm.initial_state(2)
    updates = algorithm.client_update(state, batch, keys, local=local)
    expected = other.client_update(state, batch, keys, local=local)
    change = moved(algorithm, state, updates)
    assert np.abs(change).max() > 0.01
    plain = {name: array for name, array in state.items() if name != "basis"}
    np.testing.assert_allclose(change, moved(other, plain, expected), rtol=1e-9, atol=1e-12)
    assert updates.local is not None
    assert expected.local is not None
    assert updates.local.tobytes() == expected.local.tobytes()


def test_an_upload_is_the_change_in_the_subspace_of_the_round() -> None:
    algorithm, other = colr(average="cohort"), without()
    batch, keys, local = random_ratings(3, COUNTS, N_ITEMS, np.float64), keys_for(1, 5), some_local()
    state = algorithm.initial_state(2)
    basis = algorithm.basis(state)
    np.testing.assert_allclose(basis @ basis.T, np.eye(2), atol=1e-12)
    updates = algorithm.client_update(state, batch, keys, local=local)
    expected = other.client_update(state, batch, keys, local=local)
    np.testing.assert_allclose(updates.ragged[ROWS], expected.ragged[ROWS] @ basis.T, rtol=1e-9)
    change = moved(other, state, expected)
    np.testing.assert_allclose(
        moved(algorithm, state, updates), np.sqrt(3) * change @ basis.T @ basis, rtol=1e-9, atol=1e-12
    )


def test_a_change_is_as_long_as_the_whole_on_average() -> None:
    """√(k/r) makes up for what is lost: the mean square over bases, of 2 of 6 dimensions."""
    algorithm, vector = colr(), np.random.default_rng(1).normal(size=6)
    lengths = []
    for number in range(3000):
        basis = algorithm.basis({"basis": np.array([number], np.int64)})
        lengths.append(float(np.square(np.sqrt(3) * vector @ basis.T @ basis).sum()))
    error = np.std(lengths) / np.sqrt(len(lengths))
    assert abs(np.mean(lengths) - vector @ vector) < 4 * error


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_mean_is_over_those_that_have_an_item(weighting: str) -> None:
    algorithm = colr(rank=6, weighting=weighting)
    batch, keys, local = random_ratings(3, COUNTS, N_ITEMS, np.float64), keys_for(1, 5), some_local()
    state = algorithm.initial_state(2)
    updates = algorithm.client_update(state, batch, keys, local=local)
    single = without(weighting=weighting).client_update(state, batch, keys, local=local)
    total, weights = np.zeros((N_ITEMS, 6)), np.zeros(N_ITEMS)
    for user, update in enumerate(single):
        total[update.arrays[ITEMS]] += update.arrays[ROWS]
        weights[update.arrays[ITEMS]] += single.weights[user]
    assert (weights == 0).any()
    expected = total / np.where(weights > 0, weights, 1)[:, None]
    np.testing.assert_allclose(moved(algorithm, state, updates), expected, rtol=1e-9, atol=1e-12)


def test_every_round_has_a_basis_of_its_own() -> None:
    algorithm = colr()
    batch, state = random_ratings(3, COUNTS, N_ITEMS, np.float64), algorithm.initial_state(2)
    seen = []
    for round_number in range(3):
        seen.append(algorithm.basis(state))
        updates = algorithm.client_update(state, batch, keys_for(round_number, 5), local=some_local())
        total = algorithm.accumulator(state)
        total.add_many(updates, np.arange(5), np.arange(5))
        state, _ = algorithm.server_update(state, {}, total.result(), round_number)
    assert len({basis.tobytes() for basis in seen}) == 3
    assert seen[0].tobytes() == algorithm.basis(algorithm.initial_state(2)).tobytes()


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=7),
    seed=st.integers(0, 2**16),
    upload=st.sampled_from(["sparse", "dense"]),
    bias=st.booleans(),
)
def test_an_update_does_not_depend_on_the_others(
    counts: list[int], seed: int, upload: str, bias: bool
) -> None:
    algorithm = colr(np.float32, upload=upload, item_bias=bias)
    batch, keys = random_ratings(seed, counts, N_ITEMS), keys_for(seed, len(counts))
    local = some_local(users=len(counts)).astype(np.float32)
    state = algorithm.initial_state(2)
    together = algorithm.client_update(state, batch, keys, local=local)
    declared = sum(spec.nbytes() for spec in algorithm.upload_spec(np.array(counts)))
    assert np.asarray(declared).tolist() == together.upload_bytes().tolist()
    for user in range(len(counts)):
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]], local=local[[user]])
        assert_same_update(alone, 0, together, user)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 7}, "rank 7 is above the 6 factors"),
        ({"client": {**STEP, "steps": 2}}, "write 'steps: 1'"),
        ({"client": {"method": "mini-batches", "batch_size": 4, "epochs": 2}}, "write 'epochs: 1'"),
        ({"proximal": 0.1}, "leave 'proximal' out"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        colr(**wrong)
