"""Whether the thresholds of a scenario held in a run."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from coordinator.exit_codes import ExitCode
from coordinator.scenario.metric_names import MetricKind
from coordinator.scenario.thresholds import Threshold, percentile_of

Values = npt.NDArray[np.float64]

_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


class MetricSource(Protocol):
    """Where the values of metrics come from."""

    def values(self, metric: str, tags: Mapping[str, str]) -> Values:
        """Return the observations of a metric in time order, float64 [n], in base units (SI, bytes, 0/1)."""
        ...


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    """The verdict on one threshold.

    Attributes
    ----------
    threshold : the promise.
    held : whether it was kept.
    value : the aggregate, in base units; None when there was nothing to aggregate.
    limit : what it was compared with, in base units; None as above.
    margin : distance from the limit in base units, positive on the side that holds; for ``==`` it is minus
        the distance. None as above.
    observations : number of values that were aggregated.
    reason : why it did not hold, or None when it did.
    """

    threshold: Threshold
    held: bool
    value: float | None
    limit: float | None
    margin: float | None
    observations: int
    reason: str | None

    def __str__(self) -> str:
        verdict = "held" if self.held else "MISSED"
        detail = f" ({self.reason})" if self.reason else ""
        return f"{verdict} {self.threshold}{detail}"


def aggregate(values: Values, aggregation: str) -> float:
    """Return one figure for the observations.

    ``rate`` is the mean of events (0 or 1); ``count`` is how many observations there are, and of events how
    often they happened (see :func:`evaluate`). A percentile ``pN`` interpolates linearly between the two
    closest ranks: with the n values sorted, it is the value at rank (n − 1)·N/100, counted from 0 (Hyndman
    and Fan 1996, "Sample Quantiles in Statistical Packages", definition 7; numpy's ``linear``).

    Parameters
    ----------
    values : float64 [n], in time order, n ≥ 1 unless the aggregation is ``count``.

    Raises
    ------
    ValueError : an unknown aggregation.
    """
    percentage = percentile_of(aggregation)
    if percentage is not None:
        return float(np.percentile(values, percentage, method="linear"))
    match aggregation:
        case "count":
            return float(values.size)
        case "rate" | "mean":
            # fsum: the same figure whatever numpy's summation order is on this machine.
            return math.fsum(values.tolist()) / values.size
        case "min":
            return float(values.min())
        case "max":
            return float(values.max())
        case "first":
            return float(values[0])
        case "last":
            return float(values[-1])
    raise ValueError(f"unknown aggregation {aggregation!r}")


def evaluate_one(threshold: Threshold, values: Values) -> ThresholdResult:
    """Return the verdict on one threshold, given the observations of its metric, float64 [n] in time order.

    No observations is no evidence, so every aggregation but ``count`` is then not held. Neither is one over a
    value that is not a number.
    """
    if threshold.kind is MetricKind.EVENT and threshold.aggregation == "count":
        values = values[values != 0]
    size = int(values.size)
    limit = threshold.limit
    if size == 0 and (threshold.aggregation != "count" or limit.relative_to not in (None, "count")):
        return ThresholdResult(
            threshold, False, None, None, None, 0, "no data: the metric was never observed"
        )
    value = aggregate(values, threshold.aggregation)
    bound = limit.value
    if limit.relative_to is not None:
        bound = limit.value * aggregate(values, limit.relative_to)
    if math.isnan(value) or math.isnan(bound):
        return ThresholdResult(
            threshold, False, value, bound, None, size, "the metric was not a number (NaN) at least once"
        )
    held = _COMPARE[threshold.operator](value, bound)
    difference = value - bound
    # inf − inf: equal, so no distance.
    distance = 0.0 if value == bound else difference
    margin = {"<": -distance, ">": distance, "=": -abs(distance)}[threshold.operator[0]]
    reason = None if held else _why(threshold, value, bound)
    return ThresholdResult(threshold, held, value, bound, margin, size, reason)


def _why(threshold: Threshold, value: float, bound: float) -> str:
    if threshold.aggregation == "count":
        return f"it was {value:g}"
    shown, shown_bound = threshold.kind.show(value), threshold.kind.show(bound)
    if shown == shown_bound:
        # Rounded alike, yet on the wrong side: show every digit.
        shown = f"{shown} (exactly {value!r})"
    if threshold.limit.relative_to is not None:
        return f"it was {shown}, the limit {shown_bound}"
    return f"it was {shown}"


def evaluate(thresholds: Iterable[Threshold], source: MetricSource) -> tuple[ThresholdResult, ...]:
    """Return the verdict on every threshold, in their order."""
    return tuple(
        evaluate_one(threshold, source.values(threshold.metric, dict(threshold.tags)))
        for threshold in thresholds
    )


def exit_code(results: Iterable[ThresholdResult]) -> ExitCode:
    """Return the exit code that a finished run earns."""
    return ExitCode.HELD if all(result.held for result in results) else ExitCode.THRESHOLD_MISSED
