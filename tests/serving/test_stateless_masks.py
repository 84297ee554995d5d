"""Stateless models with a mask that is fitted in the graph, against the masks of edge.learning.masks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from serving_models import info_for, item_model, normal

from edge.core.errors import ExportError
from edge.learning.base import Problem, Ratings
from edge.learning.masks.base import limited
from edge.learning.masks.one_order import OneOrderSettings
from edge.learning.masks.zero_order import ZeroOrderSettings
from edge.learning.method_settings import Ridge
from edge.learning.methods.fedmmf import FedMMF, FedMMFSettings
from edge.onnx.compression import compress
from edge.onnx.loading import check_model
from edge.onnx.session import OnnxSession
from edge.onnx.stateless_graph import MaskRule, OneOrderRule, ZeroOrderRule, stateless_model

WIDTH = 7


def check_one(seed: int) -> float:
    """Compare one random model with FedMMF on a few histories; return the largest difference."""
    rng = np.random.default_rng(seed)
    n_items, k, user_bias = int(rng.integers(1, 200)), int(rng.integers(1, 17)), bool(rng.integers(2))
    ridge = Ridge(
        regularization=float(10 ** rng.uniform(0, 1.5)), bias_regularization=float(10 ** rng.uniform(0, 1.5))
    )
    features, mean = normal(rng, n_items, WIDTH) * np.float32(3), float(rng.uniform(1, 5))
    items = item_model(rng, n_items, k)
    settings: OneOrderSettings | ZeroOrderSettings
    rule: MaskRule
    if rng.integers(2):
        settings = OneOrderSettings(
            feature_limit=float(rng.uniform(1, 3)),
            regularization=float(10 ** rng.uniform(0, 2)),
            intercept_regularization=float(10 ** rng.uniform(0, 1)),
        )
        rule = OneOrderRule(
            mean,
            limited(features, settings.feature_limit),
            settings.regularization,
            settings.intercept_regularization,
        )
    else:
        settings = ZeroOrderSettings(kind="zero-order", shrinkage=float(10 ** rng.uniform(-1, 1)))
        rule = ZeroOrderRule(mean, settings.shrinkage)
    fedmmf = FedMMF(
        FedMMFSettings(
            algorithm="fedmmf", mask=settings, factors=k, user_bias=user_bias, reconstruction=ridge
        ),
        Problem(n_items=n_items, rating_mean=mean, features=features),
    )
    info = info_for(n_items, WIDTH)
    model = stateless_model(items, ridge, info, user_bias=user_bias, top=3, mask=rule)
    session = OnnxSession(check_model(model, "m.onnx").contents)
    state = {
        "item_factors": items.factors,
        "item_bias": items.bias,
        "rating_mean": np.array([items.mean], np.float32),
    }
    largest = 0.0
    for size in {0, 1, n_items, int(rng.integers(0, n_items + 1))}:
        history = np.sort(rng.choice(n_items, size, replace=False))
        ratings = rng.integers(1, 6, size).astype(np.float32)
        found = session.run({"items": history, "ratings": ratings}).outputs
        batch = Ratings(np.array([0, size]), history.astype(np.uint16), ratings)
        expected = fedmmf.scores(state, batch, np.zeros(1, np.uint64))[0]
        largest = max(largest, float(np.abs(found["scores"] - expected).max()))
        assert not set(found["top_items"].tolist()) & set(history.tolist())
    return largest


def test_scores_are_those_of_fedmmf() -> None:
    for seed in range(30):
        assert check_one(seed) < 1e-4, f"check_one({seed})"


@pytest.mark.slow
def test_a_hundred_models_score_as_fedmmf() -> None:
    for seed in range(1000, 1100):
        assert check_one(seed) < 1e-4, f"check_one({seed})"


def test_the_file_is_valid_the_same_each_time_and_can_be_compressed() -> None:
    rng = np.random.default_rng(1)
    items, features = item_model(rng, 60, 4), normal(rng, 60, WIDTH)
    rule = OneOrderRule(3.5, features, 10.0, 1.0)
    info = info_for(60, WIDTH)

    def made() -> bytes:
        return stateless_model(items, Ridge(), info, user_bias=True, top=5, mask=rule)

    assert made() == made()
    onnx.checker.check_model(onnx.load_from_string(made()), full_check=True)
    checked = check_model(made(), "m.onnx")
    assert checked.kind == "stateless/one-order"
    assert checked.info.feature_names == info.feature_names
    inputs = {"items": np.array([3, 9]), "ratings": np.array([5.0, 1.0], np.float32)}
    plain = OnnxSession(made()).run(inputs).outputs["scores"]
    small = compress(made(), "int8")
    assert len(small) < len(made())
    np.testing.assert_allclose(OnnxSession(small).run(inputs).outputs["scores"], plain, atol=0.02)


def test_features_that_do_not_fit_the_catalogue_are_refused() -> None:
    rng = np.random.default_rng(2)
    items = item_model(rng, 60, 4)
    with pytest.raises(ExportError, match=r"features are float32 \[60, 7\]"):
        stateless_model(
            items,
            Ridge(),
            info_for(60, WIDTH),
            user_bias=True,
            top=5,
            mask=OneOrderRule(3.5, normal(rng, 59, WIDTH), 10.0, 1.0),
        )
    with pytest.raises(ExportError, match="0 feature_names for 7 features"):
        stateless_model(
            items,
            Ridge(),
            info_for(60),
            user_bias=True,
            top=5,
            mask=OneOrderRule(3.5, normal(rng, 60, WIDTH), 10.0, 1.0),
        )
