"""What a private mask model is, as far as devices are concerned.

Source: Yang et al., "Practical and Secure Federated Recommendation with Personalized Masks" (2021). Every
device u fits a model f_u to its own ratings and the public features of the items that it rated; federated
learning then runs on the masked ratings r_ui − f_u(i), and f_u(i) is added back on the device.

A mask model is a few pure functions of arrays. They work on many users at once, one user's ratings after
another's, and what comes back for a user is bitwise the same whichever other users were in the batch.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from edge.learning.base import WORK_KINDS, RatingBatch, Ratings, Work
from edge.learning.updates import Array

MaskParameters = dict[str, Array]
"""The fitted parameters by name, float32; the leading axis is that of the n users."""
Features = npt.NDArray[np.float32]
"""Public item features, float32 [items, d], standardised; a row of zeros is an item nothing is known of."""
Evaluate = Callable[[int, Features], Array]
"""Predictions of the user with this number for some items, given their features [items, d]: [items]."""
_BLOCK_ROWS = 8192
FLOAT_BYTES = 4
_GATHER, _DENSE = WORK_KINDS.index("gather"), WORK_KINDS.index("dense")
LARGEST = 1_000_000
"""Users remembered at most; beyond, masks are fitted anew whenever they are asked for."""


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


class EvaluatedMask(abc.ABC):
    """A kind of mask that is evaluated user by user: no user touches another's arithmetic."""

    settings: Any

    @abc.abstractmethod
    def evaluator(self, parameters: MaskParameters) -> Evaluate:
        """Return the function that evaluates a user's mask on features, cut at the settings' limit."""

    def predict(
        self,
        parameters: MaskParameters,
        features: Features,
        indptr: npt.NDArray[np.int64],
        items: npt.NDArray[Any],
    ) -> npt.NDArray[np.float32]:
        """Evaluate each user's mask on its own items, float32 [N]; see :class:`MaskModel`."""
        evaluate, cut = self.evaluator(parameters), limited(features, self.settings.feature_limit)
        predictions = np.empty(int(indptr[-1]), np.float32)
        for user, (start, end) in enumerate(pairwise(indptr.tolist())):
            if start < end:
                predictions[start:end] = evaluate(user, cut.take(items[start:end], axis=0))
        return predictions

    def catalogue(self, parameters: MaskParameters, features: Features) -> npt.NDArray[np.float32]:
        """Evaluate each user's mask on every item, float32 [n, items]."""
        evaluate, cut = self.evaluator(parameters), limited(features, self.settings.feature_limit)
        users = len(next(iter(parameters.values())))
        predictions = np.empty((users, len(cut)), np.float32)
        for user, row in enumerate(predictions):
            row[:] = evaluate(user, cut)
        return predictions


class PaddedUsers(NamedTuple):
    """Some users whose ratings are padded to the same length S, so that they can be fitted together.

    A length is a function of the user's own number of ratings alone, and every operation on a group works
    within a row: other rows cannot change a user's bits.

    Attributes
    ----------
    users : int64 [u], their numbers in the batch.
    positions : int64 [u, S], where in the batch each rating lies; padding repeats the user's first rating.
    present : bool [u, S], false for padding.
    """

    users: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]


def padded_sizes(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the length that each count is padded to, int64 [n]: at most a quarter more.

    Lengths go up in steps of an eighth of the next power of two, four of them to an octave: … 16, 20, 24, 28,
    32, 40, 48 …; up to 8 every length has its own group.
    """
    octave = np.frexp(np.maximum(counts - 1, 0))[1].astype(np.int64)
    step = np.left_shift(1, np.maximum(octave - 3, 0))
    return -(-counts // step) * step


def groups(indptr: npt.NDArray[np.int64]) -> Iterator[PaddedUsers]:
    """Yield users with ratings in groups of one padded length, of about 8,192 ratings each.

    ``indptr`` int64 [n + 1]. Users without ratings are in no group.
    """
    counts = np.diff(indptr)
    sizes = padded_sizes(counts)
    for size in np.unique(sizes[counts > 0]).tolist():
        alike = np.flatnonzero(sizes == size)
        together = max(_BLOCK_ROWS // size, 1)
        for first in range(0, len(alike), together):
            users = alike[first : first + together]
            places = np.arange(size)
            present = places < counts[users, None]
            positions = indptr[users, None] + np.where(present, places, 0)
            yield PaddedUsers(users, positions, present)


def fitting_work(
    *,
    flops: npt.NDArray[np.float64],
    moved_bytes: npt.NDArray[np.float64],
    ops: npt.NDArray[np.float64],
    gathered_rows: npt.NDArray[np.float64],
    width: int,
    steps: npt.NDArray[np.float64],
    memory_bytes: npt.NDArray[np.float64],
) -> Work:
    """Return the work of one gather of feature rows and of dense arithmetic on them.

    Multiplications and additions count one flop each. Bytes are those of every array that an operator reads
    or writes, at four bytes a number.

    Parameters
    ----------
    flops, moved_bytes, ops : float64 [n], the arithmetic of the whole fit.
    gathered_rows : float64 [n], rows of ``width`` features that are copied, once; no operator if zero.
    steps : float64 [n], at least 1: sweeps or epochs over which the totals are spread.
    memory_bytes : float64 [n], the peak beside the feature table, which is public and shared.
    """
    shape = (len(steps), len(WORK_KINDS))
    all_flops, all_moved, all_ops = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    all_moved[:, _GATHER] = 2.0 * gathered_rows * width * FLOAT_BYTES
    all_ops[:, _GATHER] = gathered_rows > 0
    all_flops[:, _DENSE], all_moved[:, _DENSE], all_ops[:, _DENSE] = flops, moved_bytes, ops
    per_step = steps[:, None]
    return Work(
        all_flops / per_step,
        all_moved / per_step,
        all_ops / per_step,
        steps,
        np.ceil(memory_bytes).astype(np.int64),
    )


class MaskMemo:
    """The masks of users by their ratings: a simulation asks for the same ones again and again.

    Parameters
    ----------
    mask : the kind of mask.
    features : float32 [n_items, d].
    mean : the mean rating that masks shrink to.

    What is remembered does not travel: a copy made for another process begins empty.
    """

    def __init__(self, mask: MaskModel, features: npt.NDArray[np.float32], mean: float) -> None:
        self._mask = mask
        self._features = features
        self._mean = mean
        self._rows: dict[bytes, tuple[npt.NDArray[np.float32], ...]] = {}

    def __getstate__(self) -> tuple[MaskModel, npt.NDArray[np.float32], float]:
        return self._mask, self._features, self._mean

    def __setstate__(self, state: tuple[MaskModel, npt.NDArray[np.float32], float]) -> None:
        self._mask, self._features, self._mean = state
        self._rows = {}

    def of(self, batch: RatingBatch) -> MaskParameters:
        """Return the parameters of the masks of a batch's users, in their order."""
        edges: list[int] = batch.indptr.tolist()
        keys = [
            hashlib.blake2b(
                batch.items[start:end].tobytes() + batch.ratings[start:end].tobytes(), digest_size=16
            ).digest()
            for start, end in pairwise(edges)
        ]
        missing = [at for at, key in enumerate(keys) if key not in self._rows]
        rows = self._rows
        if missing:
            fitted = self._fit(batch, missing)
            names = list(fitted)
            found = {keys[at]: tuple(fitted[name][i] for name in names) for i, at in enumerate(missing)}
            if len(rows) + len(found) <= LARGEST:
                rows.update(found)
            else:
                rows = rows | found
        names = [name for name, _ in self._mask.spec(self._features.shape[1])]
        return {name: np.stack([rows[key][i] for key in keys]) for i, name in enumerate(names)}

    def _fit(self, batch: RatingBatch, users: list[int]) -> MaskParameters:
        indptr = batch.indptr
        counts = np.diff(indptr)[users]
        edges = np.concatenate(([0], np.cumsum(counts)))
        rows = np.arange(edges[-1]) + np.repeat(indptr[:-1][users] - edges[:-1], counts)
        part = Ratings(edges, batch.items[rows], batch.ratings[rows])
        # The same start for every user and round: what a device fits depends on its ratings alone.
        return self._mask.fit(part, self._features, self._mean, np.zeros(len(users), np.uint64))
