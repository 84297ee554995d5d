"""Verdicts on thresholds for people and for files."""

from __future__ import annotations

import math
from typing import Any

from coordinator.scenario.threshold_evaluation import ThresholdResult

MISSING = "–"


def shown(result: ThresholdResult, value: float | None) -> str:
    """Return a figure of a verdict in the unit of its metric; a dash for None."""
    if value is None:
        return MISSING
    # A count has no unit, whatever the metric counts.
    return f"{value:g}" if result.threshold.aggregation == "count" else result.threshold.kind.show(value)


def shown_margin(result: ThresholdResult) -> str:
    """Return the distance from the limit with its sign, positive on the side that holds; a dash for none."""
    if result.margin is None:
        return MISSING
    sign = "-" if result.margin < 0 else "+"
    return sign + shown(result, abs(result.margin))


def record(result: ThresholdResult) -> dict[str, Any]:
    """Return a verdict as ``summary.json`` holds it.

    ``threshold`` as written; ``held``; ``reason`` why not, or null; ``observations``; ``value``, ``limit``
    and ``margin`` in base units, null where there is none or it is not finite; ``shown`` holds the three as
    people read them.
    """
    figures = {"value": result.value, "limit": result.limit, "margin": result.margin}
    return {
        "threshold": str(result.threshold),
        "held": result.held,
        "reason": result.reason,
        "observations": result.observations,
        **{
            name: value if value is not None and math.isfinite(value) else None
            for name, value in figures.items()
        },
        "shown": {
            "value": shown(result, result.value),
            "limit": shown(result, result.limit),
            "margin": shown_margin(result),
        },
    }
