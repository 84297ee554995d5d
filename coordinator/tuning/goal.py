"""The goal of a tuning: one figure of a run, to be made as small or as large as thresholds allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from coordinator.results.figures import TOTAL_FIGURES, Figure, of_json
from coordinator.results.sweep import Result
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import RunTables
from coordinator.scenario.errors import FieldProblemsError, did_you_mean
from coordinator.scenario.metric_names import MetricKind, find_metric
from coordinator.scenario.threshold_evaluation import aggregate
from coordinator.scenario.thresholds import check_aggregation, parse_metric
from edge.core.errors import RecfleetError

__all__ = ["Goal", "TuneError", "distances", "parse_goal"]

RAN: Final = "ran"
"""Called like a threshold: that a run was taken and learnt something."""


class TuneError(RecfleetError):
    """A tuning that cannot be done; the message says why, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure, and which way is better.

    Attributes
    ----------
    name : of the figure, as tables of sweeps have it: ``round.duration p95``, ``up bytes``.
    metric : the metric and tags whose observations are aggregated; None for a total of a run.
    aggregation : how.
    maximise : whether more is better.
    """

    name: str
    metric: tuple[str, tuple[tuple[str, str], ...]] | None
    aggregation: str
    maximise: bool

    def __str__(self) -> str:
        return f"{'maximise' if self.maximise else 'minimise'} {self.name}"

    def figure(self, result: Result, run: RunTables) -> Figure | None:
        """Return the figure of a finished run; None where nothing was observed, or what is no finite number.

        Parameters
        ----------
        result : of the run.
        run : its tables.
        """
        found = (result.figures or {}).get(self.name)
        if found is None and self.metric is not None:
            metric, tags = self.metric
            known = find_metric(metric)
            assert known is not None
            values = TableMetricSource(run).values(metric, dict(tags))
            if known.kind is MetricKind.EVENT and self.aggregation == "count":
                values = values[values != 0]
            if values.size:
                with np.errstate(over="ignore", invalid="ignore"):  # of huge figures
                    value = aggregate(values, self.aggregation)
                found = Figure(value, "count" if self.aggregation == "count" else known.kind.value)
        return found if found is not None and math.isfinite(found.value) else None

    def better(self, value: float, other: float) -> bool:
        """Return whether a value is better than another."""
        return value > other if self.maximise else value < other


def parse_goal(text: str, *, maximise: bool) -> Goal:
    """Return the goal that a text such as ``round.duration p95`` or ``simulated time`` names.

    Raises
    ------
    TuneError : there is no such figure, or it differs between equal runs.
    """
    name = " ".join(text.split())
    if name in TOTAL_FIGURES:
        return Goal(name, None, "", maximise)
    key, _, aggregation = name.rpartition(" ")
    try:
        metric, tags = parse_metric(key)
        found = find_metric(metric)
        assert found is not None
        check_aggregation(aggregation, found.kind)
    except FieldProblemsError as error:
        problem = error.problems[0]
        hint = did_you_mean(name, TOTAL_FIGURES) or problem.suggestion
        example = "write such as 'round.duration p95', 'model.rmse last' or 'simulated time'"
        raise TuneError(f"{text!r}: {problem.message}; {hint or example}") from None
    except ValueError as error:
        raise TuneError(f"{text!r}: {error}") from None
    if found.measured:
        raise TuneError(f"{text!r}: is measured on this host, and so differs between equal runs")
    tagged = f"{{{','.join(f'{tag}={value}' for tag, value in tags)}}}" if tags else ""
    return Goal(f"{metric}{tagged} {aggregation}", (metric, tags), aggregation, maximise)


def distances(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how far a run is from the limit of each of its thresholds, −1 to 1, positive where it holds.

    It is the difference of figure and limit by the sum of their sizes: of positive ones half of the logarithm
    of their ratio, through a hyperbolic tangent, so that twice and half are equally far. Without a
    difference it is 1 or −1; a figure exactly at its limit is on its side by a little.

    Parameters
    ----------
    verdicts : records of :func:`~coordinator.results.verdicts.verdict_record`.
    """
    return {record["threshold"]: _distance(record) for record in verdicts}


_LEAST: Final = 1e-6
"""Distance of what is at its limit."""


def _distance(record: Mapping[str, Any]) -> float:
    held = bool(record["held"])
    value, limit, margin = (_number(record[name]) for name in ("value", "limit", "margin"))
    sizes = abs(value) + abs(limit)
    if not math.isfinite(margin) or not math.isfinite(sizes):
        return 1.0 if held else -1.0
    distance = 0.0 if sizes == 0.0 else margin / sizes
    return max(distance, _LEAST) if held else min(distance, -_LEAST)


def _number(written: float | str | None) -> float:
    """Return a figure of a record; NaN for none."""
    return math.nan if written is None else float(of_json(written))
