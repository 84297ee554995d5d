"""What one call of a recommender costs a device, counted from the shapes of its graph.

Multiplications, additions and comparisons count one flop each, a tanh 20: onnxruntime computes it as a
quotient of polynomials of degree 13 and 6. Bytes are those of every array that an operator reads or writes,
at four bytes a number (eight an index of an item that is left out). Every node of the graph is an operator;
those that only change a shape move nothing. What onnxruntime may compute once, when a session is opened,
because it depends on no input, is counted in every call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from edge.learning.base import WORK_KINDS, Work
from edge.serving.mask_graph import MaskKind

_NUMBER_BYTES: Final = 4
_INDEX_BYTES: Final = 8
_TANH_FLOPS: Final = 20
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The sizes in a recommender's graph.

    Attributes
    ----------
    n_items, width, top : of the catalogue, the factors and the list.
    mask : its kind; None for a model without.
    features : d, what the mask reads of an item; 0 where it reads nothing.
    inner : f or h, the factors of a two-order mask or the hidden units of a high-order one; 0 for others.
    """

    n_items: int
    width: int
    top: int
    mask: MaskKind | None = None
    features: int = 0
    inner: int = 0


def recommender_work(shape: GraphShape, rated: npt.NDArray[np.int64], model_bytes: int) -> Work:
    """Return the work of one call on devices that leave out ``rated`` items each, int64 [n]; one step each.

    Memory is the model file, loaded, and the values between operators that are needed at the same time.

    The factors: one product of a vector with the table (2·n_items·k) and three additions. The mask: see
    :mod:`edge.serving.mask_graph`; products with a vector are *scoring*, those of matrices *dense*. The list:
    two copies of the scores, r of them overwritten (*gather*), and a selection that looks at each score once
    and sorts ``top``.
    """
    n, m, k, top = len(rated), float(shape.n_items), float(shape.width), float(shape.top)
    left_out = rated.astype(np.float64)
    flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))

    flops[:, _SCORING] = 2.0 * m * k + 3.0 * m
    moved[:, _SCORING] = (m * k + k + m) + 3.0 * m + (2.0 * m + 1.0) * 2.0
    ops[:, _SCORING] = 6.0
    between = 4.0 * m
    if shape.mask is not None:
        between += _add_mask(shape, flops, moved, ops)

    flops[:, _SCORING] += m + top * math.log2(max(top, 2.0))
    moved[:, _SCORING] += 2.0 * m + 2.0 * m + left_out + m + 5.0 * top
    padded = shape.top > shape.n_items
    ops[:, _SCORING] += 7.0 if padded else 6.0
    if padded:
        moved[:, _SCORING] += m + top
    ops[:, _GATHER] = 1.0
    moved *= _NUMBER_BYTES
    moved[:, _GATHER] = left_out * (_INDEX_BYTES + 2 * _NUMBER_BYTES)
    memory = model_bytes + between * _NUMBER_BYTES + left_out * _INDEX_BYTES
    return Work(flops, moved, ops, np.ones(n), np.ceil(memory).astype(np.int64))


def _add_mask(
    shape: GraphShape,
    flops: npt.NDArray[np.float64],
    moved: npt.NDArray[np.float64],
    ops: npt.NDArray[np.float64],
) -> float:
    """Add the work of a mask and of adding it to the score; return the numbers that lie between operators."""
    m, d, inner = float(shape.n_items), float(shape.features), float(shape.inner)
    flops[:, _SCORING] += m
    moved[:, _SCORING] += 3.0 * m
    ops[:, _SCORING] += 1.0
    if shape.mask == "zero-order":
        moved[:, _SCORING] += 1.0 + m
        ops[:, _SCORING] += 1.0
        return m
    if shape.mask == "high-order":
        units = m * inner
        flops[:, _DENSE] += 2.0 * units * d
        moved[:, _DENSE] += m * d + d * inner + units
        ops[:, _DENSE] += 1.0
        flops[:, _SCORING] += units + _TANH_FLOPS * units + 2.0 * units + m
        moved[:, _SCORING] += (2.0 * units + inner) + 2.0 * units + (units + inner + m) + (2.0 * m + 1.0)
        ops[:, _SCORING] += 6.0
        return 2.0 * units + m
    flops[:, _SCORING] += 2.0 * m * d + m
    moved[:, _SCORING] += (m * d + d + m) + (2.0 * m + 1.0)
    ops[:, _SCORING] += 4.0
    if shape.mask == "one-order":
        return m
    pairs = m * inner
    flops[:, _DENSE] += 2.0 * (2.0 * pairs * d)
    moved[:, _DENSE] += 2.0 * (m * d + d * inner + pairs)
    ops[:, _DENSE] += 2.0
    flops[:, _SCORING] += m * d + d * inner + pairs + pairs + pairs + m + m
    moved[:, _SCORING] += 2.0 * m * d + 2.0 * d * inner + 2.0 * pairs + 3.0 * pairs + (pairs + m) + 5.0 * m
    ops[:, _SCORING] += 7.0
    return 2.0 * pairs + m * d + m
