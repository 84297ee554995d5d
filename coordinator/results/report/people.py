"""Figures as people write them: three digits, shares in percent, their differences in percentage points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from coordinator.results.figures import show_estimate
from coordinator.scenario.metric_names import MetricKind
from device_profiles.units import format_bytes, format_duration

if TYPE_CHECKING:
    from coordinator.results.intervals import Estimate

UNITS: Final = {
    MetricKind.DURATION.value: "s",
    MetricKind.BYTES.value: "B",
    MetricKind.ENERGY.value: "J",
    MetricKind.NUMBER.value: "",
    MetricKind.SHARE.value: "%",
    MetricKind.EVENT.value: "%",
}
"""The unit of :func:`show` by the kind of a metric."""

_SPACE: Final = "\N{NO-BREAK SPACE}"
_ENERGIES: Final = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))


def show(value: float, unit: str) -> str:
    """Return a figure for people; ``unit`` is ``s``, ``B``, ``J``, ``%`` of a share 0 to 1, or nothing.

    Raises
    ------
    ValueError : another unit.
    """
    match unit:
        case "s":
            return format_duration(value).replace(" ", _SPACE)
        case "B":
            return format_bytes(value).replace(" ", _SPACE)
        case "J":
            return _energy(value)
        case "%":
            return percent(value)
        case "":
            return number(value)
    raise ValueError(f"unknown unit {unit!r}")


def shown(value: float | int | None, unit: str) -> str:
    """Return a figure for people, a whole number with all its digits; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,}" if unit == "" and isinstance(value, int) else show(float(value), unit)


def number(value: float) -> str:
    """Return a number to three digits: ``0.809``, ``12.3``, ``1,250``."""
    if not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share: ``8.5 %``, ``0.34 %``. What is not the whole is never shown as 100 %."""
    text = _tenths(share * 100)
    if text == "100" and share != 1:
        text = f"{share * 100:.6g}"
    return f"{text}{_SPACE}%"


def points(difference: float) -> str:
    """Return a difference of shares in percentage points: ``3.5 points``."""
    text = _tenths(difference * 100)
    return f"{text}{_SPACE}{'point' if text == '1' else 'points'}"


def _tenths(value: float) -> str:
    if not math.isfinite(value) or abs(value) >= 1e7:
        return f"{value:.3g}"
    return f"{value:,.1f}".removesuffix(".0") if abs(value) >= 1 else f"{value:.2g}"


def _energy(energy_j: float) -> str:
    size, unit = next((row for row in _ENERGIES if abs(energy_j) >= row[0] * 0.9995), (1.0, "J"))
    return f"{energy_j / size:.3g}{_SPACE}{unit}"


def interval(found: Estimate, unit: str) -> str:
    """Return mean and interval of a figure in the unit of a :class:`~coordinator.results.figures.Figure`.

    The mean alone has three digits; beside an interval it has as many as that tells.
    """
    if found.half_width is None:
        return show(found.mean, UNITS.get(unit, ""))
    return show_estimate(found, unit).replace("%", f"{_SPACE}%")


def figure(value: float | str | None) -> float | None:
    """Return a figure of a verdict as a number; None for none and for what is infinite."""
    return None if isinstance(value, str) else value


def verdict_texts(verdict: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return value, limit and margin of a verdict for people; the margin in words: ``3 s to spare``."""
    value, limit, margin = (figure(verdict[name]) for name in ("value", "limit", "margin"))
    if value is None or limit is None or margin is None:
        exact = verdict["shown"]
        return exact["value"], exact["limit"], exact["margin"]
    unit = UNITS[verdict["kind"]] if verdict["aggregation"] != "count" else ""
    texts = show(value, unit), show(limit, unit)
    if texts[0] == texts[1] and value != limit:
        texts = verdict["shown"]["value"], verdict["shown"]["limit"]
    if margin == 0:
        return *texts, "as promised" if verdict["operator"] == "==" else "at the limit"
    far = points(abs(margin)) if unit == "%" else show(abs(margin), unit)
    if verdict["held"]:
        return *texts, f"{far} to spare"
    return *texts, f"{far} {'over' if value > limit else 'short'}"
