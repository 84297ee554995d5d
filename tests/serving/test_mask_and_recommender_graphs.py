from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from serving_models import (
    KINDS,
    WIDTH,
    check_parity,
    features_for,
    info_for,
    item_model,
    mask_for,
    mask_weights,
    one_recommender,
    recommender_scores,
    user_model,
)

from edge.core.errors import ExportError, MissingExtraError, ParityError
from edge.onnx.formulas import mask_scores
from edge.onnx.loading import check_model
from edge.onnx.mask_graph import MaskKind, mask_model
from edge.onnx.parity import Tolerance
from edge.onnx.recommenders import recommender_model
from edge.onnx.score_graphs import ItemModel, UserModel
from edge.onnx.session import OnnxSession

N_ITEMS = 40


def width_of(kind: MaskKind) -> int:
    return 0 if kind == "zero-order" else WIDTH


def check_one_mask(kind: MaskKind, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_items = int(rng.integers(1, 60))
    weights, features = mask_weights(rng, kind), features_for(rng, kind, n_items)
    model = mask_model(kind, weights, info_for(n_items, width_of(kind)), features=features)
    items = rng.integers(0, n_items, int(rng.integers(0, 80)))
    found = OnnxSession(model).run({"items": items}).outputs["scores"]
    assert found.dtype == np.float32
    check_parity(mask_scores(kind, weights, features, n_items)[items], found)


def check_one_recommender(kind: MaskKind | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_items, top = int(rng.integers(1, 60)), int(rng.integers(1, 70))
    items, user = item_model(rng, n_items), user_model(rng)
    mask = None if kind is None else mask_for(rng, kind, n_items)
    info = info_for(n_items, 0 if kind is None else width_of(kind))
    session = OnnxSession(recommender_model(one_recommender(items, user, mask), info, top=top))
    rated = rng.choice(n_items, int(rng.integers(0, n_items + 1)), replace=False)
    found = session.run({"rated": rated.astype(np.int64)}).outputs
    scores = found["scores"]
    check_parity(recommender_scores(items, user, mask), scores)
    check_list(scores, rated, found["top_items"], found["top_scores"], top)


def check_list(scores, rated, top_items, top_scores, top: int) -> None:
    """Check a list against a plain sort of the scores that the graph itself gave."""
    left = [item for item in np.argsort(-scores, kind="stable") if item not in set(rated.tolist())][:top]
    missing = top - len(left)
    assert top_items.tolist() == left + [-1] * missing
    assert top_scores.tolist() == scores[left].tolist() + [-np.inf] * missing


@pytest.mark.parametrize("kind", KINDS)
def test_masks_equal_the_formula(kind: MaskKind) -> None:
    for seed in range(12):
        check_one_mask(kind, seed)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_recommenders_equal_the_formula(kind: MaskKind | None) -> None:
    for seed in range(12):
        check_one_recommender(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_masks_equal_the_formula(kind: MaskKind) -> None:
    for seed in range(1000, 1100):
        check_one_mask(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_hundred_recommenders_equal_the_formula(kind: MaskKind | None) -> None:
    for seed in range(1000, 1100):
        check_one_recommender(kind, seed)


def models_of(kind: MaskKind) -> list[bytes]:
    rng = np.random.default_rng(3)
    weights, features = mask_weights(rng, kind), features_for(rng, kind, N_ITEMS)
    info = info_for(N_ITEMS, width_of(kind))
    return [
        mask_model(kind, weights, info, features=features),
        mask_model(kind, weights, info, features=None),
        mask_model(kind, weights, info, features=features, weights_as_inputs=True),
        recommender_model(
            one_recommender(item_model(rng, N_ITEMS), user_model(rng), mask_for(rng, kind, N_ITEMS)),
            info,
            top=10,
        ),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_is_valid_pinned_and_the_same_each_time(kind: MaskKind) -> None:
    for first, second in zip(models_of(kind), models_of(kind), strict=True):
        assert first == second
        model = onnx.load_from_string(first)
        onnx.checker.check_model(model, full_check=True)
        assert model.ir_version == 8
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
        keys = [entry.key for entry in model.metadata_props]
        assert keys == sorted(keys)
        assert kind in check_model(first, "ours").kind


def test_features_can_be_an_input() -> None:
    rng = np.random.default_rng(1)
    weights, features = mask_weights(rng, "two-order"), features_for(rng, "two-order", N_ITEMS)
    session = OnnxSession(mask_model("two-order", weights, info_for(N_ITEMS, WIDTH), features=None))
    items = np.arange(N_ITEMS)
    found = session.run({"items": items, "features": features}).outputs["scores"]
    check_parity(mask_scores("two-order", weights, features, N_ITEMS), found)


def test_a_list_longer_than_what_is_left() -> None:
    items = ItemModel(np.ones((3, 1), np.float32), np.array([1, 3, 2], np.float32), 0.0)
    user = UserModel(np.zeros(1, np.float32), 0.0)
    session = OnnxSession(recommender_model(one_recommender(items, user), info_for(3), top=5))
    some = session.run({"rated": np.array([1], np.int64)}).outputs
    assert some["top_items"].tolist() == [2, 0, -1, -1, -1]
    assert some["top_scores"].tolist() == [2.0, 1.0, -np.inf, -np.inf, -np.inf]
    assert some["scores"].tolist() == [1.0, 3.0, 2.0]
    nothing = session.run({"rated": np.arange(3)}).outputs
    assert nothing["top_items"].tolist() == [-1] * 5


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("one-order", {"weights": np.zeros(6, np.float32)}, r"float32 \[40, 6\]"),
        ("one-order", {"weights": np.zeros(7)}, "not float64"),
        ("one-order", {"extra": np.zeros(7, np.float32)}, "has intercept, weights, not extra"),
        ("two-order", {"factors": np.zeros((6, 3), np.float32)}, "has 6 for d, which is 7"),
        ("high-order", {"hidden_bias": np.full(5, np.nan, np.float32)}, "hidden_bias .* not finite"),
        ("third-order", {}, "there is no mask 'third-order'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(kind, change, message: str) -> None:
    rng = np.random.default_rng(0)
    weights = {**mask_weights(rng, kind if kind in KINDS else "one-order"), **change}
    with pytest.raises(ExportError, match=message):
        mask_model(kind, weights, info_for(N_ITEMS, WIDTH), features=features_for(rng, "one-order", N_ITEMS))


def test_features_without_names_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ExportError, match="0 feature_names for 7 features"):
        mask_model("one-order", mask_weights(rng, "one-order"), info_for(N_ITEMS), features=None)


@pytest.mark.parametrize("top", [0, -3])
def test_a_list_of_nothing_is_refused(top: int) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ExportError, match="1 item or more"):
        recommender_model(one_recommender(item_model(rng, 5), user_model(rng)), info_for(5), top=top)


def test_without_onnx_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    rng = np.random.default_rng(0)
    with pytest.raises(MissingExtraError, match=r"pip install 'recfleet\[export\]'"):
        recommender_model(one_recommender(item_model(rng, 5), user_model(rng)), info_for(5), top=3)


def test_parity_names_the_worst_score() -> None:
    expected = np.array([1.0, 2.0, 3.0])
    with pytest.raises(ParityError, match=r"score \[1\] is 2.5, the formula gives 2: 0.5 apart"):
        check_parity(expected, np.array([1.1, 2.5, 3.0]), Tolerance(1e-3, 1e-3))
    parity = check_parity(expected, np.array([1.0, 2.0, 4.0]), Tolerance(2.0, 0.0))
    assert (parity.max_absolute.tolist(), parity.max_relative.tolist()) == ([0.0, 0.0, 1.0], [0.0, 0.0, 0.25])


@pytest.mark.parametrize("found", [np.array([1.0, np.nan]), np.array([1.0])])
def test_parity_refuses_what_cannot_be_compared(found) -> None:
    with pytest.raises(ParityError):
        check_parity(np.array([1.0, 2.0]), found, Tolerance(9.0, 9.0))
