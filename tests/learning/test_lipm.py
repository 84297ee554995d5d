"""LIPM: what it weighs by, what is left of it without weights, and what a device tunes for itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interest_helpers import TimedRatings, lipm, lively_state, take_timed, timed_ratings
from learning_helpers import add_all, assert_same_update, fedrecon, keys_for, low_rank_ratings

from edge.core.errors import LocalProtocolError
from edge.learning.base import Ratings
from edge.learning.method_settings import Ridge
from edge.learning.methods.lipm.algorithm import LIPM
from edge.learning.methods.lipm.interest import INTEREST_NAMES
from edge.learning.updates import Aggregate

N_ITEMS = 40
COUNTS = [7, 0, 1, 40, 13, 2, 24, 21, 5, 12, 3]
SGD = {"optimizer": {"kind": "sgd"}, "learning_rate": 1.0}


def applied(
    method: Any, state: dict[str, Any], batch: TimedRatings, **more: Any
) -> tuple[dict[str, Any], Aggregate]:
    accumulator = method.accumulator(state)
    update = method.client_update(state, batch, keys_for(5, len(batch.indptr) - 1), **more)
    for client, one in enumerate(update):
        accumulator.check(one.arrays)
        accumulator.add(one, client)
    total = accumulator.result()
    after, _ = method.server_update(state, method.initial_optimizer_state(state), total, 0)
    return dict(after), total


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("optimizer", [{}, SGD], ids=["adam", "sgd"])
def test_without_weights_it_is_fedrecon_bit_for_bit(weighting: str, optimizer: dict[str, Any]) -> None:
    shared = {"factors": 4, "upload": "dense", "weighting": weighting, **optimizer}
    method, plain = lipm(N_ITEMS, attention_bound=0, **shared), fedrecon(N_ITEMS, **shared)
    batch = timed_ratings(1, COUNTS, N_ITEMS)
    state = lively_state(method, 2)
    known = {name: state[name] for name in plain.initial_state(2)}
    after, _ = applied(method, state, batch)
    expected, _ = applied(plain, known, batch)
    for name, array in expected.items():
        assert after[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("bound", [0.3, 1.0, 2.5])
def test_a_constant_g_is_the_weighted_mean(bound: float) -> None:
    shared = {"factors": 4, "upload": "dense", **SGD}
    method = lipm(N_ITEMS, np.float64, attention_bound=bound, **shared)
    plain = fedrecon(N_ITEMS, dtype=np.float64, **shared)
    batch = timed_ratings(1, COUNTS, N_ITEMS, np.float64)
    state = lively_state(method, 2)
    state["precision"] = np.array([0.0, 0.0, 0.0, 0.7])
    assert not method.read(state, batch).g.any(), "each uploads e^−c times its update"
    after, _ = applied(method, state, batch)
    expected, _ = applied(plain, {name: state[name] for name in plain.initial_state(2)}, batch)
    for name, array in expected.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_updates_are_averaged_by_the_softmax_of_g(scale: float) -> None:
    method = lipm(
        N_ITEMS, np.float64, factors=4, weighting="uniform", attention_bound=2, attention_scale=scale, **SGD
    )
    plain = fedrecon(N_ITEMS, dtype=np.float64, factors=4, upload="dense", weighting="uniform")
    counts = [count for count in COUNTS if count]
    batch = timed_ratings(1, counts, N_ITEMS, np.float64)
    state = lively_state(method, 2)
    state["precision"] = np.array([2.0, -3.0, 1.0, 0.2])
    g = method.read(state, batch).g
    assert np.ptp(g) > 0.3, "otherwise the test says nothing"
    assert np.abs(g).max() < 2
    softmax = np.exp(g) / np.exp(g).sum()
    known = {name: state[name] for name in plain.initial_state(2)}
    tables = [one.arrays["item_rows"] for one in plain.client_update(known, batch, keys_for(5, len(counts)))]
    gradient = method.read(state, batch).gradient
    after, _ = applied(method, state, batch)
    mean = sum(weight * table for weight, table in zip(softmax, tables, strict=True))
    np.testing.assert_allclose(after["item_factors"] - state["item_factors"], mean[:, :4], atol=1e-12)
    np.testing.assert_allclose(after["item_bias"] - state["item_bias"], mean[:, 4], atol=1e-12)
    for name in INTEREST_NAMES:
        step = -np.tensordot(softmax, gradient[name], axes=1)
        np.testing.assert_allclose(after[name] - state[name], step, atol=1e-12)


def test_no_sum_of_weights_is_believed_beyond_what_weights_can_be() -> None:
    method = lipm(N_ITEMS, np.float64, factors=4, weighting="uniform", attention_bound=1, **SGD)
    state = lively_state(method, 2)
    _, total = applied(method, state, timed_ratings(1, COUNTS, N_ITEMS, np.float64))
    moved = {}
    for forged in (-5.0, 0.0, 1e-9, 1e9):
        sums = {**total.sums, "attention": np.array([forged])}
        lied = Aggregate(sums, total.weight, total.clients, total.examples, total.loss)
        after, _ = method.server_update(state, method.initial_optimizer_state(state), lied, 0)
        moved[forged] = after["item_bias"] - state["item_bias"]
    bias = total.sums["item_rows"][:, 4]
    for forged in (-5.0, 0.0, 1e-9):
        np.testing.assert_allclose(moved[forged], bias / (np.exp(-2.0) * total.weight), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(moved[1e9], bias / total.weight, rtol=1e-9, atol=1e-15)
    nothing = Aggregate(total.sums, 0.0, 0, 0, float("nan"))
    with pytest.raises(LocalProtocolError, match="nothing to average"):
        method.server_update(state, method.initial_optimizer_state(state), nothing, 0)


@given(st.lists(st.integers(0, len(COUNTS) - 1), min_size=1, max_size=7, unique=True))
@settings(max_examples=25, deadline=None)
def test_a_device_does_not_depend_on_the_others_of_its_batch(users: list[int]) -> None:
    method = lipm(N_ITEMS, factors=4)
    state = lively_state(method, 2)
    everybody, keys = timed_ratings(1, COUNTS, N_ITEMS), keys_for(5, len(COUNTS))
    together = method.client_update(state, take_timed(everybody, users), keys[users])
    for place, user in enumerate(users):
        alone = method.client_update(state, take_timed(everybody, [user]), keys[[user]])
        assert_same_update(together, place, alone, 0)


def test_uploads_are_as_large_as_declared() -> None:
    method = lipm(N_ITEMS, factors=4)
    state = method.initial_state(1)
    counts = np.array(COUNTS)
    specs = method.upload_spec(counts)
    for update in method.client_update(state, timed_ratings(1, COUNTS, N_ITEMS), keys_for(5, len(COUNTS))):
        assert {spec.name for spec in specs} == update.arrays.keys()
        for spec in specs:
            array = update.arrays[spec.name]
            assert (array.dtype, array.shape) == (spec.dtype, (spec.rows[0], *spec.row_shape))
    assert method.work(counts).steps.min() >= 1


def test_a_client_of_several_users_has_the_weight_of_their_mean_g() -> None:
    method = lipm(N_ITEMS, np.float64, factors=4)
    state = lively_state(method, 2)
    batch = timed_ratings(1, [5, 9, 12], N_ITEMS, np.float64)
    clients = np.array([0, 2, 3])
    g = method.read(state, batch).g
    grouped = list(method.client_update(state, batch, keys_for(5, 2), clients))
    weights = [float(update.arrays["attention"][0]) for update in grouped]
    assert weights == pytest.approx([14 * np.exp(g[:2].mean() - 1), 12 * np.exp(g[2] - 1)], rel=1e-12)


def tuned(rate: float, steps: int = 1) -> LIPM:
    how = {"method": "gradient-steps", "steps": steps, "learning_rate": rate}
    return lipm(N_ITEMS, np.float64, factors=4, fine_tuning=how)


def test_fine_tuning_goes_down_the_users_own_loss() -> None:
    """As printed: items a step down the gradient, user factors solved anew, the loss lower there."""
    batch = timed_ratings(1, [12], N_ITEMS, np.float64)
    support, keys = Ratings(*batch[:3]), keys_for(5, 1)
    state = lively_state(tuned(0.8), 2)
    q, b = state["item_factors"][support.items], state["item_bias"][support.items]
    ridge = tuned(0.8).settings.reconstruction
    assert isinstance(ridge, Ridge)
    penalty = np.diag([ridge.regularization] * 4 + [ridge.bias_regularization])

    def solved(q: Any, b: Any) -> tuple[Any, Any, float]:
        x, target = np.column_stack([q, np.ones(12)]), support.ratings - 3.0 - b
        local = np.linalg.solve(x.T @ x + penalty, x.T @ target)
        return local, target - x @ local, float(np.sum((target - x @ local) ** 2) + local @ penalty @ local)

    local, error, before = solved(q, b)
    local, _, after = solved(q + 0.8 / 12 * error[:, None] * local[:4], b + 0.8 / 12 * error)
    assert after < 0.9 * before
    expected = 3.0 + state["item_bias"] + state["item_factors"] @ local[:4] + local[4]
    np.testing.assert_allclose(tuned(0.8).scores(state, support, keys)[0], expected, rtol=1e-5)
    asked = tuned(0.8).predict(state, support, support, keys)
    np.testing.assert_allclose(asked, expected[support.items], rtol=1e-10)


def test_fine_tuning_by_next_to_nothing_is_none() -> None:
    batch = timed_ratings(1, COUNTS, N_ITEMS, np.float64)
    support, keys = Ratings(*batch[:3]), keys_for(5, len(COUNTS))
    plain = lipm(N_ITEMS, np.float64, factors=4)
    state = lively_state(plain, 2)
    untouched = plain.predict(state, support, support, keys)
    np.testing.assert_allclose(tuned(1e-12).predict(state, support, support, keys), untouched, rtol=1e-10)
    assert np.abs(tuned(1.0).predict(state, support, support, keys) - untouched).max() > 1e-2


def test_times_are_asked_for_where_there_are_none() -> None:
    method = lipm(N_ITEMS, factors=4)
    batch = Ratings(*timed_ratings(1, COUNTS, N_ITEMS)[:3])
    with pytest.raises(LocalProtocolError, match="no timestamps"):
        method.client_update(method.initial_state(1), batch, keys_for(5, len(COUNTS)))


def test_training_learns_a_low_rank_taste_and_whom_to_trust() -> None:
    """Half of the users rate by their taste, half nearly at random; scored on those that have one."""
    users, each = 120, 30
    plain = low_rank_ratings(0, users, N_ITEMS, each)
    rng = np.random.default_rng(2)
    erratic = np.arange(users) % 2 == 1
    noise = np.where(np.repeat(erratic, each), rng.normal(0, 3.0, users * each), 0.0)
    ratings = (plain.ratings + noise).astype(np.float32)
    held_out = rng.random(users * each) < 0.2
    before = np.concatenate([[0], np.cumsum(~held_out)])[plain.indptr]
    after = np.concatenate([[0], np.cumsum(held_out)])[plain.indptr]
    times = rng.permutation(users * each)
    train = TimedRatings(before, plain.items[~held_out], ratings[~held_out], times[~held_out])
    test = Ratings(after, plain.items[held_out], ratings[held_out])
    settled = np.repeat(~erratic, np.diff(test.indptr))
    method = lipm(N_ITEMS, factors=4, window=20, interest_width=8, learning_rate=0.05)
    state, keys = method.initial_state(0), keys_for(0, users)
    optimizer_state = method.initial_optimizer_state(state)

    def rmse() -> float:
        guess = method.predict(state, Ratings(*train[:3]), test, keys)
        return float(np.sqrt(np.mean((guess - test.ratings)[settled] ** 2)))

    first = rmse()
    for number in range(60):
        cohort = np.random.default_rng(number).choice(users, 40, replace=False).tolist()
        accumulator = method.accumulator(state)
        add_all(accumulator, method.client_update(state, take_timed(train, cohort), keys_for(number, 40)))
        state, optimizer_state = method.server_update(state, optimizer_state, accumulator.result(), number)
    assert rmse() < 0.6 * first
    g = method.read(state, train).g
    assert g[~erratic].mean() > g[erratic].mean() + 0.3
