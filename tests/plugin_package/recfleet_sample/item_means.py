"""A method: every item is predicted by its mean rating, which a fleet learns as one secure sum a round."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from device_profiles.fields import PositiveFraction
from edge.learning.base import RatingBatch, Recommender, State
from edge.learning.updates import Array, UpdateBatch

Ids = npt.NDArray[np.int64]


class ItemMeansSettings(BaseModel):
    """Mean ratings of the items, moved a step towards those of the cohort each round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Literal["item-means"]
    learning_rate: PositiveFraction = Field(default=0.5, description="length of the step")


class ItemMeans(Recommender):
    """The method; its functions are pure."""

    Settings = ItemMeansSettings

    @classmethod
    def uniform(cls, settings: Any) -> bool:
        """Return True."""
        return True

    @classmethod
    def begins_with_mean(cls, settings: Any) -> bool:
        """Return True."""
        return True

    def initial_state(self, seed: int) -> State:
        """Return the mean of all ratings for every item."""
        return {"means": np.full(self.problem.n_items, self.problem.rating_mean, np.float32)}

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
        error = batch.ratings - state["means"][batch.items]
        change = np.zeros((len(counts), self.problem.n_items), np.float32)
        np.add.at(change, (np.repeat(np.arange(len(counts)), counts), batch.items), error)
        losses = np.add.reduceat(np.square(error, dtype=np.float64), ends[:-1]) / counts
        return UpdateBatch.of({"means": change}, counts, losses, np.ones(len(counts)))

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
