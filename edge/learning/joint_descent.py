"""Gradient steps of matrix factorisation on a user's row and its items' rows together, many users at once.

A user with B ratings at hand minimises

    ½ · mean over them of (e_ui² + λ |q_i|² + λ |p_u|²),   e_ui = r_ui − μ − b_i − b_u − p_u·q_i

so that a step is q_i ← q_i − η (λ q_i − e p)/B and p ← p − η (λ p − mean e q), both from the same e; biases
have no penalty. A user rates an item once, so rows of items belong to one user of a batch each. With another
loss of the score offset + b_i + b_u + p_u·q_i (:mod:`edge.learning.losses`), its mean takes the place of that
of ½e², and minus its slope that of e.

All functions give a user the same bits whoever else is in the batch: sums are taken within a user's ratings,
everything else is elementwise or a reduction within one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning.fedrecon_kernels import CLIENT_DRAW
from edge.learning.least_squares import shuffled_ranks
from edge.learning.losses import Labelled, Loss, losses_and_slopes
from edge.learning.method_settings import GradientSteps, MiniBatches

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]


class Pair(NamedTuple):
    """Rows of items [N, k (+ 1)], user after user, and of the users [n, k (+ 1)]; a bias is the last column.

    Both float32 or both float64. Also the form of a gradient.
    """

    items: Floats
    users: Floats


class Targets(NamedTuple):
    """What rows of items are fitted to.

    ``values`` [N] are r − μ, or with another loss than squared error labels; ``partner`` int64 [N] is that of
    :class:`~edge.learning.losses.Labelled`, None with squared error.
    """

    values: Floats
    partner: Ints | None = None

    def take(self, places: Ints) -> Targets:
        """Return those of some rows; with a partner, of all rows of some users."""
        partner = None if self.partner is None else self.partner.take(places)
        return Targets(self.values.take(places), partner)


class PairShape(NamedTuple):
    """What a gradient needs to know: the number k of factors, the penalty λ, and the loss.

    ``offset`` is that of scores, with another loss than squared error.
    """

    factors: int
    regularization: float
    loss: Loss = "squared-error"
    offset: float = 0.0


Gradient = Callable[[Pair, Targets, Ints], Pair]
"""Of a pair, its targets, and the number of rows of each user, int64 [n], none of them 0."""


def errors(pair: Pair, targets: Floats, counts: Ints, factors: int) -> Floats:
    """Return e = target − b_i − b_u − p·q for every row, [N]."""
    spread = pair.users.repeat(counts, axis=0)
    found: Floats = targets - np.einsum("nk,nk->n", pair.items[:, :factors], spread[:, :factors])
    for side in (pair.items, spread):
        if side.shape[1] > factors:
            found -= side[:, factors]
    return found


def losses_and_descent(pair: Pair, targets: Targets, counts: Ints, shape: PairShape) -> tuple[Floats, Floats]:
    """Return the loss of every row, and minus its derivative by every score, both [N].

    With squared error they are ½e² and e.
    """
    if shape.loss == "squared-error":
        found = errors(pair, targets.values, counts, shape.factors)
        return found.dtype.type(0.5) * np.square(found), found
    assert targets.partner is not None, "losses other than squared error compare"
    below = np.full(len(targets.values), -shape.offset, pair.items.dtype)
    scores = -errors(pair, below, counts, shape.factors)
    examples = Labelled(targets.values, targets.partner)
    losses, slopes = losses_and_slopes(shape.loss, scores, examples, counts)
    return losses, -slopes


def gradient(pair: Pair, targets: Targets, counts: Ints, shape: PairShape) -> Pair:
    """Return the gradient of the objective above.

    Parameters
    ----------
    pair : the parameters.
    targets : of every row.
    counts : int64 [n], rows of each user; none is 0.
    """
    k, decay = shape.factors, pair.items.dtype.type(shape.regularization)
    sizes = counts.repeat(counts).astype(pair.items.dtype)
    share = losses_and_descent(pair, targets, counts, shape)[1] / sizes
    spread = pair.users.repeat(counts, axis=0)
    of_items, of_ratings = np.empty_like(pair.items), np.empty((len(share), pair.users.shape[1]), share.dtype)
    np.multiply(share[:, None], -spread[:, :k], out=of_items[:, :k])
    np.multiply(share[:, None], pair.items[:, :k], out=of_ratings[:, :k])
    of_items[:, k:], of_ratings[:, k:] = -share[:, None], share[:, None]
    starts = np.cumsum(counts) - counts
    of_users: Floats = -np.add.reduceat(of_ratings, starts, axis=0)
    if decay:
        of_items[:, :k] += (decay / sizes)[:, None] * pair.items[:, :k]
        of_users[:, :k] += decay * pair.users[:, :k]
    return Pair(of_items, of_users)


def descend_jointly(
    start: Pair,
    targets: Targets,
    indptr: Ints,
    keys: npt.NDArray[np.uint64],
    method: GradientSteps | MiniBatches,
    of: Gradient,
    *,
    proximal: float = 0.0,
    limits: Ints | None = None,
) -> Pair:
    """Take local steps on items and users together.

    Parameters
    ----------
    start : the parameters as received; not written to.
    targets : of every row.
    indptr : int64 [n + 1].
    keys : uint64 [n], which shuffle a user's ratings into mini-batches.
    method : how many steps, on which ratings, and η.
    of : the gradient on those ratings.
    proximal : μ of FedProx: every step pulls all of a user's parameters back to ``start``.
    limits : int64 [n], steps after which a user stops; None: none does.
    """
    pair = Pair(start.items.copy(), start.users.copy())
    rate = start.items.dtype.type(method.learning_rate)
    counts = np.diff(indptr)
    for active, places, sizes in selections(indptr, keys, method, limits):
        chosen = Pair(pair.items.take(places, axis=0), pair.users.take(active, axis=0))
        found = of(chosen, targets.take(places), sizes)
        if proximal:
            pulled = np.zeros(len(counts), np.bool_)
            pulled[active] = True
            for now, then, which in zip(pair, start, (pulled.repeat(counts), pulled), strict=True):
                now[which] -= rate * now.dtype.type(proximal) * (now[which] - then[which])
        pair.items[places] -= rate * found.items
        pair.users[active] -= rate * found.users
    return pair


def selections(
    indptr: Ints, keys: npt.NDArray[np.uint64], method: GradientSteps | MiniBatches, limits: Ints | None
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield for each step the users that take it, the places of their rows, and how many rows each has.

    ``indptr`` int64 [n + 1], ``keys`` uint64 [n], ``limits`` as for :func:`descend_jointly`. Places
    are those of a batch that begins at ``indptr[0]``; users without rows take no step.
    """
    counts = np.diff(indptr)
    if isinstance(method, GradientSteps):
        every = np.arange(int(indptr[0]), int(indptr[-1]))
        for step in range(method.steps):
            going_on = counts > 0 if limits is None else (counts > 0) & (limits > step)
            active = np.flatnonzero(going_on)
            if len(active):
                yield active, every[going_on.repeat(counts)], counts[active]
        return
    per_epoch = -(-counts // method.batch_size)
    for epoch in range(method.epochs):
        ranks = shuffled_ranks(indptr, keys, CLIENT_DRAW, epoch)
        order = np.empty(len(ranks), np.int64)
        order[np.repeat(indptr[:-1], counts) + ranks] = np.arange(len(ranks))
        for batch in range(int(per_epoch.max(initial=0))):
            going_on = per_epoch > batch
            if limits is not None:
                going_on &= limits > epoch * per_epoch + batch
            active = np.flatnonzero(going_on)
            if not len(active):
                break
            first = batch * method.batch_size
            sizes = np.minimum(counts[active] - first, method.batch_size)
            ends = np.cumsum(sizes)
            within = np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
            yield active, order[np.repeat(indptr[active] + first, sizes) + within], sizes
