from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from serving_models import info_for, item_model

from edge.core.errors import ExportError
from edge.data.table.reading import read_ratings
from edge.learning.base import Problem, Ratings
from edge.learning.method_settings import Ridge
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings
from edge.onnx.compression import compress, top_overlap
from edge.onnx.loading import check_model
from edge.onnx.score_graphs import ItemModel
from edge.onnx.session import OnnxSession
from edge.onnx.stateless_graph import stateless_model

DATA = Path(os.environ.get("RECFLEET_DATA", "data"))


def method(n_items: int, ridge: Ridge, k: int, *, user_bias: bool = True) -> FedRecon:
    settings = FedReconSettings(algorithm="fedrecon", factors=k, user_bias=user_bias, reconstruction=ridge)
    return FedRecon(settings, Problem(n_items=n_items, rating_mean=3.5))


def closed_form(
    fedrecon: FedRecon, items: ItemModel, history: np.ndarray[Any, Any], ratings: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    state = {
        "item_factors": items.factors,
        "item_bias": items.bias,
        "rating_mean": np.array([items.mean], np.float32),
    }
    batch = Ratings(np.array([0, len(history)]), history.astype(np.uint16), ratings.astype(np.float32))
    return fedrecon.scores(state, batch, np.zeros(1, np.uint64))[0]


def check_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_items, k, user_bias = int(rng.integers(1, 300)), int(rng.integers(1, 33)), bool(rng.integers(2))
    ridge = Ridge(
        regularization=float(10 ** rng.uniform(-1, 1.5)),
        bias_regularization=float(10 ** rng.uniform(-1, 1.5)),
    )
    items = item_model(rng, n_items, k)
    model = stateless_model(
        items, ridge, info_for(n_items), user_bias=user_bias, top=int(rng.integers(1, 20))
    )
    session = OnnxSession(model)
    for size in {0, 1, n_items, int(rng.integers(0, n_items + 1))}:
        history = np.sort(rng.choice(n_items, size, replace=False))
        ratings = rng.integers(1, 6, size).astype(np.float32)
        found = session.run({"items": history, "ratings": ratings}).outputs
        expected = closed_form(method(n_items, ridge, k, user_bias=user_bias), items, history, ratings)
        np.testing.assert_allclose(found["scores"], expected, rtol=0, atol=1e-4)
        assert not set(found["top_items"].tolist()) & set(history.tolist())


def test_scores_are_those_of_the_closed_form() -> None:
    for seed in range(20):
        check_one(seed)


@pytest.mark.slow
def test_a_hundred_models_score_as_the_closed_form() -> None:
    for seed in range(1000, 1100):
        check_one(seed)


def test_as_many_iterations_as_unknowns_suffice() -> None:
    rng = np.random.default_rng(4)
    items, ridge = item_model(rng, 200, 16), Ridge()
    model = stateless_model(items, ridge, info_for(200), user_bias=True, top=5, iterations=17)
    history, ratings = np.arange(0, 200, 3), rng.integers(1, 6, 67).astype(np.float32)
    found = OnnxSession(model).run({"items": history, "ratings": ratings}).outputs["scores"]
    expected = closed_form(method(200, ridge, 16), items, history, ratings)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_fewer_iterations_than_unknowns_are_refused() -> None:
    items = item_model(np.random.default_rng(0), 9, 4)
    with pytest.raises(ExportError, match="4 iterations for 5 unknowns; give at least 5"):
        stateless_model(items, Ridge(), info_for(9), user_bias=True, top=5, iterations=4)


def test_no_history_gives_mean_and_item_bias() -> None:
    items = item_model(np.random.default_rng(0), 9, 4)
    session = OnnxSession(stateless_model(items, Ridge(), info_for(9), user_bias=True, top=9))
    empty = {"items": np.zeros(0, np.int64), "ratings": np.zeros(0, np.float32)}
    found = session.run(empty).outputs
    assert found["scores"].tolist() == (items.bias + np.float32(3.5)).tolist()
    assert found["top_items"].tolist() == np.argsort(-items.bias).tolist()


def test_an_exact_fit_is_not_divided_by_zero() -> None:
    items = ItemModel(np.zeros((3, 2), np.float32), np.zeros(3, np.float32), 3.0)
    session = OnnxSession(stateless_model(items, Ridge(), info_for(3), user_bias=True, top=2))
    found = session.run({"items": np.array([0]), "ratings": np.array([3.0], np.float32)}).outputs
    assert found["scores"].tolist() == [3.0, 3.0, 3.0]
    assert found["top_items"].tolist() == [1, 2]


@pytest.mark.parametrize("user_bias", [False, True])
def test_the_graph_is_valid_and_the_same_each_time(user_bias: bool) -> None:
    def written() -> bytes:
        items = item_model(np.random.default_rng(0), 9, 4)
        return stateless_model(items, Ridge(), info_for(9), user_bias=user_bias, top=5)

    assert written() == written()
    onnx.checker.check_model(onnx.load_from_string(written()), full_check=True)
    assert check_model(written(), "ours").kind == "stateless"


@pytest.mark.parametrize("how", ["fp16", "int8"])
def test_compressed_models_are_valid_small_and_rank_alike(how: Any) -> None:
    rng = np.random.default_rng(5)
    items = item_model(rng, 2000, 32)
    plain = stateless_model(items, Ridge(), info_for(2000), user_bias=True, top=10)
    small = compress(plain, how)
    assert small == compress(plain, how)
    assert len(small) < {"fp16": 0.7, "int8": 0.5}[how] * len(plain)
    onnx.checker.check_model(onnx.load_from_string(small), full_check=True)
    assert check_model(small, "ours").compression == how
    sessions = (OnnxSession(plain), OnnxSession(small))
    lists: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(20):
        history = np.sort(rng.choice(2000, 40, replace=False))
        ratings = rng.integers(1, 6, 40).astype(np.float32)
        for session, found in zip(sessions, lists, strict=True):
            found.append(session.run({"items": history, "ratings": ratings}).outputs["top_items"])
    overlap = top_overlap(np.array(lists[0]), np.array(lists[1]))
    assert overlap.mean() >= 0.9


def test_overlap_counts_items_whatever_their_order() -> None:
    reference = np.array([[1, 2, 3, 4], [1, 2, -1, -1], [-1, -1, -1, -1]])
    found = np.array([[4, 9, 1, 8], [2, 3, -1, -1], [-1, -1, -1, -1]])
    assert top_overlap(reference, found).tolist() == [0.5, 0.5, 1.0]


def test_what_cannot_be_compressed_is_refused() -> None:
    items = item_model(np.random.default_rng(0), 9, 4)
    plain = stateless_model(items, Ridge(), info_for(9), user_bias=True, top=5)
    with pytest.raises(ExportError, match="compressed already, as int8"):
        compress(compress(plain, "int8"), "fp16")
    large = ItemModel(items.factors * np.float32(1e6), items.bias, 3.0)
    with pytest.raises(ExportError, match="beyond the range of float16"):
        compress(stateless_model(large, Ridge(), info_for(9), user_bias=True, top=5), "fp16")
    assert compress(plain, "none") is plain


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "ml-1m").is_dir(), reason="needs MovieLens 1M in RECFLEET_DATA")
def test_users_of_movielens_1m_get_the_closed_form() -> None:
    store = read_ratings(DATA / "ml-1m", "movielens-1m").store
    rng = np.random.default_rng(0)
    items = item_model(rng, store.n_items, 16)
    ridge = Ridge()
    session = OnnxSession(stateless_model(items, ridge, info_for(store.n_items), user_bias=True, top=10))
    fedrecon = method(store.n_items, ridge, 16)
    same = 0
    for user in rng.choice(store.n_users, 500, replace=False):
        history, ratings = store.local(int(user))
        found = session.run({"items": history.astype(np.int64), "ratings": ratings}).outputs
        expected = closed_form(fedrecon, items, history, ratings)
        np.testing.assert_allclose(found["scores"], expected, rtol=0, atol=1e-4)
        expected[history] = -np.inf
        same += found["top_items"].tolist() == np.argsort(-expected, kind="stable")[:10].tolist()
    assert same >= 495
