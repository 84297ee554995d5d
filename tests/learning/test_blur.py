"""BLUR and LUS: nothing of them is FedRecon; the pull is the gradient of its penalty; what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import (
    add_all,
    assert_same_update,
    fedrecon,
    keys_for,
    low_rank_ratings,
    random_ratings,
    take_users,
    trained_looking_state,
)

from edge.learning.base import Problem, Ratings
from edge.learning.methods.blur import BLUR, BLURSettings, beyond, sparsify

N_ITEMS = 40
COUNTS = [7, 0, 1, 40, 13, 2, 24]


def steps(number: int, regularization: float = 0.1) -> dict[str, Any]:
    return {
        "method": "gradient-steps",
        "steps": number,
        "learning_rate": 0.6,
        "regularization": regularization,
    }


def blur(dtype: Any = np.float32, number: int = 3, **more: Any) -> BLUR:
    written = {"algorithm": "blur", "factors": 4, "client": steps(number), "weighting": "uniform", **more}
    model = BLURSettings.model_validate({"norm_bound": 1.0, **written})
    return BLUR(model, Problem(n_items=N_ITEMS, rating_mean=3.0), dtype)


def update_of(method: Any, state: dict[str, Any], dtype: Any, **more: Any) -> Any:
    batch = random_ratings(1, COUNTS, N_ITEMS, dtype)
    return method.client_update(state, batch, keys_for(5, len(COUNTS)), **more)


@pytest.mark.parametrize("number", [1, 4])
def test_without_penalty_and_with_all_kept_it_is_fedrecon_bit_for_bit(number: int) -> None:
    method = blur(number=number, norm_penalty=0)
    plain = fedrecon(N_ITEMS, factors=4, client=steps(number), weighting="uniform")
    state = trained_looking_state(plain, 2)
    one, other = update_of(method, state, np.float32), update_of(plain, state, np.float32)
    for client in range(len(COUNTS)):
        assert_same_update(one, client, other, client)


def test_within_the_bound_nothing_pulls() -> None:
    method = blur(np.float64, norm_bound=1e6, norm_penalty=1.5)
    plain = fedrecon(N_ITEMS, dtype=np.float64, factors=4, client=steps(3), weighting="uniform")
    state = trained_looking_state(plain, 2)
    one, other = update_of(method, state, np.float64), update_of(plain, state, np.float64)
    np.testing.assert_allclose(one.ragged["item_rows"], other.ragged["item_rows"], rtol=1e-10, atol=1e-14)


def objective(
    change: npt.NDArray[Any], q: Any, target: Any, local: Any, penalty: float, bound: float, decay: float
) -> float:
    """Return ½·mean(e²) + ½·decay·mean|q|² + ½λ·max(0, |Δ| − S)², of [q | b] changed by Δ."""
    moved = q + change[:, :4]
    error = target - change[:, 4] - moved @ local[:4] - local[4]
    fit = 0.5 * float(error @ error) / len(q) + 0.5 * decay * float((moved * moved).sum()) / len(q)
    return fit + 0.5 * penalty * max(0.0, float(np.linalg.norm(change)) - bound) ** 2


@pytest.mark.parametrize("bound", [0.05, 0.3])
def test_every_step_goes_down_the_gradient_of_the_penalised_loss(bound: float) -> None:
    """By central differences, for one user, whose factors are those of the reconstruction."""
    penalty, decay = 1.5, 0.1
    state = trained_looking_state(fedrecon(N_ITEMS, dtype=np.float64, factors=4), 2)
    state["item_factors"] = np.random.default_rng(8).normal(size=(N_ITEMS, 4))
    batch, key = random_ratings(3, [9], N_ITEMS, np.float64), keys_for(5, 1)
    q, b = state["item_factors"][batch.items], state["item_bias"][batch.items]
    expected = np.zeros((9, 5))
    pulled = False
    for number in (1, 2, 3, 4):
        method = blur(np.float64, number, norm_penalty=penalty, norm_bound=bound)
        local = method.reconstruct(state, batch, key)[0]
        settled = (q, batch.ratings - 3.0 - b, local, penalty, bound, decay)
        gradient = np.empty_like(expected)
        for place in np.ndindex(expected.shape):
            ends = []
            for sign in (1e-6, -1e-6):
                moved = expected.copy()
                moved[place] += sign
                ends.append(objective(moved, *settled))
            gradient[place] = (ends[0] - ends[1]) / 2e-6
        pulled |= float(np.linalg.norm(expected)) > bound
        expected = expected - 0.6 * gradient
        found = method.client_update(state, batch, key).ragged["item_rows"]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    assert pulled, "otherwise the test says nothing"


def test_a_stronger_pull_makes_a_shorter_update() -> None:
    state = trained_looking_state(fedrecon(N_ITEMS, dtype=np.float64, factors=4), 2)
    norms = [
        np.linalg.norm(update_of(blur(np.float64, 6, norm_bound=0.1, norm_penalty=penalty), state, np.float64)
                       .ragged["item_rows"])
        for penalty in (0.0, 0.3, 1.0)
    ]  # fmt: skip
    assert norms[0] > norms[1] > norms[2]


def test_the_share_beyond_the_bound() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert beyond(rows, np.array([1, 2, 0]), 1.0).tolist() == pytest.approx([0.8, 0.0, 0.0])


def test_the_largest_elements_are_kept() -> None:
    rows = np.array([[1.0, -5.0], [2.0, 0.5], [-9.0, 8.0], [7.0, -7.0]])
    counts = np.array([2, 0, 2])
    some = rows.copy()
    sparsify(some, counts, 0.5)
    assert some.tolist() == [[0, -5], [2, 0], [-9, 8], [0, 0]]
    few = rows.copy()
    sparsify(few, counts, 0.1)
    assert few.tolist() == [[0, -5], [0, 0], [-9, 0], [0, 0]]
    tied = np.ones((2, 2))
    sparsify(tied, np.array([2]), 0.5)
    assert tied.tolist() == [[1, 1], [0, 0]]


def test_a_client_that_takes_fewer_steps_is_pulled_in_those_alone() -> None:
    state = trained_looking_state(fedrecon(N_ITEMS, dtype=np.float64, factors=4), 2)
    few = np.full(len(COUNTS), 2)
    part = update_of(blur(np.float64, 4, norm_bound=0.1), state, np.float64, steps=few)
    whole = update_of(blur(np.float64, 2, norm_bound=0.1), state, np.float64)
    np.testing.assert_allclose(part.ragged["item_rows"], 0.5 * whole.ragged["item_rows"], rtol=1e-10)


@given(st.lists(st.integers(0, len(COUNTS) - 1), min_size=1, max_size=6, unique=True))
@settings(max_examples=25, deadline=None)
def test_a_device_does_not_depend_on_the_others_of_its_batch(users: list[int]) -> None:
    method = blur(norm_bound=0.05, keep=0.3)
    state = trained_looking_state(method, 2)
    everybody, keys = random_ratings(1, COUNTS, N_ITEMS), keys_for(5, len(COUNTS))
    together = method.client_update(state, take_users(everybody, users), keys[users])
    for place, user in enumerate(users):
        alone = method.client_update(state, take_users(everybody, [user]), keys[[user]])
        assert_same_update(together, place, alone, 0)


def test_training_with_short_and_sparse_updates_learns_a_low_rank_taste() -> None:
    users, each = 120, 30
    ratings = low_rank_ratings(0, users, N_ITEMS, each)
    held_out = np.random.default_rng(1).random(users * each) < 0.2
    before = np.concatenate([[0], np.cumsum(~held_out)])[ratings.indptr]
    after = np.concatenate([[0], np.cumsum(held_out)])[ratings.indptr]
    train = Ratings(before, ratings.items[~held_out], ratings.ratings[~held_out])
    test = Ratings(after, ratings.items[held_out], ratings.ratings[held_out])
    method = blur(norm_bound=0.2, keep=0.3, learning_rate=0.05)
    state, keys = method.initial_state(0), keys_for(0, users)
    optimizer_state = method.initial_optimizer_state(state)

    def rmse() -> float:
        return float(np.sqrt(np.mean((method.predict(state, train, test, keys) - test.ratings) ** 2)))

    first = rmse()
    for number in range(60):
        cohort = np.random.default_rng(number).choice(users, 40, replace=False).tolist()
        accumulator = method.accumulator(state)
        add_all(accumulator, method.client_update(state, take_users(train, cohort), keys_for(number, 40)))
        state, optimizer_state = method.server_update(state, optimizer_state, accumulator.result(), number)
    assert rmse() < 0.6 * first
