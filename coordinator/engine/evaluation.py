"""Measuring the model: after reconstruction from each user's own ratings, as its device would do it.

A central evaluation is the simulator's: it stands outside the simulated time, costs no simulated seconds and
no bytes, and reads everybody's ratings. It uses the method's own reconstruction on each user's training (or
support) ratings and scores what was kept back. What devices measure themselves
(:mod:`coordinator.engine.device_evaluation`) is the same arithmetic, a user at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from coordinator.engine.exposure import Exposure
from coordinator.engine.facts import MetricValue
from coordinator.engine.fleet import Fleet
from coordinator.engine.workload import RatingWorkload, RegressionWorkload
from coordinator.scenario.metric_names import HELD_OUT_GROUPS
from coordinator.scenario.rounds_section import EvaluationSection, Ranking
from edge.core.errors import DivergedModelError
from edge.core.rng import hashed_bits, stream, stream_key
from edge.data.split import Split
from edge.data.store import RatingStore, StoredRatings
from edge.learning.base import State
from edge.metrics.ranking import (
    OF_LISTS,
    Rankings,
    RankingSums,
    rank_among,
    rank_fully,
    sample_negatives,
    self_information,
)
from edge.metrics.rating_errors import RatingErrors

Ids = npt.NDArray[np.int64]

_USERS_A_BATCH = 512
_KEPT_BYTES = 1 << 26
"""Users are fewer where what their devices keep is more than this together."""


def users_at_once(workload: RatingWorkload) -> int:
    """Return how many users are scored together; no result depends on it."""
    kept = 4 * workload.algorithm.local_width
    return _USERS_A_BATCH if not kept else max(1, min(_USERS_A_BATCH, _KEPT_BYTES // kept))


class Evaluator(Protocol):
    """Measures global states."""

    @property
    def unscored(self) -> str | None:
        """Why there is nothing to score, and so no metric; None where there is something."""
        ...

    def evaluate(self, state: State) -> list[MetricValue]:
        """Return the metrics of ``state``."""


class SummedMetrics:
    """The metrics of an evaluation, as sums over users that add up to them.

    Parameters
    ----------
    ranking : which rankings are measured; None: none.
    only_ranks : whether what is predicted is no rating, so that only rankings are measured.
    information : float64 [m] of the items, see :class:`~edge.metrics.ranking.RankingSums`; None where no
        metric needs it.

    Attributes
    ----------
    width : how many sums there are: ratings, squared and absolute errors, ratings within half a star; then
        users, and a sum for each metric of a ranking.
    """

    def __init__(
        self,
        ranking: Ranking | None,
        *,
        only_ranks: bool,
        information: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self._ranking = ranking
        self._information = information
        self._only_ranks = only_ranks
        self.width = sum(table.table().shape[1] for table in self._tables())

    def errors(self, groups: int) -> RatingErrors | None:
        """Return empty sums of errors for so many groups; None where no ratings are predicted."""
        return None if self._only_ranks else RatingErrors(groups)

    def rankings(self, groups: int, *, of_users: bool = True) -> RankingSums | None:
        """Return empty sums of rankings for so many groups; None where none are measured.

        Of groups of items (``of_users`` false) there are none of what is listed for users.
        """
        if self._ranking is None:
            return None
        negatives = None if self._ranking.negatives == "full" else self._ranking.negatives
        metrics = [metric for metric in self._ranking.metrics if of_users or metric not in OF_LISTS]
        return RankingSums(self._ranking.k, negatives, groups, metrics=metrics, information=self._information)

    def _tables(self) -> Iterator[RatingErrors | RankingSums]:
        for made in (self.errors(1), self.rankings(1)):
            if made is not None:
                yield made

    def _parts(self) -> Iterator[tuple[RatingErrors | RankingSums, slice]]:
        """Yield empty sums of each kind, and which columns are theirs."""
        start = 0
        for table in self._tables():
            end = start + table.table().shape[1]
            yield table, slice(start, end)
            start = end

    def counts(self, sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return what each of ``sums``, float64 [n, width], is a sum over: ratings, or users; same shape."""
        parts = [sums[:, part] for _, part in self._parts()]
        return np.concatenate([np.broadcast_to(part[:, :1], part.shape) for part in parts], axis=1)

    def bounds(self, error_max: float) -> npt.NDArray[np.float64]:
        """Return the largest value of each sum over one rating or user whose error is ``error_max``."""
        of_errors = [] if self._only_ranks else [1.0, error_max**2, error_max, 1.0]
        return np.array(of_errors + [1.0] * (self.width - len(of_errors)))

    def values(self, sums: npt.NDArray[np.float64], users: int, split: str) -> list[MetricValue]:
        """Return the metrics that ``sums``, float64 [width] over ``users`` users, come to."""
        found: list[MetricValue] = []
        for table, part in self._parts():
            results = table.with_table(sums[None, part]).results()
            found += [MetricValue(name, float(value[0]), users, split) for name, value in results.items()]
        return found


class _Grouping(NamedTuple):
    """Groups of users, or of the items that are scored.

    ``of_users`` has the group of each user of the population, ``of_items`` that of each item; one is None.
    ``users`` is how many users are evaluated in each group, int64 [groups].
    """

    tag: str
    names: tuple[str, ...]
    users: npt.NDArray[np.int64]
    of_users: npt.NDArray[np.int64] | None = None
    of_items: npt.NDArray[np.int64] | None = None

    @classmethod
    def by_user(cls, tag: str, names: tuple[str, ...], groups: npt.NDArray[np.integer]) -> _Grouping:
        """Return the grouping in which users have ``groups``, int [n]."""
        return cls(tag, names, np.bincount(groups, minlength=len(names)), groups.astype(np.int64))

    def of_ratings(self, part: slice, query: StoredRatings) -> npt.NDArray[np.int64]:
        """Return the group of each rating of ``query``, those of the users in ``part``."""
        if self.of_items is not None:
            return self.of_items[query.items]
        assert self.of_users is not None
        return np.repeat(self.of_users[part], query.counts)

    def add(self, sums: RankingSums, rankings: Rankings, part: slice) -> None:
        """Add the rankings of the users in ``part`` to the sums of their groups, or of their items'."""
        if self.of_users is not None:
            sums.add(rankings, self.of_users[part])
            return
        assert self.of_items is not None
        for group in range(len(self.names)):
            alike = np.full(len(rankings.hits), group)
            sums.add(rankings.of_items(self.of_items == group), alike)


@dataclass(frozen=True, slots=True)
class _Population:
    """Some users, what they are reconstructed from, what is scored, and their groups.

    ``masked`` holds the items that are no candidates of a full ranking: what users are reconstructed from
    and, where the test is scored, what was kept back for validation, since a service would not recommend it
    again. Where validation is scored, test items are candidates like any other: nobody knows of them yet.
    """

    name: str
    split: str
    users: Ids
    support: RatingStore
    query: RatingStore
    masked: tuple[RatingStore, ...]
    groupings: tuple[_Grouping, ...]


@dataclass(frozen=True, slots=True)
class RankedItems:
    """Scored candidates of some users, as an evaluation ranks them.

    Attributes
    ----------
    population : ``seen`` or ``unseen``.
    users, items : int64 [n], indices; a user's rows follow each other, the best candidate first.
    scores : float32 [n], what the model predicts.
    ranks : int64 [n], from 1; of equal scores the lower item index is first.
    ratings : float32 [n], what was kept back; NaN for an item of which nothing was.
    """

    population: str
    users: Ids
    items: Ids
    scores: npt.NDArray[np.float32]
    ranks: Ids
    ratings: npt.NDArray[np.float32]


class RatingEvaluator:
    """Evaluates a rating workload, over all users and by class of device and network.

    Parameters
    ----------
    workload, fleet : the run's.
    section : what the scenario asks for.
    seed : the run's seed.
    negatives : int64 [n_users, n], the items to rank each user's held-out one against, if they are not to be
        sampled here.
    exposure : the item whose exposure is measured besides; None: there is none.
    """

    def __init__(
        self,
        workload: RatingWorkload,
        fleet: Fleet,
        section: EvaluationSection,
        seed: int,
        negatives: npt.NDArray[np.int64] | None = None,
        exposure: Exposure | None = None,
    ) -> None:
        self._negatives = negatives
        self._exposure = exposure
        self._workload = workload
        self._section = section
        self._seed = seed
        self._key = stream_key(seed, "evaluation", "client")
        self._zeros_key = stream_key(seed, "evaluation", "zeros")
        information: npt.NDArray[np.float64] | None = None
        if section.ranking is not None and set(section.ranking.metrics) & set(OF_LISTS):
            train = workload.split.train
            information = self_information(train.item_counts(), int(np.count_nonzero(train.counts)))
        self.metrics = SummedMetrics(section.ranking, only_ranks=workload.only_ranks, information=information)
        """What is measured."""
        self._populations = list(self._find_populations(fleet))

    def of(self, workload: RatingWorkload) -> RatingEvaluator:
        """Return the same evaluation of another workload of the same data, with a method of its own."""
        found = copy.copy(self)
        found._workload = workload
        return found

    @property
    def unscored(self) -> str | None:
        """Why there is nothing to score; None where there is."""
        if self._populations:
            return None
        part, split = self._section.part, self._workload.split
        if split.kind == "none":
            return f"the split keeps nothing back for {part} (data.split: none)"
        return (
            f"no user has a rating for {part} (data.split: {split.kind}); keep more back, or use more ratings"
        )

    def _find_populations(self, fleet: Fleet) -> Iterator[_Population]:
        split, clients = self._workload.split, self._workload.clients
        part = self._section.part
        query = split.test if part == "test" else split.validation
        if query is None:
            return
        before = (split.validation,) if part == "test" and split.validation is not None else ()
        everyone = split.seen_users[query.counts[split.seen_users] > 0]
        seen = self._sampled(everyone, "seen")
        if len(seen):
            device = np.full(split.train.n_users, -1, dtype=np.int64)
            device[clients.users] = np.repeat(np.arange(clients.n_clients), clients.counts)
            groupings = [
                _Grouping.by_user("all", ("all",), np.zeros(len(seen), dtype=np.int64)),
                _Grouping.by_user("class", fleet.names.classes, fleet.device_class[device[seen]]),
                _Grouping.by_user("network", fleet.names.networks, fleet.network[device[seen]]),
            ]
            if len(fleet.names.regions) > 1:
                groupings.append(_Grouping.by_user("region", fleet.names.regions, fleet.region[device[seen]]))
            groupings += self._held_out_groupings(split.train, query, everyone, seen)
            yield _Population(
                "seen", part, seen, split.train, query, (split.train, *before), tuple(groupings)
            )
        never = split.unseen_users if part == "test" else split.validation_users
        everyone = never[query.counts[never] > 0]
        unseen = self._sampled(everyone, "unseen")
        if len(unseen):
            support = split.support if split.support is not None else split.train
            groupings = [_Grouping.by_user("all", ("all",), np.zeros(len(unseen), dtype=np.int64))]
            groupings += self._held_out_groupings(support, query, everyone, unseen)
            yield _Population("unseen", part, unseen, support, query, (support, *before), tuple(groupings))

    def _held_out_groupings(
        self, support: RatingStore, query: RatingStore, everyone: Ids, users: Ids
    ) -> Iterator[_Grouping]:
        """Yield groups by activity and popularity, where they are asked for.

        ``users`` are evaluated, a sample of ``everyone``; ``support`` has what they are reconstructed from.
        """
        if "activity" in self._section.by:
            # Between thirds of the users; those with equally many ratings are in one group.
            edges = np.quantile(support.counts[everyone], (1 / 3, 2 / 3))
            groups = np.searchsorted(edges, support.counts[users])
            yield _Grouping.by_user("activity", HELD_OUT_GROUPS["activity"], groups)
        if "popularity" in self._section.by:
            names = HELD_OUT_GROUPS["popularity"]
            of_items = _popularity_groups(self._workload.split.train.item_counts(), len(names))
            scored = query.gather(users)
            owners = np.repeat(np.arange(len(users)), scored.counts)
            there = np.zeros((len(names), len(users)), dtype=np.bool_)
            there[of_items[scored.items], owners] = True
            yield _Grouping("popularity", names, there.sum(axis=1), of_items=of_items)

    def _sampled(self, users: Ids, name: str) -> Ids:
        wanted = self._section.users
        if wanted == "all" or wanted >= len(users):
            return users
        generator = stream(self._seed, "evaluation", "users", name)
        return np.sort(generator.choice(users, wanted, replace=False))

    def evaluate(self, state: State) -> list[MetricValue]:
        """Return the metrics of ``state``."""
        values = [value for population in self._populations for value in self._measure(population, state)]
        return [*values, *self._exposed(state)]

    def _exposed(self, state: State) -> Iterator[MetricValue]:
        """Yield the exposure of an item to the users that take part in training."""
        exposure, workload = self._exposure, self._workload
        for population in self._populations:
            if exposure is None or population.name != "seen":
                continue
            hits, counted, at_once = np.zeros(len(exposure.k)), 0, users_at_once(workload)
            for start in range(0, len(population.users), at_once):
                users = population.users[start : start + at_once]
                support = workload.gather(population.support, users, hashed_bits(self._zeros_key, users))
                keys, local = hashed_bits(self._key, users), workload.rows_of(users, state)
                scores = workload.algorithm.scores(state, support, keys, local)
                masked = _together([store.gather(users) for store in population.masked])
                found, free = exposure.counts(scores, population.support.gather(users), masked)
                hits, counted = hits + found, counted + free
            for name, value in exposure.ratios(hits, counted).items():
                yield MetricValue(name, value, counted, population.split)

    def sums_of(self, users: Ids, state: State) -> npt.NDArray[np.float64]:
        """Return the sums that the metrics of each user are made of, float64 [n, width].

        ``users`` int64 [n] take part in training. The sums of a user with nothing to score are zero. The
        columns are those of :class:`SummedMetrics`.
        """
        found = np.zeros((len(users), self.metrics.width))
        (seen,) = (one for one in self._populations if one.name == "seen")
        scored = np.flatnonzero(seen.query.counts[users] > 0)
        own = _Grouping.by_user("user", ("",) * len(scored), np.arange(len(scored)))
        population = replace(seen, users=users[scored], groupings=(own,))
        sums = [table.table() for tables in self._added(population, state) for table in tables]
        found[scored] = np.concatenate(sums, axis=1)
        return found

    def scored(self, users: Ids) -> Ids:
        """Return how many items are predicted for each of ``users``, int64 [n], to measure the model."""
        (seen,) = (one for one in self._populations if one.name == "seen")
        ratings, ranking = seen.query.counts[users], self._section.ranking
        among = 0
        if ranking is not None:
            everything = self._workload.split.train.n_items
            among = everything if ranking.negatives == "full" else 1 + int(ranking.negatives)
        of_errors = 0 if self._workload.only_ranks else ratings
        return np.where(ratings > 0, of_errors + among, 0)

    def _added(self, population: _Population, state: State) -> tuple[list[RatingErrors], list[RankingSums]]:
        """Return the sums over a population, of errors and of rankings, one of each for every grouping."""
        algorithm = self._workload.algorithm
        groupings = population.groupings
        errors: list[RatingErrors] = []
        rankings: list[RankingSums] = []
        for grouping in groupings:
            groups, of_users = len(grouping.names), grouping.of_users is not None
            if (of_errors := self.metrics.errors(groups)) is not None:
                errors.append(of_errors)
            if (of_rankings := self.metrics.rankings(groups, of_users=of_users)) is not None:
                rankings.append(of_rankings)
        at_once = users_at_once(self._workload)
        for start in range(0, len(population.users), at_once):
            part = slice(start, start + at_once)
            users = population.users[part]
            support = self._workload.gather(population.support, users, hashed_bits(self._zeros_key, users))
            query = population.query.gather(users)
            keys = hashed_bits(self._key, users)
            # Devices go on from what they keep, and keep nothing of this.
            if errors:
                predicted = algorithm.predict(
                    state, support, query, keys, self._workload.rows_of(users, state)
                )
                for sums, grouping in zip(errors, groupings, strict=True):
                    sums.add(predicted, query.ratings, grouping.of_ratings(part, query))
            if rankings:
                found = self._ranked(rankings[0], population, users, state, support, query)
                for of_group, grouping in zip(rankings, groupings, strict=True):
                    grouping.add(of_group, found, part)
        return errors, rankings

    def _measure(self, population: _Population, state: State) -> Iterator[MetricValue]:
        groupings = population.groupings
        errors, rankings = self._added(population, state)
        for index, grouping in enumerate(groupings):
            tables = [sums[index].results() for sums in (errors, rankings) if sums]
            of_groups = list(zip(grouping.names, grouping.users.tolist(), strict=True))
            for table in tables:
                for metric, values in table.items():
                    for (name, users_in), value in zip(of_groups, values.tolist(), strict=True):
                        yield MetricValue(
                            metric, value, users_in, population.split, population.name, grouping.tag, name
                        )

    def _ranked(
        self,
        sums: RankingSums,
        population: _Population,
        users: Ids,
        state: State,
        support: Any,
        query: Any,
    ) -> Rankings:
        """Return the rankings of some users that ``sums`` are made of."""
        keys, local = hashed_bits(self._key, users), self._workload.rows_of(users, state)
        algorithm, auc = self._workload.algorithm, "auc" in sums.metrics
        if sums.negatives is None:
            scores = algorithm.scores(state, support, keys, local)
            known = _together([store.gather(users) for store in population.masked])
            return rank_fully(scores, query, known, places=sums.places, auc=auc)
        candidates = self._candidates_of(users, query)
        order = np.argsort(candidates, axis=1, kind="stable")
        among = _ItemLists.of(np.take_along_axis(candidates, order, axis=1))
        predicted = algorithm.predict(state, support, among, keys, local).reshape(candidates.shape)
        found = np.empty_like(predicted)
        np.put_along_axis(found, order, predicted, axis=1)
        return rank_among(
            found[:, 0], found[:, 1:], candidates[:, 0], candidates[:, 1:], places=sums.places, auc=auc
        )

    def rankings(self, state: State, top: int) -> Iterator[RankedItems]:
        """Yield the ranked candidates of every evaluated user, a batch of users at a time.

        Candidates are those of the evaluation: a held-out item among sampled ones, all of which are yielded,
        or every item but those that the evaluation masks, of which the first ``top`` and the kept-back ones
        are.

        Raises
        ------
        DivergedModelError : a score is not finite.
        """
        section = self._section.ranking
        sampled = section is not None and section.negatives != "full"
        algorithm, workload = self._workload.algorithm, self._workload
        for population in self._populations:
            at_once = users_at_once(workload)
            for start in range(0, len(population.users), at_once):
                users = population.users[start : start + at_once]
                support = workload.gather(population.support, users, hashed_bits(self._zeros_key, users))
                query = population.query.gather(users)
                keys, local = hashed_bits(self._key, users), workload.rows_of(users, state)
                owners = np.repeat(np.arange(len(users)), np.diff(query.indptr))
                if sampled:
                    items = np.sort(self._candidates_of(users, query), axis=1)
                    scores = algorithm.predict(state, support, _ItemLists.of(items), keys, local)
                    scores = scores.reshape(items.shape)
                    kept = np.full(items.shape, np.nan, np.float32)
                    kept[items == query.items[:, None]] = query.ratings
                    eligible = np.ones(items.shape, np.bool_)
                else:
                    scores = algorithm.scores(state, support, keys, local)
                    items = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
                    kept = np.full(scores.shape, np.nan, np.float32)
                    kept[owners, query.items] = query.ratings
                    known = _together([store.gather(users) for store in population.masked])
                    eligible = np.ones(scores.shape, np.bool_)
                    eligible[np.repeat(np.arange(len(users)), np.diff(known.indptr)), known.items] = False
                if not np.isfinite(scores).all():
                    raise DivergedModelError("a score is not finite: the model has diverged")
                order = np.argsort(np.where(eligible, -scores, np.inf), axis=1, kind="stable")
                items, scores, kept, eligible = (
                    np.take_along_axis(one, order, axis=1) for one in (items, scores, kept, eligible)
                )
                ranks = np.broadcast_to(np.arange(1, scores.shape[1] + 1), scores.shape)
                shown = eligible & (sampled | (ranks <= top) | ~np.isnan(kept))
                yield RankedItems(
                    population.name,
                    np.repeat(users, shown.sum(axis=1)),
                    items[shown].astype(np.int64),
                    scores[shown].astype(np.float32),
                    ranks[shown].astype(np.int64),
                    kept[shown],
                )

    def candidates(self) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Return the users whose held-out item is ranked among sampled ones, and the items ranked.

        int64 [n] and [n, 1 + negatives], the held-out item first: what any other recommender must be given to
        be compared.

        Raises
        ------
        ValueError : the scenario ranks nothing, or the whole catalogue.
        """
        section = self._section.ranking
        if section is None or section.negatives == "full":
            raise ValueError("nothing is ranked among sampled items; write 'negatives' in evaluation.ranking")
        (population,) = self._populations
        return population.users, self._candidates_of(
            population.users, population.query.gather(population.users)
        )

    def _candidates_of(self, users: Ids, query: Any) -> npt.NDArray[np.int64]:
        # One held-out item a user (the schema allows sampled negatives with leave-one-out only).
        section = self._section.ranking
        assert section is not None
        if self._negatives is not None:
            negatives = self._negatives[users]
        else:
            wanted = int(section.negatives)
            negatives = sampled_candidates(self._workload.split, users, wanted, self._seed)
        return np.concatenate([query.items.astype(np.int64)[:, None], negatives], axis=1)


def sampled_candidates(split: Split, users: Ids, wanted: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the items among which a held-out one of each user is ranked, int64 [n, wanted].

    They are the same whichever part is scored; see :func:`~edge.metrics.ranking.sample_negatives`.
    """
    rated = _together([part.gather(users) for part in split.parts])
    return sample_negatives(users, rated, split.train.n_items, wanted, seed=seed)


@dataclass(frozen=True, slots=True)
class _ItemLists:
    """Items of some users, for which no ratings are known."""

    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]

    @classmethod
    def of(cls, table: npt.NDArray[np.int64]) -> _ItemLists:
        """Return the rows of ``table`` int64 [n, k] as lists of k items each."""
        n, k = table.shape
        return cls(np.arange(n + 1) * k, table.ravel().astype(np.int32))

    @property
    def ratings(self) -> npt.NDArray[np.float32]:
        """Zeros, which nobody looks at."""
        return np.zeros(len(self.items), np.float32)


def _popularity_groups(counts: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """Return the group of each item, int64 [m]: the most popular that have a share of all ratings, and so on.

    ``counts`` int64 [m] are ratings per item; each group has one of ``groups`` equal shares of them, as far
    as whole items go. Equally popular items are in the order of their indices.
    """
    order = np.lexsort((np.arange(counts.size), -counts))
    before = np.cumsum(counts[order]) - counts[order]
    found = np.empty(counts.size, dtype=np.int64)
    found[order] = np.minimum(groups * before // max(int(counts.sum()), 1), groups - 1)
    found[counts == 0] = groups - 1
    return found


def _together(batches: Sequence[StoredRatings]) -> _ItemLists:
    """Return the items of several batches of the same users together, ascending within each user."""
    n = len(batches[0].indptr) - 1
    owners = np.concatenate([np.repeat(np.arange(n), np.diff(batch.indptr)) for batch in batches])
    items = np.concatenate([batch.items for batch in batches]).astype(np.int32)
    order = np.lexsort((items, owners))
    indptr = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(owners, minlength=n), out=indptr[1:])
    return _ItemLists(indptr, items[order])


class RegressionEvaluator:
    """Evaluates a regression workload on the clients' own samples."""

    unscored: str | None = None
    """Clients always have samples."""

    def __init__(self, workload: RegressionWorkload, seed: int) -> None:
        self._workload = workload
        self._key = stream_key(seed, "evaluation", "client")

    def evaluate(self, state: State) -> list[MetricValue]:
        """Return the metrics of ``state``."""
        workload = self._workload
        clients = np.arange(workload.n_clients)
        batch = workload.store.gather(clients)
        predicted = workload.algorithm.predict(state, batch, batch, hashed_bits(self._key, clients))
        errors = RatingErrors()
        errors.add(predicted, batch.y)
        return [
            MetricValue(metric, float(values[0]), workload.n_clients, "train")
            for metric, values in errors.results().items()
            if metric != "accuracy"
        ]
