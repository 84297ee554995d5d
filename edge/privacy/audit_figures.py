"""What an audit found, for each user and over many: the form in which audits go into a run's tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edge.metrics.rating_errors import mean


class AuditMetric(NamedTuple):
    """A row for a run's tables: ``value`` over ``users`` users, without ``left_out`` others.

    The value is nan if there are no users.
    """

    name: str
    value: float
    users: int
    left_out: int


@dataclass(frozen=True, slots=True, eq=False)
class AuditFigure:
    """One figure of an audit for each user of a batch.

    Attributes
    ----------
    name : the metric's name, such as ``audit.recovery@0.5``.
    sums : float64[n], what was added up over a user's ratings.
    weights : int64[n], what it is divided by; 0 for a user that is left out.
    """

    name: str
    sums: npt.NDArray[np.float64]
    weights: npt.NDArray[np.int64]

    def per_user(self) -> npt.NDArray[np.float64]:
        """Return the figure of each user, float64[n]; nan for a user that is left out."""
        return mean(self.sums, self.weights)

    def metric(self, members: npt.NDArray[np.bool_] | None = None) -> AuditMetric:
        """Return the figure over all users, or over those with ``members`` (bool[n]) true.

        It is Σ sums / Σ weights: a user counts by its weight. The sum is exactly rounded, so the order of the
        users and how they were batched changes nothing.

        Raises
        ------
        ValueError
            when ``members`` is not bool[n].
        """
        sums, weights = self.sums, self.weights
        if members is not None:
            if members.shape != weights.shape or members.dtype != np.bool_:
                raise ValueError(f"members must be bool[{weights.size}], not {members.dtype} {members.shape}")
            sums, weights = sums[members], weights[members]
        weight = int(weights.sum())
        users = int(np.count_nonzero(weights))
        value = math.fsum(sums.tolist()) / weight if weight else math.nan
        return AuditMetric(self.name, value, users, weights.size - users)


def joined(figures: Sequence[AuditFigure]) -> AuditFigure:
    """Return one figure over the users of several batches, in that order.

    Raises
    ------
    ValueError
        when there is none, or they are of different metrics.
    """
    names = sorted({figure.name for figure in figures})
    if len(names) != 1:
        raise ValueError(f"figures of one metric can be joined, not of {names}")
    return AuditFigure(
        names[0],
        np.concatenate([figure.sums for figure in figures]),
        np.concatenate([figure.weights for figure in figures]),
    )
