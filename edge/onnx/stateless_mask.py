"""A mask inside the graph of a stateless recommender: fitted there to the history, or one device's own.

Zero-order masks (Σ r + s·μ)/(n + s) and one-order masks, ridge regression, have a closed form and are fitted
in the graph, so that the file holds nothing of any user. Factorisation machines and perceptrons are fitted by
iteration on the device; the graph takes the parameters that it found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edge.onnx.graph_writer import GraphWriter
from edge.onnx.mask_graph import Features, check_features
from edge.onnx.metadata import ModelInfo
from edge.onnx.own_masks import Mask, add_own_mask, check_own_mask
from edge.onnx.ridge_graph import add_affine, add_ones, add_ridge, default_iterations

_PREFIX = "mask_"


@dataclass(frozen=True, slots=True)
class ZeroOrderRule:
    """A user's mean, with ``shrinkage`` ratings at the global ``mean`` taken to have come before."""

    mean: float
    shrinkage: float

    kind: Literal["zero-order"] = "zero-order"


@dataclass(frozen=True, slots=True, eq=False)
class OneOrderRule:
    """Ridge regression on ``features`` float32 [n_items, d], as they are read: cut where the mask cuts them.

    ``regularization`` is λ of the weights, ``intercept_regularization`` λ_0 of the intercept's distance from
    the global ``mean``.
    """

    mean: float
    features: Features
    regularization: float
    intercept_regularization: float

    kind: Literal["one-order"] = "one-order"


MaskRule = ZeroOrderRule | OneOrderRule


def kind_of(mask: MaskRule | Mask | None) -> str:
    """Return what the kind of a stateless model with this mask is called."""
    if mask is None:
        return "stateless"
    return f"stateless/own/{mask.kind}" if isinstance(mask, Mask) else f"stateless/{mask.kind}"


def add_mask_of_history(
    writer: GraphWriter, mask: MaskRule | Mask, history: str, ratings: str, info: ModelInfo
) -> str:
    """Add a mask and return the name of what it says of every item, float32 [n_items].

    Parameters
    ----------
    writer : of the graph.
    mask : a rule, followed in the graph, or the mask of a device.
    history, ratings : names of int64 [r] and float32 [r].
    info : with the names of the features and the number of items.

    Raises
    ------
    ExportError
        For a mask that contradicts itself or the catalogue.
    """
    if isinstance(mask, Mask):
        check_own_mask(mask, info)
        names = {name: writer.constant(name, values) for name, values in mask.weights.items()}
        return add_own_mask(writer, mask.kind, names, mask.features, info.n_items)
    if isinstance(mask, OneOrderRule):
        return _regression(writer, mask, history, ratings, info)
    catalogue = writer.constant("catalogue", np.array([info.n_items], np.int64))
    return writer.node("Expand", _shrunk_mean(writer, mask, ratings, history), catalogue)


def _shrunk_mean(writer: GraphWriter, rule: ZeroOrderRule, ratings: str, history: str) -> str:
    total = writer.node("ReduceSum", ratings, writer.constant("rows", np.array([0], np.int64)), keepdims=0)
    before = writer.constant(f"{_PREFIX}sum", np.array(rule.shrinkage * rule.mean, np.float32))
    count = writer.node("Cast", writer.node("Shape", history), to=writer.float32)
    shrinkage = writer.constant(f"{_PREFIX}shrinkage", np.array(rule.shrinkage, np.float32))
    return writer.node("Div", writer.node("Add", total, before), writer.node("Add", count, shrinkage))


def _regression(writer: GraphWriter, rule: OneOrderRule, history: str, ratings: str, info: ModelInfo) -> str:
    width = rule.features.shape[1]
    check_features(rule.features, width, info)
    features = writer.constant("features", rule.features)
    mean = writer.constant(f"{_PREFIX}mean", np.array(rule.mean, np.float32))
    rows = add_ones(writer, writer.node("Gather", features, history), history)
    target = writer.node("Sub", ratings, mean)
    penalty = np.full(width + 1, rule.regularization, np.float32)
    penalty[width] = rule.intercept_regularization
    solution = add_ridge(writer, rows, target, penalty, default_iterations(width + 1), _PREFIX)
    return writer.node("Add", add_affine(writer, features, solution, width, _PREFIX), mean)
