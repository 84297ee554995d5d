"""What a tuning varies: keys of a scenario, each with a range or a list of values.

A range is text, ``10..100``, ``5 s..60 s`` or ``0.001..0.1 log``: two numbers with the same unit, both of
them within. Numbers that are written as whole ones give whole ones. A list is one of YAML, as in a sweep;
values that are numbers of one unit, in order, are taken for steps, any others for kinds.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from coordinator.scenario.merge import with_value
from device_profiles.documents import Document, Node
from device_profiles.errors import DocumentError, Path, Position, format_path
from device_profiles.quantities import quoted

__all__ = ["Point", "Space", "TunedKey", "ValueList", "ValueRange", "parse_key", "space_of"]

Floats: TypeAlias = npt.NDArray[np.float64]
Point: TypeAlias = tuple[float, ...]
"""A value for each axis: a number of a range, the index of a value in a list."""

_NUMBER: Final = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_END: Final = re.compile(rf"({_NUMBER})(\s*[^\s\d.]\S*)?")
_RANGE: Final = re.compile(r"(.*?)\.\.(.*?)(\s+log)?")
_WHOLE: Final = re.compile(r"[-+]?\d[\d_]*")
_EXAMPLE: Final = "write such as '10..100', '5 s..60 s', '0.001..0.1 log' or '[100%, 130%]'"
_STEPS: Final = 1000
"""Smallest number of steps into which rounding divides a range."""
_DIGITS: Final = 4
"""Significant digits of a value of a logarithmic range."""
_MOST_VALUES: Final = 1000
"""Values in a list."""
_FIXED: Final = {
    "sweep": "a tuning runs no sweep",
    "seed": "the seeds of the runs follow from the scenario's; --repeat 3 runs three of them",
    "format": "one format holds for the whole file",
    "extends": "what is extended has been read",
    "thresholds": "thresholds are what the settings are held to",
    "expect": "what is expected of a run holds for all of them",
    "baseline": "thresholds compare with it",
}
"""Keys that a tuning cannot vary, and why."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Numbers from ``low`` to ``high``, written with the text ``unit`` behind them."""

    low: float
    high: float
    unit: str
    whole: bool
    logarithmic: bool

    width = 1
    """Numbers by which a value is described to a model."""

    def at(self, part: float) -> float:
        """Return the value at a part of the range, 0 to 1: as :meth:`text` writes it."""
        if self.logarithmic:
            value = self.low * (self.high / self.low) ** part
        else:
            value = self.low + part * (self.high - self.low)
        return min(max(self._rounded(value), self.low), self.high)

    def _rounded(self, value: float) -> float:
        if self.whole:
            return float(round(value))
        if self.logarithmic:
            return float(f"{value:.{_DIGITS}g}")
        return round(value, max(0, math.ceil(-math.log10((self.high - self.low) / _STEPS))))

    def part(self, value: float) -> float:
        """Return where a value lies in the range, 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def describe(self, value: float) -> tuple[float, ...]:
        """Return the value for a model: [1], 0 to 1."""
        return (self.part(value),)

    def node(self, value: float) -> Node:
        """Return the value as a scenario has it."""
        return format(Decimal(f"{value:.0f}" if self.whole else repr(value)), "f") + self.unit

    def found(self, node: Node) -> float | None:
        """Return the value that a scenario has; None for one outside of the range, or of another unit."""
        match = _END.fullmatch(node.strip()) if isinstance(node, str) else None
        if match is None or (match[2] or "").strip() != self.unit.strip():
            return None
        value = float(match[1])
        return value if self.low <= value <= self.high and (value.is_integer() or not self.whole) else None

    @property
    def size(self) -> float:
        """How many values there are; infinite for other than whole numbers."""
        return self.high - self.low + 1.0 if self.whole else math.inf

    def every(self) -> tuple[float, ...]:
        """Return all values of a range of whole numbers."""
        return tuple(float(value) for value in range(int(self.low), int(self.high) + 1))

    def checks(self) -> tuple[float, ...]:
        """Return values by which it is seen whether the range can be meant."""
        return (self.low, self.high)

    def __str__(self) -> str:
        ends = f"{self.node(self.low)}..{self.node(self.high)}"
        return f"{ends} log" if self.logarithmic else ends


@dataclass(frozen=True, slots=True)
class ValueList:
    """One of several values; ``steps`` if they are numbers in order, otherwise each is of its own kind."""

    values: tuple[str, ...]
    """Each as JSON."""
    steps: bool

    @property
    def width(self) -> int:
        """Numbers by which a value is described to a model."""
        return 1 if self.steps else len(self.values)

    def at(self, part: float) -> float:
        """Return the index of the value at a part of the list, 0 to 1."""
        return float(min(int(part * len(self.values)), len(self.values) - 1))

    def part(self, value: float) -> float:
        """Return the middle of the part of the list that gives a value."""
        return (value + 0.5) / len(self.values)

    def describe(self, value: float) -> tuple[float, ...]:
        """Return the value for a model: [1] from 0 to 1 for steps; else [n], two values √½·√2 = 1 apart."""
        if self.steps:
            return (value / (len(self.values) - 1),)
        return tuple(math.sqrt(0.5) * (at == value) for at in range(len(self.values)))

    def node(self, value: float) -> Node:
        """Return the value as a scenario has it."""
        node: Node = json.loads(self.values[int(value)])
        return node

    def found(self, node: Node) -> float | None:
        """Return the index of the value that a scenario has; None for one that is not in the list."""
        text = _json(node)
        return float(self.values.index(text)) if text in self.values else None

    @property
    def size(self) -> float:
        """How many values there are."""
        return float(len(self.values))

    def every(self) -> tuple[float, ...]:
        """Return the indices of all values."""
        return tuple(float(at) for at in range(len(self.values)))

    def checks(self) -> tuple[float, ...]:
        """Return values by which it is seen whether the list can be meant: all."""
        return self.every()

    def __str__(self) -> str:
        return f"[{', '.join(self.values)}]"


def _json(node: Node) -> str:
    return json.dumps(node, ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class TunedKey:
    """A key that is varied.

    Attributes
    ----------
    name : the key, ``rounds.deadline``.
    path : the same, taken apart.
    values : what it may be.
    positions : where the key and its values are written.
    """

    name: str
    path: Path
    values: ValueRange | ValueList
    positions: tuple[Position, Position]

    def shown(self, value: float) -> str:
        """Return a value as one line of text."""
        node = self.values.node(value)
        if node is None:
            return "null"
        return node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Space:
    """All settings that a tuning can come to; at least one axis."""

    axes: tuple[TunedKey, ...]

    @property
    def size(self) -> float:
        """How many points there are; infinite where an axis has more than whole numbers."""
        return math.prod(axis.values.size for axis in self.axes)

    def every(self) -> Iterator[Point]:
        """Yield all points of a space that has a size."""
        yield from itertools.product(*(axis.values.every() for axis in self.axes))

    def at(self, parts: Sequence[float]) -> Point:
        """Return the point at parts of all axes, each 0 to 1."""
        return tuple(axis.values.at(part) for axis, part in zip(self.axes, parts, strict=True))

    def parts(self, point: Point) -> Floats:
        """Return where a point lies on each axis, float64 [axes] from 0 to 1."""
        return np.array([axis.values.part(value) for axis, value in zip(self.axes, point, strict=True)])

    def describe(self, points: Sequence[Point]) -> Floats:
        """Return points for a model, float64 [points, numbers]."""
        rows = [
            list(
                itertools.chain.from_iterable(
                    axis.values.describe(value) for axis, value in zip(self.axes, point, strict=True)
                )
            )
            for point in points
        ]
        return np.array(rows, dtype=np.float64)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers that describe a value, of each axis."""
        return tuple(axis.values.width for axis in self.axes)

    def settings(self, point: Point) -> tuple[tuple[str, str], ...]:
        """Return pairs of key and value, as text."""
        return tuple((axis.name, axis.shown(value)) for axis, value in zip(self.axes, point, strict=True))

    def nodes(self, point: Point) -> dict[Path, Node]:
        """Return the value of each key as a scenario has it."""
        return {axis.path: axis.values.node(value) for axis, value in zip(self.axes, point, strict=True)}

    def laid_over(self, document: Document, point: Point) -> Document:
        """Return a document with the settings of a point.

        Raises
        ------
        DocumentError : a key that leads through something that is no mapping or list.
        """
        for axis, value in zip(self.axes, point, strict=True):
            node = copy.deepcopy(axis.values.node(value))
            document = with_value(document, axis.path, node, axis.positions)
        return document


def space_of(axes: Sequence[TunedKey]) -> Space:
    """Return the space of axes.

    Raises
    ------
    DocumentError : one would overwrite another.
    """
    for at, axis in enumerate(axes):
        for other in axes[:at]:
            shared = min(len(axis.path), len(other.path))
            if axis.path[:shared] == other.path[:shared]:
                message = f"overwrites {quoted(other.name)}, which is varied, too; keep one"
                raise DocumentError(axis.positions[0], axis.path, message)
    return Space(tuple(axes))


def parse_key(path: Path, node: Node, positions: tuple[Position, Position]) -> TunedKey:
    """Return the axis that a key and a range or list are.

    Parameters
    ----------
    path : of the key.
    node : what is written behind it.
    positions : where both are.

    Raises
    ------
    DocumentError : what cannot be meant.
    """
    reason = _FIXED.get(str(path[0]))
    if reason is not None:
        raise DocumentError(positions[0], path, f"cannot be tuned: {reason}")
    try:
        values = _range(node) if isinstance(node, str) else _choice(node)
    except ValueError as error:
        raise DocumentError(positions[1], path, str(error)) from None
    return TunedKey(format_path(path), path, values, positions)


def _range(text: str) -> ValueRange:
    match = _RANGE.fullmatch(text.strip())
    first, last = (None, None) if match is None else (_END.fullmatch(match[at].strip()) for at in (1, 2))
    if match is None or first is None or last is None:
        raise ValueError(f"{quoted(text)} is neither a range nor a list; {_EXAMPLE}")
    units = [end[2] or "" for end in (first, last)]
    if units[0].strip() != units[1].strip():
        raise ValueError(f"the ends of {quoted(text)} have different units; write both in one")
    low, high = float(first[1]), float(last[1])
    if not low < high or not math.isfinite(high - low):
        raise ValueError(f"{quoted(text)} ends before it begins, or where; write the smaller number first")
    logarithmic = match[3] is not None
    if logarithmic and low <= 0:
        raise ValueError(f"{quoted(text)}: a logarithmic range begins above 0")
    whole = all(_WHOLE.fullmatch(end[1]) for end in (first, last))
    return ValueRange(low, high, units[0], whole, logarithmic)


def _choice(node: Node) -> ValueList:
    if not isinstance(node, list) or not 2 <= len(node) <= _MOST_VALUES:
        what = "a list of less than two values" if isinstance(node, list) and len(node) < 2 else "no list"
        if isinstance(node, list) and len(node) > _MOST_VALUES:
            what = f"a list of more than {_MOST_VALUES} values"
        raise ValueError(f"{what} where a range or a list of values belongs; {_EXAMPLE}")
    values = tuple(_json(one) for one in node)
    if len(set(values)) < len(values):
        raise ValueError("holds a value twice; keep one")
    return ValueList(values, _are_steps(node))


def _are_steps(nodes: Sequence[Node]) -> bool:
    ends = [_END.fullmatch(node.strip()) if isinstance(node, str) else None for node in nodes]
    known = [end for end in ends if end is not None]
    numbers = [float(end[1]) for end in known]
    units = {(end[2] or "").strip() for end in known}
    return len(known) == len(nodes) and len(units) == 1 and all(a < b for a, b in itertools.pairwise(numbers))
