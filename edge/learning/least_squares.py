"""Many small least-squares problems at once, without padding.

Each segment of a ragged batch is one client's problem: minimise the mean of (target − row·w)² over its rows.
All functions give a segment the same bits whatever the other segments are: a product over a segment's rows is
one BLAS call for that segment alone, everything else is elementwise or a reduction within one row.

Shapes: ``n`` segments, ``N`` rows, ``d`` unknowns. dtype is float32 or float64, the same throughout a call.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits

F = TypeVar("F", np.float32, np.float64)

_ORDER_SALT = 0x6F72_6465_7200_0001


def segment_grams(rows: npt.NDArray[F], bounds: list[int], out: npt.NDArray[F]) -> None:
    """Write XᵀX of every segment X = ``rows[bounds[i]:bounds[i + 1]]`` to ``out[i]``.

    ``rows`` [N, d], contiguous; ``bounds`` n + 1 offsets; ``out`` [n, d, d]. numpy recognises XᵀX and calls
    the symmetric rank-k update, at half the cost of a general product.
    """
    start = bounds[0]
    if (np.diff(bounds) == 1).all():
        # Products of one row each, without a sum: all at once they have the same bits.
        alone = rows[start : bounds[-1]]
        np.matmul(alone[:, :, None], alone[:, None, :], out=out)
        return
    for index in range(len(bounds) - 1):
        end = bounds[index + 1]
        segment = rows[start:end]
        np.dot(segment.T, segment, out=out[index])
        start = end


def ridge(gram: npt.NDArray[F], moment: npt.NDArray[F], regularization: npt.NDArray[F]) -> npt.NDArray[F]:
    """Solve (XᵀX + diag(λ)) w = Xᵀt for every segment.

    Parameters
    ----------
    gram : [n, d, d], XᵀX; overwritten.
    moment : [n, d], Xᵀt.
    regularization : [d], λ of each unknown, positive, so that every system has one solution.

    Returns
    -------
    w, [n, d].
    """
    diagonal = np.arange(gram.shape[1])
    gram[:, diagonal, diagonal] += regularization
    solution: Any = np.linalg.solve(gram, moment[:, :, None])
    weights: npt.NDArray[F] = solution[:, :, 0]
    return weights


def descend(
    start: npt.NDArray[F],
    gram: npt.NDArray[F],
    moment: npt.NDArray[F],
    *,
    steps: int,
    step_sizes: npt.NDArray[F],
    regularization: npt.NDArray[F],
    limits: npt.NDArray[np.int64] | None = None,
    proximal: npt.NDArray[F] | None = None,
) -> npt.NDArray[F]:
    """Take full-batch gradient steps w ← w − η·(XᵀX w − Xᵀt + λ w) for every segment.

    The gradient is that of ½·Σ (t − Xw)² + ½·λ|w|²: a step costs d² whatever the number of rows.

    Parameters
    ----------
    start : [n, d], where to begin.
    gram, moment : [n, d, d] and [n, d], XᵀX and Xᵀt; C order, so that every segment is multiplied alike.
    step_sizes, regularization : [n, d] (or broadcast to it), η and λ of each unknown of each segment.
    limits : int64 [n], steps after which a segment stays where it is; None: none does.
    proximal : [n, d] (or broadcast to it), μ of a further term ½·μ|w − start|²; None: there is none.
    """
    weights = start
    for step in range(steps):
        gradient = np.matmul(gram, weights[:, :, None])[:, :, 0]
        gradient -= moment
        gradient += regularization * weights
        if proximal is not None:
            gradient += proximal * (weights - start)
        moved = weights - step_sizes * gradient
        weights = moved if limits is None else np.where(step < limits[:, None], moved, weights)
    return weights


def shuffled_ranks(
    indptr: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64], *counters: int
) -> npt.NDArray[np.int64]:
    """Return each row's place in a random order of its segment, int64 [N], from 0.

    ``keys`` uint64 [n], one per segment; ``counters`` tell draws under one key apart (epoch, purpose).
    """
    counts = np.diff(indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(int(indptr[-1])) - np.repeat(indptr[:-1], counts)
    salt = _ORDER_SALT
    for counter in counters:
        salt = int(hashed_bits(salt, counter))
    draws = hashed_bits(salt, np.repeat(keys, counts), places)
    order = np.lexsort((draws, owners))
    ranks = np.empty(len(order), dtype=np.int64)
    # Sorting by owner first keeps every segment where it was, so the places are those of the sorted rows.
    ranks[order] = places
    return ranks


def descend_in_mini_batches(
    start: npt.NDArray[F],
    rows: npt.NDArray[F],
    targets: npt.NDArray[F],
    indptr: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    *,
    batch_size: int,
    learning_rate: npt.NDArray[F],
    regularization: npt.NDArray[F],
    limits: npt.NDArray[np.int64] | None = None,
    anchor: npt.NDArray[F] | None = None,
    proximal: float = 0.0,
) -> npt.NDArray[F]:
    """Take one epoch of mini-batch gradient steps, w ← w − η·(−mean (t − x·w) x + λ w), for every segment.

    All segments advance together, one mini-batch at a time; one that has run out of rows stays.

    Parameters
    ----------
    start : [n, d].
    rows, targets : [N, d] and [N].
    indptr : int64 [n + 1].
    ranks : int64 [N], a permutation of each segment's places: the order in which rows are used.
    batch_size : rows per mini-batch; the last one of a segment may be smaller.
    learning_rate, regularization : [d], η and λ of each unknown.
    limits : int64 [n], mini-batches after which a segment stays where it is; None: none does.
    anchor, proximal : w_t [n, d] and μ of a further term ½·μ|w − w_t|²; without ``anchor`` there is none.
    """
    counts = np.diff(indptr)
    order = np.empty(len(ranks), dtype=np.int64)
    order[np.repeat(indptr[:-1], counts) + ranks] = np.arange(len(ranks))
    weights = start.copy()
    within = np.arange(batch_size)
    for first in range(0, int(counts.max(initial=0)), batch_size):
        going_on = counts > first
        if limits is not None:
            going_on &= limits > first // batch_size
        active = np.flatnonzero(going_on)
        sizes = np.minimum(counts[active] - first, batch_size)
        present = within < sizes[:, None]
        position = indptr[active][:, None] + first + within
        chosen = order[np.where(present, position, indptr[active][:, None])]
        x = rows[chosen]
        current = weights[active]
        residual = targets[chosen] - np.einsum("abd,ad->ab", x, current)
        residual *= present
        residual /= sizes[:, None].astype(residual.dtype)
        gradient = regularization * current
        if anchor is not None:
            gradient += proximal * (current - anchor[active])
        # One rank at a time: the order of the additions must not depend on numpy's choice for a shape.
        for place in range(batch_size):
            gradient -= residual[:, place, None] * x[:, place]
        weights[active] = current - learning_rate * gradient
    return weights
