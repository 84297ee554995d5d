"""What a private mask model is, as far as devices are concerned.

Source: Yang et al., "Practical and Secure Federated Recommendation with Personalized Masks" (2021). Every
device u fits a model f_u to its own ratings and the public features of the items that it rated; federated
learning then runs on the masked ratings r_ui − f_u(i), and f_u(i) is added back on the device.

A mask model is a few pure functions of arrays. They work on many users at once, one user's ratings after
another's, and what comes back for a user is bitwise the same whichever other users were in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from edge.learning.base import RatingBatch, Work
from edge.learning.updates import Array

MaskParameters = dict[str, Array]
"""The fitted parameters by name, float32; the leading axis is that of the n users."""

Features = npt.NDArray[np.float32]
"""Public item features, float32 [items, d], standardised; a row of zeros is an item nothing is known of."""


class MaskModel(Protocol):
    """A kind of private mask. Every function is pure: the same arguments give the same bits."""

    @property
    def settings(self) -> BaseModel:
        """The settings of this kind."""
        ...

    def fit(
        self, batch: RatingBatch, features: Features, mean: float, keys: npt.NDArray[np.uint64]
    ) -> MaskParameters:
        """Fit every user of a batch to its own ratings.

        Parameters
        ----------
        batch : ratings of ``n`` users; a user without ratings gets a model that predicts ``mean``.
        features : float32 [items, d].
        mean : the public global mean rating, which shrinkage pulls to.
        keys : uint64 [n], one random key per user; all of a user's draws come from it.
        """
        ...

    def predict(
        self,
        parameters: MaskParameters,
        features: Features,
        indptr: npt.NDArray[np.int64],
        items: npt.NDArray[Any],
    ) -> npt.NDArray[np.float32]:
        """Evaluate each user's mask on its own list of items.

        ``indptr`` int64 [n + 1] cuts ``items``, integers [N], into users. Returns float32 [N].
        """
        ...

    def catalogue(self, parameters: MaskParameters, features: Features) -> npt.NDArray[np.float32]:
        """Evaluate each user's mask on every item, float32 [n, items]."""
        ...

    def work(self, examples: npt.NDArray[np.int64], d: int) -> Work:
        """Return what fitting costs devices with this many ratings, int64 [n], and ``d`` features."""
        ...

    def spec(self, d: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return name and shape of one user's parameters, for ``d`` features."""
        ...


def blank(
    spec: tuple[tuple[str, tuple[int, ...]], ...], users: int, intercept: str, mean: float
) -> MaskParameters:
    """Return the parameters of users that predict ``mean`` everywhere: zeros, but for the ``intercept``."""
    parameters: MaskParameters = {name: np.zeros((users, *shape), np.float32) for name, shape in spec}
    parameters[intercept][:] = mean
    return parameters


def limited(features: Features, limit: float) -> Features:
    """Return features cut at ±``limit`` standard deviations.

    A genre of few items stands many deviations out on those: a slope fitted to one such rating would be as
    free as one fitted to hundreds. The cut makes ridge penalties bear on rare features (ML-100K, one-order:
    RMSE 1.005 on validation against 1.012 without).
    """
    return np.clip(features, -limit, limit)


Evaluate = Callable[[int, Features], Array]
"""Predictions of the user with this number for some items, given their features [items, d]: [items]."""


def predict_each(
    evaluate: Evaluate,
    features: Features,
    indptr: npt.NDArray[np.int64],
    items: npt.NDArray[Any],
) -> npt.NDArray[np.float32]:
    """Evaluate users one by one on their own items, float32 [N]: no user touches another's arithmetic."""
    predictions = np.empty(int(indptr[-1]), np.float32)
    bounds: list[int] = indptr.tolist()
    for user in range(len(bounds) - 1):
        start, end = bounds[user], bounds[user + 1]
        if start < end:
            predictions[start:end] = evaluate(user, features.take(items[start:end], axis=0))
    return predictions


def catalogue_each(evaluate: Evaluate, features: Features, users: int) -> npt.NDArray[np.float32]:
    """Evaluate users one by one on all items, float32 [users, items]."""
    predictions = np.empty((users, len(features)), np.float32)
    for user, row in enumerate(predictions):
        row[:] = evaluate(user, features)
    return predictions
