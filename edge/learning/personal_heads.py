"""Logistic heads of devices' own on item rows: σ(w·e_i + b), many devices at once.

The user of a device is its head (w, b): there is no user embedding. The loss of a device is the mean over its
examples of cross-entropy + ½λ|e_i|², plus ½λ|w|². Rows of all devices lie one after another, without padding;
an item is an example of a device once, so that a row is trained by one example alone. A device's bits do not
depend on the others: products over its rows are calls of its own, everything else is elementwise.

dtype is float32 or float64, the same throughout a call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning import layers

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class Heads(NamedTuple):
    """The heads of n devices."""

    weights: Floats
    """w, [n, d]."""
    bias: Floats
    """b, [n]."""

    @classmethod
    def of(cls, rows: Floats) -> Heads:
        """Return the heads in rows [n, d + 1 or more]: w, then b."""
        return cls(rows[:, :-1], rows[:, -1])

    def packed(self) -> Floats:
        """Return the heads as rows [n, d + 1], a new array."""
        return np.concatenate([self.weights, self.bias[:, None]], axis=1)

    def take(self, devices: Ints) -> Heads:
        """Return the heads of some devices."""
        return Heads(self.weights.take(devices, axis=0), self.bias.take(devices))


def logits(heads: Heads, rows: Floats, counts: Ints) -> Floats:
    """Return w·e + b of every row, [R]; ``rows`` [R, d], ``counts`` int64 [n] of each device."""
    found = layers.row_products(rows, heads.weights.repeat(counts, axis=0))
    found += heads.bias.repeat(counts)
    return found


def mean_losses(heads: Heads, rows: Floats, labels: Floats, counts: Ints) -> npt.NDArray[np.float64]:
    """Return the mean cross-entropy of each device's rows, float64 [n]; 0 without rows."""
    return layers.device_means(layers.cross_entropy(logits(heads, rows, counts), labels), counts)


def slopes(heads: Heads, rows: Floats, labels: Floats, counts: Ints) -> Floats:
    """Return (σ(w·e + b) − y) / B of every row, [R]; B is the number of the device's rows."""
    found = layers.cross_entropy_backward(logits(heads, rows, counts), labels)
    found /= np.maximum(counts, 1).repeat(counts)
    return found


def head_gradients(heads: Heads, rows: Floats, of_logits: Floats, counts: Ints, decay: float) -> Heads:
    """Return the gradient of each device's loss by its head; ``of_logits`` [R] from :func:`slopes`."""
    bounds = [0, *np.cumsum(counts).tolist()]
    weights = layers.weighted_sums(of_logits, rows, bounds)
    if decay:
        weights += weights.dtype.type(decay) * heads.weights
    return Heads(weights, layers.device_sums(of_logits, counts).astype(rows.dtype))


def row_gradients(heads: Heads, of_logits: Floats, counts: Ints) -> Floats:
    """Return the gradient of each device's cross-entropy by its rows, g·w, [R, d]."""
    found: Floats = of_logits[:, None] * heads.weights.repeat(counts, axis=0)
    return found
