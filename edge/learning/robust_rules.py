"""Robust rules: what to take for the mean of updates of which some are false.

Sources: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
(ICML), definitions 1 and 2: the coordinate-wise median and trimmed mean. Blanchard et al. 2017, "Machine
Learning with Adversaries: Byzantine Tolerant Gradient Descent" (NeurIPS), section 3: Krum, and m-Krum.

Every update counts once, whatever it claims to weigh: a rule that believed weights would hand the median to
whoever claims the largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Median:
    """The middle one of the values of each coordinate, or the mean of the middle two."""

    def cut(self, clients: int) -> int:
        """Return how many of so many values are left out at either end."""
        return (clients - 1) // 2


@dataclass(frozen=True, slots=True)
class TrimmedMean:
    """The mean of the values of each coordinate without the smallest and the largest.

    ``trim`` is the share that is left out at either end, β; at least that many, and never all.
    """

    trim: float

    def cut(self, clients: int) -> int:
        """Return how many of so many values are left out at either end."""
        return min(share_of(self.trim, clients), (clients - 1) // 2)


Coordinatewise = Median | TrimmedMean


@dataclass(frozen=True, slots=True)
class Krum:
    """The updates that lie closest to the others; see :func:`krum_choice`.

    ``attackers`` is the share of false updates to withstand; with ``multi`` all but that many are taken, and
    one without.
    """

    attackers: float
    multi: bool

    def false(self, clients: int) -> int:
        """Return f, how many of so many updates may be false."""
        return share_of(self.attackers, clients)

    def kept(self, clients: int) -> int:
        """Return how many of so many updates are taken."""
        return clients - self.false(clients) if self.multi else 1


Rule = Median | TrimmedMean | Krum


def share_of(share: float, clients: int) -> int:
    """Return a share of so many clients, rounded up: 10 % of 30 are 3, of 31 are 4."""
    return math.ceil(share * clients - 1e-9)


def middle(values: Values, cut: int) -> Values:
    """Return the mean along the last axis without the ``cut`` smallest and the ``cut`` largest values.

    Parameters
    ----------
    values : floats [..., n], none of them NaN; sorted in place.
    cut : 0 … (n − 1) // 2; the latter gives the median.

    Returns
    -------
    Floats [...] of the same dtype. Values are added in the order of their size, so the bits do not depend on
    the order of the clients.
    """
    values.sort(axis=-1)
    inner = values[..., cut : values.shape[-1] - cut]
    # Divided first: the mean of two large values is no larger than they are.
    return np.asarray((inner / values.dtype.type(inner.shape[-1])).sum(axis=-1, dtype=values.dtype))


def krum_choice(gram: Matrix, false: int, kept: int) -> npt.NDArray[np.int64]:
    """Return which updates Krum takes, int64 [kept], increasing.

    The score of an update is the sum of its squared distances to the n − f − 2 others that are closest to it;
    the lowest scores are taken, the earlier update where two are alike.

    Parameters
    ----------
    gram : inner products of the updates, float64 [n, n].
    false : f, at most so many are false; 2·f + 2 < n.
    kept : how many to take.
    """
    n = len(gram)
    norms = np.diagonal(gram)
    with np.errstate(over="ignore", invalid="ignore"):
        distances = norms[:, None] + norms[None, :] - 2.0 * gram
        # Squares that overflow lie infinitely far from anything.
        np.copyto(distances, np.inf, where=~np.isfinite(distances))
        np.maximum(distances, 0.0, out=distances)
        np.fill_diagonal(distances, -1.0)  # first in its row, and left out
        distances.sort(axis=1)
        scores = distances[:, 1 : n - false - 1].sum(axis=1)
    return np.sort(np.argsort(scores, kind="stable")[:kept])
