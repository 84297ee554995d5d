"""GPFedRec: a device's steps by a naive network, and the graph by loops, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import assert_same_update, keys_for, random_ratings, take_users

from edge.core.rng import hashed_bits
from edge.learning.base import Problem, State
from edge.learning.least_squares import shuffled_ranks
from edge.learning.methods.gpfedrec import GPFedRec, GPFedRecSettings
from edge.learning.sampled_negatives import draw_examples

N_ITEMS, USERS = 12, 5
COUNTS = [3, 0, 4, 1, 2]
Floats = npt.NDArray[np.float64]
BATCHES = {"method": "mini-batches", "batch_size": 4, "epochs": 1, "learning_rate": 0.3}
SMALL = {"factors": 2, "layers": [3], "negatives": 2, "item_learning_rate": 0.05, "user_learning_rate": 0.2}


def gpfedrec(dtype: Any = np.float64, **given_settings: Any) -> GPFedRec:
    values = {"algorithm": "gpfedrec", **SMALL, "client": BATCHES, **given_settings}
    return GPFedRec(GPFedRecSettings.model_validate(values), Problem(n_items=N_ITEMS, n_users=USERS), dtype)


def some_rows(algorithm: GPFedRec, users: int = USERS) -> Floats:
    """Return what devices keep and were sent; the first has never taken part."""
    width = algorithm.local_width + algorithm.table_width
    rows = np.random.default_rng(4).normal(0, 0.5, (users, width))
    rows[0] = 0.0
    return rows


class Net:
    """A perceptron on [p; q] with one hidden layer, its weights in a vector as the device keeps them."""

    def __init__(self, own: Floats) -> None:
        self.p, rest = own[:2], own[2:]
        self.first, self.bias = rest[:12].reshape(4, 3), rest[12:15]
        self.last, self.offset = rest[15:18], rest[18]

    def score(self, q: Floats) -> float:
        hidden = np.maximum(np.append(self.p, q) @ self.first + self.bias, 0)
        return float(hidden @ self.last + self.offset)


def loss(own: Floats, table: Floats, items: Any, labels: Any, around: Floats, pull: float) -> float:
    x = np.array([Net(own).score(table[item]) for item in items])
    each = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * labels
    return float(each.mean() + pull * np.square(table - around).mean())


def slopes(of: Any, at: Floats) -> Floats:
    """Return the derivative of a function by differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        nudge = np.zeros_like(at)
        nudge[place] = 1e-6
        found[place] = (of(at + nudge) - of(at - nudge)) / 2e-6
    return found


def naive(
    algorithm: GPFedRec, state: State, batch: Any, keys: Any, rows: Floats
) -> list[tuple[Floats, Floats]]:
    s, width = algorithm.settings, algorithm.local_width
    examples = draw_examples(batch, hashed_bits(3, keys), each=2, n_items=N_ITEMS, kept_back=0)
    ranks, found = shuffled_ranks(examples.indptr, keys, 2, 0), []
    for user in range(len(batch.indptr) - 1):
        first, end = examples.indptr[user : user + 2]
        table, own = state["item_factors"].copy(), rows[user, :width].copy()
        if not own.any():
            own = state["initial_own"].copy()
        around = rows[user, width:].reshape(N_ITEMS, 2)
        if not around.any():
            around = state["item_factors"]
        order = first + np.argsort(ranks[first:end])
        for start in range(0, len(order), 4):
            chosen = order[start : start + 4]
            given_to = examples.items[chosen], examples.positive[chosen].astype(float), around, s.pull
            of_own = slopes(lambda one, t=table, g=given_to: loss(one, t, *g), own)
            of_table = slopes(lambda one, o=own, g=given_to: loss(o, one, *g), table)
            rates = np.full(width, s.client.learning_rate)
            rates[:2] = s.user_learning_rate
            own = own - rates * of_own
            table = table - s.item_learning_rate * N_ITEMS * of_table
        found.append((table, own))
    return found


def test_a_devices_steps_go_down_the_gradients_of_its_loss() -> None:
    algorithm = gpfedrec(pull=0.7)
    batch, keys, rows = random_ratings(3, COUNTS, N_ITEMS), keys_for(1, USERS), some_rows(algorithm)
    state = algorithm.initial_state(2)
    updates = algorithm.client_update(state, batch, keys, local=rows)
    for user, (table, own) in enumerate(naive(algorithm, state, batch, keys, rows)):
        update = updates.client(user)
        change = (table - state["item_factors"]).ravel()
        np.testing.assert_allclose(update.arrays["user_row"], change, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(update.local, [own], rtol=1e-5, atol=1e-8)
    assert updates.weights.tolist() == [1, 0, 1, 1, 1]


@pytest.mark.parametrize("neighbours", ["similar", "dissimilar", "random"])
@pytest.mark.parametrize("hops", [1, 2])
def test_the_coordinators_step(neighbours: str, hops: int) -> None:
    algorithm = gpfedrec(neighbours=neighbours, hops=hops, learning_rate=0.5)
    state = algorithm.initial_state(2)
    users, changes = np.array([3, 0, 4, 1]), np.random.default_rng(1).normal(0, 2, (4, algorithm.table_width))
    total = algorithm.accumulator(state)
    batch = random_ratings(3, COUNTS, N_ITEMS)
    update = algorithm.client_update(state, batch, keys_for(1, USERS)).client(0)
    total.in_groups(1)
    for user, change in zip(users.tolist(), changes, strict=True):
        total.add(update._replace(arrays=algorithm.named({"user_row": change}, user)), user)
    after, _ = algorithm.server_update(state, {}, total.result(), 0)
    tables = state["item_factors"].ravel() + changes
    likeness = np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a in tables] for b in tables])
    likeness = np.maximum(likeness, 0)
    if neighbours == "dissimilar":
        likeness = 1 - likeness
        likeness[np.arange(4), np.arange(4)] = 0.0
    averaged = tables
    weights = np.where(likeness >= likeness.mean(), likeness, 0.0)
    matrix = weights / weights.sum(axis=1, keepdims=True)
    if neighbours == "random":
        matrix = algorithm.graph(tables, users, int(state["graph"][0]))
        assert ((matrix > 0).sum(axis=1) == (weights > 0).sum(axis=1)).all()
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0)
    for _ in range(hops):
        averaged = np.array([sum(w * row for w, row in zip(line, averaged, strict=True)) for line in matrix])
    np.testing.assert_allclose(after["user_table"][users], averaged, rtol=1e-9, atol=1e-12)
    assert not after["user_table"][2].any()
    half = 0.5 * (state["item_factors"].ravel() + averaged.mean(axis=0))
    np.testing.assert_allclose(after["item_factors"].ravel(), half, rtol=1e-9, atol=1e-12)
    if neighbours != "random":
        assert (np.diagonal(matrix) == 0).all() == (neighbours == "dissimilar")


@pytest.mark.parametrize("served", ["server", "personal"])
def test_what_is_served(served: str) -> None:
    algorithm = gpfedrec(served_table=served)
    batch, keys, rows = random_ratings(3, COUNTS, N_ITEMS), keys_for(1, USERS), some_rows(algorithm)
    state = algorithm.initial_state(2)
    if served == "personal":
        given_to = naive(algorithm, state, batch, keys, rows)
    else:
        kept = rows[:, : algorithm.local_width]
        own = np.where(kept.any(axis=1, keepdims=True), kept, state["initial_own"])
        given_to = [(state["item_factors"], one) for one in own]
    expected = np.array([[Net(own).score(q) for q in table] for table, own in given_to])
    np.testing.assert_allclose(algorithm.scores(state, batch, keys, rows), expected, rtol=1e-4, atol=1e-6)
    query = random_ratings(8, [3, 5, 0, 2, 12], N_ITEMS)
    asked = expected[np.repeat(np.arange(USERS), np.diff(query.indptr)), query.items]
    found = algorithm.predict(state, batch, query, keys, rows)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-asked)), rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=6), seed=st.integers(0, 2**16))
def test_an_update_does_not_depend_on_the_others(counts: list[int], seed: int) -> None:
    algorithm = gpfedrec(np.float32, layers=[5, 3])
    batch, keys = random_ratings(seed, counts, N_ITEMS), keys_for(seed, len(counts))
    rows = some_rows(algorithm, len(counts)).astype(np.float32)
    state = algorithm.initial_state(2)
    together = algorithm.client_update(state, batch, keys, local=rows)
    declared = sum(spec.nbytes() for spec in algorithm.upload_spec(np.array(counts)))
    assert np.asarray(declared).tolist() == together.upload_bytes().tolist()
    for user in range(len(counts)):
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]], local=rows[[user]])
        assert_same_update(alone, 0, together, user)
