"""Graph of a recommender for anyone: ratings in, recommendations out.

Inside is FedRecon's reconstruction by ridge (:func:`edge.learning.fedrecon_kernels.reconstruct`):
with X the rows [q_i | 1] of the rated items and t = r − μ − b_i − mask(x_i),

    (XᵀX + diag(λ, …, λ, λ_b)) [p | b_u] = Xᵀt

solved as in :mod:`edge.onnx.ridge_graph`. Zero-order masks (Σ r + s·μ)/(n + s) and one-order masks, ridge
regression, have a closed form and are fitted in the graph; of other masks it takes the parameters that a
device found. Without a mask, or with one that is fitted in the graph, nothing
of a user is inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from edge.learning.method_settings import Ridge
from edge.onnx.graph_writer import GraphWriter
from edge.onnx.mask_graph import Features, check_features
from edge.onnx.metadata import ModelInfo
from edge.onnx.own_masks import Mask, add_own_mask, check_own_mask
from edge.onnx.recommenders import add_top, check_catalogue, check_top
from edge.onnx.ridge_graph import add_affine, add_ones, add_ridge, check_iterations, default_iterations
from edge.onnx.score_graphs import ItemModel

_PREFIX = "mask_"
STATELESS = "stateless"


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


def is_stateless(kind: str) -> bool:
    """Say whether a model of this kind takes a history of ratings."""
    return kind.partition("/")[0] == STATELESS


def stateless_model(
    items: ItemModel,
    ridge: Ridge,
    info: ModelInfo,
    *,
    user_bias: bool,
    top: int,
    mask: MaskRule | Mask | None = None,
    iterations: int | None = None,
) -> bytes:
    """Return the serialised graph: ``items`` int64 [r], ``ratings`` float32 [r] → scores and the best items.

    Outputs are those of :func:`edge.onnx.recommenders.add_top`; the items of the history are left out of the
    list. An empty history gives μ + b_i, and what the mask makes of it. An item that stands twice in it
    counts twice.

    Parameters
    ----------
    items : the global model.
    ridge : λ and λ_b.
    info : goes into the metadata; with the rating range, so that a history can be checked against it.
    user_bias : whether b_u is fitted.
    top : length of the list.
    mask : subtracted before the fit and added to the scores: a rule to follow, or what a device has fitted.
    iterations : of conjugate gradients, at least the number of unknowns; by default twice as many.

    Raises
    ------
    ExportError, MissingExtraError
    """
    check_catalogue(items.n_items, info)
    check_top(top)
    unknowns = items.width + user_bias
    if iterations is None:
        iterations = default_iterations(unknowns)
    check_iterations(iterations, unknowns)
    writer = GraphWriter()
    history = writer.input("items", np.int64, ["r"])
    ratings = writer.input("ratings", np.float32, ["r"])
    factors = writer.constant("item_factors", items.factors)
    base = writer.constant("item_bias", items.bias)
    if mask is not None:
        base = writer.node("Add", base, add_mask_of_history(writer, mask, history, ratings, info))
    mean = writer.constant("mean_rating", np.array(items.mean, np.float32))
    target = writer.node("Sub", writer.node("Sub", ratings, mean), writer.node("Gather", base, history))
    rows = writer.node("Gather", factors, history)
    if user_bias:
        rows = add_ones(writer, rows, history)
    penalty = np.full(unknowns, ridge.regularization, np.float32)
    penalty[items.width :] = ridge.bias_regularization
    local = add_ridge(writer, rows, target, penalty, iterations)
    score = add_affine(writer, factors, local, items.width) if user_bias else writer.product(factors, local)
    score = writer.node("Add", writer.node("Add", score, base), mean)
    add_top(writer, score, history, n_items=items.n_items, top=top)
    return writer.model(info.properties(kind_of(mask)))
