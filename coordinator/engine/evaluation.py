"""Measuring the model: on users' own devices, so to speak, after reconstruction from their own ratings.

An evaluation stands outside the simulated time: it costs no simulated seconds and no bytes. It uses the
method's own reconstruction on each user's training (or support) ratings and scores what was kept back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import MetricValue
from coordinator.engine.fleet import Fleet
from coordinator.engine.workload import RatingWorkload, RegressionWorkload
from coordinator.scenario.rounds_section import EvaluationSection
from edge.core.errors import DivergedModelError
from edge.core.rng import hashed_bits, stream, stream_key
from edge.data.store import RatingStore, StoredRatings
from edge.learning.base import State
from edge.metrics.ranking import RankingSums, ranks_among, sample_negatives
from edge.metrics.rating_errors import RatingErrors

Ids = npt.NDArray[np.int64]

_USERS_A_BATCH = 512


class Evaluator(Protocol):
    """Measures global states."""

    @property
    def unscored(self) -> str | None:
        """Why there is nothing to score, and so no metric; None where there is something."""
        ...

    def evaluate(self, state: State) -> list[MetricValue]:
        """Return the metrics of ``state``."""


@dataclass(frozen=True, slots=True)
class _Population:
    """Some users, what they are reconstructed from, what is scored, and their groups."""

    name: str
    split: str
    users: Ids
    support: RatingStore
    query: RatingStore
    groupings: tuple[tuple[str, tuple[str, ...], npt.NDArray[np.int64]], ...]
    """(tag, names of the groups, group of each of ``users``)."""


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
    """

    def __init__(
        self,
        workload: RatingWorkload,
        fleet: Fleet,
        section: EvaluationSection,
        seed: int,
        negatives: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._negatives = negatives
        self._workload = workload
        self._section = section
        self._seed = seed
        self._key = stream_key(seed, "evaluation", "client")
        self._zeros_key = stream_key(seed, "evaluation", "zeros")
        self._populations = list(self._find_populations(fleet))

    @property
    def unscored(self) -> str | None:
        """Why there is nothing to score; None where there is."""
        if self._populations:
            return None
        part, split = self._section.on, self._workload.split
        if split.kind == "none":
            return f"the split keeps nothing back for {part} (data.split: none)"
        return (
            f"no user has a rating for {part} (data.split: {split.kind}); keep more back, or use more ratings"
        )

    def _find_populations(self, fleet: Fleet) -> Iterator[_Population]:
        split, clients = self._workload.split, self._workload.clients
        part = self._section.on
        query = split.test if part == "test" else split.validation
        if query is None:
            return
        seen = self._sampled(split.seen_users[query.counts[split.seen_users] > 0], "seen")
        if len(seen):
            device = np.full(split.train.n_users, -1, dtype=np.int64)
            device[clients.users] = np.repeat(np.arange(clients.n_clients), clients.counts)
            groupings = [
                ("all", ("all",), np.zeros(len(seen), dtype=np.int64)),
                ("class", fleet.names.classes, fleet.device_class[device[seen]].astype(np.int64)),
                ("network", fleet.names.networks, fleet.network[device[seen]].astype(np.int64)),
            ]
            if len(fleet.names.regions) > 1:
                groupings.append(("region", fleet.names.regions, fleet.region[device[seen]].astype(np.int64)))
            yield _Population("seen", part, seen, split.train, query, tuple(groupings))
        never = split.unseen_users if part == "test" else split.validation_users
        unseen = self._sampled(never[query.counts[never] > 0], "unseen")
        if len(unseen):
            support = split.support if split.support is not None else split.train
            everyone = (("all", ("all",), np.zeros(len(unseen), dtype=np.int64)),)
            yield _Population("unseen", part, unseen, support, query, everyone)

    def _sampled(self, users: Ids, name: str) -> Ids:
        wanted = self._section.users
        if wanted == "all" or wanted >= len(users):
            return users
        generator = stream(self._seed, "evaluation", "users", name)
        return np.sort(generator.choice(users, wanted, replace=False))

    def evaluate(self, state: State) -> list[MetricValue]:
        """Return the metrics of ``state``."""
        return [value for population in self._populations for value in self._measure(population, state)]

    def _measure(self, population: _Population, state: State) -> Iterator[MetricValue]:
        algorithm = self._workload.algorithm
        groupings = population.groupings
        errors: list[RatingErrors] = []
        if not self._workload.only_ranks:  # otherwise what is predicted are no ratings
            errors = [RatingErrors(len(names)) for _, names, _ in groupings]
        ranking = self._section.ranking
        rankings: list[RankingSums] = []
        if ranking is not None:
            negatives = None if ranking.negatives == "full" else ranking.negatives
            rankings = [RankingSums(ranking.k, negatives, len(names)) for _, names, _ in groupings]
        for start in range(0, len(population.users), _USERS_A_BATCH):
            part = slice(start, start + _USERS_A_BATCH)
            users = population.users[part]
            support = self._workload.gather(population.support, users, hashed_bits(self._zeros_key, users))
            query = population.query.gather(users)
            keys = hashed_bits(self._key, users)
            # Devices go on from what they keep, and keep nothing of this.
            if errors:
                predicted = algorithm.predict(
                    state, support, query, keys, self._workload.rows_of(users, state)
                )
                counts = np.diff(query.indptr)
                for sums, (_, _, group) in zip(errors, groupings, strict=True):
                    sums.add(predicted, query.ratings, np.repeat(group[part], counts))
            if rankings:
                self._add_rankings(rankings, population, part, state, support, query)
        for index, (tag, names, group) in enumerate(groupings):
            users_in = np.bincount(group, minlength=len(names))
            tables = [sums[index].results() for sums in (errors, rankings) if sums]
            for table in tables:
                for metric, values in table.items():
                    for name, value, users_of in zip(names, values.tolist(), users_in.tolist(), strict=True):
                        yield MetricValue(
                            metric, value, users_of, population.split, population.name, tag, name
                        )

    def _add_rankings(
        self,
        rankings: Sequence[RankingSums],
        population: _Population,
        part: slice,
        state: State,
        support: Any,
        query: Any,
    ) -> None:
        users = population.users[part]
        keys, local = hashed_bits(self._key, users), self._workload.rows_of(users, state)
        algorithm, section = self._workload.algorithm, self._section.ranking
        assert section is not None
        if section.negatives == "full":
            scores = algorithm.scores(state, support, keys, local)
            known = population.support.gather(users)
            for sums, (_, _, group) in zip(rankings, population.groupings, strict=True):
                sums.add_full(scores, query, known, group[part])
            return
        candidates = self._candidates_of(users, query)
        order = np.argsort(candidates, axis=1, kind="stable")
        among = _ItemLists.of(np.take_along_axis(candidates, order, axis=1))
        predicted = algorithm.predict(state, support, among, keys, local).reshape(candidates.shape)
        found = np.empty_like(predicted)
        np.put_along_axis(found, order, predicted, axis=1)
        ranks = ranks_among(found[:, 0], found[:, 1:], candidates[:, 0], candidates[:, 1:])
        for sums, (_, _, group) in zip(rankings, population.groupings, strict=True):
            sums.add_ranks(ranks, group[part])

    def rankings(self, state: State, top: int) -> Iterator[RankedItems]:
        """Yield the ranked candidates of every evaluated user, a batch of users at a time.

        Candidates are those of the evaluation: a held-out item among sampled ones, all of which are yielded,
        or every item that the user has not trained on, of which the first ``top`` and the kept-back ones are.

        Raises
        ------
        DivergedModelError : a score is not finite.
        """
        section = self._section.ranking
        sampled = section is not None and section.negatives != "full"
        algorithm, workload = self._workload.algorithm, self._workload
        for population in self._populations:
            for start in range(0, len(population.users), _USERS_A_BATCH):
                users = population.users[start : start + _USERS_A_BATCH]
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
                    known = population.support.gather(users)
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
            split = self._workload.split
            rated = _together([part.gather(users) for part in split.parts])
            wanted = int(section.negatives)
            negatives = sample_negatives(users, rated, split.train.n_items, wanted, seed=self._seed)
        return np.concatenate([query.items.astype(np.int64)[:, None], negatives], axis=1)


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
