"""PFedRec against its equations written out example by example, in float64."""

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
from edge.learning.base import Problem, Ratings
from edge.learning.least_squares import shuffled_ranks
from edge.learning.methods.pfedrec import PFedRec, PFedRecSettings
from edge.learning.sampled_negatives import draw_examples
from edge.learning.updates import ITEMS, ROWS

N_ITEMS = 30
COUNTS = [4, 0, 7, 1, 12, 3]
Floats = npt.NDArray[np.float64]
BATCHES = {
    "method": "mini-batches",
    "batch_size": 5,
    "epochs": 2,
    "learning_rate": 0.3,
    "regularization": 0.05,
}


def pfedrec(dtype: Any = np.float64, n_items: int = N_ITEMS, **given_settings: Any) -> PFedRec:
    values = {
        "algorithm": "pfedrec",
        "factors": 4,
        "negatives": 2,
        "item_learning_rate": 0.05,
        "client": BATCHES,
    }
    return PFedRec(
        PFedRecSettings.model_validate({**values, **given_settings}), Problem(n_items=n_items), dtype
    )


def slope(row: Floats, label: float, w: Floats, b: float, size: int) -> float:
    return float((1 / (1 + np.exp(-(w @ row + b))) - label) / size)


def naive(algorithm: PFedRec, state: Any, batch: Ratings, keys: Any, kept: Floats) -> Any:
    """Return tables and heads of every user after its steps, one example after another."""
    s = algorithm.settings
    examples = draw_examples(batch, hashed_bits(3, keys), each=s.negatives, n_items=N_ITEMS, kept_back=0)
    tables, heads = [], []
    ranks = [shuffled_ranks(examples.indptr, keys, 2, epoch) for epoch in range(2)]
    for user in range(len(batch.indptr) - 1):
        first, end = examples.indptr[user : user + 2]
        table, own = state["item_factors"].copy(), kept[user].copy()
        if not own.any():
            own = state["initial_head"].copy()
        w, b = own[:-1], own[-1]
        for epoch in range(2):
            order = first + np.argsort(ranks[epoch][first:end])
            for start in range(0, len(order), 5):
                chosen = order[start : start + 5]
                truth = [(int(examples.items[at]), float(examples.positive[at])) for at in chosen]

                size = len(truth)
                g = [slope(table[item], label, w, b, size) for item, label in truth]
                w = w - 0.3 * (
                    sum(one * table[item] for one, (item, _) in zip(g, truth, strict=True)) + 0.05 * w
                )
                b = b - 0.3 * sum(g)
                for item, label in truth:
                    again = slope(table[item], label, w, b, size)
                    table[item] = table[item] - 0.05 * N_ITEMS * (again * w + 0.05 * table[item] / size)
        tables.append(table)
        heads.append(np.append(w, b))
    return np.array(tables), np.array(heads)


def kept_rows(users: int) -> Floats:
    rows = np.random.default_rng(4).normal(0, 0.5, (users, 5))
    rows[0] = 0.0
    return rows


def test_a_round_is_that_of_the_equations() -> None:
    algorithm = pfedrec()
    batch, keys, kept = random_ratings(3, COUNTS, N_ITEMS), keys_for(1, 6), kept_rows(6)
    state = algorithm.initial_state(2)
    tables, heads = naive(algorithm, state, batch, keys, kept)
    updates = algorithm.client_update(state, batch, keys, local=kept)
    for user in range(6):
        update = updates.client(user)
        change = np.zeros((N_ITEMS, 4))
        change[update.arrays[ITEMS]] = update.arrays[ROWS]
        np.testing.assert_allclose(change, tables[user] - state["item_factors"], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(update.local, heads[[user]], rtol=1e-9, atol=1e-12)
    assert updates.weights.tolist() == [1, 0, 1, 1, 1, 1]
    total = algorithm.accumulator(state)
    total.add_many(updates, np.arange(6), np.arange(6))
    after, _ = algorithm.server_update(state, {}, total.result(), 0)
    mean = np.delete(tables, 1, axis=0).mean(axis=0)
    np.testing.assert_allclose(after["item_factors"], mean, rtol=1e-9, atol=1e-12)
    assert after["initial_head"] is state["initial_head"]


@pytest.mark.parametrize("served", ["personal", "server"])
def test_what_is_served(served: str) -> None:
    """The table tuned on the device's own data, on examples that its evaluation draws, or the server's."""
    algorithm = pfedrec(served_table=served)
    batch, keys, kept = random_ratings(3, COUNTS, N_ITEMS), keys_for(1, 6), kept_rows(6)
    state = algorithm.initial_state(2)
    tables, heads = naive(algorithm, state, batch, keys, kept)
    if served == "server":
        tables = np.tile(state["item_factors"], (6, 1, 1))
        heads = np.where(kept.any(axis=1, keepdims=True), kept, state["initial_head"])
    expected = np.einsum("nid,nd->ni", tables, heads[:, :-1]) + heads[:, -1:]
    found = algorithm.scores(state, batch, keys, kept)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    query = random_ratings(8, [3, 5, 0, 2, 30, 1], N_ITEMS)
    predicted = algorithm.predict(state, batch, query, keys, kept)
    asked = expected[np.repeat(np.arange(6), np.diff(query.indptr)), query.items]
    np.testing.assert_allclose(predicted, 1 / (1 + np.exp(-asked)), rtol=1e-9)


def test_the_first_step_is_along_the_gradients() -> None:
    """One full-batch step of tiny rates against differences of the loss that it is said to lower."""
    client = {"method": "gradient-steps", "steps": 1, "learning_rate": 1e-6, "regularization": 0.1}
    algorithm = pfedrec(client=client, item_learning_rate=1e-6)
    batch, keys, kept = random_ratings(3, [5], N_ITEMS), keys_for(1, 1), kept_rows(2)[1:]
    state = algorithm.initial_state(2)
    examples = draw_examples(batch, hashed_bits(3, keys), each=2, n_items=N_ITEMS, kept_back=0)
    labels = examples.positive.astype(float)

    def loss(rows: Floats, head: Floats) -> float:
        x = rows @ head[:-1] + head[-1]
        each = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * labels + 0.05 * (rows**2).sum(axis=1)
        return float(each.mean() + 0.05 * (head[:-1] ** 2).sum())

    update = algorithm.client_update(state, batch, keys, local=kept).client(0)
    assert update.local is not None
    rows = state["item_factors"][examples.items]
    for at in range(5):
        nudge = np.eye(5)[at] * 1e-6
        slope = (loss(rows, kept[0] + nudge) - loss(rows, kept[0] - nudge)) / 2e-6
        assert (kept[0] - update.local[0])[at] / 1e-6 == pytest.approx(slope, rel=1e-5, abs=1e-8)
    for at in (0, 7, 14):
        nudge = np.zeros_like(rows)
        nudge[at, 2] = 1e-6
        slope = (loss(rows + nudge, kept[0]) - loss(rows - nudge, kept[0])) / 2e-6
        assert -update.arrays[ROWS][at, 2] / (1e-6 * N_ITEMS) == pytest.approx(slope, rel=1e-4, abs=1e-8)


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=7),
    seed=st.integers(0, 2**16),
    upload=st.sampled_from(["sparse", "dense"]),
)
def test_an_update_does_not_depend_on_the_others(counts: list[int], seed: int, upload: str) -> None:
    algorithm = pfedrec(np.float32, upload=upload)
    batch, keys = random_ratings(seed, counts, N_ITEMS), keys_for(seed, len(counts))
    kept = np.random.default_rng(seed).normal(0, 0.5, (len(counts), 5)).astype(np.float32)
    state = algorithm.initial_state(2)
    together = algorithm.client_update(state, batch, keys, local=kept)
    declared = sum(spec.nbytes() for spec in algorithm.upload_spec(np.array(counts)))
    assert np.asarray(declared).tolist() == together.upload_bytes().tolist()
    for user in range(len(counts)):
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]], local=kept[[user]])
        assert_same_update(alone, 0, together, user)


def test_fewer_steps_weigh_less() -> None:
    algorithm = pfedrec()
    batch, keys = random_ratings(3, COUNTS, N_ITEMS), keys_for(1, 6)
    state, whole = algorithm.initial_state(2), algorithm.local_steps(np.array(COUNTS))
    assert whole.tolist() == [6, 0, 10, 2, 12, 4]
    all_of_them = algorithm.client_update(state, batch, keys, steps=np.maximum(whole, 1))
    for user in range(6):
        assert_same_update(all_of_them, user, algorithm.client_update(state, batch, keys), user)
    half = algorithm.client_update(state, batch, keys, steps=np.maximum(whole // 2, 1))
    assert half.weights.tolist() == [0.5, 0, 0.5, 0.5, 0.5, 0.5]


def test_training_learns_two_tastes() -> None:
    algorithm = pfedrec(np.float32, n_items=40, factors=8, negatives=3, item_learning_rate=2.0)
    batch, held_out = planted(1, 60, 40, 8)
    state, kept = algorithm.initial_state(1), np.zeros((60, 9), np.float32)
    for round_number in range(30):
        updates = algorithm.client_update(state, batch, keys_for(round_number, 60), local=kept)
        total = algorithm.accumulator(state)
        total.add_many(updates, np.arange(60), np.arange(60))
        state, _ = algorithm.server_update(state, {}, total.result(), round_number)
        assert updates.local is not None
        kept = np.asarray(updates.local)
    scores = algorithm.scores(state, batch, keys_for(99, 60), kept)
    scores[np.repeat(np.arange(60), 8), batch.items] = -np.inf
    ranks = (scores > scores[np.arange(60), held_out][:, None]).sum(axis=1)
    assert np.mean(ranks < 12) > 0.85  # there are 12 other items of the own taste


def test_a_single_upload_gives_the_positives_away() -> None:
    """What the page says: rows are multiples of one vector, and their sign is the label."""
    algorithm = pfedrec(np.float32, client={**BATCHES, "epochs": 1, "batch_size": 256, "regularization": 0.0})
    batch, keys = random_ratings(3, [5], N_ITEMS), keys_for(1, 1)
    arrays = algorithm.client_update(algorithm.initial_state(2), batch, keys).client(0).arrays
    left, sizes, _ = np.linalg.svd(arrays[ROWS])
    assert sizes[1] < 1e-5 * sizes[0]
    one, other = (arrays[ITEMS][side].tolist() for side in (left[:, 0] > 0, left[:, 0] < 0))
    assert sorted((one, other), key=len)[0] == batch.items.tolist()
