"""Verdicts on thresholds for people and machines: ``verdicts.json`` of a run, and what it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from coordinator.engine.run_files import VERDICTS
from coordinator.results.tables.reader import JsonShape, read_json
from coordinator.scenario.threshold_evaluation import ThresholdResult, show


def json_number(value: float | None) -> float | str | None:
    """Return a figure for JSON, which has no infinity but as a word and no NaN but as null."""
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else "infinite" if value > 0 else "-infinite"


def json_values(contents: Any) -> Any:
    """Return mappings and lists of figures for JSON, each float by :func:`json_number`."""
    if isinstance(contents, Mapping):
        return {key: json_values(value) for key, value in contents.items()}
    if isinstance(contents, list | tuple):
        return [json_values(value) for value in contents]
    return json_number(contents) if isinstance(contents, float) else contents


def shown(result: ThresholdResult, value: float | None) -> str:
    """Return a figure of a verdict in the unit of its metric; a dash for None."""
    return "–" if value is None else show(result.threshold, value)


def shown_margin(result: ThresholdResult) -> str:
    """Return the distance from the limit with its sign, positive on the side that holds; a dash for none."""
    if result.margin is None:
        return "–"
    sign = "-" if result.margin < 0 else "+"
    return sign + shown(result, abs(result.margin))


def verdict_record(result: ThresholdResult) -> dict[str, Any]:
    """Return a verdict as a mapping of JSON types.

    Figures are in base units (seconds, bytes, joules; a share or an event from 0 to 1); ``kind`` says which.
    ``measured`` says that the metric depends on this host, ``implicit`` that nobody wrote the threshold.
    ``margin`` is positive on the side that holds;
    ``baseline`` is set for a limit relative to the baseline. ``shown`` holds figures as people read them.
    """
    threshold = result.threshold
    return {
        "threshold": str(threshold),
        "key": threshold.key,
        "metric": threshold.metric,
        "tags": dict(threshold.tags),
        "aggregation": threshold.aggregation,
        "operator": threshold.operator,
        "kind": threshold.kind.value,
        "measured": threshold.measured,
        "implicit": result.implicit,
        "held": result.held,
        "value": json_number(result.value),
        "limit": json_number(result.limit),
        "baseline": json_number(result.baseline),
        "margin": json_number(result.margin),
        "observations": result.observations,
        "reason": result.reason,
        "shown": {
            "value": shown(result, result.value),
            "limit": shown(result, result.limit),
            "margin": shown_margin(result),
        },
    }


def verdict_records(results: Iterable[ThresholdResult]) -> list[dict[str, Any]]:
    """Return :func:`verdict_record` of each verdict."""
    return [verdict_record(result) for result in results]


class _Shown(JsonShape):
    value: str
    limit: str
    margin: str


JsonNumber: TypeAlias = float | Literal["infinite", "-infinite"] | None
"""A figure as :func:`json_number` writes it."""


class _Record(JsonShape):
    """What is read of a record of :func:`verdict_record`."""

    threshold: str
    key: str
    metric: str
    tags: dict[str, str]
    aggregation: str
    operator: str
    kind: str
    measured: bool
    implicit: bool = False  # those of an earlier version have none
    held: bool
    value: JsonNumber
    limit: JsonNumber
    baseline: JsonNumber
    margin: JsonNumber
    observations: int
    reason: str | None
    shown: _Shown


class _Verdicts(JsonShape):
    thresholds: list[_Record]


def read_verdicts(directory: Path) -> list[dict[str, Any]]:
    """Return the records in ``verdicts.json`` of a run directory; none of a run that was not judged.

    Raises
    ------
    RunFormatError : the file is damaged.
    """
    try:
        written = read_json(directory / VERDICTS, _Verdicts)
    except FileNotFoundError:
        return []
    return [{"implicit": False, **record} for record in written["thresholds"]]
