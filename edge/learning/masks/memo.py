"""Masks that were fitted before: a simulation asks for the same ones again and again."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edge.learning.base import RatingBatch, Ratings
from edge.learning.masks.base import MaskModel, MaskParameters

LARGEST = 1_000_000
"""Users remembered at most; beyond, masks are fitted anew whenever they are asked for."""


class MaskMemo:
    """The masks of users by their ratings.

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
