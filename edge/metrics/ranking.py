"""Metrics of rankings, by full ranking or against sampled negatives.

The two ways do not measure the same (Krichene & Rendle 2020, "On Sampled Metrics for Item Recommendation"),
so their names differ: ``ndcg@10`` ranks all items but those known before, ``ndcg@10/99neg`` ranks one
held-out item among 99 others.

Equal scores are ordered by item index, the lower first. That is deterministic and independent of the batch,
and a model that scores all alike stays near chance as long as indices say nothing about relevance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits, stream_key
from edge.metrics.rating_errors import Groups, group_index, mean

Scores = npt.NDArray[np.floating]
CUT_METRICS: Final = ("hr", "ndcg", "recall", "precision", "mrr", "map", "coverage", "novelty")
"""Metrics of the first K places."""
METRICS: Final = (*CUT_METRICS, "auc")
USUAL_METRICS: Final = CUT_METRICS[:4]
OF_LISTS: Final = ("coverage", "novelty")
"""Metrics of what is recommended, whether or not it is relevant: of full rankings alone, and no accuracy."""

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


def metric_name(metric: str, k: int | None, negatives: int | None = None) -> str:
    """Return the name of a metric of rankings.

    ``ndcg@10`` for full ranking (``negatives`` None), ``ndcg@10/99neg`` for sampled negatives; ``auc`` and
    ``auc/99neg`` without a cut-off (``k`` None).
    """
    cut = metric if k is None else f"{metric}@{k}"
    return cut if negatives is None else f"{cut}/{negatives}neg"


def top_k(scores: Scores, k: int, exclude: ItemLists | None = None) -> npt.NDArray[np.int64]:
    """Return the k best items of every user, best first: int64[n, k], −1 where the candidates run out.

    Parameters
    ----------
    scores : float[n, m], finite.
    k : at least 1.
    exclude : items of the n users that are no candidates, or None: those known before (training items, and
        validation items where the test is scored).

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


@dataclass(frozen=True, slots=True, eq=False)
class Rankings:
    """The first places of n users' rankings, and their relevant items.

    Attributes
    ----------
    hits : bool[n, places], whether the item in each place is relevant.
    owners, items : int64[p], row of the user and index of every relevant item.
    finite : bool[n], whether all scores of a user are; without, there is no ranking.
    listed : int64[n, places], the item in each place, −1 where candidates ran out; None among sampled ones.
    auc : float64[p], see :func:`rank_fully`; None where it was not asked for.
    negatives : how many sampled items each relevant one was ranked among; None in a full ranking.
    """

    hits: npt.NDArray[np.bool_]
    owners: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    finite: npt.NDArray[np.bool_]
    listed: npt.NDArray[np.int64] | None = None
    auc: npt.NDArray[np.float64] | None = None
    negatives: int | None = None

    @property
    def relevant(self) -> npt.NDArray[np.int64]:
        """Relevant items per user, int64[n]."""
        return np.bincount(self.owners, minlength=len(self.hits))

    def of_items(self, chosen: npt.NDArray[np.bool_]) -> Rankings:
        """Return the same rankings with no item relevant but those of ``chosen``, bool[m].

        The others keep their places; the AUC stays that against what was not relevant before.
        """
        kept = chosen[self.items]
        if self.listed is None:
            wanted = np.zeros(len(self.hits), dtype=np.bool_)
            wanted[self.owners[kept]] = True
            hits = self.hits & wanted[:, None]
        else:
            hits = self.hits & chosen[self.listed]
        auc = None if self.auc is None else self.auc[kept]
        return replace(self, hits=hits, owners=self.owners[kept], items=self.items[kept], auc=auc)


def rank_fully(
    scores: Scores,
    relevant: ItemLists,
    exclude: ItemLists | None = None,
    *,
    places: int,
    auc: bool = False,
) -> Rankings:
    """Rank all items for n users.

    Parameters
    ----------
    scores : float[n, m]. A user with a score that is not finite has no ranking.
    relevant : items of the n users.
    exclude : items of the n users that are no candidates, or None.
    places : how many first places are wanted, at least 1.
    auc : compute, for every relevant item, the share of the candidates that are not relevant which score
        less, half of those that score the same (Mann & Whitney 1947); one half where there are none.

    Raises
    ------
    ValueError
        for an item that is both relevant and excluded, or shapes that do not fit.
    """
    n, m = scores.shape if scores.ndim == 2 else (len(scores), 0)
    owners, items = _pairs(relevant, n)
    is_relevant = np.zeros((n, m), dtype=np.bool_)
    is_relevant[owners, items] = True
    if exclude is not None and is_relevant[_pairs(exclude, n)].any():
        raise ValueError("an item is both relevant and excluded; leave training items out of the test part")
    _check_shape(scores)
    finite = np.asarray(np.isfinite(scores).all(axis=1))
    ranked = scores if finite.all() else np.where(finite[:, None], scores, 0.0)
    listed = top_k(ranked, places, exclude)
    hits = np.take_along_axis(is_relevant, np.maximum(listed, 0), axis=1) & (listed >= 0)
    shares: npt.NDArray[np.float64] | None = None
    if auc:
        others = ~is_relevant
        if exclude is not None:
            others[_pairs(exclude, n)] = False
        shares = np.empty(len(owners))
        rows = max(1, _CELLS_PER_CHUNK // max(m, 1))
        for first in range(0, len(owners), rows):
            part = slice(first, first + rows)
            of_users = ranked[owners[part]]
            own = of_users[np.arange(len(of_users)), items[part]][:, None]
            shares[part] = _share_below(own, of_users, others[owners[part]])
    return Rankings(hits, owners, items, finite, listed, shares)


def rank_among(
    positive_scores: Scores,
    negative_scores: Scores,
    positive_items: npt.NDArray[np.integer],
    negative_items: npt.NDArray[np.integer],
    *,
    places: int,
    auc: bool = False,
) -> Rankings:
    """Rank the one relevant item of each of n users among its negatives; see :func:`ranks_among`.

    ``places`` and ``auc`` are as for :func:`rank_fully`.
    """
    ranks = ranks_among(positive_scores, negative_scores, positive_items, negative_items)
    own = positive_items.astype(np.int64)
    shares: npt.NDArray[np.float64] | None = None
    if auc:
        others = negative_items != own[:, None]
        shares = _share_below(positive_scores[:, None], negative_scores, others)
    hits = ranks[:, None] == np.arange(places)
    owners = np.arange(len(ranks))
    return Rankings(hits, owners, own, ranks >= 0, None, shares, negative_scores.shape[1])


def _share_below(own: Scores, scores: Scores, others: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return which share of each row's ``others`` scores below its ``own`` [n, 1], equals by half."""
    below = ((scores < own) & others).sum(axis=1)
    equal = ((scores == own) & others).sum(axis=1)
    return _per(below + 0.5 * equal, others.sum(axis=1), otherwise=0.5)


def _per(
    sums: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], *, otherwise: float
) -> npt.NDArray[np.float64]:
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, otherwise), where=counts > 0))


def self_information(raters: npt.NDArray[np.int64], users: int) -> npt.NDArray[np.float64]:
    """Return how surprising each of m items is, −log2(raters / users), float64[m] in bits.

    An item without raters has the self-information of one with a single rater (Zhou et al. 2010, "Solving the
    apparent diversity-accuracy dilemma of recommender systems").

    Parameters
    ----------
    raters : int64[m], users that have rated each item.
    users : how many there are.
    """
    return -np.log2(np.maximum(raters, 1) / max(users, 1))


class RankingSums:
    """Sums of the ranking metrics by group of users.

    With R relevant items, h hits among the first K and gains 0 or 1: HR = [h > 0], Precision = h/K,
    Recall = h/R, NDCG = DCG/IDCG with DCG = Σ over hits at rank r (from 0) of 1/log2(r + 2) and IDCG the same
    sum over the first min(R, K) ranks (Järvelin & Kekäläinen 2002); MRR = 1/(r + 1) of the first hit, 0
    without one; MAP = Σ over hits of Precision@(r + 1), divided by R (as trec_eval's ``map_cut``). AUC is the
    mean over the relevant items of a user. All are means over users with R > 0, and nan for a group with a
    user whose scores are not finite: the model, or what a device keeps, has diverged.

    Of what is listed for the same users: coverage is the share of all items that are among somebody's first
    K, novelty the mean self-information of a user's first K.

    Parameters
    ----------
    cutoffs : the Ks, at least one, each at least 1.
    negatives : None for full ranking, or the number of sampled negatives, which goes into the names.
    n_groups : number of groups; one holds everybody.
    metrics : which of :data:`METRICS`.
    information : float64[m], of each item (:func:`self_information`); coverage and novelty need it.

    Raises
    ------
    ValueError
        for an unknown metric, one that does not suit, or numbers below 1.
    """

    def __init__(
        self,
        cutoffs: tuple[int, ...] = (10,),
        negatives: int | None = None,
        n_groups: int = 1,
        *,
        metrics: Collection[str] = USUAL_METRICS,
        information: npt.NDArray[np.float64] | None = None,
    ) -> None:
        if not cutoffs or min(cutoffs) < 1 or n_groups < 1:
            raise ValueError(f"cutoffs and n_groups must be at least 1, not {cutoffs} and {n_groups}")
        unknown = sorted(set(metrics) - set(METRICS))
        if unknown:
            raise ValueError(
                f"unknown metrics {', '.join(unknown)}; of rankings there are {', '.join(METRICS)}"
            )
        if set(metrics) & set(OF_LISTS) and (negatives is not None or information is None):
            raise ValueError("coverage and novelty are of full rankings, and need the items' information")
        self.cutoffs = tuple(sorted(set(cutoffs)))
        self.negatives = negatives
        self.metrics = tuple(metric for metric in METRICS if metric in metrics)
        self._n_groups = n_groups
        self._information = information
        self._users = np.zeros(n_groups, dtype=np.int64)
        self._sums: dict[str, npt.NDArray[np.float64]] = {}
        self._covered: dict[str, npt.NDArray[np.bool_]] = {}
        for k in self.cutoffs:
            for metric in self.metrics:
                name = metric_name(metric, k, negatives)
                if metric == "coverage" and information is not None:
                    self._covered[name] = np.zeros((n_groups, information.size), dtype=np.bool_)
                if metric in CUT_METRICS:
                    self._sums[name] = np.zeros(n_groups)
        if "auc" in self.metrics:
            self._sums[metric_name("auc", None, negatives)] = np.zeros(n_groups)
        self._discounts = 1.0 / np.log2(np.arange(self.cutoffs[-1]) + 2.0)

    @property
    def places(self) -> int:
        """How many first places rankings need."""
        return self.cutoffs[-1]

    def add(self, rankings: Rankings, groups: Groups | None = None) -> None:
        """Add the rankings of n users; ``groups`` int[n], or None for group 0.

        Raises
        ------
        ValueError
            for rankings among another number of negatives, with fewer places, or without AUC where it is
            wanted.
        """
        if rankings.negatives != self.negatives:
            kinds = [
                "full rankings" if one is None else f"rankings among {one}"
                for one in (self.negatives, rankings.negatives)
            ]
            raise ValueError(f"these sums are of {kinds[0]}; add {kinds[1]} to sums of their own")
        if rankings.hits.shape[1] < self.places:
            raise ValueError(f"rankings have {rankings.hits.shape[1]} places, and {self.places} are needed")
        index = group_index(groups, len(rankings.hits), self._n_groups)
        relevant = rankings.relevant
        scored = relevant > 0
        index, finite = index[scored], rankings.finite[scored]
        self._users += np.bincount(index, minlength=self._n_groups)
        for name, value in self._values(rankings, relevant, scored):
            self._sums[name] += np.bincount(index, np.where(finite, value, np.nan), self._n_groups)
        for k, name in ((k, metric_name("coverage", k)) for k in self.cutoffs if self._covered):
            assert rankings.listed is not None
            listed = rankings.listed[scored, :k]
            there = listed >= 0
            self._covered[name][np.repeat(index, there.sum(axis=1)), listed[there]] = True

    def _values(
        self, rankings: Rankings, relevant: npt.NDArray[np.int64], scored: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
        """Yield each metric of the ``scored`` users by its name, float64[users]; 0 for coverage."""
        hits, wanted = rankings.hits[scored, : self.places], relevant[scored]
        gains = np.cumsum(hits * self._discounts, axis=1)
        ideal = np.cumsum(self._discounts)
        found = np.cumsum(hits, axis=1)
        ranks = np.arange(1, self.places + 1)
        precisions = np.cumsum(hits * (found / ranks), axis=1)
        first = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, np.inf)
        for k in self.cutoffs:
            of_k = found[:, k - 1]
            for metric in self.metrics:
                value: npt.NDArray[np.float64]
                match metric:
                    case "hr":
                        value = (of_k > 0).astype(np.float64)
                    case "ndcg":
                        value = gains[:, k - 1] / ideal[np.minimum(wanted, k) - 1]
                    case "recall":
                        value = of_k / wanted
                    case "precision":
                        value = of_k / k
                    case "mrr":
                        value = np.where(first <= k, 1.0 / first, 0.0)
                    case "map":
                        value = precisions[:, k - 1] / wanted
                    case "coverage":
                        value = np.zeros(len(wanted))
                    case "novelty":
                        value = self._novelty(rankings, scored, k)
                    case _:
                        continue
                yield metric_name(metric, k, self.negatives), value
        if "auc" in self.metrics:
            if rankings.auc is None:
                raise ValueError("rankings have no AUC, and it is needed")
            total = np.bincount(rankings.owners, rankings.auc, len(relevant))[scored]
            yield metric_name("auc", None, self.negatives), total / wanted

    def _novelty(self, rankings: Rankings, scored: npt.NDArray[np.bool_], k: int) -> npt.NDArray[np.float64]:
        assert rankings.listed is not None
        assert self._information is not None
        listed = rankings.listed[scored, :k]
        there = listed >= 0
        bits = np.where(there, self._information[listed], 0.0).sum(axis=1)
        return _per(bits, there.sum(axis=1), otherwise=0.0)

    @property
    def users(self) -> npt.NDArray[np.int64]:
        """Users per group that had something relevant, int64[n_groups]."""
        return self._users.copy()

    def table(self) -> npt.NDArray[np.float64]:
        """Return the sums as numbers that can be added up over users, float64 [n_groups, 1 + metrics].

        Users, and the sum of each metric over them, in the order of :meth:`results`. Coverage is no sum, and
        is not among sums that are made into a table.
        """
        return np.stack((self._users, *self._sums.values()), axis=1, dtype=np.float64)

    def with_table(self, table: npt.NDArray[np.float64]) -> RankingSums:
        """Return the sums that a :meth:`table` of such metrics holds, or a sum of tables."""
        made = RankingSums(self.cutoffs, self.negatives, len(table), metrics=self.metrics)
        made._users = np.rint(table[:, 0]).astype(np.int64)
        made._sums = dict(zip(self._sums, table[:, 1:].T.copy(), strict=True))
        return made

    def results(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return ``{"hr@10": float64[n_groups], …}``; nan for a group without users."""
        found = {name: mean(values, self._users) for name, values in self._sums.items()}
        for name, covered in self._covered.items():
            # The mean of zeros: nan without users, and where a user had no ranking.
            found[name] = found[name] + covered.mean(axis=1)
        return found


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
