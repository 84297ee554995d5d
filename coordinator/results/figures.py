"""The figures by which runs are compared: those of their thresholds, and some that every run has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordinator.results.analysis.learning_curves import AUDIT_PREFIX
from coordinator.results.tables.functions import call_function, rows_where
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import RunTables
from coordinator.scenario.metric_names import MetricKind, find_metric, higher_is_better
from coordinator.scenario.threshold_evaluation import aggregate

if TYPE_CHECKING:
    from coordinator.results.intervals import Estimate

_EVERY_RUN: Final = (
    ("round.completed", "rate"),
    ("round.duration", "p50"),
    ("round.duration", "p95"),
    ("device.completed", "rate"),
    ("device.wasted_work", "rate"),
    ("model.loss", "last"),
)
_TOTALS: Final = ("down_bytes", "up_bytes", "wasted_bytes")
_EPSILONS: Final = {"epsilon": "epsilon zero-out", "epsilon_replace_one": "epsilon replace-one"}
"""What the figures of these columns are called."""
TOTAL_FIGURES: Final = (
    *(f"{column.removesuffix('_bytes')} bytes" for column in _TOTALS),
    "energy",
    "simulated time",
    *_EPSILONS.values(),
)
"""Figures that are totals of a run."""
_ROUNDING: Final = 1e-9
"""A half width below this part of the mean is how numbers are rounded, and shown as 0."""
WORDS: Final = {"infinite": math.inf, "-infinite": -math.inf}
"""What stands for figures that JSON has no number for."""


def of_json(contents: Any) -> Any:
    """Return what ``json_values`` made JSON values of, words as infinite floats."""
    if isinstance(contents, dict):
        return {key: of_json(value) for key, value in contents.items()}
    if isinstance(contents, list):
        return [of_json(value) for value in contents]
    return WORDS.get(contents, contents) if isinstance(contents, str) else contents


class Figure(NamedTuple):
    """One figure of a run.

    Attributes
    ----------
    value : in base units: seconds, bytes, joules; a share from 0 to 1.
    unit : how to show it: a kind of metric, or ``count``.
    """

    value: float
    unit: str


def show(value: float, unit: str) -> str:
    """Return a figure for people."""
    return f"{value:.6g}" if unit == "count" else MetricKind(unit).show(value)


def show_estimate(found: Estimate, unit: str, *, signed: bool = False) -> str:
    """Return ``mean ± half width`` for people, to two digits of the half width; the mean alone without one.

    Parameters
    ----------
    found : the estimate.
    unit : of :class:`Figure`.
    signed : put a plus before a positive mean: it is a difference.
    """
    mean, half_width = found.mean, found.half_width
    if half_width is not None and half_width < _ROUNDING * abs(mean):
        half_width = 0.0
    elif half_width is not None and math.isfinite(half_width) and half_width > 0:
        digits = 1 - math.floor(math.log10(half_width))
        mean, half_width = round(mean, digits), round(half_width, digits)
    # Units are written of what is positive.
    sign = "-" if mean < 0 else "+" if signed and mean > 0 else ""
    shown = sign + show(abs(mean), unit)
    return shown if half_width is None else f"{shown} ± {show(half_width, unit)}"


def run_figures(run: RunTables, verdicts: Iterable[Mapping[str, Any]]) -> dict[str, Figure]:
    """Return the figures of a run by name, those of its thresholds first.

    A figure that could not be observed, is not a number, or was measured on this host is left out: what
    remains is equal for equal runs.

    Parameters
    ----------
    run : its tables.
    verdicts : records of its verdicts, from :func:`~coordinator.results.verdicts.read_verdicts`.
    """
    found: dict[str, Figure] = {}
    for name, figure in (
        *_of_thresholds(verdicts),
        *_of_tables(run),
        *_of_counter(run),
        *_of_values(run),
    ):
        if not math.isnan(figure.value):
            found.setdefault(name, figure)
    return found


def _of_thresholds(verdicts: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Figure]]:
    for record in verdicts:
        value = record["value"]
        if value is not None and not record["measured"] and not record["implicit"]:
            aggregation = record["aggregation"]
            unit = "count" if aggregation == "count" else record["kind"]
            yield f"{record['key']} {aggregation}", Figure(WORDS.get(value, value), unit)


def _of_counter(run: RunTables) -> Iterator[tuple[str, Figure]]:
    """Yield what a counter of drawn negatives reaches, in a run whose protocol leaks."""
    for name, value in ((run.manifest.get("negatives") or {}).get("counter") or {}).items():
        if value is not None:
            yield f"counter {name}", Figure(value, MetricKind.NUMBER.value)


def _of_values(run: RunTables) -> Iterator[tuple[str, Figure]]:
    """Yield the ε of the value of one rating, in a run whose method hides it."""
    hidden = run.manifest.get("value_privacy")
    if hidden is not None:
        yield "epsilon of a value", Figure(hidden["epsilon"], MetricKind.NUMBER.value)


def _of_tables(run: RunTables) -> Iterator[tuple[str, Figure]]:
    source = TableMetricSource(run)
    evaluations = run.read("evaluations", ["metric", "tag"])
    everyone = rows_where(evaluations, "tag", "all")["metric"].to_pylist()
    # Audits are named in full.
    evaluated = [
        name if name.startswith(AUDIT_PREFIX) else f"model.{name}" for name in dict.fromkeys(everyone)
    ]
    for metric, aggregation in (*_EVERY_RUN, *((name, "last") for name in evaluated)):
        values = source.values(metric, {})
        known = find_metric(metric)
        if values.size:
            unit = known.kind.value if known is not None else MetricKind.NUMBER.value
            yield f"{metric} {aggregation}", Figure(aggregate(values, aggregation), unit)
    yield from _of_selection(run, source)
    rounds = run.read("rounds", ["end_s", "energy_j", *_EPSILONS, *_TOTALS])
    if rounds.num_rows:
        for column in _TOTALS:
            total = float(_of_column("sum", rounds[column]))
            yield f"{column.removesuffix('_bytes')} bytes", Figure(total, MetricKind.BYTES.value)
        if not rounds["energy_j"].null_count:
            yield "energy", Figure(float(_of_column("sum", rounds["energy_j"])), MetricKind.ENERGY.value)
        yield "simulated time", Figure(_of_column("max", rounds["end_s"]), MetricKind.DURATION.value)
        for column, name in _EPSILONS.items():
            spent = _of_column("max", rounds[column])
            if spent is not None:
                yield name, Figure(float(spent), MetricKind.NUMBER.value)


def _of_column(aggregation: str, column: Any) -> Any:
    """Return the sum or the largest of a column; None where all of it is null."""
    return call_function(aggregation, [column]).as_py()


def _of_selection(run: RunTables, source: TableMetricSource) -> Iterator[tuple[str, Figure]]:
    """Yield the best value on validation ratings of the metric by which a run chose its round, if it did."""
    select = run.manifest.get("select")
    if select is None:
        return
    values = source.values(f"model.{select}", {"split": "validation"})
    if values.size:
        best = "max" if higher_is_better(select) else "min"
        name = f"model.{select}{{split=validation}} {best}"
        yield name, Figure(aggregate(values, best), MetricKind.NUMBER.value)
