"""The arithmetic of FedRecon matrix factorisation, for many users at once.

Layout. One table row per item, ``[q_i | b_i | 1]``: the item's factors, its bias and, when users have a
bias, a one. Gathering a user's rows and overwriting the bias column with the target t = r − μ − b_i gives
``[X₁ | t | X₂]``, whose Gram matrix holds all that a ridge solve or a full-batch gradient step needs. Local
parameters extend to ``[p, −1, b_u]``, so that a row times that vector is minus the residual e.

Ratings are processed in blocks of a few thousand rows that stay in the processor's cache. Neither blocks nor
the other users of a batch change a user's bits: see :mod:`edge.learning.least_squares`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits
from edge.learning.base import RatingBatch, Ratings
from edge.learning.least_squares import (
    descend,
    descend_in_mini_batches,
    ridge,
    segment_grams,
    shuffled_ranks,
)
from edge.learning.method_settings import GradientSteps, MiniBatches, Ridge, UserSteps

F = TypeVar("F", np.float32, np.float64)

_BLOCK_ROWS = 4096
# The first counter of a draw says what it is for.
RECONSTRUCTION_DRAW, SPLIT_DRAW, CLIENT_DRAW = 0, 1, 2
_PLACE_SALT = 0x706C_6163_6500_0001


class ItemTable(NamedTuple):
    """The item table of one round: ``rows`` [items, factors + 1 (+ 1)], and the rating mean μ."""

    rows: npt.NDArray[Any]
    factors: int
    user_bias: bool
    mean: float


def item_table(
    item_factors: npt.NDArray[F], item_bias: npt.NDArray[F] | None, *, user_bias: bool, mean: float
) -> ItemTable:
    """Lay out item factors [items, k] and item biases [items] (or None) for the kernels."""
    items, factors = item_factors.shape
    rows = np.empty((items, factors + 1 + user_bias), item_factors.dtype)
    rows[:, :factors] = item_factors
    rows[:, factors] = 0.0 if item_bias is None else item_bias
    if user_bias:
        rows[:, factors + 1] = 1.0
    return ItemTable(rows, factors, user_bias, mean)


def blocks(indptr: npt.NDArray[np.int64], rows: int = _BLOCK_ROWS) -> Iterator[tuple[int, int]]:
    """Cut users into runs of about so many ``rows``; yield each run's first and end user."""
    users = len(indptr) - 1
    first = 0
    while first < users:
        end = int(np.searchsorted(indptr, indptr[first] + rows, side="right")) - 1
        end = min(max(end, first + 1), users)
        yield first, end
        first = end


def gather(table: ItemTable, batch: RatingBatch, first: int, end: int) -> npt.NDArray[Any]:
    """Return ``[X₁ | t | X₂]`` of users ``first`` … ``end - 1``: item rows, targets in place of biases."""
    rows = slice(int(batch.indptr[first]), int(batch.indptr[end]))
    # Items were checked when the data was read; "clip" spares a second, buffered bounds check.
    design: npt.NDArray[Any] = table.rows.take(batch.items[rows], axis=0, mode="clip")
    target = design[:, table.factors]
    ratings = batch.ratings[rows].astype(design.dtype, copy=False)
    np.subtract(ratings - design.dtype.type(table.mean), target, out=target)
    return design


def split(
    batch: RatingBatch, keys: npt.NDArray[np.uint64], support_fraction: float
) -> tuple[Ratings, Ratings]:
    """Split every user's ratings at random into support and query.

    A user with N ratings has round(N · ``support_fraction``) in support, but at least one in each part when
    N ≥ 2; a single rating is both. ``keys`` uint64 [users]. Items stay sorted within a part.
    """
    counts = np.diff(batch.indptr)
    ranks = shuffled_ranks(batch.indptr, keys, SPLIT_DRAW)
    support_counts = support_sizes(counts, support_fraction)
    in_support = ranks < np.repeat(support_counts, counts)
    in_query = ~in_support | np.repeat(counts == 1, counts)
    return _part(batch, in_support), _part(batch, in_query)


def support_sizes(counts: npt.NDArray[np.int64], support_fraction: float) -> npt.NDArray[np.int64]:
    """Return how many of each user's ratings are support, int64 [users]; see :func:`split`."""
    wanted = np.rint(counts * support_fraction).astype(np.int64)
    return np.where(counts >= 2, np.clip(wanted, 1, counts - 1), counts)


def user_keys(client_keys: npt.NDArray[np.uint64], clients: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return a key, uint64 [users], for every user of clients that hold several.

    It is a hash of the client's key and of the user's place in it; ``clients`` int64 [n + 1] cuts the users.
    """
    per_client = np.diff(clients)
    places = np.arange(int(clients[-1])) - np.repeat(clients[:-1], per_client)
    return hashed_bits(_PLACE_SALT, np.repeat(client_keys, per_client), places)


def _part(batch: RatingBatch, chosen: npt.NDArray[np.bool_]) -> Ratings:
    before = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(chosen, out=before[1:])
    return Ratings(before[batch.indptr], batch.items[chosen], batch.ratings[chosen])


def reconstruct(
    table: ItemTable,
    design: npt.NDArray[Any],
    indptr: npt.NDArray[np.int64],
    keys: npt.NDArray[np.uint64],
    method: Ridge | UserSteps | MiniBatches,
    start: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Fit users' local parameters to their support ratings, item parameters frozen.

    Parameters
    ----------
    table : the item table.
    design : [N, width] from :func:`gather`.
    indptr : int64 [n + 1], offsets into ``design``.
    keys : uint64 [n].
    method : how to fit.
    start : [n, width - 1], each user's ``[p, b_u]`` (or ``[p]``) that steps begin with, zeros when None;
        ridge has no beginning.

    Returns
    -------
    [n, width], each user's ``[p, −1, b_u]`` (or ``[p, −1]`` without user bias).
    """
    k, users = table.factors, len(indptr) - 1
    dtype = design.dtype
    width = design.shape[1]
    unknowns = np.delete(np.arange(width), k)
    weights = np.zeros((users, len(unknowns)), dtype) if start is None else np.array(start, dtype, order="C")
    if isinstance(method, MiniBatches):
        x = design[:, unknowns]
        rate = np.full(len(unknowns), method.learning_rate, dtype)
        decay = np.full(len(unknowns), method.regularization, dtype)
        decay[k:] = 0.0
        for epoch in range(method.epochs):
            ranks = shuffled_ranks(indptr, keys, RECONSTRUCTION_DRAW, epoch)
            weights = descend_in_mini_batches(
                weights,
                x,
                design[:, k],
                indptr,
                ranks,
                batch_size=method.batch_size,
                learning_rate=rate,
                regularization=decay,
            )
    else:
        grams = np.empty((users, width, width), dtype)
        segment_grams(design, (indptr - indptr[0]).tolist(), grams)
        # `take` lays the result out in C order whatever the number of users; indexing does not, and the
        # layout decides which routine multiplies.
        gram = grams.take(unknowns, axis=1).take(unknowns, axis=2)
        moment = grams[:, :, k].take(unknowns, axis=1)
        if isinstance(method, Ridge):
            weights = ridge(gram, moment, _penalty(method, k, len(unknowns), dtype))
        else:
            penalty = _penalty(method, k, len(unknowns), dtype)
            rate = np.full(len(unknowns), method.learning_rate, dtype)
            rate[k:] = method.bias_learning_rate
            ratings = np.diff(indptr)[:, None]
            if method.normalized:
                # A user without ratings and without penalty has a zero gradient; any divisor will do.
                sizes = rate / np.maximum(ratings + penalty, dtype.type(1e-6))
            else:
                sizes, penalty = rate, ratings * penalty
            weights = descend(
                weights,
                gram,
                moment,
                steps=method.steps,
                step_sizes=np.broadcast_to(sizes, weights.shape).astype(dtype),
                regularization=np.broadcast_to(penalty, weights.shape).astype(dtype),
            )
    local = np.empty((users, width), dtype)
    local[:, unknowns] = weights
    local[:, k] = -1.0
    return local


def unknowns_of(table: ItemTable, local: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``[p, b_u]`` (or ``[p]``) of what :func:`reconstruct` gave, [n, width - 1]."""
    return np.delete(local, table.factors, axis=1)


def _penalty(
    method: Ridge | UserSteps, factors: int, unknowns: int, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    penalty = np.full(unknowns, method.regularization, dtype)
    penalty[factors:] = method.bias_regularization
    return penalty


def step_rates(
    indptr: npt.NDArray[np.int64],
    keys: npt.NDArray[np.uint64],
    method: GradientSteps | MiniBatches,
    dtype: np.dtype[Any],
    steps: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[Any]:
    """Return η/B for every pass over the query rows, [passes, N]: B is the size of the row's mini-batch.

    A full-batch step is a pass with B = the user's number of rows. ``indptr`` int64 [n + 1]; ``keys``
    uint64 [n] decide which rows fall into a user's last, smaller mini-batch. With ``steps`` (int64 [n]) a
    user takes only so many of its steps: the rate of the others is 0.
    """
    counts = np.diff(indptr)
    totals = np.repeat(counts, counts)
    rate = dtype.type(method.learning_rate)
    allowed = None if steps is None else np.repeat(steps, counts)
    if isinstance(method, GradientSteps):
        rates = rate / totals.astype(dtype)
        if allowed is None:
            return np.broadcast_to(rates, (method.steps, len(totals)))
        return np.asarray(np.where(np.arange(method.steps)[:, None] < allowed, rates, dtype.type(0)))
    per_epoch = -(-totals // method.batch_size)
    passes = np.empty((method.epochs, len(totals)), dtype)
    for epoch, out in enumerate(passes):
        ranks = shuffled_ranks(indptr, keys, CLIENT_DRAW, epoch)
        before = ranks // method.batch_size * method.batch_size
        out[:] = rate / np.minimum(method.batch_size, totals - before).astype(dtype)
        if allowed is not None:
            out[epoch * per_epoch + ranks // method.batch_size >= allowed] = 0
    return passes


def item_steps(
    design: npt.NDArray[Any],
    local: npt.NDArray[Any],
    factors: int,
    *,
    counts: npt.NDArray[np.int64],
    rates: npt.NDArray[Any],
    scales: npt.NDArray[Any],
    regularization: float,
    out: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Take the client's steps on its query rows, local parameters frozen; write scaled deltas to ``out``.

    A user rates an item once, and with p frozen the gradient of an item's row involves that row alone:

        q ← q + η/B · (e p − λ q),  b ← b + η/B · e,  e = r − μ − b − q·p − b_u

    So mini-batches only set each row's B, and all rows of all users step together, exactly as if each user
    had gone through its mini-batches in turn.

    Parameters
    ----------
    design : [N, width] query rows, from :func:`gather`.
    local : [n, width], from :func:`reconstruct`.
    factors : k.
    counts : int64 [n], query rows per user.
    rates : [passes, N], from :func:`step_rates`.
    scales : [n], what a user's delta is multiplied by.
    regularization : λ of the item factors; biases are exempt.
    out : [N, k] or, with item biases in the last column, [N, k + 1].

    Returns
    -------
    e before the first step, [N].
    """
    spread = np.repeat(local, counts, axis=0)
    first_error: npt.NDArray[Any] = np.einsum("nk,nk->n", design, spread)
    np.negative(first_error, out=first_error)
    users = spread[:, :factors]
    has_bias = out.shape[1] > factors
    decay = design.dtype.type(regularization)
    scale = np.repeat(scales, counts)
    if len(rates) == 1:
        # One pass, the usual case: a single multiplication per row.
        moved = rates[0] * scale
        if decay:
            decayed = (moved * decay)[:, None] * design[:, :factors]
        moved *= first_error
        np.multiply(users, moved[:, None], out=out[:, :factors])
        if decay:
            out[:, :factors] -= decayed
        if has_bias:
            out[:, factors] = moved
        return first_error
    error = first_error.copy()
    out[:] = 0.0
    for rate in rates:
        moved = rate * error
        delta = users * moved[:, None]
        if decay:
            delta -= (rate * decay)[:, None] * (design[:, :factors] + out[:, :factors])
        out[:, :factors] += delta
        error -= np.einsum("nk,nk->n", delta, users)
        if has_bias:
            out[:, factors] += moved
            error -= moved
    out *= scale[:, None]
    return first_error


def predict_rows(
    table: ItemTable, local: npt.NDArray[Any], items: npt.NDArray[Any], counts: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Predict ratings: μ + b_i + q_i·p + b_u for each user's ``items``, [sum of ``counts``]."""
    rows = table.rows.take(items, axis=0, mode="clip")
    predictions: npt.NDArray[Any] = np.einsum(
        "nk,nk->n", rows, np.repeat(scoring_vectors(table, local), counts, axis=0)
    )
    predictions += rows.dtype.type(table.mean)
    return predictions


def scoring_vectors(table: ItemTable, local: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``[p, 1, b_u]``, whose product with a table row is a prediction less μ."""
    vectors = local.copy()
    vectors[:, table.factors] = 1.0
    return vectors


def score_catalogue(table: ItemTable, local: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Predict every item for every user, [n, items]; one product per user, so that none affects another."""
    scores = np.empty((len(local), len(table.rows)), table.rows.dtype)
    for vector, row in zip(scoring_vectors(table, local), scores, strict=True):
        np.dot(table.rows, vector, out=row)
    scores += table.rows.dtype.type(table.mean)
    return scores


def merge_users(
    items: npt.NDArray[Any],
    rows: npt.NDArray[Any],
    owners: npt.NDArray[np.int64],
    clients: int,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Add up rows of the same client and item.

    ``items`` [N], ``rows`` [N, width], ``owners`` int64 [N] the client of each row, increasing. Returns
    items, rows and int64 [clients + 1] offsets, items increasing within a client.
    """
    order = np.lexsort((items, owners))
    items, owners = items[order], owners[order]
    starts = np.ones(len(items), dtype=np.bool_)
    starts[1:] = (items[1:] != items[:-1]) | (owners[1:] != owners[:-1])
    first = np.flatnonzero(starts)
    offsets = np.searchsorted(owners[first], np.arange(clients + 1)).astype(np.int64)
    if len(first) == 0:
        return items, rows, offsets
    return items[first], np.add.reduceat(rows[order], first, axis=0), offsets
