"""FedRec: virtual ratings hide which items a device has rated, among others that it has not.

Source: Lin et al., "FedRec: Federated Recommendation with Explicit Feedback" (IEEE Intelligent Systems 2021).
A device draws ρ·|K_u| items that its user has not rated and gives them virtual ratings: the user's mean (user
averaging), and after some rounds what the device itself predicts (hybrid filling). It then trains on rated
and virtual items alike, so that an upload names both. The factorisation is that of
:mod:`edge.learning.methods.fedrecon.algorithm` with user factors that stay on the device.

The paper draws afresh in every round. Then whoever sees several uploads of a device sees the rated items come
back every time; here a device draws once by default, and keeps the number that its draw follows from with its
factors.

What an upload reveals: a row for each rated and virtual item. By the names alone a guess is right 1 time in 1
+ ρ. The rows tell more: how large a row is goes with the error of its rating, and virtual ratings that a
device predicts itself have nearly none. ``benchmarks/virtual_ratings.py`` measures it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat
from edge.core.rng import hashed_bits
from edge.learning import fedrecon_kernels
from edge.learning.base import OptimizerState, Problem, RatingBatch, Ratings, Recommender, State, Work
from edge.learning.method_settings import UserSteps
from edge.learning.methods.fedmf import FactorizationSettings
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.updates import Accumulator, Aggregate, Array, ArraySpec, UpdateBatch

Ints = npt.NDArray[np.int64]
_ITEM_SALT = 0x7669_7274_7500_0001
_RATED = np.uint64(2**64 - 1)
UPDATES = "updates"
_DRAW_SALT = 0x6472_6177_0000_0001
_LARGEST_DRAW = 2**24 - 1
"""The largest number up to which float32, in which devices keep their rows, has every whole one."""


def virtual_counts(rated: Ints, share: float, n_items: int) -> Ints:
    """Return how many virtual ratings users with so many ratings add, int64 [n]: ρ for each, rounded down.

    No more than there are unrated items.
    """
    return np.asarray(np.minimum(np.floor(share * rated).astype(np.int64), n_items - rated))


def virtual_items(
    batch: RatingBatch, keys: npt.NDArray[np.uint64], share: float, n_items: int
) -> tuple[Ints, npt.NDArray[Any]]:
    """Draw unrated items for every user, each as likely as any other.

    Parameters
    ----------
    batch : the ratings.
    keys : uint64 [n]; a user's draw depends on its key and its rated items alone.
    share : ρ, virtual ratings for each rating.
    n_items : size of the catalogue.

    Returns
    -------
    Offsets int64 [n + 1], and the items, ascending within a user, of the dtype of the batch's.
    """
    counts = np.diff(batch.indptr)
    wanted = virtual_counts(counts, share, n_items)
    offsets = np.concatenate([[0], np.cumsum(wanted)]).astype(np.int64)
    drawn = np.empty(int(offsets[-1]), batch.items.dtype)
    catalogue = np.arange(n_items)
    salted = hashed_bits(_ITEM_SALT, keys)
    for user, number in enumerate(wanted.tolist()):
        if number:
            # A random order of the catalogue with the rated items last; its beginning is a fair draw.
            order = hashed_bits(salted[user : user + 1], catalogue)
            order[batch.items[batch.indptr[user] : batch.indptr[user + 1]]] = _RATED
            chosen = np.argpartition(order, number - 1)[:number]
            drawn[offsets[user] : offsets[user + 1]] = np.sort(chosen)
    return offsets, drawn


def with_virtual(batch: RatingBatch, offsets: Ints, items: npt.NDArray[Any], values: Any) -> Ratings:
    """Return a batch with virtual ratings among the others, items ascending within a user.

    ``offsets`` and ``items`` are from :func:`virtual_items`; ``values`` [V] are the ratings of these items.
    """
    users = np.arange(len(batch.indptr) - 1)
    owners = np.concatenate([np.repeat(users, np.diff(batch.indptr)), np.repeat(users, np.diff(offsets))])
    every = np.concatenate([batch.items, items])
    order = np.lexsort((every, owners))
    ratings = np.concatenate([batch.ratings, np.asarray(values, batch.ratings.dtype)])
    return Ratings(batch.indptr + offsets, every[order], ratings[order])


def user_means(batch: RatingBatch) -> npt.NDArray[np.float64]:
    """Return the mean rating of every user, float64 [n]; 0 without ratings."""
    counts = np.diff(batch.indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.asarray(np.bincount(owners, batch.ratings, len(counts)) / np.maximum(counts, 1))


class FedRecSettings(FactorizationSettings):
    """Settings of FedRec: those of the factorisation, and of the virtual ratings."""

    algorithm: Literal["fedrec"]
    loss: Literal["squared-error"] = Field(default="squared-error", description="squared error alone")
    virtual_share: NonNegativeFloat = Field(
        default=1.0, description="ρ, virtual ratings for each rating of a user; 0: none"
    )
    filling: Literal["user-mean", "hybrid"] = Field(
        default="hybrid",
        description="virtual ratings are the user's mean, or later what its device predicts",
    )
    predict_after: NonNegativeInt = Field(
        default=10, description="server updates after which hybrid filling predicts"
    )
    draw: Literal["once", "every-round"] = Field(
        default="once", description="when a device draws the items of its virtual ratings"
    )
    reconstruction: UserSteps = Field(
        default=UserSteps.model_construct(method="gradient-steps"),
        description="a device's steps on its user factors, from those of its last round",
    )
    learning_rate: PositiveFloat = Field(default=0.1, description="server learning rate")


class FedRec(Recommender):
    """FedRec; see the module and :class:`FedRecSettings`.

    State: that of :class:`~edge.learning.methods.fedrecon.algorithm.FedRecon`, and ``updates`` int32 [1],
    how often the model
    has been updated. Upload: FedRecon's, with rows of virtual items. Devices keep p_u (and b_u), and what
    their draw follows from.
    """

    Settings = FedRecSettings
    row_arrays = FedRecon.row_arrays
    settings: FedRecSettings

    def __init__(self, settings: FedRecSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        if problem.n_items < 1:
            raise ValueError("fedrec learns from ratings; this problem has no items")
        super().__init__(settings, problem)
        self.residual = FedRecon(settings, problem, dtype)
        """The factorisation, of rated and virtual items alike."""
        self._factors = self.residual.local_width
        self.local_width = self._factors + (settings.draw == "once")
        """Numbers that a device keeps of each of its users."""

    def initial_state(self, seed: int) -> State:
        """Return the factorisation's, and no update."""
        return {**self.residual.initial_state(seed), UPDATES: np.zeros(1, np.int32)}

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return the factorisation's."""
        return self.residual.initial_optimizer_state(state)

    @classmethod
    def begins_with_mean(cls, settings: FedRecSettings) -> bool:
        """Return whether the factorisation subtracts the mean rating."""
        return FedRecon.begins_with_mean(settings)

    @classmethod
    def added_examples(cls, settings: FedRecSettings) -> float:
        """Return the virtual ratings for each rating."""
        return float(settings.virtual_share)

    def local_steps(self, examples: Ints) -> Ints:
        """Return the factorisation's, of rated and virtual items."""
        return self.residual.local_steps(self._filled(examples))

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return the factorisation's, of rated and virtual items."""
        return self.residual.work(self._filled(examples), steps)

    def upload_spec(self, examples: Ints) -> Sequence[ArraySpec]:
        """Return the factorisation's, of rated and virtual items."""
        return self.residual.upload_spec(self._filled(examples))

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Add virtual ratings to every user's, and update the factorisation on both."""
        users = len(batch.indptr) - 1
        if local is None:
            local = np.zeros((users, self.local_width), self.residual.dtype)
        keys = fedrecon_kernels.ClientUsers.of(client_keys, clients).keys
        draws = self._draws(keys, local)
        filled = self.filled(state, batch, keys if draws is None else draws.astype(np.uint64), local)
        update = self.residual.client_update(
            state, filled, client_keys, clients, steps, local[:, : self._factors]
        )
        if draws is None:
            return update
        assert update.local is not None
        kept = np.column_stack([update.local, draws.astype(update.local.dtype)])
        return dataclasses.replace(update, local=kept)

    def filled(
        self, state: State, batch: RatingBatch, draws: npt.NDArray[np.uint64], local: Array
    ) -> RatingBatch:
        """Return the ratings of a batch with virtual ones among them.

        ``draws`` uint64 [users] decide the items; ``local`` [users, ``local_width``] predicts their ratings.
        """
        s = self.settings
        offsets, items = virtual_items(batch, draws, s.virtual_share, self.residual.n_items)
        counts = np.diff(offsets)
        if s.filling == "hybrid" and int(state[UPDATES][0]) >= s.predict_after:
            values = self.residual.predict_from(state, local[:, : self._factors], items, counts)
        else:
            values = np.repeat(user_means(batch), counts)
        return with_virtual(batch, offsets, items, values)

    def accumulator(self, state: State) -> Accumulator:
        """Return the factorisation's."""
        return self.residual.accumulator(state)

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Apply an aggregate as the factorisation does, and count it."""
        state, optimizer_state = self.residual.server_update(state, optimizer_state, aggregate, round_number)
        return {**state, UPDATES: state[UPDATES] + np.int32(1)}, optimizer_state

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Predict ``query`` as the factorisation does, without virtual ratings, [N of query]."""
        return self.residual.predict(state, support, query, client_keys, self._factors_of(local))

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Predict every item as the factorisation does, float32 [n, items]."""
        return self.residual.scores(state, support, client_keys, self._factors_of(local))

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Return the factorisation's local parameters, fitted without virtual ratings."""
        return self.residual.reconstruct(state, support, client_keys, self._factors_of(local))

    def _factors_of(self, local: Array | None) -> Array | None:
        return None if local is None else local[:, : self._factors]

    def _filled(self, examples: Ints) -> Ints:
        """Return how many rated and virtual items users with so many ratings have."""
        rated = np.minimum(examples, self.residual.n_items)
        return examples + virtual_counts(rated, self.settings.virtual_share, self.residual.n_items)

    def _draws(self, keys: npt.NDArray[np.uint64], local: Array) -> Ints | None:
        """Return the number that each device's draw follows from, kept or new; None to draw every time.

        Numbers are 1 or more: 0 is a device that has never drawn.
        """
        if self.settings.draw == "every-round":
            return None
        kept = local[:, self._factors].astype(np.int64)
        new = (hashed_bits(_DRAW_SALT, keys) % np.uint64(_LARGEST_DRAW)).astype(np.int64) + 1
        return np.where(kept == 0, new, kept)
