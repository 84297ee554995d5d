"""Graph of a recommender for anyone: ratings in, recommendations out.

Inside is FedRecon's reconstruction by ridge (:func:`edge.learning.fedrecon_kernels.reconstruct`):
with X the rows [q_i | 1] of the rated items and t = r − μ − b_i − mask(x_i),

    (XᵀX + diag(λ, …, λ, λ_b)) [p | b_u] = Xᵀt

solved as in :mod:`edge.onnx.ridge_graph`. Without a mask, or with one that is fitted in the graph, nothing
of a user is inside.
"""

from __future__ import annotations

import numpy as np

from edge.learning.local_steps import Ridge
from edge.onnx.graph_writer import GraphWriter
from edge.onnx.metadata import ModelInfo
from edge.onnx.own_masks import Mask
from edge.onnx.recommender_graph import ItemModel
from edge.onnx.recommenders import check_catalogue
from edge.onnx.ridge_graph import add_affine, add_ones, add_ridge, check_iterations, default_iterations
from edge.onnx.stateless_mask import MaskRule, add_mask_of_history, kind_of
from edge.onnx.top_items import add_top, check_top

STATELESS = "stateless"


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

    Outputs are those of :func:`edge.onnx.top_items.add_top`; the items of the history are left out of the
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
