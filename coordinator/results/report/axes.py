"""Scales of axes: from values to positions, with round numbers as ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.results.report.blocks import EXTENT, Axis
from coordinator.results.report.people import percent
from device_profiles.units import format_duration

Floats = npt.NDArray[np.float64]

_FARTHEST: Final = 1e300
"""What an axis reaches at most: the span between two such values is finite."""
_STEPS: Final = 6
"""Steps between ticks at most."""
_DURATIONS: Final = (
    (172_800.0, 86_400.0, "d"),
    (7_200.0, 3_600.0, "h"),
    (120.0, 60.0, "min"),
    (1.0, 1.0, "s"),
)
_SIZES: Final = tuple((2.0**power, 2.0**power, f"{prefix}B") for power, prefix in (
    (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki"), (0, "")
))  # fmt: skip

_ENERGIES: Final = ((2e6, 1e6, "MJ"), (2e3, 1e3, "kJ"), (1.0, 1.0, "J"))


@dataclass(frozen=True, slots=True)
class Scale:
    """A map from values to positions 0 … 1000, linear or logarithmic; it reaches to :data:`_FARTHEST`."""

    low: float
    high: float
    logarithmic: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", max(-_FARTHEST, min(self.low, _FARTHEST)))
        object.__setattr__(self, "high", max(-_FARTHEST, min(self.high, _FARTHEST)))
        if self.high <= self.low:
            object.__setattr__(self, "high", self.low + (abs(self.low) * 0.1 or 1.0))

    def __call__(self, values: Floats) -> Floats:
        """Return the positions of float64 [n]; a logarithmic scale begins at ``low``."""
        if self.logarithmic:
            low, high = math.log(self.low), math.log(self.high)
            inside = np.log(np.maximum(values, self.low))
        else:
            low, high, inside = self.low, self.high, values
        return np.asarray((inside - low) / (high - low) * EXTENT)

    def percent(self, value: float) -> float:
        """Return the position of one value in percent."""
        return float(self(np.array([value]))[0]) / EXTENT * 100


def _step(span: float, most: int = _STEPS) -> float:
    """Return 1, 2 or 5 times a power of ten, such that at most so many steps make the span."""
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _plain(value: float, step: float) -> str:
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{digits}f}" if abs(value) < 1e7 else f"{value:.3g}"


def from_zero(high: float) -> Scale:
    """Return a scale from 0 to a little above a value."""
    return Scale(0.0, high * 1.04 if high > 0 else 1.0)


def around(values: Floats) -> Scale:
    """Return a scale that holds values with room around them; zero is not on it unless it is near."""
    low, high = (max(-_FARTHEST, min(float(one), _FARTHEST)) for one in (values.min(), values.max()))
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room)


def number_axis(scale: Scale, label: str, *, whole: bool = False, most: int = _STEPS) -> Axis:
    """Return an axis of plain numbers, ``most`` steps at most; ``whole`` ones have no ticks between them."""
    step = _step(scale.high - scale.low, most)
    step = max(step, 1.0) if whole else step
    ticks = _multiples(scale.low, scale.high, step)
    return Axis(label, tuple((scale.percent(value), _plain(value, step)) for value in ticks))


def round_axis(first: npt.NDArray[np.int64]) -> Axis:
    """Return an axis of columns that each begin with a round, int64 [n]: ticks where a round number lies."""
    n, lowest, highest = len(first), int(first.min()), int(first.max())
    step = int(max(1.0, _step(float(highest - lowest + 1))))
    multiples = np.arange(-(-lowest // step) * step, highest + 1, step)
    columns = np.searchsorted(first, multiples, side="right") - 1
    ticks = zip(((columns + 0.5) / n * 100).tolist(), multiples.tolist(), strict=True)
    return Axis("round", tuple((at, f"{number:,}") for at, number in ticks))


def percent_axis(scale: Scale, label: str) -> Axis:
    """Return an axis of shares, 0 to 1."""
    ticks = _multiples(scale.low, scale.high, 0.25)
    return Axis(label, tuple((scale.percent(value), percent(value)) for value in ticks))


def _in_units(scale: Scale, label: str, units: tuple[tuple[float, float, str], ...], smallest: str) -> Axis:
    # The first that the axis reaches; below all of them, thousandths of the last.
    _, size, unit = next((row for row in units if scale.high >= row[0]), (0.0, units[-1][1] / 1000, smallest))
    small = Scale(scale.low / size, scale.high / size)
    return number_axis(small, f"{label} ({unit})")


def duration_axis(scale: Scale, label: str) -> Axis:
    """Return an axis of durations, all ticks in one unit on a linear scale."""
    if scale.logarithmic:
        return _log_axis(scale, label)
    return _in_units(scale, label, _DURATIONS, "ms")


def bytes_axis(scale: Scale, label: str) -> Axis:
    """Return an axis of sizes, all ticks in one unit."""
    return _in_units(scale, label, _SIZES, "B/1000")


def energy_axis(scale: Scale, label: str) -> Axis:
    """Return an axis of energies, all ticks in one unit."""
    return _in_units(scale, label, _ENERGIES, "mJ")


def _log_axis(scale: Scale, label: str) -> Axis:
    lowest, highest = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**power for power in range(lowest, highest + 1) for m in mantissas]
        ticks = [value for value in ticks if scale.low * 0.999 <= value <= scale.high * 1.001]
        if len(ticks) <= _STEPS:
            break
    return Axis(label, tuple((scale.percent(value), format_duration(value)) for value in ticks))


def duration_scale(values: Floats) -> Scale:
    """Return a scale for durations: logarithmic when the slowest are far from the usual ones."""
    positive = values[values > 0]
    if not positive.size:
        return Scale(0.0, 1.0)
    low, high = float(positive.min()), float(positive.max())
    if high / low >= 30:
        return Scale(low, high * 1.05, logarithmic=True)
    return from_zero(high)
