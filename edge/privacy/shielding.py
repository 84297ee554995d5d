"""Whether a mask lets its device report in the clear: a judgement made on the device, from its own ratings.

Yang et al. 2021 ("Practical and Secure Federated Recommendation with Personalized Masks") let devices whose
mask protects them report in the clear, so that only the others bear the cost of secure aggregation. They
judge by J, :class:`IndicatorTest`. J bounds no attack; :class:`RecoveryTest` asks what one gets back.

A device judges the same ratings in the same way in every round: the judgement does not change, and cannot be
averaged out by asking again. What comes back for a user is bitwise the same whichever others were asked
about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.learning.base import WORK_KINDS, RatingBatch, Work, together
from edge.learning.fedrecon_kernels import split, support_sizes
from edge.learning.masks.base import FLOAT_BYTES, MaskModel
from edge.learning.updates import ClientUpdate
from edge.privacy.attacks import privacy_indicator, recovery_attack

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SCORING = WORK_KINDS.index("scoring")
_FLOPS_OF_RECOVERY = 10.0
"""Of one rating: two running extremes of ratings and of masked values, one guess, one comparison."""


class MaskedMethod(Protocol):
    """What shielding asks of a method that masks ratings, as FedMMF does.

    Attributes
    ----------
    mask : the kind of mask.
    features : of the items, float32 [items, d].
    """

    mask: MaskModel
    features: npt.NDArray[np.float32]

    def masked(self, batch: RatingBatch) -> RatingBatch:
        """Return the ratings of a batch less what each user's own mask predicts for them."""
        ...

    def mask_of(self, batch: RatingBatch, indptr: Counts, items: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return what masks fitted to ``batch`` predict for each user's list of ``items``, float32 [N]."""
        ...

    def summed(self, update: ClientUpdate) -> ClientUpdate:
        """Return a client's update as a secure sum takes it."""
        ...


class MaskTest(Protocol):
    """A test that a mask passes or not."""

    def passes(
        self, method: MaskedMethod, batch: RatingBatch, keys: npt.NDArray[np.uint64], scale: Floats
    ) -> Flags:
        """Return which users of a batch may report in the clear, bool [n].

        Parameters
        ----------
        method : whose masks are judged.
        batch : the ratings of n users.
        keys : uint64 [n], one random key a user, the same in every round.
        scale : float64 [v], the values that a rating can have, ascending, at least 2.
        """

    def work(self, method: MaskedMethod, examples: Counts) -> Work:
        """Return what judging costs users with this many ratings, int64 [n], beside their update."""


@dataclass(frozen=True, slots=True)
class IndicatorTest:
    """Passed if J is at most ``at_most`` on ratings that a second mask was not fitted to.

    The second mask is fitted to all but the share ``held_out`` of the user's ratings, one at least. A user
    with fewer than two has nothing to hold out, and does not pass.
    """

    at_most: float
    held_out: float

    def passes(
        self, method: MaskedMethod, batch: RatingBatch, keys: npt.NDArray[np.uint64], scale: Floats
    ) -> Flags:
        """Return which users pass, bool [n]; see :class:`MaskTest`."""
        rest, held = split(batch, keys, 1.0 - self.held_out)
        known, sound = _sound(held.indptr, method.mask_of(rest, held.indptr, held.items), held.ratings)
        figure = privacy_indicator(held.indptr, held.ratings, known, scale=scale)
        return sound & (np.diff(batch.indptr) >= 2) & (figure.per_user() <= self.at_most)

    def work(self, method: MaskedMethod, examples: Counts) -> Work:
        """Return the cost of the second fit, and of one product with the features of each held-out item."""
        d = method.features.shape[1]
        rest = support_sizes(examples, 1.0 - self.held_out)
        return together(method.mask.work(rest, d), _scoring((examples - rest).astype(np.float64), 2.0 * d, d))


@dataclass(frozen=True, slots=True)
class RecoveryTest:
    """Passed if the recovery attack gets back at most the share ``at_most`` within ``within_stars``.

    The attack is on all of the user's masked ratings, :func:`~edge.privacy.attacks.recovery_attack`. A user
    without ratings does not pass.
    """

    at_most: float
    within_stars: float

    def passes(
        self, method: MaskedMethod, batch: RatingBatch, keys: npt.NDArray[np.uint64], scale: Floats
    ) -> Flags:
        """Return which users pass, bool [n]; see :class:`MaskTest`."""
        masked, sound = _sound(batch.indptr, method.masked(batch).ratings, batch.ratings)
        audit = recovery_attack(
            batch.indptr, batch.ratings, masked, scale=scale, within_stars=self.within_stars
        )
        return sound & (audit.attack.per_user() <= self.at_most)

    def work(self, method: MaskedMethod, examples: Counts) -> Work:
        """Return the cost of a few passes over the masked ratings, which the update has made anyway."""
        return _scoring(examples.astype(np.float64), _FLOPS_OF_RECOVERY, 2)


def _sound(
    indptr: Counts, values: npt.NDArray[np.float32], instead: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], Flags]:
    """Return ``values`` with ``instead`` where not finite, and which users had none such, bool [n].

    A mask that has diverged is no reason to stop: its user does not pass.
    """
    finite = np.isfinite(values)
    if finite.all():
        return values, np.ones(len(indptr) - 1, dtype=np.bool_)
    owners = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    broken = np.bincount(owners[~finite], minlength=len(indptr) - 1) > 0
    return np.where(finite, values, instead), ~broken


def _scoring(rows: Floats, flops_a_row: float, numbers_a_row: int) -> Work:
    """Return the work of one pass over ``rows`` (float64 [n])."""
    n = len(rows)
    flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
    flops[:, _SCORING] = rows * flops_a_row
    moved[:, _SCORING] = rows * (numbers_a_row * FLOAT_BYTES)
    ops[:, _SCORING] = 1.0
    memory = np.ceil(rows * (numbers_a_row * FLOAT_BYTES)).astype(np.int64)
    return Work(flops, moved, ops, np.ones(n), memory)
