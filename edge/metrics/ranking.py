"""HR@K, NDCG@K, Recall@K and Precision@K, by full ranking or against sampled negatives.

The two ways do not measure the same (Krichene & Rendle 2020, "On Sampled Metrics for Item Recommendation"),
so their names differ: ``ndcg@10`` ranks all items that the user has not trained on, ``ndcg@10/99neg`` ranks
one held-out item among 99 others.

Equal scores are ordered by item index, the lower first. That is deterministic and independent of the batch,
and a model that scores all alike stays near chance as long as indices say nothing about relevance.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits, stream_key
from edge.metrics.rating_errors import Groups, group_index, mean

Scores = npt.NDArray[np.floating]
_CELLS_PER_CHUNK = 1 << 22
_RATED = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class ItemLists(Protocol):
    """Items of several users, CSR: ``indptr`` int64[n + 1] and ``items`` int[N]. A rating batch is one."""

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Where each user's items start and end, int64[n + 1]."""
        ...

    @property
    def items(self) -> npt.NDArray[np.uint16] | npt.NDArray[np.int32]:
        """Item indices of all users, int[N]."""
        ...


def metric_name(metric: str, k: int, negatives: int | None = None) -> str:
    """Return ``ndcg@10`` for full ranking (``negatives`` None), ``ndcg@10/99neg`` for sampled negatives."""
    return f"{metric}@{k}" if negatives is None else f"{metric}@{k}/{negatives}neg"


def top_k(scores: Scores, k: int, exclude: ItemLists | None = None) -> npt.NDArray[np.int64]:
    """Return the k best items of every user, best first: int64[n, k], −1 where the candidates run out.

    Parameters
    ----------
    scores : float[n, m], finite.
    k : at least 1.
    exclude : items of the n users that are no candidates (their training items), or None.

    Raises
    ------
    ValueError
        for a score that is nan or infinite (a diverged model), or shapes that do not fit.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    _check_scores(scores)
    n, m = scores.shape
    candidates = np.array(scores)
    if exclude is not None:
        candidates[_pairs(exclude, n)] = -np.inf
    width = min(k, m)
    threshold = np.partition(candidates, m - width, axis=1)[:, m - width, None]
    # argpartition would order ties as it pleases: take all above the threshold, and of those equal to it the
    # lowest indices until k are found.
    above = candidates > threshold
    equal = candidates == threshold
    room = width - above.sum(axis=1, keepdims=True)
    chosen = above | (equal & (np.cumsum(equal, axis=1) <= room))
    items = np.flatnonzero(chosen).reshape(n, width) % m
    values = np.take_along_axis(candidates, items, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    items = np.take_along_axis(items, order, axis=1)
    items[np.take_along_axis(values, order, axis=1) == -np.inf] = -1
    if width < k:
        items = np.pad(items, ((0, 0), (0, k - width)), constant_values=-1)
    return items.astype(np.int64)


def ranks_among(
    positive_scores: Scores,
    negative_scores: Scores,
    positive_items: npt.NDArray[np.integer],
    negative_items: npt.NDArray[np.integer],
) -> npt.NDArray[np.int64]:
    """Return the rank, from 0, of each positive among its negatives: int64[n]; −1 if a score is not finite.

    Parameters
    ----------
    positive_scores, positive_items : float[n] and int[n].
    negative_scores, negative_items : float[n, c] and int[n, c]. A negative that is the positive itself counts
        as no competitor.

    Raises
    ------
    ValueError
        for shapes that do not fit.
    """
    _check_shape(negative_scores)
    n = negative_scores.shape[0]
    if positive_scores.shape != (n,) or positive_items.shape != (n,):
        raise ValueError(f"expected {n} positives, one a row of negatives, not {positive_scores.shape}")
    if negative_items.shape != negative_scores.shape:
        raise ValueError(f"{negative_items.shape} negative items for {negative_scores.shape} scores")
    own = positive_scores[:, None]
    before = negative_items < positive_items[:, None]
    ahead = (negative_scores > own) | ((negative_scores == own) & before)
    finite = np.isfinite(positive_scores) & np.isfinite(negative_scores).all(axis=1)
    return np.where(finite, ahead.sum(axis=1), -1)


class RankingSums:
    """Sums of the ranking metrics by group of users.

    With R relevant items, h hits among the first K and gains 0 or 1: HR = [h > 0], Precision = h/K,
    Recall = h/R, NDCG = DCG/IDCG with DCG = Σ over hits at rank r (from 0) of 1/log2(r + 2) and IDCG the same
    sum over the first min(R, K) ranks (Järvelin & Kekäläinen 2002). All are means over users with R > 0, and
    nan for a group with a user whose scores are not finite: the model, or what a device keeps, has diverged.

    Parameters
    ----------
    cutoffs : the Ks, at least one, each at least 1.
    negatives : None for full ranking, or the number of sampled negatives, which goes into the names.
    n_groups : number of groups; one holds everybody.
    """

    def __init__(
        self, cutoffs: tuple[int, ...] = (10,), negatives: int | None = None, n_groups: int = 1
    ) -> None:
        if not cutoffs or min(cutoffs) < 1 or n_groups < 1:
            raise ValueError(f"cutoffs and n_groups must be at least 1, not {cutoffs} and {n_groups}")
        self.cutoffs = tuple(sorted(set(cutoffs)))
        self.negatives = negatives
        self._n_groups = n_groups
        self._users = np.zeros(n_groups, dtype=np.int64)
        self._sums = {
            metric_name(metric, k, negatives): np.zeros(n_groups)
            for k in self.cutoffs
            for metric in ("hr", "ndcg", "recall", "precision")
        }
        self._discounts = 1.0 / np.log2(np.arange(self.cutoffs[-1]) + 2.0)

    def add_full(
        self,
        scores: Scores,
        relevant: ItemLists,
        exclude: ItemLists | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Rank all items for n users: scores float[n, m], their relevant and their excluded items.

        A user with a score that is not finite has no ranking, and makes the means of its groups nan. An item
        that is both relevant and excluded is a contradiction and raises ValueError.
        """
        if self.negatives is not None:
            raise ValueError("these sums are for sampled negatives; add full rankings to sums of their own")
        n, m = scores.shape
        index = group_index(groups, n, self._n_groups)
        is_relevant = np.zeros((n, m), dtype=np.bool_)
        is_relevant[_pairs(relevant, n)] = True
        if exclude is not None and is_relevant[_pairs(exclude, n)].any():
            raise ValueError(
                "an item is both relevant and excluded; leave training items out of the test part"
            )
        _check_shape(scores)
        finite = np.asarray(np.isfinite(scores).all(axis=1))
        ranked = scores if finite.all() else np.where(finite[:, None], scores, 0.0)
        best = top_k(ranked, self.cutoffs[-1], exclude)
        hits = np.take_along_axis(is_relevant, np.maximum(best, 0), axis=1) & (best >= 0)
        self._add(hits, is_relevant.sum(axis=1), index, finite)

    def add_ranks(self, ranks: npt.NDArray[np.int64], groups: Groups | None = None) -> None:
        """Add n users with one relevant item each, at ``ranks`` int64[n] from 0 (:func:`ranks_among`).

        A rank of −1 is none, and makes the means of the user's groups nan.
        """
        index = group_index(groups, ranks.size, self._n_groups)
        hits = ranks[:, None] == np.arange(self.cutoffs[-1])
        self._add(hits, np.ones(ranks.size, dtype=np.int64), index, ranks >= 0)

    def _add(
        self,
        hits: npt.NDArray[np.bool_],
        relevant: npt.NDArray[np.int64],
        index: npt.NDArray[np.int64],
        finite: npt.NDArray[np.bool_],
    ) -> None:
        scored = relevant > 0
        hits, relevant, index, finite = hits[scored], relevant[scored], index[scored], finite[scored]
        self._users += np.bincount(index, minlength=self._n_groups)
        gains = np.cumsum(hits * self._discounts, axis=1)
        ideal = np.cumsum(self._discounts)
        found = np.cumsum(hits, axis=1)
        for k in self.cutoffs:
            values = {
                "hr": (found[:, k - 1] > 0).astype(np.float64),
                "ndcg": gains[:, k - 1] / ideal[np.minimum(relevant, k) - 1],
                "recall": found[:, k - 1] / relevant,
                "precision": found[:, k - 1] / k,
            }
            for metric, value in values.items():
                name = metric_name(metric, k, self.negatives)
                self._sums[name] += np.bincount(index, np.where(finite, value, np.nan), self._n_groups)

    @property
    def users(self) -> npt.NDArray[np.int64]:
        """Users per group that had something relevant, int64[n_groups]."""
        return self._users.copy()

    def results(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return ``{"hr@10": float64[n_groups], …}``; nan for a group without users."""
        return {name: mean(values, self._users) for name, values in self._sums.items()}


def _check_shape(scores: Scores) -> None:
    if scores.ndim != 2:
        raise ValueError(f"scores must be float[users, items], not of shape {scores.shape}")


def _check_scores(scores: Scores) -> None:
    _check_shape(scores)
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores).all(axis=1)))
        raise ValueError(f"a score in row {row} is nan or infinite: the model has diverged")


def _pairs(lists: ItemLists, n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (row, item) of every entry, to index a users × items array."""
    if lists.indptr.shape != (n + 1,):
        raise ValueError(f"item lists of {lists.indptr.size - 1} users for {n} rows of scores")
    return np.repeat(np.arange(n), np.diff(lists.indptr)), lists.items.astype(np.int64)


def sample_negatives(
    users: npt.NDArray[np.int64], rated: ItemLists, n_items: int, n_negatives: int, *, seed: int
) -> npt.NDArray[np.int64]:
    """Return ``n_negatives`` distinct items a user, uniform over those not rated: int64[n, n_negatives].

    Every (user, item) has a hashed number of its own and the smallest win; a user's negatives therefore
    depend on the seed and on what the user rated, never on who else is in the batch. They come in ascending
    order.

    Parameters
    ----------
    users : int64[n], user indices.
    rated : the items that each of the n users rated, in any part of the split.
    n_items : size of the catalogue.
    n_negatives : at least 1.
    seed : the run's seed.

    Raises
    ------
    ValueError
        naming the first user with fewer unrated items than asked for.
    """
    if n_negatives < 1:
        raise ValueError(f"n_negatives must be at least 1, not {n_negatives}")
    counts = np.diff(rated.indptr)
    if counts.shape != users.shape:
        raise ValueError(f"item lists of {counts.size} users for {users.size} users")
    short = counts > n_items - n_negatives
    if short.any():
        position = int(np.argmax(short))
        raise ValueError(
            f"user {users[position]} has {n_items - counts[position]} unrated items, fewer than the"
            f" {n_negatives} negatives asked for; ask for fewer or rank fully"
        )
    key = stream_key(seed, "evaluation", "negatives")
    items = np.arange(n_items, dtype=np.int64)
    result = np.empty((users.size, n_negatives), dtype=np.int64)
    rows = max(1, _CELLS_PER_CHUNK // n_items)
    for first in range(0, users.size, rows):
        last = min(first + rows, users.size)
        numbers = hashed_bits(key, users[first:last, None], items[None, :])
        owners = np.repeat(np.arange(last - first), counts[first:last])
        numbers[owners, rated.items[rated.indptr[first] : rated.indptr[last]].astype(np.int64)] = _RATED
        smallest = np.argpartition(numbers, n_negatives - 1, axis=1)[:, :n_negatives]
        result[first:last] = np.sort(smallest, axis=1)
    return result
