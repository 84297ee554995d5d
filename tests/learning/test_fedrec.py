"""FedRec: virtual ratings among the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
from edge.learning.methods.fedrec import (
    UPDATES,
    FedRec,
    FedRecSettings,
    user_means,
    virtual_counts,
    virtual_items,
)

N_ITEMS, FACTORS, MEAN = 40, 3, 3.0
COUNTS = [9, 1, 14, 0, 30, 40]


def make(dtype: Any = np.float32, **written: Any) -> FedRec:
    model = FedRecSettings.model_validate({"algorithm": "fedrec", "factors": FACTORS, **written})
    return FedRec(model, Problem(n_items=N_ITEMS, rating_mean=MEAN), dtype)


def state_of(algorithm: FedRec, seed: int, updates: int = 0) -> Any:
    return {
        **trained_looking_state(algorithm.residual, seed),
        UPDATES: np.array([updates], np.int32),
    }


def rows(algorithm: FedRec, users: int) -> Any:
    found = np.random.default_rng(3).normal(0, 0.3, (users, algorithm.local_width)).astype(np.float32)
    if algorithm.settings.draw == "once":
        found[:, -1] = np.arange(1, users + 1)
    return found


def test_items_are_unrated_and_as_many_as_asked() -> None:
    batch = random_ratings(1, COUNTS, N_ITEMS)
    offsets, items = virtual_items(batch, keys_for(1, 6), 1.5, N_ITEMS)
    assert np.diff(offsets).tolist() == [13, 1, 21, 0, 10, 0]
    assert virtual_counts(np.array(COUNTS), 1.5, N_ITEMS).tolist() == [13, 1, 21, 0, 10, 0]
    for user in range(6):
        drawn = items[offsets[user] : offsets[user + 1]]
        mine = batch.items[batch.indptr[user] : batch.indptr[user + 1]]
        assert np.all(np.diff(drawn.astype(int)) > 0)
        assert not np.isin(drawn, mine).any()


def test_every_unrated_item_is_drawn_as_often() -> None:
    one = take_users(random_ratings(2, [10], N_ITEMS), [0] * 3000)
    _, items = virtual_items(one, keys_for(2, 3000), 0.6, N_ITEMS)
    counts = np.bincount(items, minlength=N_ITEMS)
    free = np.setdiff1d(np.arange(N_ITEMS), one.items[:10])
    # 3000 draws of 6 among 30: 600 each, standard deviation 22.
    assert (np.abs(counts[free] - 600) < 110).all()
    assert counts.sum() == 18_000


@pytest.mark.parametrize("draw", ["once", "every-round"])
def test_uploads_name_virtual_items_too(draw: str) -> None:
    algorithm = make(draw=draw, virtual_share=1)
    state, batch, keys = state_of(algorithm, 4), random_ratings(4, COUNTS, N_ITEMS), keys_for(4, 6)
    first = algorithm.client_update(state, batch, keys)
    again = algorithm.client_update(state, batch, keys_for(5, 6), local=first.local)
    declared = sum(spec.nbytes() for spec in algorithm.upload_spec(np.array(COUNTS)))
    for user, update in enumerate(first):
        rated = batch.items[batch.indptr[user] : batch.indptr[user + 1]]
        named = update.arrays["items"]
        assert len(named) == min(2 * COUNTS[user], N_ITEMS)
        assert np.isin(rated, named).all()
        assert sum(array.nbytes for array in update.arrays.values()) == declared[user]
        same = np.array_equal(again.client(user).arrays["items"], named)
        assert same == (draw == "once" or COUNTS[user] in (0, 30, 40))
    assert algorithm.local_width == FACTORS + (draw == "once")


@pytest.mark.parametrize(
    ("filling", "updates", "predicts"), [("user-mean", 50, False), ("hybrid", 9, False), ("hybrid", 10, True)]
)
def test_virtual_ratings_are_means_and_later_predictions(filling: str, updates: int, predicts: bool) -> None:
    algorithm = make(filling=filling)
    state, batch = state_of(algorithm, 5, updates), random_ratings(5, COUNTS, N_ITEMS)
    local, draws = rows(algorithm, 6), keys_for(5, 6)
    filled = algorithm.filled(state, batch, draws, local)
    offsets, items = virtual_items(batch, draws, 1.0, N_ITEMS)
    for user in range(6):
        part = slice(int(filled.indptr[user]), int(filled.indptr[user + 1]))
        rating = dict(zip(filled.items[part].tolist(), filled.ratings[part].tolist(), strict=True))
        own = slice(int(batch.indptr[user]), int(batch.indptr[user + 1]))
        for item, value in zip(batch.items[own].tolist(), batch.ratings[own].tolist(), strict=True):
            assert rating[item] == value
        virtual = items[offsets[user] : offsets[user + 1]]
        expected = np.full(len(virtual), user_means(batch)[user])
        if predicts:
            expected = MEAN + state["item_factors"][virtual] @ local[user, :FACTORS]
        np.testing.assert_allclose([rating[int(item)] for item in virtual], expected, rtol=1e-5)


def test_without_virtual_ratings_it_is_the_factorisation() -> None:
    algorithm = make(virtual_share=0)
    plain = fedrecon(
        N_ITEMS,
        MEAN,
        factors=FACTORS,
        item_bias=False,
        user_bias=False,
        user_factors="persistent",
        reconstruction={"method": "gradient-steps"},
        client={"method": "gradient-steps", "steps": 1, "learning_rate": 1, "regularization": 0.1},
    )
    state, batch, keys = state_of(algorithm, 6), random_ratings(6, COUNTS, N_ITEMS), keys_for(6, 6)
    local = rows(algorithm, 6)
    one = algorithm.client_update(state, batch, keys, local=local)
    other = plain.client_update(state, batch, keys, local=local[:, :FACTORS])
    for user in range(6):
        left, right = one.client(user), other.client(user)
        for name, array in right.arrays.items():
            assert left.arrays[name].tobytes() == array.tobytes()
        assert left.local is not None
        assert right.local is not None
        assert left.local[:, :FACTORS].tobytes() == right.local.tobytes()
        assert left.local[0, FACTORS] == user + 1
    np.testing.assert_array_equal(
        algorithm.predict(state, batch, batch, keys, local),
        plain.predict(state, batch, batch, keys, local[:, :FACTORS]),
    )
    np.testing.assert_array_equal(
        algorithm.scores(state, batch, keys, local), plain.scores(state, batch, keys, local[:, :FACTORS])
    )


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    draw=st.sampled_from(["once", "every-round"]),
    known=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_client_does_not_depend_on_the_others(counts: list[int], draw: str, known: bool, seed: int) -> None:
    algorithm, n = make(draw=draw, virtual_share=1.3), len(counts)
    state, batch, keys = state_of(algorithm, seed, 20), random_ratings(seed, counts, N_ITEMS), keys_for(1, n)
    local = rows(algorithm, n) if known else np.zeros((n, algorithm.local_width), np.float32)
    whole = algorithm.client_update(state, batch, keys, local=local)
    for user in range(n):
        one = algorithm.client_update(state, take_users(batch, [user]), keys[[user]], local=local[[user]])
        assert_same_update(whole, user, one, 0)


def test_a_group_draws_for_each_of_its_users() -> None:
    algorithm = make()
    state, batch, keys = state_of(algorithm, 7), random_ratings(7, COUNTS, N_ITEMS), keys_for(7, 2)
    update = algorithm.client_update(state, batch, keys, np.array([0, 3, 6]))
    assert update.local is not None
    assert len(set(update.local[:, FACTORS].tolist())) == 6
    assert len(update) == 2


def test_the_server_counts_its_updates() -> None:
    algorithm = make()
    state = algorithm.initial_state(8)
    optimizer_state = algorithm.initial_optimizer_state(state)
    batch = random_ratings(8, COUNTS, N_ITEMS)
    for number in range(3):
        assert algorithm.broadcast(state)[UPDATES].tolist() == [number]
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, algorithm.client_update(state, batch, keys_for(8, 6)))
        state, optimizer_state = algorithm.server_update(state, optimizer_state, accumulator.result(), number)


def test_virtual_ratings_cost_work() -> None:
    examples = np.array([10, 40])
    with_, without = (make(virtual_share=share).work(examples).flops.sum(axis=1) for share in (1, 0))
    assert with_[0] > without[0]
    assert with_[1] == without[1], "there is no unrated item left"


@pytest.mark.parametrize("written", [{"virtual_share": -1}, {"filling": "zero"}, {"draw": "twice"}])
def test_bad_settings_are_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make(**written)
