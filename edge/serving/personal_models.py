"""From a method and ratings to what devices serve from: their own halves of the factorisation and masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.learning.base import RatingBatch, State
from edge.learning.fedmmf import FedMMF
from edge.learning.fedrecon import BIAS, FACTORS, MEAN, FedRecon
from edge.masks.base import limited
from edge.serving.mask_graph import Weights
from edge.serving.recommender_graph import ItemModel, Mask, UserModel, UserModels


@dataclass(frozen=True, slots=True, eq=False)
class PersonalModels:
    """What n devices have: ``users``, and ``masks`` with a leading axis of n; None for a method without."""

    users: UserModels
    masks: Mask | None

    def __len__(self) -> int:
        return len(self.users.bias)

    def weights(self) -> Weights:
        """Return everything that is a device's own, float32 [n, …], by its name in the graph."""
        own = {"user_factors": self.users.factors, "user_bias": self.users.bias}
        return own if self.masks is None else {**own, **self.masks.weights}

    def user(self, row: int) -> UserModel:
        """Return the half of the factorisation of one device."""
        return UserModel(self.users.factors[row], float(self.users.bias[row]))

    def mask(self, row: int) -> Mask | None:
        """Return the mask of one device."""
        if self.masks is None:
            return None
        weights = {name: np.asarray(array[row]) for name, array in self.masks.weights.items()}
        return Mask(self.masks.kind, weights, self.masks.features)

    def blocks(self, size: int) -> Iterator[tuple[slice, PersonalModels]]:
        """Yield runs of at most ``size`` devices, with their rows."""
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            masks = self.masks
            if masks is not None:
                masks = Mask(masks.kind, {k: v[rows] for k, v in masks.weights.items()}, masks.features)
            yield rows, PersonalModels(UserModels(self.users.factors[rows], self.users.bias[rows]), masks)


def item_model(state: State) -> ItemModel:
    """Return the global half of the factorisation from a state of FedRecon or FedMMF."""
    factors = state[FACTORS]
    bias = state.get(BIAS)
    if bias is None:
        bias = np.zeros(len(factors), np.float32)
    return ItemModel(factors, bias, float(state[MEAN][0]))


def reads_features(algorithm: FedRecon | FedMMF) -> bool:
    """Return whether the models of devices read features of the items."""
    return isinstance(algorithm, FedMMF) and algorithm.settings.mask.kind != "zero-order"


def personal_models(
    algorithm: FedRecon | FedMMF,
    state: State,
    batch: RatingBatch,
    keys: npt.NDArray[np.uint64],
    kept: npt.NDArray[np.float32] | None = None,
) -> PersonalModels:
    """Return what devices of one user each make of their own ratings, by the method's own reconstruction.

    Parameters
    ----------
    algorithm, state : the method and its global parameters.
    batch : the ratings of the n users.
    keys : uint64 [n], for a reconstruction that draws at random.
    kept : float32 [n, ``local_width``], what the devices go on from; None where they keep nothing.
    """
    local = algorithm.reconstruct(state, batch, keys, kept)
    k = state[FACTORS].shape[1]
    bias = local[:, k] if local.shape[1] > k else np.zeros(len(local), local.dtype)
    users = UserModels(np.ascontiguousarray(local[:, :k]), bias)
    return PersonalModels(users, _masks(algorithm, batch) if isinstance(algorithm, FedMMF) else None)


def _masks(algorithm: FedMMF, batch: RatingBatch) -> Mask:
    settings = algorithm.settings.mask
    weights = algorithm.masks(batch)
    if settings.kind == "zero-order":
        return Mask(settings.kind, weights, None)
    return Mask(settings.kind, weights, limited(algorithm.features, settings.feature_limit))
