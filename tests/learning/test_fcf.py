"""FCF against iALS written out over all cells, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from learning_helpers import assert_same_update, keys_for, random_ratings, take_users

from edge.learning.base import Problem, Ratings
from edge.learning.methods.fcf import FCF, FCFSettings
from edge.learning.updates import ITEMS, ROWS, UpdateBatch

N_ITEMS = 23
COUNTS = [5, 0, 9, 1, 14]
Floats = npt.NDArray[np.float64]


def fcf(dtype: Any = np.float64, **settings: Any) -> FCF:
    given = {"algorithm": "fcf", "factors": 4, "confidence": 3.0, "user_regularization": 0.7}
    made = FCFSettings.model_validate({**given, "initial_scale": 0.5, **settings})
    return FCF(made, Problem(n_items=N_ITEMS), dtype)


def some(seed: int = 3, counts: list[int] = COUNTS) -> Ratings:
    return random_ratings(seed, counts, N_ITEMS, np.float64)


def cells(algorithm: FCF, batch: Ratings) -> tuple[Floats, Floats]:
    """Return p and c of every cell, [users, items]."""
    users, s = len(batch.indptr) - 1, algorithm.settings
    ratings = np.zeros((users, N_ITEMS))
    ratings[np.repeat(np.arange(users), np.diff(batch.indptr)), batch.items] = batch.ratings
    strength = {"one": np.ones_like(ratings), "log": np.log1p(ratings), "rating": ratings}[s.strength]
    return (ratings > 0).astype(float), 1 + s.confidence * strength * (ratings > 0)


def fitted(algorithm: FCF, y: Floats, p: Floats, c: Floats) -> Floats:
    lam = algorithm.settings.user_regularization * np.eye(y.shape[1])
    return np.array([
        np.linalg.solve(y.T @ np.diag(weights) @ y + lam, y.T @ (weights * liked))
        for liked, weights in zip(p, c, strict=True)
    ])  # fmt: skip


def objective(algorithm: FCF, y: Floats, x: Floats, p: Floats, c: Floats) -> float:
    s, n = algorithm.settings, len(x)
    errors = float((c * (p - x @ y.T) ** 2).sum())
    return errors + s.user_regularization * (x**2).sum() + n * s.item_regularization * (y**2).sum()


def step(algorithm: FCF, updates: UpdateBatch, users: int) -> tuple[Floats, Floats]:
    state = algorithm.initial_state(2)
    total = algorithm.accumulator(state)
    total.add_many(updates, np.arange(users), np.arange(users))
    optimizer = algorithm.initial_optimizer_state(state)
    after, _ = algorithm.server_update(state, optimizer, total.result(), 0)
    return state["item_factors"], after["item_factors"]


@pytest.mark.parametrize("strength", ["one", "log", "rating"])
@pytest.mark.parametrize("upload", ["sparse", "dense"])
def test_a_round_of_everybody_is_the_centralised_gradient(strength: str, upload: str) -> None:
    algorithm = fcf(strength=strength, upload=upload, optimizer={"kind": "sgd"}, learning_rate=0.1)
    batch = some(counts=[5, 3, 9, 1, 14])
    p, c = cells(algorithm, batch)
    updates = algorithm.client_update(algorithm.initial_state(2), batch, keys_for(1, 5))
    before, after = step(algorithm, updates, 5)
    x = fitted(algorithm, before, p, c)
    gradient = 2 * ((c * (x @ before.T - p)).T @ x + 5 * algorithm.settings.item_regularization * before)
    np.testing.assert_allclose(after - before, -0.1 * gradient / 10, rtol=1e-10, atol=1e-12)


def test_the_gradient_is_that_of_the_objective_whose_users_are_minimised() -> None:
    algorithm = fcf(optimizer={"kind": "sgd"}, learning_rate=1.0)
    batch = some(counts=[5, 3, 9, 1, 14])
    p, c = cells(algorithm, batch)
    before, after = step(
        algorithm, algorithm.client_update(algorithm.initial_state(2), batch, keys_for(1, 5)), 5
    )

    def value(y: Floats) -> float:
        return objective(algorithm, y, fitted(algorithm, y, p, c), p, c)

    for item, factor in ((0, 0), (7, 2), (22, 3)):
        nudge = np.zeros_like(before)
        nudge[item, factor] = 1e-5
        slope = (value(before + nudge) - value(before - nudge)) / 2e-5
        assert (after - before)[item, factor] == pytest.approx(-slope / 10, rel=1e-6)


def test_users_and_their_losses_are_those_of_all_cells() -> None:
    algorithm, batch = fcf(strength="rating"), some()
    state = algorithm.initial_state(2)
    p, c = cells(algorithm, batch)
    x = fitted(algorithm, state["item_factors"], p, c)
    keys = keys_for(1, 5)
    np.testing.assert_allclose(algorithm.reconstruct(state, batch, keys), x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        algorithm.scores(state, batch, keys), (x @ state["item_factors"].T).astype(np.float32), rtol=1e-6
    )
    errors = (c * (p - x @ state["item_factors"].T) ** 2).sum(axis=1)
    updates = algorithm.client_update(state, batch, keys)
    np.testing.assert_allclose(updates.losses, errors / np.maximum(COUNTS, 1) * (np.array(COUNTS) > 0))
    assert updates.weights.tolist() == [1, 0, 1, 1, 1]


def test_what_is_downloaded_is_enough() -> None:
    algorithm, batch = fcf(np.float32), some()
    state = algorithm.initial_state(2)
    here = algorithm.client_update(state, batch, keys_for(1, 5))
    there = algorithm.client_update(algorithm.broadcast(state), batch, keys_for(1, 5))
    for user in range(5):
        assert_same_update(here, user, there, user)


@pytest.mark.parametrize("upload", ["sparse", "dense"])
def test_an_update_does_not_depend_on_the_others(upload: str) -> None:
    algorithm = fcf(np.float32, upload=upload)
    counts = [5, 0, 9, 1, 14, 3, 23]
    batch, keys, state = some(counts=counts), keys_for(1, 7), algorithm.initial_state(2)
    together = algorithm.client_update(state, batch, keys)
    for user in range(7):
        alone = algorithm.client_update(state, take_users(batch, [user]), keys[[user]])
        assert_same_update(alone, 0, together, user)
    specs = algorithm.upload_spec(np.array(counts))
    assert sum(spec.nbytes() for spec in specs).tolist() == together.upload_bytes().tolist()  # type: ignore[union-attr]


def test_a_client_of_several_users_uploads_the_mean_of_theirs() -> None:
    algorithm, state = fcf(), fcf().initial_state(2)
    batch = some(counts=[5, 3, 9])
    single = algorithm.client_update(state, batch, keys_for(1, 3))
    joint = algorithm.client_update(state, batch, keys_for(1, 2), np.array([0, 2, 3]))
    assert joint.weights.tolist() == [1, 1]
    table = np.zeros((N_ITEMS, 4))
    for user in range(2):
        arrays = single.client(user).arrays
        table[arrays[ITEMS]] += arrays[ROWS] / 2
    arrays = joint.client(0).arrays
    np.testing.assert_allclose(table[arrays[ITEMS]], arrays[ROWS])
    grams = [single.client(user).arrays["user_gram"] for user in range(2)]
    np.testing.assert_allclose(np.mean(grams, axis=0), arrays["user_gram"])


def test_a_single_upload_gives_the_ratings_away() -> None:
    """What the page says: x from x xᵀ, then each rated item's confidence from its row."""
    algorithm, batch = fcf(strength="rating", upload="dense"), some(counts=[9])
    state = algorithm.initial_state(2)
    arrays = algorithm.client_update(state, batch, keys_for(1, 1)).client(0).arrays
    gram = np.zeros((4, 4))
    gram[np.triu_indices(4)] = arrays["user_gram"]
    gram += np.triu(gram, 1).T
    values, vectors = np.linalg.eigh(gram)
    x = vectors[:, -1] * np.sqrt(values[-1])
    first = arrays[ROWS][batch.items[0]]
    x *= np.sign(x @ first)
    factor = arrays[ROWS] @ x / (x @ x)
    found = np.flatnonzero(np.abs(factor) > 1e-9)
    assert found.tolist() == batch.items.tolist()
    score = state["item_factors"][found] @ x
    # factor = c − (c − 1)·x·y
    ratings = (factor[found] - 1) / (1 - score) / algorithm.settings.confidence
    np.testing.assert_allclose(ratings, batch.ratings, rtol=1e-6)


def test_steps_are_refused() -> None:
    algorithm = fcf()
    with pytest.raises(ValueError, match="no local steps"):
        algorithm.client_update(
            algorithm.initial_state(2), some(), keys_for(1, 5), steps=np.ones(5, np.int64)
        )
