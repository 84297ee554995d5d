"""How well somebody who sees a device's upload tells the items that its user rated from the others in it.

FedRec (Lin et al. 2021, see :mod:`edge.learning.methods.fedrec`) names unrated items in an upload beside the
rated ones. The audit grants the attacker the number of rated items, which follows from ρ, and lets it take
that many: those of highest score. Scores are whatever it sees: how large an item's row is, or in how many
uploads an item was.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.privacy.attacks import AuditFigure

Ints = npt.NDArray[np.int64]


class RatedSetAudit(NamedTuple):
    """Share of the rated items found: by the attack, and by chance among the items of the upload."""

    attack: AuditFigure
    chance: AuditFigure


def rated_set_attack(indptr: Ints, scores: npt.NDArray[Any], rated: npt.NDArray[np.bool_]) -> RatedSetAudit:
    """Take each user's items of highest score for the rated ones, as many as there are, and count the hits.

    Among items of one score the guess is expected to be as good as chance; nothing is drawn at random.
    Figures weigh a user by its rated items; one without any is left out.

    Parameters
    ----------
    indptr : int64[n + 1], where each user's items start and end.
    scores : float[N], finite.
    rated : bool[N], whether the user rated the item.

    Raises
    ------
    ValueError
        for shapes that do not fit, or a score that is nan or infinite.
    """
    total = int(indptr[-1])
    if scores.shape != (total,) or rated.shape != (total,):
        raise ValueError(f"indptr ends at {total}, scores are {scores.shape}, rated {rated.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("a score is not finite")
    n = len(indptr) - 1
    hits, by_chance = np.zeros(n), np.zeros(n)
    wanted = np.zeros(n, np.int64)
    for user in range(n):
        part = slice(int(indptr[user]), int(indptr[user + 1]))
        score, truth = scores[part], rated[part]
        number = wanted[user] = int(np.count_nonzero(truth))
        if number == 0:
            continue
        least = np.partition(score, len(score) - number)[len(score) - number]
        above, level = score > least, score == least
        free = number - np.count_nonzero(above)
        hits[user] = np.count_nonzero(truth & above)
        hits[user] += free * np.count_nonzero(truth & level) / np.count_nonzero(level)
        by_chance[user] = number * number / len(score)
    return RatedSetAudit(
        AuditFigure("audit.rated_set", hits, wanted),
        AuditFigure("audit.rated_set_chance", by_chance, wanted),
    )
