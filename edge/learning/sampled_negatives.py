"""Examples of implicit feedback: what a user took to, and items sampled from what it did not.

A device draws as many items as it has positives times a number, all different, uniformly from the catalogue
less its positives and less what is kept back for testing. No item is two examples of a device, so the rows
that it trains are as many as its examples, a number that follows from how many positives it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits
from edge.learning.base import RatingBatch, Ratings

NEGATIVES_DRAW = 3
"""What a method's draw under a client's key is for; the order of mini-batches has another number."""
_DRAW_SALT = 0x6E65_6761_7469_7601
_RANK_SALT = 0x6E65_6761_7469_7602
_CELLS_AT_ONCE = 1 << 22
_NEVER = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
Ints = npt.NDArray[np.int64]
_BEFORE_EVERYTHING = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class ImplicitBatch:
    """A :class:`~edge.learning.base.RatingBatch` that also says what must not be sampled as a negative.

    ``kept_indptr`` int64 [users + 1] and ``kept_items`` integers, increasing within a user: what is kept back
    of each user for validation and test. ``timestamps`` int64 [N], where they are known and asked for.
    """

    indptr: Ints
    items: npt.NDArray[Any]
    ratings: npt.NDArray[np.float32]
    kept_indptr: Ints
    kept_items: npt.NDArray[Any]
    timestamps: Ints | None = None


class Examples(NamedTuple):
    """Examples of some users, one user after another."""

    indptr: Ints
    """int64 [users + 1]."""
    items: Ints
    """int64 [R], increasing within a user."""
    positive: npt.NDArray[np.bool_]
    """[R]; the others are sampled negatives."""

    def zero_one(self) -> Ratings:
        """Return them as ratings: ones for positives, zeros for sampled negatives."""
        return Ratings(self.indptr, self.items, self.positive.astype(np.float32))


def negative_counts(positives: Ints, *, each: int, n_items: int, kept_back: int) -> Ints:
    """Return how many negatives users with so many positives draw, int64 [n].

    ``each`` for every positive, unless the catalogue less the positives and ``kept_back``, the most that is
    kept back of any user, has fewer.
    """
    return np.clip(n_items - positives - kept_back, 0, each * positives)


def draw_examples(
    batch: RatingBatch, keys: npt.NDArray[np.uint64], *, each: int, n_items: int, kept_back: int
) -> Examples:
    """Draw the negatives of every user and lay positives and negatives out together.

    Parameters
    ----------
    batch : positives; what an :class:`ImplicitBatch` keeps back is not drawn.
    keys : uint64 [users]; all draws of a user come from its own.
    each, n_items, kept_back : see :func:`negative_counts`.
    """
    positives = np.diff(batch.indptr)
    users = len(positives)
    wanted = negative_counts(positives, each=each, n_items=n_items, kept_back=kept_back)
    taken = np.repeat(np.arange(users), positives) * n_items + batch.items.astype(np.int64)
    barred, barred_counts = taken, positives
    if isinstance(batch, ImplicitBatch):
        kept = np.diff(batch.kept_indptr)
        codes = np.repeat(np.arange(users), kept) * n_items + batch.kept_items.astype(np.int64)
        barred = np.sort(np.concatenate([taken, codes]))
        barred_counts = positives + kept
    drawn = _drawn(wanted, barred, barred_counts, keys, n_items)
    codes = np.concatenate([taken, drawn])
    order = np.argsort(codes, kind="stable")
    indptr = np.zeros(users + 1, dtype=np.int64)
    np.cumsum(positives + wanted, out=indptr[1:])
    codes = codes[order]
    items = codes - np.repeat(np.arange(users) * n_items, np.diff(indptr))
    return Examples(indptr, items, order < len(taken))


def _drawn(
    wanted: Ints, barred: Ints, barred_counts: Ints, keys: npt.NDArray[np.uint64], n_items: int
) -> Ints:
    """Return user · n_items + item of ``wanted`` distinct items a user that are not in ``barred``."""
    free = n_items - barred_counts
    # Drawing and throwing away what is barred or came before is cheap while most of the catalogue is free.
    by_draws = wanted * 3 <= free
    draws = np.where(by_draws, wanted + wanted * (n_items - free + wanted) // np.maximum(free, 1) + 16, 0)
    owners = np.repeat(np.arange(len(wanted)), draws)
    starts = np.cumsum(draws) - draws
    places = np.arange(len(owners)) - np.repeat(starts, draws)
    numbers = hashed_bits(_DRAW_SALT, np.repeat(keys, draws), places) % np.uint64(n_items)
    codes = owners * n_items + numbers.astype(np.int64)
    _, first = np.unique(codes, return_index=True)
    fresh = np.zeros(len(codes), dtype=np.bool_)
    fresh[first] = True
    if len(barred):
        position = np.minimum(np.searchsorted(barred, codes), len(barred) - 1)
        fresh &= barred[position] != codes
    before = np.zeros(len(codes) + 1, dtype=np.int64)
    np.cumsum(fresh, out=before[1:])
    of_user = before[starts + draws] - before[starts]
    rank = before[:-1] - np.repeat(before[starts], draws)
    enough = by_draws & (of_user >= wanted)
    chosen = fresh & (rank < np.repeat(np.where(enough, wanted, 0), draws))
    rest = np.flatnonzero(~enough & (wanted > 0))
    return np.concatenate([codes[chosen], *_ranked(rest, wanted, barred, keys, n_items)])


def _ranked(
    users: Ints, wanted: Ints, barred: Ints, keys: npt.NDArray[np.uint64], n_items: int
) -> list[Ints]:
    """Return the free items with the smallest random numbers, for users that want much of the catalogue."""
    found: list[Ints] = []
    items = np.arange(n_items)
    rows = max(1, _CELLS_AT_ONCE // n_items)
    for start in range(0, len(users), rows):
        part = users[start : start + rows]
        numbers = hashed_bits(_RANK_SALT, keys[part, None], items[None, :])
        first, end = np.searchsorted(barred, part * n_items), np.searchsorted(barred, (part + 1) * n_items)
        for row, user in enumerate(part.tolist()):
            numbers[row, barred[first[row] : end[row]] - user * n_items] = _NEVER
            smallest = np.argpartition(numbers[row], wanted[user] - 1)[: wanted[user]]
            found.append(user * n_items + smallest)
    return found


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class ZeroOne:
    """Implicit feedback for methods of ratings: 1 for a positive, 0 for items sampled from the rest.

    Squared error on ones and sampled zeros is how a factorisation learns to rank when nobody says what they
    dislike. Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback Datasets" (ICDM 2008),
    weigh all zeros; He et al., "Neural Collaborative Filtering" (WWW 2017), sample them, as here: the device
    draws them anew every round (:func:`negative_counts`). A method sees ratings as ever.

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

    def examples(self, positives: RatingBatch, keys: npt.NDArray[np.uint64]) -> Examples:
        """Return ``positives`` and the negatives that each user draws by its key, uint64 [users]."""
        return draw_examples(positives, keys, each=self.each, n_items=self.n_items, kept_back=self.kept_back)

    def mean(self, positives: Ints) -> float:
        """Return the mean of the ones and zeros of users with so many positives, int64 [n]; nan for none."""
        total = int(self.counts(positives).sum())
        return int(positives.sum()) / total if total else float("nan")

    def batch(self, positives: RatingBatch, keys: npt.NDArray[np.uint64]) -> ZeroOneBatch:
        """Return ones for ``positives``, and zeros that each user draws by its key, uint64 [users].

        What an :class:`ImplicitBatch` keeps back is not drawn.
        """
        drawn = self.examples(positives, keys)
        times: Ints | None = getattr(positives, "timestamps", None)
        if times is not None:
            # Positives are in the same order among the examples as alone.
            spread = np.full(len(drawn.items), _BEFORE_EVERYTHING)
            spread[drawn.positive] = times
            times = spread
        items = drawn.items.astype(positives.items.dtype)
        return ZeroOneBatch(drawn.indptr, items, drawn.positive.astype(np.float32), times)
