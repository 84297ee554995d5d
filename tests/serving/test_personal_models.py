"""What devices serve from, made by the method's own reconstruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.learning.base import Problem, Ratings
from edge.learning.methods.fedmmf import FedMMF, FedMMFSettings
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings
from edge.onnx.personal_models import personal_models
from edge.onnx.recommenders import blocks
from edge.onnx.score_graphs import Factorizations

N_ITEMS, WIDTH = 30, 5
# The second user has rated nothing, the third everything.
INDPTR = np.array([0, 4, 4, 4 + N_ITEMS, 5 + N_ITEMS])
ITEMS = np.concatenate([[1, 4, 7, 20], np.arange(N_ITEMS), [29]]).astype(np.uint16)
MASKS = ("zero-order", "one-order", "two-order", "high-order")


def batch() -> Ratings:
    ratings = np.random.default_rng(1).integers(1, 6, len(ITEMS)).astype(np.float32)
    return Ratings(INDPTR, ITEMS, ratings)


def method(mask: str | None, **changes: Any) -> FedRecon | FedMMF:
    features = np.random.default_rng(2).normal(size=(N_ITEMS, WIDTH)).astype(np.float32) * 3
    problem = Problem(n_items=N_ITEMS, rating_mean=3.25, features=features)
    if mask is None:
        return FedRecon(FedReconSettings(algorithm="fedrecon", factors=3, **changes), problem)
    settings = {"algorithm": "fedmmf", "factors": 3, "mask": {"kind": mask}, **changes}
    return FedMMF(FedMMFSettings.model_validate(settings), problem)


def factorizations(algorithm: FedRecon | FedMMF, *given: Any) -> Factorizations:
    models = personal_models(algorithm, *given)
    assert isinstance(models, Factorizations)
    return models


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", [None, *MASKS])
def test_they_score_as_the_method_does(mask: str | None, bias: bool) -> None:
    algorithm = method(mask, user_bias=bias, item_bias=bias)
    state, keys = algorithm.initial_state(3), np.arange(4, dtype=np.uint64)
    models = factorizations(algorithm, state, batch(), keys)
    assert len(models) == 4
    assert (models.features is not None) == (mask not in (None, "zero-order"))
    expected = algorithm.scores(state, batch(), keys)
    np.testing.assert_allclose(models.formula(), expected, rtol=1e-4, atol=1e-4)
    for row in range(4):
        (one,) = models.part(slice(row, row + 1)).formula()
        np.testing.assert_allclose(one, expected[row], rtol=1e-4, atol=1e-4)
    if not bias:
        assert not models.users.bias.any()
    # Who has rated nothing has no factors, and with a mask its mean.
    assert not models.users.factors[1].any()


@pytest.mark.parametrize("mask", [None, "one-order"])
def test_devices_that_keep_their_factors_serve_from_them(mask: str | None) -> None:
    steps = {"method": "gradient-steps", "steps": 1}
    algorithm = method(mask, user_factors="persistent", reconstruction=steps)
    state, keys = algorithm.initial_state(3), np.arange(4, dtype=np.uint64)
    kept = np.random.default_rng(4).normal(size=(4, algorithm.local_width)).astype(np.float32)
    models = factorizations(algorithm, state, batch(), keys, kept)
    expected = algorithm.scores(state, batch(), keys, kept)
    np.testing.assert_allclose(models.formula(), expected, rtol=1e-4, atol=1e-4)
    fresh = factorizations(algorithm, state, batch(), keys)
    assert np.abs(fresh.users.factors - models.users.factors).max() > 0.1


def test_blocks_are_the_whole_in_pieces() -> None:
    algorithm = method("two-order")
    models = personal_models(algorithm, algorithm.initial_state(0), batch(), np.zeros(4, np.uint64))
    pieces = list(blocks(models, 3))
    assert [(rows.start, rows.stop) for rows, _ in pieces] == [(0, 3), (3, 4)]
    for name, whole in models.own().items():
        np.testing.assert_array_equal(np.concatenate([piece.own()[name] for _, piece in pieces]), whole)


@pytest.mark.parametrize("method_name", ["mini-batches", "gradient-steps"])
def test_a_user_is_reconstructed_alike_in_any_company(method_name: str) -> None:
    settings: dict[str, Any] = {"method": method_name}
    if method_name == "mini-batches":
        settings |= {"epochs": 2, "batch_size": 3, "learning_rate": 0.1}
    algorithm = method(None, reconstruction=settings)
    state, keys, ratings = algorithm.initial_state(3), np.arange(4, dtype=np.uint64), batch()
    together = factorizations(algorithm, state, ratings, keys).users
    for user in range(4):
        rows = slice(int(INDPTR[user]), int(INDPTR[user + 1]))
        own = Ratings(INDPTR[user : user + 2] - INDPTR[user], ITEMS[rows], ratings.ratings[rows])
        alone = factorizations(algorithm, state, own, keys[user : user + 1]).users
        np.testing.assert_array_equal(alone.factors[0], together.factors[user])
        assert alone.bias[0] == together.bias[user]
