"""Counts by size, for figures of which there may be any number."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many values were at most as large as each of some bounds, and what they add up to.

    Parameters
    ----------
    bounds : ascending; what is above the last is counted, too.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each bound with the number of values at most as large, infinity last."""
        bounds = (*self.bounds, float("inf"))
        return list(zip(bounds, itertools.accumulate(self._counts), strict=True))
