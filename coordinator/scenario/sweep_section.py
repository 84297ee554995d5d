"""The section ``sweep``: settings to vary, and how often to repeat each combination of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from coordinator.scenario.errors import FieldProblem, FieldProblemsError
from coordinator.scenario.merge import parse_setting_path
from device_profiles.documents import Node
from device_profiles.errors import Path
from device_profiles.fields import Form, describe_value
from device_profiles.quantities import quoted

MAX_RUNS: Final = 10_000
"""Runs of one sweep, all cells and repeats."""

_REPEAT: Final = "repeat"
_CELLS: Final = "cells"
_EXAMPLE: Final = "write such as 'rounds.deadline: [30 s, 60 s]'"
_FIXED: Final = {
    "sweep": "a sweep cannot vary itself",
    "seed": "the seeds of the runs follow from the scenario's; write 'repeat: 5' for five of them",
    "format": "one format holds for the whole file",
}
"""Keys that no sweep can vary, and why."""


@dataclass(frozen=True, slots=True)
class SweptSetting:
    """A value to be laid over the scenario.

    Attributes
    ----------
    name : the path as written, ``rounds.deadline``.
    path : the same, taken apart.
    value : what to put there; None removes.
    place : where it was written, below ``sweep``.
    """

    name: str
    path: Path
    value: Any  # a Node; pydantic cannot describe a type that refers to itself
    place: Path

    @property
    def shown(self) -> str:
        """The value as one line of text."""
        value = self.value
        if value is None:
            return "null"
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep runs.

    Attributes
    ----------
    axes : what varies independently; each is its alternatives, and an alternative is settings that go
        together.
    repeat : runs of each cell, with the seeds seed, seed + 1, …
    written : the section as it was written.
    """

    axes: tuple[tuple[tuple[SweptSetting, ...], ...], ...]
    repeat: int
    written: dict[str, Any]

    def cells(self) -> Iterator[tuple[SweptSetting, ...]]:
        """Yield the settings of each cell; the last axis varies fastest."""
        for chosen in itertools.product(*self.axes):
            yield tuple(itertools.chain.from_iterable(chosen))


def parse_sweep(written: object) -> Sweep:
    """Return the sweep of a mapping from setting paths to lists of values.

    ``cells``, a list of mappings from paths to values, is one more axis: settings that vary together.

    Raises
    ------
    FieldProblemsError : whatever cannot be meant, each at its place.
    """
    if isinstance(written, Sweep):
        return written
    if not isinstance(written, dict) or not written:
        message = f"{describe_value(written)} where a mapping belongs; {_EXAMPLE}"
        raise FieldProblemsError(
            [FieldProblem((), message if written != {} else f"nothing is varied; {_EXAMPLE}")]
        )
    problems: list[FieldProblem] = []
    axes: list[tuple[tuple[SweptSetting, ...], ...]] = []
    repeat = 1
    for key, value in written.items():
        if key == _REPEAT:
            repeat = _repeat(value, problems)
        elif not isinstance(value, list) or not value:
            kind = "a list of mappings from settings to values" if key == _CELLS else "a list of values"
            found = "an empty list" if value == [] else describe_value(value)
            problems.append(FieldProblem((key,), f"{found} where {kind} belongs; write '[...]'"))
        elif key == _CELLS:
            axes.append(tuple(_cells(value, problems)))
        else:
            path = _path(key, (key,), problems)
            alternatives = enumerate(value)
            axes.append(tuple((SweptSetting(key, path, one, (key, index)),) for index, one in alternatives))
    problems += _overlaps(axes)
    sweep = Sweep(tuple(axes), repeat, written)
    runs = repeat
    for axis in axes:
        runs *= len(axis)
    if runs > MAX_RUNS and not problems:
        problems.append(FieldProblem((), f"{runs} runs are more than the limit; write {MAX_RUNS} or less"))
    if problems:
        raise FieldProblemsError(problems)
    return sweep


def _repeat(value: Node, problems: list[FieldProblem]) -> int:
    text = value.strip() if isinstance(value, str) else ""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_RUNS:
        return int(text)
    message = f"{describe_value(value)} is not a number of repeats; write 1 to {MAX_RUNS}"
    problems.append(FieldProblem((_REPEAT,), message))
    return 1


def _path(name: str, place: Path, problems: list[FieldProblem]) -> Path:
    path = parse_setting_path(name)
    if path is None:
        message = f"{quoted(name)} is not a setting; write it like 'rounds.cohort'"
        problems.append(FieldProblem(place, message, None, of_key=True))
        return ()
    reason = _FIXED.get(str(path[0]))
    if reason is not None:
        problems.append(FieldProblem(place, reason, None, of_key=True))
    return path


def _cells(value: list[Node], problems: list[FieldProblem]) -> Iterator[tuple[SweptSetting, ...]]:
    for index, cell in enumerate(value):
        here: Path = (_CELLS, index)
        if not isinstance(cell, dict) or not cell:
            message = f"{describe_value(cell)} where settings belong; write '{{rounds.cohort: 50}}'"
            problems.append(FieldProblem(here, message))
            continue
        yield tuple(
            SweptSetting(name, _path(name, (*here, name), problems), one, (*here, name))
            for name, one in cell.items()
        )


def _overlaps(axes: list[tuple[tuple[SweptSetting, ...], ...]]) -> Iterator[FieldProblem]:
    """Yield settings of which one would overwrite another of the same cell."""
    earlier: dict[str, SweptSetting] = {}
    for axis in axes:
        # By name: the values of a list share one.
        named = {setting.name: setting for alternative in reversed(axis) for setting in alternative}
        inside = (itertools.combinations(alternative, 2) for alternative in axis)
        pairs = itertools.chain(itertools.product(earlier.values(), named.values()), *inside)
        for other, setting in pairs:
            shared = min(len(setting.path), len(other.path))
            if shared > 0 and setting.path[:shared] == other.path[:shared]:
                place = setting.place if setting.place[0] == _CELLS else setting.place[:1]
                message = f"overwrites {quoted(other.name)} of the same sweep; keep one"
                yield FieldProblem(place, message, None, of_key=True)
        earlier |= named


_JSON_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "minProperties": 1,
    "properties": {
        _REPEAT: {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+$"}]},
        _CELLS: {"type": "array", "minItems": 1, "items": {"type": "object", "minProperties": 1}},
    },
    "additionalProperties": {"type": "array", "minItems": 1},
}


def _written(sweep: Sweep) -> Any:
    return sweep.written


SweepSection = Annotated[
    Sweep, Form("mapping from settings to lists of values", _written, parse_sweep, _JSON_SCHEMA)
]
