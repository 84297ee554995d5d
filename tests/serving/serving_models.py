"""Small random models for the tests of serving."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.onnx.mask_graph import MaskKind, Weights
from edge.onnx.metadata import ModelInfo
from edge.onnx.own_masks import Mask
from edge.onnx.parity import RowParity, Tolerance, check_rows
from edge.onnx.score_graphs import Factorizations, ItemModel, UserModel

KINDS: tuple[MaskKind, ...] = ("zero-order", "one-order", "two-order", "high-order")
WIDTH, FACTORS, HIDDEN = 7, 3, 5
CLOSE = Tolerance(2e-5, 2e-5)


def weight_shapes(kind: MaskKind, width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    return {
        "zero-order": {"mean": ()},
        "one-order": {"intercept": (), "weights": (width,)},
        "two-order": {"intercept": (), "weights": (width,), "factors": (width, FACTORS)},
        "high-order": {
            "hidden_weights": (width, HIDDEN),
            "hidden_bias": (HIDDEN,),
            "output_weights": (HIDDEN,),
            "intercept": (),
        },
    }[kind]


def normal(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return np.asarray(rng.normal(0.0, 0.5, shape), np.float32)


def mask_weights(rng: np.random.Generator, kind: MaskKind, width: int = WIDTH) -> Weights:
    return {name: normal(rng, *shape) for name, shape in weight_shapes(kind, width).items()}


def features_for(
    rng: np.random.Generator, kind: MaskKind, n_items: int, width: int = WIDTH
) -> npt.NDArray[np.float32] | None:
    return None if kind == "zero-order" else normal(rng, n_items, width)


def info_for(n_items: int, width: int = 0, **fields: Any) -> ModelInfo:
    return ModelInfo(
        scenario="test",
        seed=7,
        privacy="none",
        n_items=n_items,
        feature_names=tuple(f"feature {place}" for place in range(width)),
        **fields,
    )


def item_model(rng: np.random.Generator, n_items: int, k: int = 4) -> ItemModel:
    return ItemModel(normal(rng, n_items, k), normal(rng, n_items), 3.5)


def user_model(rng: np.random.Generator, k: int = 4) -> UserModel:
    return UserModel(normal(rng, k), float(rng.normal()))


def mask_for(rng: np.random.Generator, kind: MaskKind, n_items: int) -> Mask:
    return Mask(kind, mask_weights(rng, kind), features_for(rng, kind, n_items))


def one_recommender(items: ItemModel, user: UserModel, mask: Mask | None = None) -> Factorizations:
    return Factorizations.of_one(items, user, mask)


def recommender_scores(items: ItemModel, user: UserModel, mask: Mask | None) -> npt.NDArray[np.float64]:
    return Factorizations.of_one(items, user, mask).formula()[0]


def check_parity(expected, found, tolerance: Tolerance = CLOSE) -> RowParity:
    return check_rows(expected, found, tolerance, lambda place: f"score [{', '.join(map(str, place))}]")
