"""Graph of a recommender for anyone: ratings in, recommendations out; nothing of a user inside.

Inside is FedRecon's reconstruction by ridge (:func:`edge.learning.fedrecon_kernels.reconstruct`):
with X the rows [q_i | 1] of the rated items and t = r − μ − b_i,

    (XᵀX + diag(λ, …, λ, λ_b)) [p | b_u] = Xᵀt

solved by conjugate gradients with Jacobi preconditioning (Hestenes and Stiefel 1952; Saad, "Iterative Methods
for Sparse Linear Systems", algorithm 9.1), unrolled. In exact arithmetic as many iterations as unknowns
suffice; in float32 a few more are needed, so the default is twice as many.
"""

from __future__ import annotations

import numpy as np

from edge.learning.local_steps import Ridge
from edge.serving.errors import ExportError
from edge.serving.graph_writer import GraphWriter
from edge.serving.metadata import ModelInfo
from edge.serving.recommender_graph import ItemModel, check_catalogue
from edge.serving.top_items import add_top, check_top

STATELESS = "stateless"
_SMALLEST_DIVISOR = 1e-30
"""In place of a product that is 0 because the solution has been reached: the step is then 0, not NaN."""


def default_iterations(factors: int, *, user_bias: bool) -> int:
    """Return how many iterations a model with this many factors gets: twice its number of unknowns."""
    return 2 * (factors + user_bias)


def stateless_model(
    items: ItemModel,
    ridge: Ridge,
    info: ModelInfo,
    *,
    user_bias: bool,
    top: int,
    iterations: int | None = None,
) -> bytes:
    """Return the serialised graph: ``items`` int64 [r], ``ratings`` float32 [r] → scores and the best items.

    Outputs are those of :func:`edge.serving.top_items.add_top`; the items of the history are left out of the
    list. An empty history gives μ + b_i. An item that stands twice in it counts twice.

    Parameters
    ----------
    items : the global model.
    ridge : λ and λ_b.
    info : goes into the metadata; with the rating range, so that a history can be checked against it.
    user_bias : whether b_u is fitted.
    top : length of the list.
    iterations : of conjugate gradients, at least the number of unknowns; None for :func:`default_iterations`.

    Raises
    ------
    ExportError, MissingExtraError
    """
    check_catalogue(items, info)
    check_top(top)
    unknowns = items.width + user_bias
    if iterations is None:
        iterations = default_iterations(items.width, user_bias=user_bias)
    if iterations < unknowns:
        raise ExportError(f"{iterations} iterations for {unknowns} unknowns; give at least {unknowns}")
    writer = GraphWriter()
    history = writer.input("items", np.int64, ["r"])
    ratings = writer.input("ratings", np.float32, ["r"])
    factors = writer.constant("item_factors", items.factors)
    bias = writer.constant("item_bias", items.bias)
    mean = writer.constant("mean_rating", np.array(items.mean, np.float32))
    target = writer.node("Sub", writer.node("Sub", ratings, mean), writer.node("Gather", bias, history))
    rows = writer.node("Gather", factors, history)
    if user_bias:
        counted = writer.node(
            "Concat", writer.node("Shape", history), writer.constant("one", _whole(1)), axis=0
        )
        ones = writer.node("Expand", writer.constant("unit", np.array(1.0, np.float32)), counted)
        rows = writer.node("Concat", rows, ones, axis=1)
    # A row of zeros changes no sum, and spares the product of an empty history.
    rows = writer.node("Concat", rows, writer.constant("no_row", np.zeros((1, unknowns), np.float32)), axis=0)
    target = writer.node("Concat", target, writer.constant("no_target", np.zeros(1, np.float32)), axis=0)
    penalty = np.full(unknowns, ridge.regularization, np.float32)
    penalty[items.width :] = ridge.bias_regularization
    local = _solve(writer, rows, target, penalty, iterations)
    score = _scores(writer, factors, local, items.width, user_bias=user_bias)
    score = writer.node("Add", writer.node("Add", score, bias), mean)
    add_top(writer, score, history, n_items=items.n_items, top=top)
    return writer.model(info.properties(STATELESS))


def _whole(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def _scores(writer: GraphWriter, factors: str, local: str, width: int, *, user_bias: bool) -> str:
    if not user_bias:
        return writer.product(factors, local)
    ends = (writer.constant(f"at_{place}", _whole(place)) for place in (0, width, width + 1))
    start, middle, end = ends
    score = writer.product(factors, writer.node("Slice", local, start, middle))
    return writer.node("Add", score, writer.node("Slice", local, middle, end))


def _solve(
    writer: GraphWriter,
    rows: str,
    target: str,
    penalty: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    iterations: int,
) -> str:
    """Add the unrolled solver and return the name of its solution, float32 [unknowns]."""
    # Not Transpose and MatMul: onnxruntime (1.17, 1.32) joins them, wrongly where the other is a vector.
    ridge = writer.constant("ridge", np.diag(penalty))
    system = writer.node("Gemm", rows, rows, ridge, transA=1)
    column = writer.node("Unsqueeze", target, writer.constant("columns", _whole(1)))
    moment = writer.node("Gemm", rows, column, transA=1)
    squares = writer.node(
        "ReduceSum", writer.node("Mul", rows, rows), writer.constant("rows", _whole(0)), keepdims=0
    )
    diagonal = writer.node("Add", squares, writer.constant("penalty", penalty))
    smallest = writer.constant("smallest_divisor", np.array(_SMALLEST_DIVISOR, np.float32))

    def ratio(dividend: str, divisor: str) -> str:
        return writer.node("Div", dividend, writer.node("Max", divisor, smallest))

    solution = writer.constant("start", np.zeros(len(penalty), np.float32))
    residual = writer.node("Squeeze", moment, "columns")
    direction = conditioned = writer.node("Div", residual, diagonal)
    product = writer.node("MatMul", residual, conditioned)
    for left in reversed(range(iterations)):
        image = writer.node("MatMul", system, direction)
        step = ratio(product, writer.node("MatMul", direction, image))
        solution = writer.node("Add", solution, writer.node("Mul", direction, step))
        if left == 0:
            break
        residual = writer.node("Sub", residual, writer.node("Mul", image, step))
        conditioned = writer.node("Div", residual, diagonal)
        last, product = product, writer.node("MatMul", residual, conditioned)
        direction = writer.node("Add", conditioned, writer.node("Mul", direction, ratio(product, last)))
    return solution
