"""Local context baseline: every device fits a model of its own, and nothing is learnt from anybody.

Source: the baselines LocalLR, LocalFM and LocalNN of Yang et al. 2021 ("Practical and Secure Federated
Recommendation with Personalized Masks"). They are the private masks of that paper used as predictors: ridge
regression, a factorisation machine or a small network on the public features of the items, or the user's
mean. What a federation does not improve on, it is not worth its bytes.

An upload is empty. That a device takes part, and with how many ratings, is all there is to learn; one round
shows what there is to show, and evaluation before the first round shows the same accuracy.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from edge.learning.base import MEAN, Problem, RatingBatch, Recommender, State, Work
from edge.learning.masks.base import MaskMemo, MaskParameters
from edge.learning.masks.registry import MaskSettings, create
from edge.learning.method_settings import MethodSettings
from edge.learning.updates import Array, UpdateBatch

FEATURES = "item_features"


class LocalContextSettings(MethodSettings):
    """Settings of the local context baseline."""

    algorithm: Literal["local-context"]
    model: MaskSettings = Field(
        description="a device's own model, by `kind`: a mask of fedmmf, used as a predictor"
    )


class LocalContext(Recommender):
    """A model of its own on every device; see the module.

    State and upload are empty. Downloaded once: ``item_features`` float32 [items, d] and ``rating_mean`` [1].
    """

    Settings = LocalContextSettings
    needs_features = True
    uploads = False
    settings: LocalContextSettings

    def __init__(self, settings: LocalContextSettings, problem: Problem) -> None:
        if problem.features is None:
            raise ValueError("local-context needs item features; this problem has none")
        super().__init__(settings, problem)
        self.features: npt.NDArray[np.float32] = problem.features
        self.mean = problem.rating_mean
        self.model = create(settings.model)
        self._fitted = MaskMemo(self.model, self.features, self.mean)

    @classmethod
    def uniform(cls, settings: LocalContextSettings) -> bool:
        """Return True."""
        return True

    def initial_state(self, seed: int) -> State:
        """Return nothing: there are no global parameters."""
        return {}

    @classmethod
    def begins_with_mean(cls, settings: LocalContextSettings) -> bool:
        """Return True: models of features have it taken off."""
        return True

    def fixed(self) -> dict[str, Array]:
        """Return what a device downloads once: the features of the items and the mean rating."""
        return {FEATURES: self.features, MEAN: np.array([self.mean], np.float32)}

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return the cost of fitting the model."""
        return self.model.work(examples, self.features.shape[1])

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Return empty updates, with the loss of each user's own model on what it was fitted to."""
        error = self._said(batch, batch.indptr, batch.items) - batch.ratings
        owners = np.repeat(np.arange(len(batch.indptr) - 1), np.diff(batch.indptr))
        squares = np.bincount(owners, error.astype(np.float64) ** 2, minlength=len(batch.indptr) - 1)
        counts: npt.NDArray[np.int64] = np.diff(batch.indptr)
        if clients is not None:
            holders = np.repeat(np.arange(len(clients) - 1), np.diff(clients))
            squares = np.bincount(holders, squares, minlength=len(clients) - 1)
            counts = np.diff(batch.indptr[clients])
        return UpdateBatch(
            stacked={},
            ragged={},
            offsets=np.zeros(len(counts) + 1, np.int64),
            weights=np.ones(len(counts)),
            examples=counts,
            losses=0.5 * squares / np.maximum(counts, 1),
        )

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Fit each user's model to ``support`` and predict its ``query`` ratings, float32 [N of query]."""
        return self._said(support, query.indptr, query.items)

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Fit each user's model to ``support`` and predict every item, float32 [n, items]."""
        return self.model.catalogue(self.masks(support), self.features)

    def masks(self, batch: RatingBatch) -> MaskParameters:
        """Return the parameters of the models of a batch's users, by name; the leading axis is the users'."""
        return self._fitted.of(batch)

    def _said(
        self, batch: RatingBatch, indptr: npt.NDArray[np.int64], items: npt.NDArray[np.generic]
    ) -> npt.NDArray[np.float32]:
        return self.model.predict(self.masks(batch), self.features, indptr, items)
