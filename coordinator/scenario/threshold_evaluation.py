"""Whether the thresholds of a scenario held in a run."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.metric_names import MetricKind
from coordinator.scenario.thresholds import BASELINE, Threshold, percentile_of

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
    baseline : for a limit relative to the baseline, the same aggregate in the run without faults; None for
        any other limit, and when the metric was never observed there.
    implicit : every scenario promises it, or its ``expect`` does; nobody wrote it under ``thresholds``.
    """

    threshold: Threshold
    held: bool
    value: float | None
    limit: float | None
    margin: float | None
    observations: int
    reason: str | None
    baseline: float | None = None
    implicit: bool = False

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
        return percentile(values, percentage)
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


def percentile(values: Values, percentage: float, *, ordered: bool = False) -> float:
    """Return a percentile of float64 [n], n ≥ 1, as :func:`aggregate` defines it; NaN if any value is.

    Parameters
    ----------
    percentage : 0 to 100.
    ordered : the values are sorted, NaN last, and only two of them have to be looked at.
    """
    rank = (values.size - 1) * (percentage / 100)
    low = math.floor(rank)
    high, part = min(low + 1, values.size - 1), rank - low
    if not ordered:
        # The last place too: there a NaN is found.
        values = np.partition(values, (low, high, values.size - 1))
    if math.isnan(values[-1]):
        return math.nan
    below, above = float(values[low]), float(values[high])
    if part == 0 or below == above:
        return below
    if math.isinf(below) or math.isinf(above):
        return below * (1 - part) + above * part  # of infinities no difference is taken
    # From the nearer of the two, so that part = 1 would be exactly ``above`` (as numpy does it).
    return below + (above - below) * part if part < 0.5 else above - (above - below) * (1 - part)


def counted(threshold: Threshold, values: Values) -> Values:
    """Return the observations that a threshold is about: ``count`` counts events that happened."""
    return values[values != 0] if threshold.kind is MetricKind.EVENT and _counts(threshold) else values


def _counts(threshold: Threshold) -> bool:
    return threshold.aggregation == "count"


def baseline_figure(threshold: Threshold, baseline: MetricSource | None) -> float | None:
    """Return what a threshold's limit is a multiple of, from the run without faults.

    None for a threshold that does not compare with it, and without data.
    """
    if baseline is None or threshold.limit.relative_to != BASELINE:
        return None
    values = counted(threshold, baseline.values(threshold.metric, dict(threshold.tags)))
    if values.size == 0 and not _counts(threshold):
        return None
    return aggregate(values, threshold.aggregation)


@np.errstate(over="ignore", invalid="ignore")  # what huge figures add up to is infinite
def evaluate_one(threshold: Threshold, values: Values, baseline: float | None = None) -> ThresholdResult:
    """Return the verdict on one threshold.

    Parameters
    ----------
    threshold : the promise.
    values : the observations of its metric, float64 [n] in time order.
    baseline : the figure of :func:`baseline_figure`, for a limit relative to the baseline.

    No observations is no evidence, so every aggregation but ``count`` is then not held. Neither is one over a
    value that is not a number.
    """
    values = counted(threshold, values)
    return judge(threshold, int(values.size), lambda name: aggregate(values, name), baseline)


def judge(
    threshold: Threshold, size: int, figure: Callable[[str], float], baseline: float | None
) -> ThresholdResult:
    """Return the verdict on one threshold, given its ``size`` observations by their aggregates.

    Parameters
    ----------
    threshold : the promise.
    size : number of observations that :func:`counted` leaves.
    figure : returns an aggregate of them by its name.
    baseline : as for :func:`evaluate_one`.
    """
    limit = threshold.limit
    of_baseline = limit.relative_to == BASELINE
    if size == 0 and not (_counts(threshold) and limit.relative_to in (None, "count", BASELINE)):
        reason = "no data: the metric was never observed"
        return ThresholdResult(threshold, False, None, None, None, 0, reason, baseline)
    value = figure(threshold.aggregation)
    if of_baseline and baseline is None:
        reason = "no data: the metric was never observed in the baseline"
        return ThresholdResult(threshold, False, value, None, None, size, reason)
    bound = limit.value
    if of_baseline and baseline is not None:
        bound = limit.value * baseline
    elif limit.relative_to is not None:
        bound = limit.value * figure(limit.relative_to)
    if math.isnan(value) or math.isnan(bound):
        reason = "the metric was not a number (NaN) at least once"
        return ThresholdResult(threshold, False, value, bound, None, size, reason, baseline)
    held = _COMPARE[threshold.operator](value, bound)
    difference = value - bound
    # inf − inf: equal, so no distance.
    distance = 0.0 if value == bound else difference
    margin = {"<": -distance, ">": distance, "=": -abs(distance)}[threshold.operator[0]]
    why = None if held else _why(threshold, value, bound)
    return ThresholdResult(threshold, held, value, bound, margin, size, why, baseline)


def _why(threshold: Threshold, value: float, bound: float) -> str:
    shown, shown_bound = show(threshold, value), show(threshold, bound)
    if shown == shown_bound and not _counts(threshold):
        # Rounded alike, yet on the wrong side: show every digit.
        shown = f"{shown} (exactly {value!r})"
    if threshold.limit.relative_to is not None:
        return f"it was {shown}, the limit {shown_bound}"
    return f"it was {shown}"


def show(threshold: Threshold, value: float) -> str:
    """Return a figure of a threshold for people; a count has no unit, whatever the metric counts."""
    return f"{value:g}" if _counts(threshold) else threshold.kind.show(value)


def evaluate(
    thresholds: Iterable[Threshold], source: MetricSource, baseline: MetricSource | None = None
) -> tuple[ThresholdResult, ...]:
    """Return the verdict on every threshold, in their order.

    ``baseline`` holds the same metrics of the run without faults, where a threshold compares with it.
    """
    return tuple(
        evaluate_one(
            threshold,
            source.values(threshold.metric, dict(threshold.tags)),
            baseline_figure(threshold, baseline),
        )
        for threshold in thresholds
    )


def exit_code(results: Iterable[ThresholdResult]) -> ExitCode:
    """Return the exit code that a finished run earns."""
    return ExitCode.HELD if all(result.held for result in results) else ExitCode.THRESHOLD_MISSED
