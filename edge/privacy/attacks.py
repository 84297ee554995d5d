"""What masked ratings give away: the attacks and the privacy indicator of FedMMF, as audits of a run.

A personalised mask is a model f_u that a device fits on its own ratings; the fleet factorises what it leaves,
the masked value r_ui − f_u(i) (Yang et al. 2021, "Practical and Secure Federated Recommendation with
Personalized Masks", arXiv 2109.02464). Three questions, each with the figures to read the answer against:

* :func:`recovery_attack`: how many ratings does somebody get back who sees the masked values?
* :func:`ranking_attack`: how many of a user's favourites do they find?
* :func:`privacy_indicator`: how much of a rating is left in its masked value?

The simulator asks them beside the protocol, with the true ratings at hand. Nothing is drawn at random: where
an attack guesses, its expected success is computed. A user's figures are bitwise the same whichever other
users are in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.metrics.rating_errors import mean

Values = npt.NDArray[np.floating[Any]]
Counts = npt.NDArray[np.int64]
_SLACK = 1e-4
"""Stars by which a guess may miss its tolerance, so that rounding of float32 does not decide."""
_EDGE = 1e-9
"""Part of a bucket by which a share may lie below it, so that rounding does not decide."""


class AuditMetric(NamedTuple):
    """A row for a run's tables: ``value`` over ``users`` users, without ``left_out`` others.

    The value is nan if there are no users.
    """

    name: str
    value: float
    users: int
    left_out: int


@dataclass(frozen=True, slots=True, eq=False)
class AuditFigure:
    """One figure of an audit for each user of a batch.

    Attributes
    ----------
    name : the metric's name, such as ``audit.recovery@0.5``.
    sums : float64[n], what was added up over a user's ratings.
    weights : int64[n], what it is divided by; 0 for a user that is left out.
    """

    name: str
    sums: npt.NDArray[np.float64]
    weights: npt.NDArray[np.int64]

    def per_user(self) -> npt.NDArray[np.float64]:
        """Return the figure of each user, float64[n]; nan for a user that is left out."""
        return mean(self.sums, self.weights)

    def metric(self, members: npt.NDArray[np.bool_] | None = None) -> AuditMetric:
        """Return the figure over all users, or over those with ``members`` (bool[n]) true.

        It is Σ sums / Σ weights: a user counts by its weight. The sum is exactly rounded, so the order of the
        users and how they were batched changes nothing.

        Raises
        ------
        ValueError
            when ``members`` is not bool[n].
        """
        sums, weights = self.sums, self.weights
        if members is not None:
            if members.shape != weights.shape or members.dtype != np.bool_:
                raise ValueError(f"members must be bool[{weights.size}], not {members.dtype} {members.shape}")
            sums, weights = sums[members], weights[members]
        weight = int(weights.sum())
        users = int(np.count_nonzero(weights))
        value = math.fsum(sums.tolist()) / weight if weight else math.nan
        return AuditMetric(self.name, value, users, weights.size - users)

    def distribution(self, buckets: int) -> npt.NDArray[np.float64]:
        """Return the share of users whose own figure, from 0 to 1, is in each of equal ``buckets``, float64.

        A bucket holds its lower end, the last one its upper end too. Every user counts the same; one that is
        left out counts nowhere. All are nan if there are no users.
        """
        own = self.per_user()[self.weights > 0]
        place = np.minimum((own * buckets + _EDGE).astype(np.int64), buckets - 1)
        counts = np.bincount(place, minlength=buckets)
        return counts / own.size if own.size else np.full(buckets, math.nan)


def joined(figures: Sequence[AuditFigure]) -> AuditFigure:
    """Return one figure over the users of several batches, in that order.

    Raises
    ------
    ValueError
        when there is none, or they are of different metrics.
    """
    names = sorted({figure.name for figure in figures})
    if len(names) != 1:
        raise ValueError(f"figures of one metric can be joined, not of {names}")
    return AuditFigure(
        names[0],
        np.concatenate([figure.sums for figure in figures]),
        np.concatenate([figure.weights for figure in figures]),
    )


class RecoveryAudit(NamedTuple):
    """Share of ratings recovered: by the attack, by the same guess for all, and by chance."""

    attack: AuditFigure
    midrange: AuditFigure
    chance: AuditFigure


class RankingAudit(NamedTuple):
    """Share of favourites found: by the attack, by chance, and from ratings in the clear."""

    attack: AuditFigure
    chance: AuditFigure
    clear: AuditFigure


def recovery_attack(
    indptr: Counts, ratings: Values, masked: Values, *, scale: Values, within_stars: float = 0.5
) -> RecoveryAudit:
    """Scale each user's masked values to the user's range of ratings, and count the ratings that come back.

    With ⌊x⌋ and ⌈x⌉ the least and the largest x of the user, the guess for a rating r masked as v is
    ⌊r⌋ + (⌈r⌉ − ⌊r⌋)·(v − ⌊v⌋)/(⌈v⌉ − ⌊v⌋). It is recovered if the guess is within ``within_stars`` of it,
    both ends included. The attacker is granted the user's true range, hence the figures beside it:

    ``audit.recovery_midrange@g`` : with the range alone, guessing its middle (⌊r⌋ + ⌈r⌉)/2 for every rating.
    ``audit.recovery_chance@g`` : with nothing, expected of a guess drawn uniformly from ``scale``.

    Masked values that are all equal tell nothing to scale: the guess is then the middle of the range, and the
    attack scores what ``midrange`` scores. If a user's ratings are all equal, as a single one is, the range
    gives them away: the attack and ``midrange`` both recover them all. A user without ratings is left out.

    Parameters
    ----------
    indptr : int64[n + 1], where each user's entries start and end.
    ratings : float[N], the true ratings, within the scale.
    masked : float[N], rating − f_u(item), finite.
    scale : float[v], the values that a rating can have, ascending, at least 2.
    within_stars : g, in stars, positive; it goes into the names.

    Returns
    -------
    Figures whose weights are the ratings of each user: overall, every rating counts the same.

    Raises
    ------
    ValueError
        for shapes that do not fit, a rating outside the scale, or a masked value that is nan or infinite.
    """
    if not 0 < within_stars < math.inf:
        raise ValueError(f"within_stars must be positive and finite, not {within_stars}")
    owners = _owners(indptr, ratings, masked)
    grades = _checked_scale(scale, ratings)
    counts = np.diff(indptr)
    truth, seen = ratings.astype(np.float64), masked.astype(np.float64)
    low, high = _ranges(indptr, truth)
    least, most = _ranges(indptr, seen)
    spread = (most - least)[owners]
    middle = (low + (high - low) / 2)[owners]
    position = np.divide(seen - least[owners], spread, out=np.full(seen.shape, 0.5), where=spread > 0)
    guess = low[owners] + (high - low)[owners] * position
    reach = within_stars + _SLACK
    # Values of the scale that are near enough to the true rating.
    near = np.searchsorted(grades, truth + reach, "right") - np.searchsorted(grades, truth - reach, "left")

    def figure(kind: str, sums: npt.NDArray[Any]) -> AuditFigure:
        return AuditFigure(f"audit.{kind}@{float(within_stars)}", sums.astype(np.float64), counts)

    def recovered(guesses: npt.NDArray[np.float64]) -> Counts:
        return np.bincount(owners[np.abs(guesses - truth) <= reach], minlength=counts.size)

    return RecoveryAudit(
        figure("recovery", recovered(guess)),
        figure("recovery_midrange", recovered(middle)),
        figure("recovery_chance", np.bincount(owners, near, counts.size) / grades.size),
    )


def ranking_attack(indptr: Counts, ratings: Values, masked: Values, *, h: float = 10) -> RankingAudit:
    """Take the h items of the largest masked values for a user's favourites, and count the true ones.

    ``h`` is a number of items, or a float below 1: that share of each user's n_u ratings, rounded up, which
    makes the figure of a short history as easy to reach by chance as that of a long one.

    Several items may be equal at the edge of a top-h. Each side then draws, independently and uniformly, who
    of them gets the seats that are left, and the figure is the expected overlap divided by h: Σ a·b / h, with
    a and b the probabilities that an item is in the top-h by rating and by masked value. The order of the
    items plays no part. The figures beside it:

    ``audit.ranking_chance@h`` : h items drawn at random from the user's n_u: h/n_u. It is also what masked
        values, or ratings, that are all equal lead to.
    ``audit.ranking_clear@h`` : the ratings themselves in place of the masked values: Σ a²/h. No attack finds
        more, and a constant mask gives just this. It is 1 unless ratings are equal across the edge; where
        ratings have few grades it can be far below, and the attack's figure means little without it.

    Users with h or fewer ratings, all of whose items are favourites, are left out.

    Parameters
    ----------
    indptr : int64[n + 1], where each user's entries start and end.
    ratings : float[N], the true ratings, finite.
    masked : float[N], rating − f_u(item), finite.
    h : number of favourites, a whole number of 1 or more, or a share above 0 and below 1; it goes into the
        names, a share as ``10%``.

    Returns
    -------
    Figures whose weights are 1, or 0 for a user that is left out: overall, every user counts the same.

    Raises
    ------
    ValueError
        for an ``h`` that is neither, shapes that do not fit, or a rating or masked value that is nan or
        infinite.
    """
    if not (0 < h < 1 or (1 <= h < math.inf and h == int(h))):
        raise ValueError(f"h must be a whole number of 1 or more, or a share between 0 and 1, not {h}")
    owners = _owners(indptr, ratings, masked)
    counts = np.diff(indptr)
    favourites = np.full(counts.size, int(h)) if h >= 1 else np.ceil(h * counts - _EDGE).astype(np.int64)
    ranked = counts > favourites
    entries = ranked[owners]
    inner = np.repeat(np.arange(np.count_nonzero(ranked)), counts[ranked])
    counted, many = counts[ranked], favourites[ranked]
    true_top = _top(inner, counted, ratings[entries], many)
    masked_top = _top(inner, counted, masked[entries], many)
    written = f"{int(h)}" if h >= 1 else f"{100 * h:g}%"

    def figure(kind: str, shares: npt.NDArray[np.float64]) -> AuditFigure:
        sums = np.zeros(counts.size)
        sums[ranked] = shares
        return AuditFigure(f"audit.{kind}@{written}", sums, ranked.astype(np.int64))

    return RankingAudit(
        figure("ranking", _overlap(inner, true_top, masked_top) / many),
        figure("ranking_chance", many / counted),
        figure("ranking_clear", _overlap(inner, true_top, true_top) / many),
    )


def privacy_indicator(indptr: Counts, ratings: Values, predictions: Values, *, scale: Values) -> AuditFigure:
    """Return ``audit.indicator``, J: the mean squared residual r − f_u(i) with ratings scaled to [0, 1].

    J = mean of ((r − f_u(i))/(largest − least value of ``scale``))² over held-out ratings (Yang et al. 2021).
    A small J says that a mask carries most of a rating, so that little is left in the masked value. It bounds
    no attack: both look at the order and the proportions of masked values, and not at their size.

    Parameters
    ----------
    indptr : int64[n + 1], where each user's entries start and end.
    ratings : float[N], true ratings that the masks were not fitted on, within the scale.
    predictions : float[N], f_u(item) of the same, on the scale of the ratings, finite.
    scale : float[v], the values that a rating can have, ascending, at least 2.

    Returns
    -------
    A figure whose weights are the ratings of each user: overall, every rating counts the same. A user
    without held-out ratings is left out.

    Raises
    ------
    ValueError
        for shapes that do not fit, a rating outside the scale, or a prediction that is nan or infinite.
    """
    owners = _owners(indptr, ratings, predictions)
    grades = _checked_scale(scale, ratings)
    residuals = (ratings.astype(np.float64) - predictions) / (grades[-1] - grades[0])
    counts = np.diff(indptr)
    squares = np.bincount(owners, residuals * residuals, counts.size).astype(np.float64)
    return AuditFigure("audit.indicator", squares, counts)


class _Top(NamedTuple):
    """The h largest values of every user."""

    sure: npt.NDArray[np.bool_]
    """bool[N], larger than the h-th largest."""
    tied: npt.NDArray[np.bool_]
    """bool[N], equal to the h-th largest."""
    seat: npt.NDArray[np.float64]
    """float64[n], probability of a tied one to be among the h."""


def _top(owners: Counts, counts: Counts, values: Values, h: Counts) -> _Top:
    """Return the ``h`` (int64[n]) largest of every user's ``values``, float[N]; each has at least as many."""
    ranked = values[np.lexsort((-values, owners))]
    edge = ranked[np.cumsum(counts) - counts + h - 1][owners]
    sure, tied = values > edge, values == edge
    seats = h - np.bincount(owners[sure], minlength=counts.size)
    return _Top(sure, tied, seats / np.bincount(owners[tied], minlength=counts.size))


def _overlap(owners: Counts, a: _Top, b: _Top) -> npt.NDArray[np.float64]:
    """Return how many items are in both, expected with ties drawn independently, float64[n]."""

    def count(chosen: npt.NDArray[np.bool_]) -> Counts:
        return np.bincount(owners[chosen], minlength=a.seat.size)

    return np.asarray(
        count(a.sure & b.sure)
        + count(a.sure & b.tied) * b.seat
        + count(a.tied & b.sure) * a.seat
        + count(a.tied & b.tied) * (a.seat * b.seat)
    )


def _owners(indptr: Counts, ratings: Values, others: Values) -> Counts:
    """Return the user of every entry, int64[N], of arrays that fit each other; else raise ValueError."""
    if indptr.ndim != 1 or not indptr.size or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise ValueError("indptr must be int64[n + 1], from 0 and never falling")
    if ratings.shape != (indptr[-1],) or others.shape != ratings.shape:
        raise ValueError(
            f"indptr ends at {indptr[-1]}: as many ratings and masked values are needed, not"
            f" {ratings.shape} and {others.shape}"
        )
    owners = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    finite = np.isfinite(ratings) & np.isfinite(others)
    if not finite.all():
        position = int(np.argmin(finite))
        raise ValueError(
            f"row {owners[position]} has a rating or a mask that is nan or infinite: the mask has diverged"
        )
    return owners


def _checked_scale(scale: Values, ratings: Values) -> npt.NDArray[np.float64]:
    """Return ``scale`` as float64[v] if it is one and holds the ratings; else raise ValueError."""
    grades = scale.astype(np.float64)
    if grades.ndim != 1 or grades.size < 2 or not np.isfinite(grades).all() or (np.diff(grades) <= 0).any():
        raise ValueError(f"scale must be at least two values, ascending, not {scale}")
    outside = (ratings < grades[0] - _SLACK) | (ratings > grades[-1] + _SLACK)
    if outside.any():
        raise ValueError(
            f"a rating {ratings[np.argmax(outside)]} is outside the scale {grades[0]} .. {grades[-1]}"
        )
    return grades


def _ranges(
    indptr: Counts, values: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the least and the largest value of every user, float64[n] each; 0 for a user without any."""
    # reduceat cannot take empty segments: without them, each of the others ends where the next one starts.
    filled = np.diff(indptr) > 0
    low, high = np.zeros(filled.size), np.zeros(filled.size)
    starts = indptr[:-1][filled]
    if starts.size:
        low[filled] = np.minimum.reduceat(values, starts)
        high[filled] = np.maximum.reduceat(values, starts)
    return low, high
