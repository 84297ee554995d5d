"""Ridge regression inside a graph: the rows and targets of a history in, the solution out.

    (XᵀX + diag(penalty)) w = Xᵀt

by conjugate gradients with Jacobi preconditioning (Hestenes and Stiefel 1952; Saad, "Iterative Methods for
Sparse Linear Systems", algorithm 9.1), unrolled. In exact arithmetic as many iterations as unknowns suffice;
in float32 a few more are needed, so the default is twice as many.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.onnx.graph_writer import GraphWriter

_SMALLEST_DIVISOR = 1e-30
"""In place of a product that is 0 because the solution has been reached: the step is then 0, not NaN."""


def default_iterations(unknowns: int) -> int:
    """Return how many iterations a system of this size gets."""
    return 2 * unknowns


def check_iterations(iterations: int, unknowns: int) -> None:
    """Raise ``ExportError`` if there are too few iterations for the unknowns."""
    if iterations < unknowns:
        raise ExportError(f"{iterations} iterations for {unknowns} unknowns; give at least {unknowns}")


def whole(*values: int) -> npt.NDArray[np.int64]:
    """Return whole numbers as a graph has them, int64 [n]."""
    return np.array(values, np.int64)


def add_ones(writer: GraphWriter, rows: str, history: str) -> str:
    """Append a column of ones to ``rows`` float32 [r, k], one for each item of ``history`` int64 [r]."""
    counted = writer.node("Concat", writer.node("Shape", history), writer.constant("one", whole(1)), axis=0)
    ones = writer.node("Expand", writer.constant("unit", np.array(1.0, np.float32)), counted)
    return writer.node("Concat", rows, ones, axis=1)


def add_ridge(
    writer: GraphWriter,
    rows: str,
    target: str,
    penalty: npt.NDArray[np.float32],
    iterations: int,
    prefix: str = "",
) -> str:
    """Add the unrolled solver and return the name of its solution, float32 [unknowns].

    Parameters
    ----------
    writer : of the graph.
    rows, target : names of X float32 [r, unknowns] and t float32 [r]; r may be 0, and the solution is then 0.
    penalty : float32 [unknowns].
    iterations : of conjugate gradients.
    prefix : begins the names of its constants; a second system in a graph needs one.
    """
    unknowns = len(penalty)
    # A row of zeros changes no sum, and spares the product of an empty history.
    no_row = writer.constant(f"{prefix}no_row", np.zeros((1, unknowns), np.float32))
    rows = writer.node("Concat", rows, no_row, axis=0)
    target = writer.node("Concat", target, writer.constant("no_target", np.zeros(1, np.float32)), axis=0)
    # Not Transpose and MatMul: onnxruntime (1.17, 1.32) joins them, wrongly where the other is a vector.
    ridge = writer.constant(f"{prefix}ridge", np.diag(penalty))
    system = writer.node("Gemm", rows, rows, ridge, transA=1)
    column = writer.node("Unsqueeze", target, writer.constant("columns", whole(1)))
    moment = writer.node("Gemm", rows, column, transA=1)
    squares = writer.node(
        "ReduceSum", writer.node("Mul", rows, rows), writer.constant("rows", whole(0)), keepdims=0
    )
    diagonal = writer.node("Add", squares, writer.constant(f"{prefix}penalty", penalty))
    smallest = writer.constant("smallest_divisor", np.array(_SMALLEST_DIVISOR, np.float32))

    def ratio(dividend: str, divisor: str) -> str:
        return writer.node("Div", dividend, writer.node("Max", divisor, smallest))

    solution = writer.constant(f"{prefix}start", np.zeros(unknowns, np.float32))
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


def add_affine(writer: GraphWriter, table: str, solution: str, width: int, prefix: str = "") -> str:
    """Return the name of X·w[:width] + w[width] over a ``table`` X float32 [n, width], float32 [n]."""
    start = writer.constant("at_0", whole(0))
    middle = writer.constant(f"{prefix}width", whole(width))
    end = writer.constant(f"{prefix}end", whole(width + 1))
    score = writer.product(table, writer.node("Slice", solution, start, middle))
    return writer.node("Add", score, writer.node("Slice", solution, middle, end))
