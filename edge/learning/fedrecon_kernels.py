"""The arithmetic of FedRecon matrix factorisation, for many users at once.

Layout. One table row per item, ``[q_i | b_i | 1]``: the item's factors, its bias and, when users have a
bias, a one. Gathering a user's rows and overwriting the bias column with the target t = r − μ − b_i gives
``[X₁ | t | X₂]``, whose Gram matrix holds all that a ridge solve or a full-batch gradient step needs. Local
parameters extend to ``[p, −1, b_u]``, so that a row times that vector is minus the residual e.

Ratings are processed in blocks of some thousand rows that stay in the processor's cache. Neither blocks nor
the other users of a batch change a user's bits: see :mod:`edge.learning.least_squares`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

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

_BLOCK_ROWS = 8192
_FEW = 8
"""A table is laid out if an eighth of its rows is asked for at once."""
# The first counter of a draw says what it is for.
RECONSTRUCTION_DRAW, SPLIT_DRAW, CLIENT_DRAW = 0, 1, 2
_PLACE_SALT = 0x706C_6163_6500_0001


@dataclass(frozen=True, eq=False)
class ItemTable:
    """The item table of one round, [items, factors + 1 (+ 1)], and the rating mean μ.

    It is laid out when all of it is needed, or many of its rows; a few rows of a large one are so alone.
    """

    item_factors: npt.NDArray[Any]
    item_bias: npt.NDArray[Any] | None
    user_bias: bool
    mean: float

    @property
    def factors(self) -> int:
        """Number of factors."""
        return int(self.item_factors.shape[1])

    @functools.cached_property
    def rows(self) -> npt.NDArray[Any]:
        """The whole table."""
        return self._laid_out(self.item_factors, self.item_bias)

    def take(self, items: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rows of ``items`` [n], a new array."""
        # Items were checked when the data was read; "clip" spares a second, buffered bounds check.
        if len(items) * _FEW >= len(self.item_factors) or "rows" in self.__dict__:
            return self.rows.take(items, axis=0, mode="clip")
        bias = None if self.item_bias is None else self.item_bias.take(items, mode="clip")
        return self._laid_out(self.item_factors.take(items, axis=0, mode="clip"), bias)

    def _laid_out(self, factors: npt.NDArray[Any], bias: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        n, width = factors.shape
        rows = np.empty((n, width + 1 + self.user_bias), factors.dtype)
        rows[:, :width] = factors
        rows[:, width] = 0.0 if bias is None else bias
        if self.user_bias:
            rows[:, width + 1] = 1.0
        return rows


def item_table(
    item_factors: npt.NDArray[F], item_bias: npt.NDArray[F] | None, *, user_bias: bool, mean: float
) -> ItemTable:
    """Lay out item factors [items, k] and item biases [items] (or None) for the kernels."""
    return ItemTable(item_factors, item_bias, user_bias, mean)


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
    design = table.take(batch.items[rows])
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


@dataclass(frozen=True, slots=True)
class ClientUsers:
    """The users that the clients of a batch hold.

    Attributes
    ----------
    per_client : int64 [clients], how many users each holds.
    owners : int64 [users], the place of each user's client.
    keys : uint64 [users]; of clients that hold several, a hash of the client's key and the user's place.
    """

    per_client: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]

    @classmethod
    def of(
        cls,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None,
        steps: npt.NDArray[np.int64] | None = None,
    ) -> ClientUsers:
        """Return the users of clients with ``client_keys``, uint64 [clients].

        ``clients`` int64 [clients + 1] cuts the users; None: each client holds one.

        Raises
        ------
        ValueError : ``steps`` is given and clients hold several users.
        """
        if clients is None:
            one = np.ones(len(client_keys), np.int64)
            return cls(one, np.arange(len(one)), client_keys)
        if steps is not None:
            raise ValueError("the steps of clients with several users cannot be limited; leave steps out")
        per_client = np.diff(clients)
        places = np.arange(int(clients[-1])) - np.repeat(clients[:-1], per_client)
        keys = hashed_bits(_PLACE_SALT, np.repeat(client_keys, per_client), places)
        return cls(per_client, np.repeat(np.arange(len(per_client)), per_client), keys)

    def weights(self, weighting: str, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return what each user's update weighs in its client's, float64 [users].

        That is its number of ``examples`` (int64 [users]), or, ``uniform``, an equal share of 1.
        """
        return examples.astype(np.float64) if weighting == "examples" else 1.0 / self.per_client[self.owners]


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
        # One pass, the usual case: a single multiplication per row. Over whole rows, by factors laid out like
        # them, numpy goes at one stretch.
        moved = rates[0] * scale
        decayed = design * _each(moved * decay, design.shape) if decay else None
        moved *= first_error
        spread *= _each(moved, design.shape)
        if decayed is not None:
            spread -= decayed
        out[:, :factors] = users
        if has_bias:
            out[:, factors] = moved
        return first_error
    # p is frozen, so q stays in the plane of q₀ and p: q = a q₀ + c p. A pass is arithmetic on a, c, q·p, e.
    rows = design[:, :factors]
    square = np.repeat(np.einsum("nk,nk->n", local[:, :factors], local[:, :factors]), counts)
    product, error = np.einsum("nk,nk->n", rows, users), first_error.copy()
    along_p, along_q, bias = np.zeros_like(error), np.ones_like(error), np.zeros_like(error)
    for rate in rates:
        moved = rate * error
        change = moved * square
        if decay:
            lost = rate * decay
            change -= lost * product
            product += change
            along_p -= lost * along_p
            along_q -= lost * along_q
        along_p += moved
        error -= change
        if has_bias:
            bias += moved
            error -= moved
    np.multiply(users, (along_p * scale)[:, None], out=out[:, :factors])
    if decay:
        out[:, :factors] += ((along_q - 1) * scale)[:, None] * rows
    if has_bias:
        out[:, factors] = bias * scale
    return first_error


def _each(values: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return ``values`` [n] repeated along rows, contiguous, of ``shape`` [n, width]."""
    return np.repeat(values, shape[1]).reshape(shape)


def predict_rows(
    table: ItemTable, local: npt.NDArray[Any], items: npt.NDArray[Any], counts: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Predict ratings: μ + b_i + q_i·p + b_u for each user's ``items``, [sum of ``counts``]."""
    rows = table.take(items)
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
