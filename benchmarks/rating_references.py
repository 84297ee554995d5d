"""Predictions of ratings without a federation, to set beside those of the simulated runs.

Item means (popularity), item and user means with shrinkage (bias-only), and alternating least squares on all
training ratings in one place. Users that never trained are fitted to their support ratings with the items
fixed, as a device would do it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.core.rng import stream
from edge.data.split import Split
from edge.data.store import StoredRatings

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """What is trained on and what is scored.

    Attributes
    ----------
    train : ratings of the users that train, one after the other.
    support, query : of the users that are scored: what they are fitted to, and what is predicted.
    n_items : number of items.
    """

    train: StoredRatings
    support: StoredRatings
    query: StoredRatings
    n_items: int

    @property
    def mean(self) -> float:
        """Mean training rating."""
        return float(self.train.ratings.mean(dtype=np.float64))


@dataclass(frozen=True)
class Shrinkage:
    """Ratings of the mean that an item and a user are given beside their own ones."""

    item: float
    user: float


@dataclass(frozen=True)
class LeastSquares:
    """Alternating least squares: length of the factors, their penalty per rating, and that of a bias."""

    factors: int
    weight: float
    bias: float = 2.0
    sweeps: int = 20


def task_of(split: Split, *, unseen: bool, validation: bool) -> Task:
    """Return what a run on this split trains on and is scored on."""
    scored = split.validation if validation else split.test
    if unseen:
        users = split.validation_users if validation else split.unseen_users
        support = split.support
    else:
        users, support = split.seen_users, split.train
    assert scored is not None, "the split has no such part"
    assert support is not None, "the split has no such part"
    return Task(
        split.train.gather(split.seen_users), support.gather(users), scored.gather(users), split.train.n_items
    )


def item_means(task: Task) -> Floats:
    """Predict an item's mean training rating, or the mean of all for an item that has none; [N of query]."""
    counts = np.bincount(task.train.items, minlength=task.n_items)
    sums = np.bincount(task.train.items, task.train.ratings - task.mean, task.n_items)
    means: Floats = task.mean + sums / np.maximum(counts, 1)
    return means[task.query.items]


def biases(task: Task, shrinkage: Shrinkage, sweeps: int = 10) -> Floats:
    """Predict μ + b_i + b_u, fitted in turn by least squares with a penalty; [N of query]."""
    train, support, mean = task.train, task.support, task.mean
    rows, n_users = _owners(train), len(train.indptr) - 1
    user, item = np.zeros(n_users), np.zeros(task.n_items)
    for _ in range(sweeps):
        item = _shrunk(train.ratings - mean - user[rows], train.items, task.n_items, shrinkage.item)
        user = _shrunk(train.ratings - mean - item[train.items], rows, n_users, shrinkage.user)
    local = _shrunk(
        support.ratings - mean - item[support.items],
        _owners(support),
        len(support.indptr) - 1,
        shrinkage.user,
    )
    predicted: Floats = mean + item[task.query.items] + local[_owners(task.query)]
    return predicted


def least_squares(task: Task, how: LeastSquares, seed: int) -> Floats:
    """Predict μ + b_i + b_u + p_u·q_i; [N of query].

    Each side is solved with the other fixed, its bias together with its factors. The penalty of the factors
    grows with the number of ratings (Zhou et al., "Large-scale parallel collaborative filtering for the
    Netflix prize", 2008).
    """
    train, support, query, k = task.train, task.support, task.query, how.factors
    by_item = np.argsort(train.items, kind="stable")
    item_ends = np.searchsorted(train.items[by_item], np.arange(task.n_items + 1))
    user_of = _owners(train)[by_item]
    target = train.ratings - task.mean
    item = np.zeros((task.n_items, k + 1))
    item[:, :k] = stream(seed, "benchmark", "least-squares").normal(0, 0.1, (task.n_items, k))
    for _ in range(how.sweeps):
        user = _solve(item, train.items, train.indptr, target, how)
        item = _solve(user, user_of, item_ends, target[by_item], how)
    local = _solve(item, support.items, support.indptr, support.ratings - task.mean, how)
    u, i = local[_owners(query)], item[query.items]
    predicted: Floats = task.mean + np.sum(u[:, :k] * i[:, :k], axis=1) + u[:, k] + i[:, k]
    return predicted


def _solve(
    other: Floats,
    rows: npt.NDArray[np.integer],
    ends: Ints,
    target: npt.NDArray[np.floating],
    how: LeastSquares,
) -> Floats:
    """Return factors and bias of one side, [n, k + 1], given the ``other`` side's.

    The ratings of group j are those from ``ends[j]`` to ``ends[j + 1]``: ``rows`` of the other side and
    ``target``.
    """
    k, n = how.factors, len(ends) - 1
    gram, right = np.zeros((n, k + 1, k + 1)), np.zeros((n, k + 1))
    for j in range(n):
        part = slice(ends[j], ends[j + 1])
        design: Floats = other[rows[part]]
        right_hand = target[part] - design[:, k]
        design[:, k] = 1.0
        gram[j] = design.T @ design
        right[j] = right_hand @ design
    counts = np.diff(ends)
    diagonal = np.arange(k)
    gram[:, diagonal, diagonal] += how.weight * np.maximum(counts, 1)[:, None]
    gram[:, k, k] += how.bias
    return np.asarray(np.linalg.solve(gram, right[:, :, None])[:, :, 0], dtype=np.float64)


def _owners(batch: StoredRatings) -> Ints:
    return np.repeat(np.arange(len(batch.indptr) - 1), np.diff(batch.indptr))


def _shrunk(
    values: npt.NDArray[np.floating], groups: npt.NDArray[np.integer], n: int, shrink: float
) -> Floats:
    """Return the mean of each group's values as if it had ``shrink`` more zeros."""
    means: Floats = np.bincount(groups, values, n) / (np.bincount(groups, minlength=n) + shrink)
    return means
