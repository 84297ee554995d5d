"""The formulas of :mod:`edge.serving`'s graphs in numpy, and how far an exported model is from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.serving.errors import ParityError
from edge.serving.mask_graph import Features, MaskKind, Weights
from edge.serving.recommender_graph import ItemModel, Mask, UserModel


@dataclass(frozen=True, slots=True)
class Parity:
    """Largest differences over all elements; relative to the larger of the two magnitudes."""

    max_absolute: float
    max_relative: float


def mask_scores(
    kind: MaskKind, weights: Weights, features: Features | None, n_items: int
) -> npt.NDArray[np.float64]:
    """Return a mask's score of each item, float64 [n_items], as :mod:`edge.serving.mask_graph` defines it."""
    w = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    if kind == "zero-order":
        return np.full(n_items, float(w["mean"]))
    x = np.asarray(features, np.float64)
    scores: npt.NDArray[np.float64]
    if kind == "high-order":
        scores = np.tanh(x @ w["hidden_weights"] + w["hidden_bias"]) @ w["output_weights"] + w["intercept"]
        return scores
    scores = w["intercept"] + x @ w["weights"]
    if kind == "two-order":
        scores += 0.5 * ((x @ w["factors"]) ** 2 - x**2 @ w["factors"] ** 2).sum(axis=1)
    return scores


def recommender_scores(items: ItemModel, user: UserModel, mask: Mask | None) -> npt.NDArray[np.float64]:
    """Return a recommender's score of each item, float64 [n_items]."""
    factors = items.factors.astype(np.float64)
    scores: npt.NDArray[np.float64] = (
        factors @ user.factors.astype(np.float64) + items.bias + user.bias + items.mean
    )
    if mask is not None:
        scores += mask_scores(mask.kind, mask.weights, mask.features, items.n_items)
    return scores


def check_parity(
    expected: npt.NDArray[Any], found: npt.NDArray[Any], *, absolute: float, relative: float
) -> Parity:
    """Compare scores element by element: |found − expected| ≤ absolute + relative · larger magnitude.

    Raises
    ------
    ParityError
        For other shapes, values that are not finite, and any element beyond the tolerance, naming the worst.
    """
    if expected.shape != found.shape:
        raise ParityError(f"{list(found.shape)} scores where the formula gives {list(expected.shape)}")
    a, b = expected.astype(np.float64), found.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ParityError("scores that are not finite cannot be compared")
    if a.size == 0:
        return Parity(0.0, 0.0)
    apart = np.abs(a - b)
    larger = np.maximum(np.abs(a), np.abs(b))
    beyond = apart - (absolute + relative * larger)
    if beyond.max() > 0:
        worst = np.unravel_index(int(beyond.argmax()), a.shape)
        place = ", ".join(map(str, worst))
        raise ParityError(
            f"score [{place}] is {b[worst]:.9g}, the formula gives {a[worst]:.9g}: {apart[worst]:.3g} apart, "
            f"beyond the tolerance of {absolute:g} + {relative:g} of the score"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(larger > 0, apart / larger, 0.0)
    return Parity(float(apart.max()), float(share.max()))
