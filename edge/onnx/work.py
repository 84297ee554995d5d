"""What one call of a recommender costs a device, counted from the shapes of its graph.

Multiplications, additions and comparisons count one flop each, a tanh 20: onnxruntime computes it as a
quotient of polynomials of degree 13 and 6. Bytes are those of every array that an operator reads or writes,
at four bytes a number (eight an index of an item that is left out). Every node of the graph is an operator;
those that only change a shape move nothing. What onnxruntime may compute once, when a session is opened,
because it depends on no input, is counted in every call.

Products with a vector, and whatever goes element by element, are *scoring*; products of matrices *dense*.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from edge.learning.base import WORK_KINDS, Work
from edge.learning.neumf import NetworkShape

_NUMBER_BYTES: Final = 4
_INDEX_BYTES: Final = 8
_TANH_FLOPS: Final = 20
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))


@dataclass(slots=True)
class ScoreWork:
    """The work of the nodes that make the scores.

    Attributes
    ----------
    flops, numbers, ops : float64 [3], a column for each of ``WORK_KINDS``: flops, numbers read and written,
        operators.
    between : numbers that lie between operators at the same time, beside the scores.
    """

    flops: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.float64]
    ops: npt.NDArray[np.float64]
    between: float = 0.0

    @classmethod
    def nothing(cls) -> ScoreWork:
        """Return no work."""
        flops, numbers, ops = np.zeros((3, len(WORK_KINDS)))
        return cls(flops, numbers, ops)

    def add(self, kind: int, *, flops: float = 0.0, numbers: float = 0.0, ops: float = 1.0) -> None:
        """Add operators of a kind: what all of them together compute, read and write."""
        self.flops[kind] += flops
        self.numbers[kind] += numbers
        self.ops[kind] += ops

    def product(self, rows: float, width: float) -> None:
        """Add the product of a table and a vector: one that counts, two that change a shape."""
        self.add(_SCORING, flops=2.0 * rows * width, numbers=rows * width + width + rows, ops=3.0)

    def matrices(self, rows: float, inner: float, columns: float) -> None:
        """Add the product of two matrices."""
        numbers = rows * inner + inner * columns + rows * columns
        self.add(_DENSE, flops=2.0 * rows * inner * columns, numbers=numbers)

    def __add__(self, other: ScoreWork) -> ScoreWork:
        return ScoreWork(
            self.flops + other.flops,
            self.numbers + other.numbers,
            self.ops + other.ops,
            self.between + other.between,
        )


def sum_work(n_items: int) -> ScoreWork:
    """Return the work of adding two arrays of scores."""
    work = ScoreWork.nothing()
    work.add(_SCORING, flops=float(n_items), numbers=3.0 * n_items)
    return work


def factorization_work(n_items: int, width: int) -> ScoreWork:
    """Return the work of a factorisation: one product, 2·n_items·k, and three additions."""
    m, work = float(n_items), ScoreWork.nothing()
    work.product(m, float(width))
    work.add(_SCORING, flops=3.0 * m, numbers=3.0 * m + (2.0 * m + 1.0) * 2.0, ops=3.0)
    return work


def mask_work(kind: str, n_items: int, features: int, inner: int) -> ScoreWork:
    """Return the work of a mask; see :mod:`edge.onnx.mask_graph`.

    Parameters
    ----------
    kind : of the mask.
    n_items : of the catalogue.
    features : d, what the mask reads of an item; 0 where it reads nothing.
    inner : f or h, the factors of a two-order mask or the hidden units of a high-order one; 0 for others.
    """
    m, d, work = float(n_items), float(features), ScoreWork.nothing()
    work.between = m
    if kind == "zero-order":
        work.add(_SCORING, numbers=1.0 + m)
        return work
    if kind == "high-order":
        units = m * inner
        work.matrices(m, d, float(inner))
        work.add(_SCORING, flops=units, numbers=2.0 * units + inner)
        work.add(_SCORING, flops=_TANH_FLOPS * units, numbers=2.0 * units)
        work.product(m, float(inner))
        work.add(_SCORING, flops=m, numbers=2.0 * m + 1.0)
        work.between = 2.0 * units + m
        return work
    work.product(m, d)
    work.add(_SCORING, flops=m, numbers=2.0 * m + 1.0)
    if kind == "one-order":
        return work
    pairs = m * inner
    for _ in range(2):
        work.matrices(m, d, float(inner))
    work.add(_SCORING, flops=m * d + d * inner, numbers=2.0 * m * d + 2.0 * d * inner, ops=2.0)
    # The square, the difference, the sum over factors; then half of it, added to the rest.
    work.add(_SCORING, flops=3.0 * pairs, numbers=2.0 * pairs + 3.0 * pairs + (pairs + m), ops=3.0)
    work.add(_SCORING, flops=2.0 * m, numbers=5.0 * m + 1.0, ops=2.0)
    work.between = 2.0 * pairs + m * d + m
    return work


def neumf_work(n_items: int, shape: NetworkShape) -> ScoreWork:
    """Return the work of NeuMF; see :mod:`edge.onnx.score_graphs`.

    For each item 2 flops a weight of the perceptron, but for the user's half of the first layer, which is one
    row for all items; a bias and a relu a unit; and the two products of the outputs.
    """
    m, work = float(n_items), ScoreWork.nothing()
    first, last = float(shape.hidden[0]), float(shape.hidden[-1])
    work.add(_SCORING)  # the user's embeddings as a row
    work.matrices(1.0, float(shape.mlp), first)
    work.matrices(m, float(shape.mlp), first)
    work.add(_DENSE, flops=first + m * first, numbers=2.0 * first, ops=0.0)
    for inputs, outputs in itertools.pairwise(shape.hidden):
        work.matrices(m, float(inputs), float(outputs))
        work.add(_DENSE, flops=m * outputs, numbers=float(outputs), ops=0.0)
    for units in shape.hidden:
        work.add(_SCORING, flops=m * units, numbers=2.0 * m * units)
    work.add(_SCORING, flops=float(shape.gmf), numbers=3.0 * shape.gmf)
    work.product(m, float(shape.gmf))
    work.product(m, last)
    work.add(_SCORING, flops=2.0 * m, numbers=3.0 * m + (2.0 * m + 1.0), ops=2.0)
    # What relu of the widest layer reads and writes.
    work.between = 2.0 * m * max(shape.hidden)
    return work


def recommender_work(
    scores: ScoreWork, n_items: int, top: int, rated: npt.NDArray[np.int64], model_bytes: int
) -> Work:
    """Return the work of one call on devices that leave out ``rated`` items each, int64 [n]; one step each.

    Memory is the model file, loaded, and the values between operators that are needed at the same time.

    The list: two copies of the scores, r of them overwritten (*gather*), and a selection that looks at each
    score once and sorts ``top``.
    """
    n, m, longest = len(rated), float(n_items), float(top)
    left_out = rated.astype(np.float64)
    flops, moved, ops = (
        np.repeat(part[None], n, axis=0) for part in (scores.flops, scores.numbers, scores.ops)
    )
    flops[:, _SCORING] += m + longest * math.log2(max(longest, 2.0))
    moved[:, _SCORING] += 2.0 * m + 2.0 * m + left_out + m + 5.0 * longest
    padded = top > n_items
    ops[:, _SCORING] += 7.0 if padded else 6.0
    if padded:
        moved[:, _SCORING] += m + longest
    ops[:, _GATHER] = 1.0
    moved *= _NUMBER_BYTES
    moved[:, _GATHER] = left_out * (_INDEX_BYTES + 2 * _NUMBER_BYTES)
    between = 4.0 * m + scores.between
    memory = model_bytes + between * _NUMBER_BYTES + left_out * _INDEX_BYTES
    return Work(flops, moved, ops, np.ones(n), np.ceil(memory).astype(np.int64))
