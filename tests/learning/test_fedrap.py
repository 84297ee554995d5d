"""FedRAP against its equations written out example by example, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import assert_same_update, keys_for, random_ratings, take_users
from ncf_helpers import planted

from edge.core.rng import hashed_bits
from edge.learning.base import Problem, Ratings, State
from edge.learning.least_squares import shuffled_ranks
from edge.learning.methods.fedrap import FedRAP, FedRAPSettings
from edge.learning.sampled_negatives import draw_examples
from edge.learning.updates import ITEMS, ROWS

N_ITEMS, WIDTH = 20, 3
COUNTS = [4, 0, 6, 1, 5]
Floats = npt.NDArray[np.float64]
BATCHES = {"method": "mini-batches", "batch_size": 5, "epochs": 2, "learning_rate": 0.3}
TERMS = {"parting": 0.4, "sparsity": 0.2, "parting_limit": 1.5, "batch_decay": 0.9, "round_decay": 0.8}


def fedrap(dtype: Any = np.float64, n_items: int = N_ITEMS, **given_settings: Any) -> FedRAP:
    values = {
        "algorithm": "fedrap",
        "factors": WIDTH,
        "negatives": 2,
        "item_learning_rate": 0.02,
        "client": BATCHES,
    }
    return FedRAP(
        FedRAPSettings.model_validate({**values, **given_settings}), Problem(n_items=n_items), dtype
    )


def some_state(algorithm: FedRAP, updates: int = 4) -> State:
    return {**algorithm.initial_state(2), "updates": np.array([updates], np.int64)}


def kept_rows(users: int, n_items: int = N_ITEMS) -> Floats:
    rows = np.random.default_rng(4).normal(0, 0.5, (users, n_items * WIDTH + WIDTH + 1))
    rows[0] = 0.0
    return rows


def naive(algorithm: FedRAP, state: State, batch: Ratings, keys: Any, kept: Floats) -> Any:
    """Return both tables and the heads of every user after its steps, one example after another."""
    s, number = algorithm.settings, int(state["updates"][0])
    grown = np.tanh(number / s.curriculum_rounds)
    examples = draw_examples(batch, hashed_bits(3, keys), each=s.negatives, n_items=N_ITEMS, kept_back=0)
    ranks = [shuffled_ranks(examples.indptr, keys, 2, epoch) for epoch in range(2)]
    found = []
    for user in range(len(batch.indptr) - 1):
        first, end = examples.indptr[user : user + 2]
        own, shared = kept[user, : -WIDTH - 1].reshape(N_ITEMS, WIDTH).copy(), state["item_factors"].copy()
        head = kept[user, -WIDTH - 1 :].copy()
        if not head.any():
            head = state["initial_head"].copy()
        rate = 1.0
        for epoch in range(2):
            order = first + np.argsort(ranks[epoch][first:end])
            for start in range(0, len(order), 5):
                chosen = order[start : start + 5]
                w, b, of_head = head[:-1].copy(), head[-1], np.zeros(WIDTH + 1)
                for at in chosen:
                    item, label = int(examples.items[at]), float(examples.positive[at])
                    row = own[item] + shared[item]
                    g = (1 / (1 + np.exp(-(w @ row + b))) - label) / len(chosen)
                    of_head += g * np.append(row, 1.0)
                    apart = own[item] - shared[item]
                    push = 2 * s.parting * grown * apart / WIDTH / len(chosen)
                    if np.linalg.norm(apart) >= s.parting_limit:
                        push = 0.0
                    thin = s.sparsity * grown * np.sign(shared[item]) / WIDTH / len(chosen)
                    step = s.item_learning_rate * N_ITEMS * rate * s.round_decay**number
                    own[item], shared[item] = (
                        own[item] - step * (g * w - push),
                        shared[item] - step * (g * w + push + thin),
                    )
                head = head - s.client.learning_rate * rate * s.round_decay**number * of_head
                rate *= s.batch_decay
        found.append((own, shared, head))
    return found


@pytest.mark.parametrize("terms", [{}, TERMS], ids=["without terms", "with terms"])
def test_a_round_is_that_of_the_equations(terms: dict[str, float]) -> None:
    algorithm = fedrap(**terms)
    batch, keys, kept = random_ratings(3, COUNTS, N_ITEMS), keys_for(1, 5), kept_rows(5)
    state = some_state(algorithm)
    expected = naive(algorithm, state, batch, keys, kept)
    updates = algorithm.client_update(state, batch, keys, local=kept)
    for user, (own, shared, head) in enumerate(expected):
        update = updates.client(user)
        change = np.zeros((N_ITEMS, WIDTH))
        change[update.arrays[ITEMS]] = update.arrays[ROWS]
        np.testing.assert_allclose(change, shared - state["item_factors"], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(update.local, [np.append(own.ravel(), head)], rtol=1e-9, atol=1e-12)
    total = algorithm.accumulator(state)
    total.add_many(updates, np.arange(5), np.arange(5))
    after, _ = algorithm.server_update(state, {}, total.result(), 0)
    mean = np.mean([shared for user, (_, shared, _) in enumerate(expected) if COUNTS[user]], axis=0)
    np.testing.assert_allclose(after["item_factors"], mean, rtol=1e-9, atol=1e-12)
    assert after["updates"].tolist() == [5]


def test_the_terms_part_the_tables_up_to_their_limit() -> None:
    """The push alone: λ large, scores of next to no weight; what is beyond the limit stays."""
    limit = 2.0
    algorithm = fedrap(parting=5.0, parting_limit=limit, curriculum_rounds=0, item_learning_rate=0.05)
    batch, state, kept = random_ratings(3, [6], N_ITEMS), algorithm.initial_state(2), kept_rows(2)[1:]
    start = dict(state)
    for number in range(60):
        update = algorithm.client_update(state, batch, keys_for(number, 1), local=kept).client(0)
        assert update.local is not None
        kept = np.asarray(update.local)
        state = {**state, "item_factors": state["item_factors"].copy()}
        state["item_factors"][update.arrays[ITEMS]] += update.arrays[ROWS]
    apart = np.linalg.norm(kept[0, : -WIDTH - 1].reshape(N_ITEMS, WIDTH) - state["item_factors"], axis=1)
    before = np.linalg.norm(
        kept_rows(2)[1, : -WIDTH - 1].reshape(N_ITEMS, WIDTH) - start["item_factors"], axis=1
    )
    assert (apart[before < limit] > before[before < limit]).all()
    # One step goes no further than the gradient at the limit, and cross-entropy adds its share.
    assert apart.max() < max(2 * limit, before.max() + limit)


def test_what_is_served_is_both_tables() -> None:
    algorithm = fedrap()
    batch, keys, kept = random_ratings(3, COUNTS, N_ITEMS), keys_for(1, 5), kept_rows(5)
    state = some_state(algorithm)
    heads = kept[:, -WIDTH - 1 :].copy()
    heads[0] = state["initial_head"]
    tables = kept[:, : -WIDTH - 1].reshape(5, N_ITEMS, WIDTH) + state["item_factors"]
    expected = np.einsum("nid,nd->ni", tables, heads[:, :-1]) + heads[:, -1:]
    np.testing.assert_allclose(algorithm.scores(state, batch, keys, kept), expected, rtol=1e-5, atol=1e-6)
    query = random_ratings(8, [3, 5, 0, 2, 20], N_ITEMS)
    asked = expected[np.repeat(np.arange(5), np.diff(query.indptr)), query.items]
    found = algorithm.predict(state, batch, query, keys, kept)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-asked)), rtol=1e-9)
    new = algorithm.scores(state, batch, keys)
    first = state["item_factors"] @ state["initial_head"][:-1] + state["initial_head"][-1]
    np.testing.assert_allclose(new, np.tile(first, (5, 1)), rtol=1e-5, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    seed=st.integers(0, 2**16),
    upload=st.sampled_from(["sparse", "dense"]),
)
def test_an_update_does_not_depend_on_the_others(counts: list[int], seed: int, upload: str) -> None:
    algorithm = fedrap(np.float32, upload=upload, **TERMS)
    batch, keys = random_ratings(seed, counts, N_ITEMS), keys_for(seed, len(counts))
    kept = kept_rows(len(counts)).astype(np.float32)
    state = some_state(algorithm)
    before = kept.copy()
    together = algorithm.client_update(state, batch, keys, local=kept)
    assert kept.tobytes() == before.tobytes()
    declared = sum(spec.nbytes() for spec in algorithm.upload_spec(np.array(counts)))
    assert np.asarray(declared).tolist() == together.upload_bytes().tolist()
    for user in range(len(counts)):
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]], local=kept[[user]])
        assert_same_update(alone, 0, together, user)


def test_the_tables_of_a_device_are_in_its_memory() -> None:
    wide, narrow = fedrap(factors=8, n_items=2000), fedrap(factors=4, n_items=2000)
    counts = np.array([10])
    more = int(wide.work(counts).memory_bytes[0] - narrow.work(counts).memory_bytes[0])
    assert more >= 2 * 4 * 4 * 2000  # two tables, of four bytes a number
    assert wide.local_width == 2000 * 8 + 9


def test_training_learns_two_tastes() -> None:
    algorithm = fedrap(np.float32, n_items=40, factors=8, negatives=3, item_learning_rate=0.1)
    batch, held_out = planted(1, 60, 40, 8)
    state, kept = algorithm.initial_state(1), np.zeros((60, algorithm.local_width), np.float32)
    losses = []
    for number in range(30):
        updates = algorithm.client_update(state, batch, keys_for(number, 60), local=kept)
        losses.append(updates.losses.mean())
        total = algorithm.accumulator(state)
        total.add_many(updates, np.arange(60), np.arange(60))
        state, _ = algorithm.server_update(state, {}, total.result(), number)
        assert updates.local is not None
        kept = np.asarray(updates.local)
    scores = algorithm.scores(state, batch, keys_for(99, 60), kept)
    scores[np.repeat(np.arange(60), 8), batch.items] = -np.inf
    ranks = (scores > scores[np.arange(60), held_out][:, None]).sum(axis=1)
    assert losses[-1] < 0.1 * losses[0]
    # 12 of 32 other items are of the own taste: better than a guess by three standard errors.
    guess = 12 / 32
    assert np.mean(ranks < 12) > guess + 3 * np.sqrt(guess * (1 - guess) / 60)
