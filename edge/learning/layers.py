"""The layers of small networks, many devices at once, with their backward passes written out.

The rows (examples) of all devices lie one after another, cut by ``bounds``, without padding; every device has
weights of its own, stacked along the first axis. A product over rows is one BLAS call for each device, and
whatever else is elementwise, or a reduction within one row or one device: a device's results have the same
bits whichever others are in the batch.

Shapes: ``n`` devices, ``R`` rows in all. dtype is float32 or float64, the same throughout a call. Weights may
be broadcast along the first axis, as they are while all devices still have those that they were sent.

A forward pass returns what its layer gives; a backward pass takes dL/d(output) and returns dL/d(each input).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

F = TypeVar("F", np.float32, np.float64)
Floats = npt.NDArray[Any]
Bounds = Sequence[int]
"""n + 1 offsets into rows, from 0, as plain ints."""


def embedding(table: npt.NDArray[F], items: npt.NDArray[Any]) -> npt.NDArray[F]:
    """Return the rows ``items`` (integers [R]) of ``table`` [m, k], [R, k].

    The gradient of row i of the table is the sum of those of the rows gathered from it. Where no item comes
    twice, as among one device's examples of a round, the rows gathered are what is trained and sent.
    """
    # Items were checked when the data was read; "clip" spares a second, buffered bounds check.
    return table.take(items, axis=0, mode="clip")


def products(x: npt.NDArray[F], weights: npt.NDArray[F], bounds: Bounds) -> npt.NDArray[F]:
    """Return x·W for each device's rows: ``x`` [R, a], ``weights`` [n, a, b], the result [R, b]."""
    out = np.empty((len(x), weights.shape[2]), x.dtype)
    for index, weight in enumerate(weights):
        part = slice(bounds[index], bounds[index + 1])
        np.dot(x[part], weight, out=out[part])
    return out


def transposed_products(d_out: npt.NDArray[F], weights: npt.NDArray[F], bounds: Bounds) -> npt.NDArray[F]:
    """Return dL/dx = dL/dz · Wᵀ of :func:`products`, [R, a]."""
    out = np.empty((len(d_out), weights.shape[1]), d_out.dtype)
    for index, weight in enumerate(weights):
        part = slice(bounds[index], bounds[index + 1])
        np.dot(d_out[part], weight.T, out=out[part])
    return out


def weight_gradients(x: npt.NDArray[F], d_out: npt.NDArray[F], bounds: Bounds, out: npt.NDArray[F]) -> None:
    """Write dL/dW = xᵀ · dL/dz of :func:`products` to ``out`` [n, a, b].

    Each device's part of ``out`` must be contiguous.
    """
    for index, gradient in enumerate(out):
        part = slice(bounds[index], bounds[index + 1])
        np.dot(x[part].T, d_out[part], out=gradient)


def row_sums(rows: npt.NDArray[F], bounds: Bounds) -> npt.NDArray[F]:
    """Return the sum of each device's rows, [n, k]: the gradient of whatever was added to all of them."""
    # A product with ones: three times as fast as a sum along the first axis.
    return weighted_sums(np.ones(len(rows), rows.dtype), rows, bounds)


def weighted_sums(weights: npt.NDArray[F], rows: npt.NDArray[F], bounds: Bounds) -> npt.NDArray[F]:
    """Return Σ w_r·row_r over each device's rows, [n, k]; ``weights`` [R], ``rows`` [R, k]."""
    out = np.empty((len(bounds) - 1, rows.shape[1]), rows.dtype)
    for index, total in enumerate(out):
        part = slice(bounds[index], bounds[index + 1])
        np.dot(weights[part], rows[part], out=total)
    return out


def vector_products(x: npt.NDArray[F], weights: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return x·W for one row a device: ``x`` [n, a], ``weights`` [n, a, b], the result [n, b].

    With ``weights`` [1, a, b] all rows are multiplied by the same. Each row is a product of its own.
    """
    found: npt.NDArray[F] = np.matmul(x[:, None, :], weights)[:, 0]
    return found


def transposed_vector_products(d_out: npt.NDArray[F], weights: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return dL/dx of :func:`vector_products`, [n, a]."""
    found: npt.NDArray[F] = np.matmul(weights, d_out[:, :, None])[:, :, 0]
    return found


def row_products(rows: npt.NDArray[F], vectors: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return the product of each row with its own vector, [R]; both [R, k]."""
    result: npt.NDArray[F] = np.einsum("rk,rk->r", rows, vectors)
    return result


def squared_norms(vectors: npt.NDArray[F]) -> npt.NDArray[np.float64]:
    """Return |v|² of each device's vector, float64 [n]; ``vectors`` [n, k]."""
    # Of long vectors, einsum adds up in another order when there are several.
    return np.array([np.dot(vector, vector) for vector in vectors], np.float64)


def device_sums(values: npt.NDArray[F], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the sum of each device's values, float64 [n]; ``values`` [R], ``counts`` int64 [n]."""
    owners = np.repeat(np.arange(len(counts)), counts)
    # Of no values at all, bincount makes whole numbers.
    return np.asarray(np.bincount(owners, values, minlength=len(counts)), dtype=np.float64)


def device_means(values: npt.NDArray[F], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the mean of each device's values, [n], 0 for one without; ``values`` [R]."""
    return np.asarray(device_sums(values, counts) / np.maximum(counts, 1))


def relu(z: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return max(z, 0), in place."""
    # Three times as fast as `maximum` with a number, which is not vectorised.
    return np.clip(z, 0, np.inf, out=z)


def relu_backward(activation: npt.NDArray[F], d_out: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return dL/dz of :func:`relu`, in place of ``d_out``; the slope at 0 is 0."""
    return np.multiply(d_out, activation > 0, out=d_out)


def sigmoid(logits: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return 1 / (1 + e^−x), without overflow."""
    small = np.exp(-np.abs(logits))
    probabilities: npt.NDArray[F] = np.where(logits >= 0, 1, small) / (1 + small)
    return probabilities


def cross_entropy(logits: npt.NDArray[F], labels: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return the cross-entropy of σ(x) against labels 0 or 1: max(x, 0) − xy + log(1 + e^−|x|)."""
    loss: npt.NDArray[F] = np.log1p(np.exp(-np.abs(logits)))
    loss += np.maximum(logits, 0)
    loss -= logits * labels
    return loss


def cross_entropy_backward(logits: npt.NDArray[F], labels: npt.NDArray[F]) -> npt.NDArray[F]:
    """Return the derivative of :func:`cross_entropy` by the logits, σ(x) − y."""
    return sigmoid(logits) - labels
