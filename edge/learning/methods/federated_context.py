"""Federated context baseline: one model of ratings on features, trained by all devices with FedAvg.

Source: the baselines FedLR, FedFM and FedNN of Yang et al. 2021 ("Practical and Secure Federated
Recommendation with Personalized Masks"), trained as in McMahan et al. 2017, algorithm 1. A rating is
predicted from the public features of the item and, with ``user_features``, from two that a device makes of
its user's own ratings: how far their mean lies from everybody's, and how many there are. There are no
factors of users or items, so a model knows an item by its features alone: what it does not reach is what
factors are for.

What an upload reveals. Every parameter changes whatever was rated, so no item is named. The change of the
weights is a combination of the feature rows of the rated items all the same: whoever sees it learns which
genres a user rated above or below expectation. It is dense and can be summed securely.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import PositiveFloat, StrictBool
from edge.learning.base import MEAN, Problem, RatingBatch, Recommender, State, Work
from edge.learning.masks import network
from edge.learning.masks.base import FLOAT_BYTES, fitting_work, groups, limited
from edge.learning.masks.network import INTERCEPT, Parameters
from edge.learning.masks.zero_order import shrunk_means
from edge.learning.method_settings import (
    FeatureLimit,
    GradientSteps,
    MethodSettings,
    Weighting,
    step_counts,
    work_share,
)
from edge.learning.methods import context_models
from edge.learning.methods.context_models import FREE, LinearSettings, ModelSettings
from edge.learning.server_optimizers import ConstantSchedule, Schedule, ServerOptimizer, SgdSettings
from edge.learning.updates import Array, UpdateBatch

FEATURES = "item_features"
_USER_FEATURES = 2
_SHRINKAGE = 5.0
"""Ratings of the mean that a user's own are averaged with."""


class FederatedContextSettings(MethodSettings):
    """Settings of the federated context baseline."""

    algorithm: Literal["federated-context"]
    model: ModelSettings = Field(
        default=LinearSettings.model_construct(),
        description="model of ratings: linear, factorization-machine, network",
    )
    user_features: StrictBool = Field(
        default=True,
        description="features that a device makes of its user's ratings: their mean, their number",
    )
    feature_limit: FeatureLimit = 2.0
    client: GradientSteps = Field(
        default=GradientSteps.model_construct(method="gradient-steps", steps=5, learning_rate=0.1),
        description="a device's steps, each on all of its ratings",
    )
    weighting: Weighting = "examples"
    optimizer: ServerOptimizer = SgdSettings.model_construct(kind="sgd")
    learning_rate: PositiveFloat = Field(default=1.0, description="server learning rate")
    schedule: Schedule = ConstantSchedule.model_construct()


class FederatedContext(Recommender):
    """One model of ratings on features for all; see the module and :class:`FederatedContextSettings`.

    State: the parameters of the model by name, a scalar as [1]. Upload: the change of each, times the weight.
    Downloaded once: ``item_features`` float32 [items, d] and ``rating_mean`` [1].
    """

    Settings = FederatedContextSettings
    needs_features = True
    settings: FederatedContextSettings

    def __init__(
        self, settings: FederatedContextSettings, problem: Problem, dtype: type[Any] = np.float32
    ) -> None:
        if problem.features is None:
            raise ValueError("federated-context needs item features; this problem has none")
        super().__init__(settings, problem)
        self.dtype = np.dtype(dtype)
        self.mean = problem.rating_mean
        self.public: npt.NDArray[np.float32] = problem.features
        self.features = limited(problem.features, settings.feature_limit).astype(self.dtype)
        self.model = context_models.create(settings.model)
        self.width = self.features.shape[1] + (_USER_FEATURES if settings.user_features else 0)
        """Number of features D."""

    def initial_state(self, seed: int) -> State:
        """Return the model's parameters before training."""
        drawn = self.model.initial(self.width, seed)
        return {name: np.atleast_1d(array).astype(self.dtype) for name, array in drawn.items()}

    @classmethod
    def begins_with_mean(cls, settings: FederatedContextSettings) -> bool:
        """Return True: the model of features has it taken off."""
        return True

    def fixed(self) -> dict[str, Array]:
        """Return what a device downloads once: the features of the items and the mean rating."""
        return {FEATURES: self.public, MEAN: np.array([self.mean], np.float32)}

    def local_steps(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many steps clients take, int64 [n]."""
        return step_counts(self.settings.client, examples)

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return the cost of a round: one gather of feature rows, then steps of :meth:`ContextModel.flops`.

        Three operators a layer and step; every step reads the rows twice and the parameters three times.
        """
        rows, d = examples.astype(np.float64), self.width
        taken = (self.local_steps(examples) if steps is None else steps).astype(np.float64)
        numbers = float(sum(array.size for array in self.initial_state(0).values()))
        return fitting_work(
            flops=taken * (rows * self.model.flops(d) + 2.0 * numbers),
            moved_bytes=taken * (2.0 * rows * d + 3.0 * numbers) * FLOAT_BYTES,
            ops=6.0 * taken,
            gathered_rows=rows,
            width=self.public.shape[1],
            steps=np.maximum(taken, 1.0),
            memory_bytes=(rows * (d + 4.0) + 3.0 * numbers) * FLOAT_BYTES,
        )

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Take the local steps of every client; see :meth:`edge.learning.base.Recommender.client_update`.

        A client of several users trains on the ratings of all of them together. Nothing is drawn.
        """
        users = self._user_features(batch)
        owners = np.repeat(np.arange(len(users)), np.diff(batch.indptr))
        indptr = batch.indptr if clients is None else batch.indptr[clients]
        counts: npt.NDArray[np.int64] = np.diff(indptr)
        whole = self.local_steps(counts)
        taken = whole if steps is None else np.minimum(steps, whole)
        weights = np.asarray(
            counts if self.settings.weighting == "examples" else counts > 0, np.float64
        ) * work_share(steps, whole)
        deltas = {name: np.zeros((len(counts), *array.shape), self.dtype) for name, array in state.items()}
        losses = np.zeros(len(counts))
        for group in groups(indptr):
            items, of = batch.items[group.positions], owners[group.positions]
            present = group.present.astype(self.dtype)
            targets = (batch.ratings[group.positions] - self.dtype.type(self.mean)).astype(self.dtype)
            problem = network.NetworkProblem(self._design(items, users[of]), present, targets * present)
            start = self._stacked(state, len(group.users))
            error = self.model.error(problem, start)
            losses[group.users] = np.einsum("us,us->u", error, error)
            trained = self._descend(problem, start, counts[group.users], taken[group.users])
            scale = weights[group.users].astype(self.dtype)
            for name, array in trained.items():
                change = (array - start[name]) * scale.reshape(-1, *[1] * (array.ndim - 1))
                deltas[name][group.users] = change.reshape(len(change), *state[name].shape)
        return UpdateBatch(
            stacked=deltas,
            ragged={},
            offsets=np.zeros(len(counts) + 1, np.int64),
            weights=weights,
            examples=counts,
            losses=0.5 * losses / np.maximum(counts, 1),
        )

    def _descend(
        self,
        problem: network.NetworkProblem,
        start: Parameters,
        counts: npt.NDArray[np.int64],
        steps: npt.NDArray[np.int64],
    ) -> Parameters:
        """Return each client's parameters after its steps on ½·mean(e²) + ½λ|θ|²."""
        s = self.settings.client
        current = {name: array.copy() for name, array in start.items()}
        for step in range(int(steps.max(initial=0))):
            rates = np.where(step < steps, s.learning_rate, 0.0)
            for name, slope in self.model.slopes(problem, current).items():
                shape = (-1, *[1] * (slope.ndim - 1))
                change = slope * (rates / counts).astype(self.dtype).reshape(shape)
                if s.regularization and name not in FREE:
                    change += (rates * s.regularization).astype(self.dtype).reshape(shape) * current[name]
                current[name] -= change
        return current

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Predict ``query`` ratings, [N of query]; of ``support`` only the user's own features are made."""
        users, one = self._user_features(support), self._single(state)
        predictions = np.empty(int(query.indptr[-1]), self.dtype)
        bounds: list[int] = query.indptr.tolist()
        for user in range(len(users)):
            items = query.items[bounds[user] : bounds[user + 1]]
            rows = self._design(items, np.repeat(users[user : user + 1], len(items), axis=0))
            predictions[bounds[user] : bounds[user + 1]] = self.model.evaluate(one, rows)
        predictions += self.dtype.type(self.mean)
        return predictions

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Predict every item for every user, float32 [n, items]."""
        users, one = self._user_features(support), self._single(state)
        scores = np.empty((len(users), len(self.features)), np.float32)
        everything = np.arange(len(self.features))
        rows = self._design(everything, np.zeros((len(everything), users.shape[1]), self.dtype))
        for user, row in enumerate(scores):
            rows[:, self.features.shape[1] :] = users[user]
            row[:] = self.model.evaluate(one, rows) + self.dtype.type(self.mean)
        return scores

    def masks(self, state: State, batch: RatingBatch) -> Parameters:
        """Return each user's own model of the items' features alone, by name, [n, …].

        What the shared model makes of the user's own features, and the mean rating, are folded into it: its
        scores of ``self.features`` are those of :meth:`scores`.
        """
        wide = {name: array.astype(np.float64) for name, array in self._single(state).items()}
        folded = self.model.folded(wide, self._user_features(batch).astype(np.float64))
        folded[INTERCEPT] = folded[INTERCEPT] + self.mean
        return {name: np.asarray(array, self.dtype) for name, array in folded.items()}

    def _user_features(self, batch: RatingBatch) -> npt.NDArray[Any]:
        """Return the features of users by their own ratings, [users, 2], or [users, 0]."""
        counts = np.diff(batch.indptr)
        if not self.settings.user_features:
            return np.zeros((len(counts), 0), self.dtype)
        generous = shrunk_means(batch, self.mean, _SHRINKAGE) - self.mean
        # About −0.5 to 0.9, and 0 for 54 ratings.
        active = np.log1p(counts) / 4.0 - 1.0
        return np.stack([generous, active], axis=1).astype(self.dtype)

    def _design(self, items: npt.NDArray[Any], users: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rows of features: ``items`` [...] and ``users`` [..., 2 or 0] make [..., D]."""
        d = self.features.shape[1]
        x = np.empty((*items.shape, self.width), self.dtype)
        x[..., :d] = self.features.take(items, axis=0)
        x[..., d:] = users
        return x

    def _stacked(self, state: State, clients: int) -> Parameters:
        """Return a copy of the parameters for each client, in C order."""
        return {
            name: np.repeat(array if name == INTERCEPT else array[None], clients, axis=0)
            for name, array in state.items()
        }

    def _single(self, state: State) -> Parameters:
        """Return the parameters as :meth:`ContextModel.evaluate` takes them."""
        return {name: array[0] if name == INTERCEPT else array for name, array in state.items()}
