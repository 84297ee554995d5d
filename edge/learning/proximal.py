"""FedProx: local steps that are pulled back to where they began.

Source: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), equation 2: a client
minimises F_u(w) + ½μ|w − w_t|², w_t the global model of the round, so that every local step w ← w − η
(∇F_u(w) + μ (w − w_t)) keeps clients whose data differ from drifting apart. μ = 0 is the plain method. The
first step starts at w_t and is not pulled: with one local step μ changes nothing.

The pull is on all of a client's rows in every step, those that a mini-batch leaves out as well. Between two
visits of a row it only shrinks its change d = q − q_t, by 1 − ημ a step; all of these shrinkings are done at
once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning.least_squares import shuffled_ranks
from edge.learning.method_settings import GradientSteps, MiniBatches, step_counts

Ints = npt.NDArray[np.int64]


class Pull(NamedTuple):
    """How rows are pulled back: by ``strength`` ημ in each step.

    ``before`` [passes, N] are the steps between a row's visits, before each of them; ``after`` [N] those
    after the last; ``visits`` [passes, N] whether the visit takes place.
    """

    strength: float
    before: Ints
    after: Ints
    visits: npt.NDArray[np.bool_]

    def of(self, rows: slice) -> Pull:
        """Return the pull on a part of the rows."""
        return Pull(self.strength, self.before[:, rows], self.after[rows], self.visits[:, rows])


def pull_of(
    indptr: Ints,
    keys: npt.NDArray[np.uint64],
    method: GradientSteps | MiniBatches,
    proximal: float,
    draw: int,
    steps: Ints | None = None,
) -> Pull:
    """Return how the query rows are pulled back, next to the rates of their visits.

    Parameters
    ----------
    indptr : int64 [n + 1].
    keys : uint64 [n], which with ``draw`` and the epoch decide which rows are in which mini-batch.
    method : the local steps.
    proximal : μ.
    steps : int64 [n], a user takes only so many of its steps; None: all.
    """
    counts = np.diff(indptr)
    total = step_counts(method, counts)
    limit = np.repeat(total if steps is None else np.minimum(steps, total), counts)
    passes = method.steps if isinstance(method, GradientSteps) else method.epochs
    at = np.empty((passes, len(limit)), np.int64)
    for number in range(passes):
        if isinstance(method, GradientSteps):
            at[number] = number
        else:
            ranks = shuffled_ranks(indptr, keys, draw, number)
            per_epoch = np.repeat(-(-counts // method.batch_size), counts)
            at[number] = number * per_epoch + ranks // method.batch_size
    ends = np.minimum(at + 1, limit)
    begins = np.concatenate([np.zeros((1, len(limit)), np.int64), ends[:-1]])
    before = np.maximum(np.minimum(at, limit) - begins, 0)
    return Pull(method.learning_rate * proximal, before, limit - ends[-1], at < limit)


def proximal_item_steps(
    design: npt.NDArray[Any],
    local: npt.NDArray[Any],
    factors: int,
    *,
    counts: Ints,
    rates: npt.NDArray[Any],
    scales: npt.NDArray[Any],
    regularization: float,
    pull: Pull,
    out: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Take a client's steps as :func:`~edge.learning.fedrecon_kernels.item_steps` does, each with the pull.

    The arguments are those of that function, and ``pull``, from :func:`pull_of`, cut to the rows of
    ``design``.

    Returns
    -------
    e before the first step, [N].
    """
    dtype = design.dtype
    spread = np.repeat(local, counts, axis=0)
    first_error: npt.NDArray[Any] = -np.einsum("nk,nk->n", design, spread)
    users = spread[:, :factors]
    has_bias = out.shape[1] > factors
    decay, kept = dtype.type(regularization), dtype.type(1.0 - pull.strength)
    out[:] = 0.0
    for rate, before, visited in zip(rates, pull.before, pull.visits, strict=True):
        out *= (kept**before)[:, None]
        error = first_error - np.einsum("nk,nk->n", out[:, :factors], users)
        if has_bias:
            error -= out[:, factors]
        moved = rate * error
        step = np.empty_like(out)
        np.multiply(users, moved[:, None], out=step[:, :factors])
        if decay:
            step[:, :factors] -= (rate * decay)[:, None] * (design[:, :factors] + out[:, :factors])
        if has_bias:
            step[:, factors] = moved
        out *= np.where(visited, kept, dtype.type(1))[:, None]
        out += step
    out *= (kept**pull.after * scales.repeat(counts))[:, None]
    return first_error
