"""Losses of scores on a device's ones and zeros, other than squared error, and their slopes.

With scores s of a user's examples, labels y (1 for a positive, 0 for a sampled negative) and, for losses that
compare, the negatives N(i) that belong to a positive i (:func:`partners`):

    cross-entropy     −y log σ(s) − (1 − y) log(1 − σ(s))               of every example
    bpr               −Σ_{j ∈ N(i)} log σ(s_i − s_j)                    of every positive
    sampled-softmax   −log( e^{s_i} / (e^{s_i} + Σ_{j ∈ N(i)} e^{s_j}) ) of every positive

A device's objective is the sum of these over the examples at hand, divided by their number, ones and zeros
alike, so that one learning rate means the same for all of them. Negatives are uniform over the catalogue, so
that the correction of a sampled softmax for how likely each was drawn is the same for all, and cancels.

Sources: He et al., "Neural Collaborative Filtering" (WWW 2017), equation 7; Rendle et al., "BPR: Bayesian
Personalized Ranking from Implicit Feedback" (UAI 2009), section 4; Jean et al., "On Using Very Large Target
Vocabulary for Neural Machine Translation" (ACL 2015), section 3.

Results of a user are bit-identical in every batch.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits
from edge.learning import layers
from edge.learning.method_settings import MiniBatches, Ridge

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
ScoreLoss = Literal["cross-entropy", "bpr", "sampled-softmax"]
Loss = Literal["squared-error", "cross-entropy", "bpr", "sampled-softmax"]

FLOPS_A_ROW: Final[dict[Loss, float]] = {
    "squared-error": 0.0, "cross-entropy": 12.0, "bpr": 14.0, "sampled-softmax": 14.0
}  # fmt: skip
"""Flops from a score to its slope beyond one subtraction: an exponential counts ten, all else one each."""
_PARTNER_SALT = 0x7061_7274_6E65_7201


class Labelled(NamedTuple):
    """What is known of some users' examples, one user after another.

    ``labels`` [R], 1 or 0; ``partner`` int64 [R], the place among its user's examples of the positive that an
    example belongs to, a positive to itself; −1 where the user has no positive.
    """

    labels: Floats
    partner: Ints

    def take(self, rows: Any) -> Labelled:
        """Return those of some rows, which must be all of the users that have any."""
        return Labelled(self.labels[rows], self.partner[rows])


def partners(indptr: Ints, labels: Floats, keys: npt.NDArray[np.uint64]) -> Ints:
    """Return the positive that each example belongs to, int64 [R]; see :class:`Labelled`.

    A user's negatives, in random order, are dealt to its positives in turn: each has the same number, give or
    take one.

    Parameters
    ----------
    indptr : int64 [n + 1].
    labels : [R].
    keys : uint64 [n], by which a user's negatives are shuffled.
    """
    counts = np.diff(indptr)
    owners = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(owners)) - np.repeat(indptr[:-1] - indptr[0], counts)
    positive = labels > 0
    positives = np.bincount(owners[positive], minlength=len(counts))
    found = np.where(positive, places, -1)
    first = np.cumsum(positives) - positives
    of_positives = places[positive]
    order = np.lexsort((hashed_bits(_PARTNER_SALT, np.repeat(keys, counts), places), positive, owners))
    negatives = order[~positive[order]]
    owner = owners[negatives]
    # Negatives come first among a user's examples in that order.
    turn = np.arange(len(negatives)) - np.searchsorted(owner, owner)
    known = positives[owner] > 0
    dealt = first[owner[known]] + turn[known] % positives[owner[known]]
    found[negatives[known]] = of_positives[dealt]
    return found


def check_steps(loss: Loss, **steps: object) -> None:
    """Check how a device fits parameters by ``loss``, by the name of the setting; None is not checked.

    Raises
    ------
    ValueError : another way than gradient steps on all examples, with another loss than squared error.
    """
    for key, method in steps.items():
        if loss != "squared-error" and isinstance(method, Ridge | MiniBatches):
            raise ValueError(
                f"'{loss}' goes down by gradient steps on all examples, and {key} is '{method.method}'; write"
                f" '{key}: {{method: gradient-steps, steps: 1}}' in learning, or leave 'loss' out"
            )


def log_odds(share: float) -> float:
    """Return log(share / (1 − share)), the score whose probability is ``share``.

    Raises
    ------
    ValueError : ``share`` is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"a loss of ones and zeros needs some of both; their mean is {share:g}")
    return float(np.log(share / (1 - share)))


def losses_and_slopes(
    loss: ScoreLoss, scores: Floats, examples: Labelled, counts: Ints
) -> tuple[Floats, Floats]:
    """Return the loss of every example, and its derivative by every score, both [R] of the scores' dtype.

    A loss of a positive beside its negatives stands at the positive, and is 0 at the negatives.

    Parameters
    ----------
    loss : which one.
    scores : [R].
    examples : of all rows of whole users.
    counts : int64 [n], rows of each user.
    """
    if loss == "cross-entropy":
        return (
            layers.cross_entropy(scores, examples.labels),
            layers.cross_entropy_backward(scores, examples.labels),
        )
    starts = np.cumsum(counts) - counts
    rows = np.arange(len(scores))
    partner = np.repeat(starts, counts) + examples.partner
    negative = rows[(examples.partner >= 0) & (partner != rows)]
    to = partner[negative]
    ahead = scores[to] - scores[negative]
    if loss == "bpr":
        # log(1 + e^−x) is the cross-entropy of σ(x) against 1.
        ones = np.ones_like(ahead)
        each = layers.cross_entropy(ahead, ones)
        slope = layers.cross_entropy_backward(ahead, ones)
        return _sums(to, each, scores), _sums(to, slope, scores) - _sums(negative, slope, scores)
    # Softmax of a positive and its negatives, less the largest of them.
    top = scores.copy()
    np.maximum.at(top, to, scores[negative])
    own = np.exp(scores - top)
    others = np.exp(scores[negative] - top[to])
    total = own + _sums(to, others, scores)
    slopes = np.zeros_like(scores)
    slopes[to] = own[to] / total[to] - scores.dtype.type(1)
    slopes[negative] = others / total[to]
    values = np.zeros_like(scores)
    values[to] = np.log(total[to]) + top[to] - scores[to]
    return values, slopes


def _sums(places: Ints, values: Floats, like: Floats) -> Floats:
    """Return the sum of ``values`` at each of their ``places``, of the shape and dtype of ``like``."""
    return np.asarray(np.bincount(places, values, minlength=len(like)), like.dtype)
