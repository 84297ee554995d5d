"""Thresholds watched while a run goes on, among them those that end it.

Each keeps its observations in the form that its aggregates need, so a round costs what the round itself
observed: nothing that has been written is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from coordinator.results.tables.metric_source import TableMetricSource, Values
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.scenario.threshold_evaluation import (
    MetricSource,
    ThresholdResult,
    baseline_figure,
    counted,
    judge,
    percentile,
)
from coordinator.scenario.thresholds import Threshold, percentile_of

_UNREAD: Final = "events"
"""No metric is read from this table, the largest of all."""


class RunningFigures:
    """The aggregates of a growing series of observations.

    Attributes
    ----------
    size : number of observations so far.
    """

    def __init__(self, *, percentiles: bool) -> None:
        self.size = 0
        self._percentiles = percentiles
        self._ordered: Values = np.empty(0)
        self._sum = 0.0
        self._lowest = self._highest = self._first = self._last = np.nan

    def add(self, values: Values) -> None:
        """Take float64 [n], later than all before."""
        if not values.size:
            return
        lowest, highest = float(values.min()), float(values.max())  # NaN if any is
        if not self.size:
            self._first, self._lowest, self._highest = float(values[0]), lowest, highest
        self._lowest = float(np.minimum(self._lowest, lowest))
        self._highest = float(np.maximum(self._highest, highest))
        self._last = float(values[-1])
        with np.errstate(over="ignore", invalid="ignore"):  # a sum of huge figures is infinite
            self._sum += float(values.sum())
        self.size += int(values.size)
        if self._percentiles:
            # Two ascending runs: the stable sort merges them in one pass.
            self._ordered = np.concatenate((self._ordered, np.sort(values)))
            self._ordered.sort(kind="stable")

    def figure(self, aggregation: str) -> float:
        """Return an aggregate, as :func:`~coordinator.scenario.threshold_evaluation.aggregate` defines it.

        Raises
        ------
        ValueError : an unknown aggregation.
        """
        percentage = percentile_of(aggregation)
        if percentage is not None:
            return percentile(self._ordered, percentage, ordered=True)
        match aggregation:
            case "count":
                return float(self.size)
            case "rate" | "mean":
                return self._sum / self.size
            case "min":
                return self._lowest
            case "max":
                return self._highest
            case "first":
                return self._first
            case "last":
                return self._last
        raise ValueError(f"unknown aggregation {aggregation!r}")


class WatchedThreshold:
    """A threshold, and what has been observed of its metric so far.

    Parameters
    ----------
    threshold : the promise.
    baseline : the metrics of the run without faults, where there is one.
    """

    def __init__(self, threshold: Threshold, baseline: MetricSource | None) -> None:
        self.threshold = threshold
        self.baseline = baseline_figure(threshold, baseline)
        asked = (threshold.aggregation, threshold.limit.relative_to)
        self.figures = RunningFigures(percentiles=any(_is_percentile(name) for name in asked))
        self.judged = 0
        """Observations at the last verdict; without new ones it stays what it was."""

    def verdict(self) -> ThresholdResult:
        """Return the verdict on what has been observed so far."""
        self.judged = self.figures.size
        return judge(self.threshold, self.figures.size, self.figures.figure, self.baseline)


def _is_percentile(name: str | None) -> bool:
    return name not in (None, "baseline") and percentile_of(str(name)) is not None


class WatchedThresholds:
    """Thresholds, and what has been observed of their metrics so far.

    Parameters
    ----------
    thresholds : promises.
    baseline : the metrics of the run without faults, where there is one.

    Attributes
    ----------
    each : in the order of ``thresholds``.
    """

    def __init__(self, thresholds: Iterable[Threshold], baseline: MetricSource | None) -> None:
        self.each = [WatchedThreshold(threshold, baseline) for threshold in thresholds]

    def take(self, table: str, batch: Any) -> None:
        """Record a ``pyarrow.RecordBatch`` that has been written to a table of the run."""
        if not self.each or table == _UNREAD:
            return
        source = TableMetricSource(_OneBatch(table, batch))
        for watched in self.each:
            threshold = watched.threshold
            values = source.values(threshold.metric, dict(threshold.tags))
            watched.figures.add(counted(threshold, values))


class ThresholdWatch:
    """Watches the thresholds with ``abort: true``.

    Parameters
    ----------
    thresholds : of the scenario; the others are left alone.
    baseline : the metrics of the run without faults, where there is one.

    Attributes
    ----------
    ended_by : the verdict that ended the run, None as long as none has.
    """

    def __init__(self, thresholds: Iterable[Threshold], baseline: MetricSource | None) -> None:
        self._watched = WatchedThresholds((one for one in thresholds if one.abort is not None), baseline)
        self.ended_by: ThresholdResult | None = None

    def __bool__(self) -> bool:
        """Return whether there is anything to watch."""
        return bool(self._watched.each)

    def take(self, table: str, batch: Any) -> None:
        """Record a ``pyarrow.RecordBatch`` that has been written to a table of the run."""
        self._watched.take(table, batch)

    def missed(self, rounds: int, now_s: float) -> ThresholdResult | None:
        """Return the first verdict that ends the run, or None.

        Parameters
        ----------
        rounds : rounds run so far.
        now_s : simulated time.

        A round is observed once the last of its devices is done. A metric that has not been observed yet ends
        nothing: whether it ever is, the end of the run will say.
        """
        for watched in self._watched.each:
            abort = watched.threshold.abort
            assert abort is not None
            early = rounds < abort.after_rounds or now_s < abort.after_s
            if early or watched.figures.size == watched.judged:
                continue
            verdict = watched.verdict()
            if not verdict.held:
                self.ended_by = verdict
                return verdict
        return None


class _OneBatch:
    """The tables of a run that holds one batch of one table."""

    def __init__(self, table: str, batch: Any) -> None:
        self._table = table
        self._rows = pa.Table.from_batches([batch])

    def read(self, table: str, columns: Sequence[str] | None = None) -> Any:
        """Return the batch, or an empty table of another name."""
        rows = self._rows if table == self._table else SCHEMAS[table].empty_table()
        return rows if columns is None else rows.select(list(columns))
