"""What a robust rule makes of updates, worked out once more: coordinate by coordinate, from the definitions.

Slow and plain, in other steps than :mod:`coordinator.engine.aggregation`: distances are taken between
updates, and values are sorted one coordinate at a time. See there for the sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator.scenario.aggregation_section import KrumRule, MedianRule, TrimmedMeanRule
from edge.learning.updates import ITEMS, ROWS, Array
from edge.wire.messages import Report

Floats = npt.NDArray[np.float64]

_ROUNDING: Final = 1e-11
"""By how much scores of Krum may differ with the way in which they are worked out, relative to their size."""


class Taken(NamedTuple):
    """The updates that Krum takes, by their places; where rounding decides which, they are not ``sure``."""

    places: list[int]
    sure: bool


def single(report: Report) -> dict[str, npt.NDArray[Any]]:
    """Return an update divided by its weight, in its own dtype; one that weighs nothing as it is."""
    weight = report.weight if report.weight > 0 else 1.0
    arrays: dict[str, npt.NDArray[Any]] = {**report.arrays}
    with np.errstate(all="ignore"):
        return {
            name: array / array.dtype.type(weight) if array.dtype.kind == "f" else array
            for name, array in arrays.items()
        }


def coordinatewise(
    updates: Sequence[Mapping[str, Array]],
    shapes: Mapping[str, tuple[int, ...]],
    rule: MedianRule | TrimmedMeanRule,
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the median or trimmed mean of every coordinate, times the number of updates that have it.

    Parameters
    ----------
    updates : of one client each, none of them weighted.
    shapes : of the sum of each array, by name.
    rule : which of the two, and how many clients must have sent a row of a table.

    Returns
    -------
    The estimates, and how large the numbers are that they are means of, both by name.
    """
    found = {name: np.zeros((2, *shape)) for name, shape in shapes.items()}
    for name, total in found.items():
        if name != ROWS or not any(ITEMS in update for update in updates):
            values = np.array([update[name] for update in updates], np.float64)
            for place in np.ndindex(shapes[name]):
                total[(slice(None), *place)] = _middle(values[(slice(None), *place)], rule)
            continue
        for row in range(shapes[name][0]):
            sent = [update[ROWS][update[ITEMS] == row] for update in updates]
            values = np.concatenate(sent).astype(np.float64)
            if len(values) >= rule.min_senders:
                total[:, row] = np.transpose([_middle(column, rule) for column in values.T])
    estimates = {name: total[0] for name, total in found.items()}
    return estimates, {name: total[1] for name, total in found.items()}


def _middle(values: Floats, rule: MedianRule | TrimmedMeanRule) -> tuple[float, float]:
    """Return n times the mean of the n ``values`` without the largest and smallest, and of their sizes."""
    n = len(values)
    cut = (n - 1) // 2
    if isinstance(rule, TrimmedMeanRule):
        cut = min(math.ceil(rule.trim * n - 1e-9), cut)
    inner = np.sort(values)[cut : n - cut]
    with np.errstate(all="ignore"):
        return n * float(inner.mean()), n * float(np.abs(inner).mean())


def taken_by_krum(
    updates: Sequence[Mapping[str, Array]], shapes: Mapping[str, tuple[int, ...]], rule: KrumRule
) -> Taken:
    """Return which updates Krum takes; the arguments are those of :func:`coordinatewise`."""
    n = len(updates)
    flat = np.array([_flat(update, shapes) for update in updates])
    false = math.ceil(rule.attackers * n - 1e-9)
    kept = n - false if rule.rule == "multi-krum" else 1
    scores, room = np.zeros(n), np.zeros(n)
    with np.errstate(all="ignore"):
        for index, one in enumerate(flat):
            squares = np.square(np.delete(flat, index, axis=0) - one).sum(axis=1)
            scores[index] = np.sort(np.nan_to_num(squares, nan=np.inf))[: n - false - 2].sum()
            room[index] = _ROUNDING * (scores[index] + n * float(one @ one))
        order = np.argsort(scores, kind="stable")
        last, next_ = order[kept - 1], order[min(kept, n - 1)]
        sure = kept == n or bool(scores[next_] - scores[last] > room[next_] + room[last])
    return Taken(sorted(order[:kept].tolist()), sure)


def _flat(update: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> Floats:
    parts = []
    for name, shape in shapes.items():
        whole: Any = np.zeros(shape)
        whole[update[ITEMS] if name == ROWS and ITEMS in update else slice(None)] = update[name]
        parts.append(whole.ravel())
    return np.concatenate(parts)
