"""Rankings that need no federation, to set beside the federated ones: popularity, item-KNN, iALS, EASE.

All of them take the training positives as a :class:`~edge.data.store.RatingStore` whose values are not looked
at, and score each user's candidates, int64 [n_users, c], as float [n_users, c].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.data.store import RatingStore

Candidates = npt.NDArray[np.int64]
Scores = npt.NDArray[np.floating[Any]]
_USERS_AT_ONCE = 512


def popularity(train: RatingStore, candidates: Candidates) -> Scores:
    """Score an item by how many users took to it."""
    return train.item_counts().astype(np.float64)[candidates]


@dataclass(frozen=True)
class ItemKnn:
    """Item-based neighbours (Sarwar et al. 2001): the sum of similarities to the user's items.

    Similarity is the cosine; of each item the ``neighbours`` most similar count.
    """

    neighbours: int = 100

    def scores(self, train: RatingStore, candidates: Candidates) -> Scores:
        """Return the candidates' scores."""
        similar = np.zeros((train.n_items, train.n_items), np.float32)
        for user in range(train.n_users):
            items = train.local(user)[0].astype(np.int64)
            similar[np.ix_(items, items)] += 1.0
        norms = np.sqrt(np.maximum(np.diagonal(similar), 1.0)).copy()
        for item, row in enumerate(similar):
            np.divide(row, norms[item] * norms, out=row)
            row[item] = 0.0
            if self.neighbours < train.n_items:
                least = np.partition(row, train.n_items - self.neighbours)[train.n_items - self.neighbours]
                row[row < least] = 0.0
        scores = np.empty(candidates.shape)
        for user, row in enumerate(candidates):
            items = train.local(user)[0].astype(np.int64)
            scores[user] = similar[np.ix_(row, items)].sum(axis=1)
        return scores


@dataclass(frozen=True)
class ImplicitLeastSquares:
    """iALS (Hu, Koren and Volinsky 2008): all cells count, the positives ``1 + confidence`` times as much."""

    factors: int = 32
    confidence: float = 10.0
    regularization: float = 30.0
    sweeps: int = 12

    def scores(self, train: RatingStore, candidates: Candidates, seed: int = 1) -> Scores:
        """Return the candidates' scores."""
        owners, items = train.owners(), train.items.astype(np.int64)
        by_item = np.argsort(items, kind="stable")
        item_bounds = np.concatenate([[0], np.cumsum(train.item_counts())])
        q = np.random.default_rng(seed).normal(0, 0.1, (train.n_items, self.factors)).astype(np.float32)
        p = np.zeros((train.n_users, self.factors), np.float32)
        for _ in range(self.sweeps):
            self._solve(p, q, train.indptr, items)
            self._solve(q, p, item_bounds, owners[by_item])
        self._solve(p, q, train.indptr, items)
        scores = np.empty(candidates.shape)
        for user, row in enumerate(candidates):
            scores[user] = q[row] @ p[user]
        return scores

    def _solve(
        self,
        own: npt.NDArray[np.float32],
        other: npt.NDArray[np.float32],
        bounds: npt.NDArray[np.int64],
        neighbours: npt.NDArray[np.int64],
    ) -> None:
        everywhere = other.T @ other + self.regularization * np.eye(self.factors, dtype=np.float32)
        ends = bounds.tolist()
        for first in range(0, len(own), _USERS_AT_ONCE):
            last = min(first + _USERS_AT_ONCE, len(own))
            systems = np.empty((last - first, self.factors, self.factors), np.float32)
            targets = np.empty((last - first, self.factors, 1), np.float32)
            for index in range(first, last):
                rows = other[neighbours[ends[index] : ends[index + 1]]]
                systems[index - first] = everywhere + self.confidence * (rows.T @ rows)
                targets[index - first, :, 0] = (1.0 + self.confidence) * rows.sum(axis=0)
            own[first:last] = np.linalg.solve(systems, targets)[:, :, 0]


@dataclass(frozen=True)
class Ease:
    """EASE (Steck 2019, equation 8): ridge regression of each item on all others, with a zero diagonal."""

    regularization: float = 300.0

    def scores(self, train: RatingStore, candidates: Candidates) -> Scores:
        """Return the candidates' scores."""
        taken = np.zeros((train.n_users, train.n_items))
        taken[train.owners(), train.items.astype(np.int64)] = 1.0
        inverse = np.linalg.inv(taken.T @ taken + self.regularization * np.eye(train.n_items))
        weights = inverse / -np.diagonal(inverse)
        np.fill_diagonal(weights, 0.0)
        return np.take_along_axis(taken @ weights, candidates, axis=1)
