"""Taste clusters of users, derived from their ratings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.core.rng import stream
from edge.data.store import RatingStore, StoredRatings

_RANK = 8
_POWER_PASSES = 3
_LLOYD_PASSES = 25


def taste_clusters(
    store: RatingStore, users: npt.NDArray[np.int64], *, n_clusters: int, seed: int
) -> npt.NDArray[np.int64]:
    """Return a taste cluster for every user of ``users`` (int64[n]): int64[n] in ``0 .. n_clusters - 1``.

    1. Ratings are reduced to residuals: the user's mean is taken off, then the item's mean residual, so that
       neither a generous user nor a good film counts as taste.
    2. The residual matrix gets a rank-8 randomised range finder with three power passes (Halko, Martinsson &
       Tropp 2011, algorithm 4.4); a user's taste is the row of the left factor, scaled to unit length.
    3. k-means (Lloyd 1982) on those directions, started by k-means++ (Arthur & Vassilvitskii 2007).

    Users without a residual (no ratings, or all alike) sit at the origin and join the nearest centre. Seeded;
    fewer distinct tastes than clusters leave clusters empty.

    Raises
    ------
    ValueError
        for fewer than one cluster or no users.
    """
    if n_clusters < 1 or users.size < 1:
        raise ValueError(f"cannot form {n_clusters} taste clusters of {users.size} users")
    rng = stream(seed, "taste-clusters")
    batch = store.gather(users)
    residuals = _residuals(batch, store.n_items)
    rank = min(_RANK, users.size, store.n_items)
    basis = rng.standard_normal((store.n_items, rank))
    for _ in range(_POWER_PASSES):
        tastes = _times_items(batch, residuals, basis)
        basis, _ = np.linalg.qr(_times_users(batch, residuals, tastes, store.n_items))
    tastes = _times_items(batch, residuals, basis)
    lengths = np.linalg.norm(tastes, axis=1, keepdims=True)
    tastes = np.divide(tastes, lengths, out=np.zeros_like(tastes), where=lengths > 0)
    return _k_means(tastes, n_clusters, rng)


def _residuals(batch: StoredRatings, n_items: int) -> npt.NDArray[np.float64]:
    counts = batch.counts
    owners = np.repeat(np.arange(batch.n_users), counts)
    ratings = batch.ratings.astype(np.float64)
    user_means = np.bincount(owners, ratings, batch.n_users) / np.maximum(counts, 1)
    ratings -= user_means[owners]
    item_counts = np.bincount(batch.items, minlength=n_items)
    item_means = np.bincount(batch.items, ratings, n_items) / np.maximum(item_counts, 1)
    return np.asarray(ratings - item_means[batch.items])


def _times_items(
    batch: StoredRatings, residuals: npt.NDArray[np.float64], basis: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Residual matrix (users × items) times ``basis`` float64[n_items, rank]."""
    owners = np.repeat(np.arange(batch.n_users), batch.counts)
    columns = [
        np.bincount(owners, residuals * column[batch.items], batch.n_users)
        for column in np.ascontiguousarray(basis.T)
    ]
    return np.stack(columns, axis=1)


def _times_users(
    batch: StoredRatings, residuals: npt.NDArray[np.float64], tastes: npt.NDArray[np.float64], n_items: int
) -> npt.NDArray[np.float64]:
    """Transposed residual matrix (items × users) times ``tastes`` float64[n_users, rank]."""
    owners = np.repeat(np.arange(batch.n_users), batch.counts)
    columns = [
        np.bincount(batch.items, residuals * column[owners], n_items)
        for column in np.ascontiguousarray(tastes.T)
    ]
    return np.stack(columns, axis=1)


def _k_means(
    points: npt.NDArray[np.float64], n_clusters: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    centres = points[rng.integers(points.shape[0])][None]
    nearest = ((points - centres[0]) ** 2).sum(axis=1)
    while centres.shape[0] < n_clusters and nearest.sum() > 0:
        cumulative = np.cumsum(nearest)
        chosen = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
        centre = points[min(chosen, points.shape[0] - 1)]
        centres = np.concatenate([centres, centre[None]])
        nearest = np.minimum(nearest, ((points - centre) ** 2).sum(axis=1))
    labels = np.full(points.shape[0], -1, dtype=np.int64)
    for _ in range(_LLOYD_PASSES):
        # |x - c|² without |x|², which is the same for every centre.
        distances = (centres**2).sum(axis=1) - 2.0 * points @ centres.T
        new_labels = np.argmin(distances, axis=1)
        if np.array_equal(new_labels, labels):
            break
        labels = new_labels
        sizes = np.bincount(labels, minlength=centres.shape[0])
        for axis in range(points.shape[1]):
            sums = np.bincount(labels, points[:, axis], centres.shape[0])
            centres[:, axis] = np.where(sizes > 0, sums / np.maximum(sizes, 1), centres[:, axis])
    return labels
