"""Samplers of training negatives: what devices must not draw, and how much a sampler gives away.

``drawn`` bars nothing but a user's training items. ``spared`` bars what is kept back for validation and test
as well, as some published protocols do: of all that a user has not trained on, its test items are those that
are never a negative. :func:`counter_values` ranks by that alone. ``symmetric`` bars the kept-back items and
the sampled items that they are ranked among, so that neither are ever negatives: nothing tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from coordinator.engine.evaluation import RatingEvaluator
from coordinator.engine.workload import DrawnItems, RatingWorkload
from edge.core.rng import hashed_bits, stream_key
from edge.data.split import Split
from edge.data.store import RatingStore, as_items
from edge.learning.base import RatingBatch, Recommender, State
from edge.learning.updates import Array, UpdateBatch

Ids = npt.NDArray[np.int64]
Sampler = Literal["drawn", "spared", "symmetric"]

LEAKY: Final = "spared"
"""The sampler under which what is kept back shapes the model."""


def barred_items(
    sampler: Sampler, split: Split, candidates: npt.NDArray[np.int64] | None
) -> RatingStore | None:
    """Return what no device draws beside its own ratings, a row a user; None where that is nothing.

    ``candidates`` int64 [n_users, n] are the items that what is kept back of a user is ranked among, None
    where all items are.

    Raises
    ------
    ValueError : the sampler is ``symmetric`` and all items are candidates.
    """
    if sampler == "drawn":
        return None
    if sampler == "spared":
        return split.held_out
    if candidates is None:
        raise ValueError("a symmetric sampler needs sampled candidates; all items are ranked here")
    users, n_items = split.train.n_users, split.train.n_items
    codes = (np.arange(users)[:, None] * n_items + candidates).ravel()
    if split.held_out is not None:
        held_out = split.held_out
        codes = np.concatenate([codes, held_out.owners() * n_items + held_out.items.astype(np.int64)])
    codes = np.unique(codes)
    indptr = np.searchsorted(codes, np.arange(users + 1) * n_items).astype(np.int64)
    items = as_items(codes % n_items, n_items)
    return RatingStore(indptr, items, np.zeros(len(codes), np.float32), n_items)


class _Counter(Recommender):
    """Predicts that users take to the items that their devices have drawn least; it learns nothing.

    What a user begins with, ``local``, is what it scores every item with.
    """

    Settings: ClassVar[type[BaseModel]] = BaseModel
    samples_negatives = True

    def initial_state(self, seed: int) -> State:
        return {}

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ids | None = None,
        steps: Ids | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        raise NotImplementedError("a counter is evaluated and never trained")

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        assert local is not None, "counts are what there is to predict from"
        scores: Array = local[np.repeat(np.arange(len(local)), np.diff(query.indptr)), query.items]
        return scores


class CountingWorkload(RatingWorkload):
    """A workload whose users score an item with minus the times that it was drawn on their devices.

    Equal counts are in random order, since they say nothing.

    Parameters
    ----------
    workload : the run's.
    trained : the clients that trained in each round, int64, by number of the round.
    seed : the run's.
    """

    def __init__(self, workload: RatingWorkload, trained: Mapping[int, Ids], seed: int) -> None:
        counter = _Counter(None, workload.algorithm.problem)
        super().__init__(counter, workload.split, workload.clients, seed, drawn=DrawnItems())
        self._drawing = workload
        self._trained = trained
        self._order_key = stream_key(seed, "evaluation", "counter")

    def counts(self, users: Ids) -> npt.NDArray[np.int64]:
        """Return how often each item was drawn on the devices of ``users`` (int64 [n]), int64 [n, items]."""
        n_items, place = self.split.train.n_items, np.full(self.split.train.n_users, -1)
        place[users] = np.arange(len(users))
        owner = np.full(len(place), -1)
        owner[self.clients.users] = np.repeat(np.arange(self.n_clients), self.clients.counts)
        asked = np.zeros(self.n_clients, np.bool_)
        asked[owner[users][owner[users] >= 0]] = True
        found = np.zeros(len(users) * n_items, np.int64)
        for number, clients in self._trained.items():
            drawing, examples = self._drawing.training_examples(clients[asked[clients]], number)
            rows = np.repeat(place[drawing], np.diff(examples.indptr))
            negative = (examples.ratings == 0) & (rows >= 0)
            # A user draws an item once a round.
            found[rows[negative] * n_items + examples.items[negative].astype(np.int64)] += 1
        return found.reshape(len(users), n_items)

    def rows_of(self, users: Ids, state: State) -> Array | None:
        """Return the scores of all items, float64 [n, items]."""
        bits = hashed_bits(self._order_key, users[:, None], np.arange(self.split.train.n_items))
        return -(self.counts(users) + (bits >> np.uint64(11)) * 2.0**-53)


def counter_values(
    workload: RatingWorkload, evaluator: RatingEvaluator, trained: Mapping[int, Ids], seed: int
) -> dict[str, float]:
    """Return the metrics of all users of a ranking by how seldom items were drawn as negatives, by name.

    It knows nothing of anybody's taste: where held-out items are never drawn, what it reaches is what a model
    with a memory of its user's negatives reaches without having learnt a preference.

    Parameters
    ----------
    workload, evaluator : the run's.
    trained : the clients that trained in each round, int64, by number of the round.
    seed : the run's.
    """
    values = evaluator.of(CountingWorkload(workload, trained, seed)).evaluate({})
    return {v.metric: v.value for v in values if v.tag == "all" and v.population == "seen"}
