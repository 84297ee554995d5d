"""Implicit feedback for methods of ratings: 1 for what a user took to, 0 for items sampled from the rest.

Squared error on ones and sampled zeros is how a factorisation learns to rank when nobody says what they
dislike. Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback Datasets" (ICDM 2008), weigh
all zeros; He et al., "Neural Collaborative Filtering" (WWW 2017), sample them, as here: the device draws
them anew every round, by the rules of :mod:`edge.learning.sampled_negatives`. A method sees ratings as ever.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.learning.base import RatingBatch
from edge.learning.sampled_negatives import draw_examples, negative_counts

Ints = npt.NDArray[np.int64]
_BEFORE_EVERYTHING = np.iinfo(np.int64).min


@dataclasses.dataclass(frozen=True, slots=True)
class ZeroOneBatch:
    """Ones and zeros of some users: a :class:`~edge.learning.base.RatingBatch`.

    ``indptr`` int64 [users + 1]; ``items`` integers [N], increasing within a user; ``ratings`` float32 [N];
    ``timestamps`` int64 [N] where the positives have them: a zero is older than all of them, so that whoever
    reads a user's last ratings reads ones first.
    """

    indptr: Ints
    items: npt.NDArray[Any]
    ratings: npt.NDArray[np.float32]
    timestamps: Ints | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ZeroOne:
    """How ones and zeros are made; see :func:`~edge.learning.sampled_negatives.negative_counts`.

    ``each`` zeros for every positive; ``n_items`` of the catalogue; ``kept_back``, the most that is kept back
    of any user.
    """

    each: int
    n_items: int
    kept_back: int

    def counts(self, positives: Ints) -> Ints:
        """Return how many ones and zeros users with so many positives have, int64 [n]."""
        return positives + negative_counts(
            positives, each=self.each, n_items=self.n_items, kept_back=self.kept_back
        )

    def mean(self, positives: Ints) -> float:
        """Return the mean of the ones and zeros of users with so many positives, int64 [n]; nan for none."""
        total = int(self.counts(positives).sum())
        return int(positives.sum()) / total if total else float("nan")

    def batch(self, positives: RatingBatch, keys: npt.NDArray[np.uint64]) -> ZeroOneBatch:
        """Return ones for ``positives``, and zeros that each user draws by its key, uint64 [users].

        What an :class:`~edge.learning.sampled_negatives.ImplicitBatch` keeps back is not drawn.
        """
        drawn = draw_examples(positives, keys, each=self.each, n_items=self.n_items, kept_back=self.kept_back)
        times: Ints | None = getattr(positives, "timestamps", None)
        if times is not None:
            # Positives are in the same order among the examples as alone.
            spread = np.full(len(drawn.items), _BEFORE_EVERYTHING)
            spread[drawn.positive] = times
            times = spread
        items = drawn.items.astype(positives.items.dtype)
        return ZeroOneBatch(drawn.indptr, items, drawn.positive.astype(np.float32), times)
