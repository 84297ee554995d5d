"""Gradient steps of FedRecon matrix factorisation on losses of ones and zeros other than squared error.

What :mod:`edge.learning.fedrecon_kernels` does for squared error, for :mod:`edge.learning.losses`: the user's
parameters with the items frozen, then the items with the user frozen, each step on all of a user's examples.
A step costs a pass over the rows; there is no Gram matrix that stands for them.

The layout is that of the kernels: rows ``[X₁ | −(μ + b) | X₂]``, that is, gathered as of ratings 0, whose
product with ``[p, −1, b_u]`` is the score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.learning import layers
from edge.learning.losses import Labelled, ScoreLoss, losses_and_slopes
from edge.learning.method_settings import UserSteps
from edge.learning.proximal import Pull

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


def fit_users(
    design: Floats,
    factors: int,
    indptr: Ints,
    examples: Labelled,
    loss: ScoreLoss,
    method: UserSteps,
    start: Floats | None = None,
) -> Floats:
    """Fit users' local parameters to their examples by gradient steps, item parameters frozen.

    Steps are on Σ loss + ½λ|p|² + ½λ_b b_u², divided as :class:`~edge.learning.method_settings.UserSteps`
    says. Arguments and result are those of :func:`~edge.learning.fedrecon_kernels.reconstruct`, ``examples``
    what is known of the rows of ``design``.
    """
    k, users, dtype = factors, len(indptr) - 1, design.dtype
    counts = np.diff(indptr)
    bounds = (indptr - indptr[0]).tolist()
    unknowns = np.delete(np.arange(design.shape[1]), k)
    # `take` lays the result out in C order, whatever the number of rows.
    x, offset = design.take(unknowns, axis=1), -design[:, k]
    weights = np.zeros((users, len(unknowns)), dtype) if start is None else np.array(start, dtype, order="C")
    rate = np.full(len(unknowns), method.learning_rate, dtype)
    rate[k:] = method.bias_learning_rate
    penalty = np.full(len(unknowns), method.regularization, dtype)
    penalty[k:] = method.bias_regularization
    sizes, decay = np.broadcast_to(rate, weights.shape), counts[:, None] * penalty
    if method.normalized:
        sizes, decay = rate / np.maximum(counts[:, None] + penalty, dtype.type(1e-6)), penalty
    sizes, decay = sizes.astype(dtype), decay.astype(dtype)
    for _ in range(method.steps):
        scores = offset + np.einsum("nk,nk->n", x, np.repeat(weights, counts, axis=0))
        _, slopes = losses_and_slopes(loss, scores, examples, counts)
        weights = weights - sizes * (layers.weighted_sums(slopes, x, bounds) + decay * weights)
    local = np.empty((users, design.shape[1]), dtype)
    local[:, unknowns] = weights
    local[:, k] = -1.0
    return local


def item_steps(
    design: Floats,
    local: Floats,
    factors: int,
    *,
    counts: Ints,
    rates: Floats,
    scales: Floats,
    regularization: float,
    out: Floats,
    examples: Labelled,
    loss: ScoreLoss,
    pull: Pull | None,
) -> Floats:
    """Take the client's steps on its items, local parameters frozen; write scaled deltas to ``out``.

    Every step is on all of a user's rows. The arguments are those of
    :func:`~edge.learning.fedrecon_kernels.item_steps`; ``examples`` is what is known of the rows, and
    ``pull`` that of FedProx, None for none.

    Returns
    -------
    The loss of every row before the first step, [N].
    """
    dtype = design.dtype
    spread = np.repeat(local, counts, axis=0)
    first_scores: Floats = np.einsum("nk,nk->n", design, spread)
    users = spread[:, :factors]
    has_bias, decay = out.shape[1] > factors, dtype.type(regularization)
    kept = dtype.type(1.0 if pull is None else 1.0 - pull.strength)
    first_losses: Floats | None = None
    out[:] = 0.0
    for number, rate in enumerate(rates):
        scores = first_scores + np.einsum("nk,nk->n", out[:, :factors], users)
        if has_bias:
            scores += out[:, factors]
        losses, slopes = losses_and_slopes(loss, scores, examples, counts)
        first_losses = losses if first_losses is None else first_losses
        moved = -rate * slopes
        step = np.empty_like(out)
        np.multiply(users, moved[:, None], out=step[:, :factors])
        if decay:
            step[:, :factors] -= (rate * decay)[:, None] * (design[:, :factors] + out[:, :factors])
        if has_bias:
            step[:, factors] = moved
        if pull is not None:
            out *= np.where(pull.visits[number], kept, dtype.type(1))[:, None]
        out += step
    assert first_losses is not None, "there is a step at least"
    out *= np.repeat(scales, counts)[:, None]
    return first_losses
