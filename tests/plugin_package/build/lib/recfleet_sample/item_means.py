"""A method: every item is predicted by its mean rating, which a fleet learns as one secure sum a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from device_profiles.fields import PositiveFraction
from edge.learning.accumulators import DenseAccumulator
from edge.learning.base import WORK_KINDS, Problem, RatingBatch, State, Work
from edge.learning.registry import Method
from edge.learning.updates import Accumulator, Aggregate, Array, ArraySpec, UpdateBatch

Ids = npt.NDArray[np.int64]


class ItemMeansSettings(BaseModel):
    """Mean ratings of the items, moved a step towards those of the cohort each round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Literal["item-means"]
    learning_rate: PositiveFraction = Field(default=0.5, description="length of the step")


class ItemMeans:
    """The method; its functions are pure."""

    local_width = 0

    def __init__(self, settings: ItemMeansSettings, problem: Problem) -> None:
        self.settings = settings
        self.problem = problem

    def initial_state(self, seed: int) -> State:
        """Return the mean of all ratings for every item."""
        return {"means": np.full(self.problem.n_items, self.problem.rating_mean, np.float32)}

    def initial_optimizer_state(self, state: State) -> Mapping[str, Array]:
        """Return nothing."""
        return {}

    def broadcast(self, state: State) -> dict[str, Array]:
        """Return the means."""
        return dict(state)

    def fixed(self) -> dict[str, Array]:
        """Return nothing."""
        return {}

    def local_steps(self, examples: Ids) -> Ids | None:
        """Return None: an update is not made of steps."""
        return None

    def work(self, examples: Ids, steps: Ids | None = None) -> Work:
        """Return one pass over the ratings."""
        n = len(examples)
        flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
        flops[:, 1], moved[:, 1], ops[:, 1] = 2.0 * examples, 12.0 * examples, 2.0
        memory = 8 * self.problem.n_items + 12 * examples
        return Work(flops, moved, ops, np.ones(n), memory)

    def upload_spec(self, examples: Ids) -> Sequence[ArraySpec]:
        """Return one number for every item."""
        rows = np.full(len(examples), self.problem.n_items, np.int64)
        return (ArraySpec("means", np.dtype(np.float32), (), rows),)

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ids | None = None,
        steps: Ids | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Return how far the ratings of each client are from the means of their items."""
        ends = batch.indptr if clients is None else batch.indptr[clients]
        counts = np.diff(ends)
        n = len(counts)
        error = batch.ratings - state["means"][batch.items]
        change = np.zeros((n, self.problem.n_items), np.float32)
        np.add.at(change, (np.repeat(np.arange(n), counts), batch.items), error)
        losses = np.add.reduceat(np.square(error, dtype=np.float64), ends[:-1]) / counts
        return UpdateBatch(
            stacked={"means": change},
            ragged={},
            offsets=np.zeros(n + 1, np.int64),
            weights=np.ones(n),
            examples=counts,
            losses=losses,
        )

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty sum."""
        return DenseAccumulator({"means": (np.dtype(np.float32), (self.problem.n_items,))})

    def server_update(
        self, state: State, optimizer_state: Mapping[str, Array], aggregate: Aggregate, round_number: int
    ) -> tuple[State, Mapping[str, Array]]:
        """Move the means a step towards the ratings of the cohort."""
        rate = np.float32(self.settings.learning_rate)
        return {"means": state["means"] + rate * aggregate.mean()["means"]}, {}

    def converged(self, aggregate: Aggregate) -> str | None:
        """Return None: it goes on."""
        return None

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Return the mean of each item asked for."""
        means: npt.NDArray[Any] = state["means"][query.items]
        return means

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the means, for every user alike."""
        return np.tile(state["means"], (len(client_keys), 1))


ITEM_MEANS = Method(
    ItemMeansSettings,
    ItemMeans,
    "ratings",
    uniform=lambda settings: True,
    dense=lambda settings: True,
    stepwise=lambda settings: False,
)
