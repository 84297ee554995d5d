"""Divergence of a model: a metric that is not finite, or ten times worse than before the first round.

Where less is better (errors, losses), that is more than ten times the first value. Where more is better
(rankings, accuracy), values lie between 0 and 1, so it is less than a tenth of the first; and since a few
hits come and go by chance, only where the first stood for at least ten users' worth of them: of ten expected
hits, one or none is left by chance once in two thousand times (Poisson).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import MetricValue
from coordinator.scenario.metric_names import higher_is_better, is_accuracy

TIMES_WORSE: Final = 10
_FEWEST_HITS: Final = 10


def worst_value(first: float, users: int, *, more_is_better: bool) -> float | None:
    """Return the value ten times worse than the ``first`` of a metric; None where that says nothing.

    ``users`` is the number that were evaluated.
    """
    if not np.isfinite(first) or first <= 0:
        return None
    if more_is_better:
        return first / TIMES_WORSE if first * users >= _FEWEST_HITS else None
    return first * TIMES_WORSE


def diverged(
    values: npt.NDArray[np.float64], worst: float | None, *, more_is_better: bool
) -> npt.NDArray[np.bool_]:
    """Return which values are not finite or worse than ``worst``, bool [n]."""
    bad = ~np.isfinite(values)
    if worst is not None:
        bad |= values < worst if more_is_better else values > worst
    return bad


def has_run_away(first: Iterable[MetricValue], now: Iterable[MetricValue]) -> bool:
    """Return whether a metric of all users has diverged since the ``first`` evaluation."""
    before = {(one.metric, one.split, one.population): one.value for one in first if one.tag == "all"}
    for one in now:
        key = (one.metric, one.split, one.population)
        if one.tag == "all" and key in before and is_accuracy(one.metric):
            better = higher_is_better(one.metric)
            worst = worst_value(before[key], one.users, more_is_better=better)
            if diverged(np.array([one.value]), worst, more_is_better=better)[0]:
                return True
    return False
