"""From what pydantic found to errors with a place, a path and a hint."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from coordinator.scenario.errors import FieldProblem, FieldProblemsError, did_you_mean
from coordinator.scenario.model import (
    MadeWhenAsked,
    Registered,
    Shape,
    field_shape,
    item_shape,
    words_of,
)
from coordinator.scenario.sections import FORMAT
from device_profiles.errors import Path
from device_profiles.fields import TEXT_TAG, Choice, describe_value
from edge.core.plugins import ADVICE


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[FieldProblem]:
    """Return every problem in ``error``, raised by ``model``, with paths from the root of the document."""
    found: list[FieldProblem] = []
    for detail in error.errors(include_url=False):
        path, shape, parent = locate(model, detail["loc"])
        found += _problems(detail, path, shape, parent)
    return found


def locate(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[Path, Shape, Shape]:
    """Return the path of a pydantic location, what may stand there, and what may stand around it.

    A pydantic location also names the alternative of every choice on its way; a path does not.
    """
    shape = parent = Shape(model)
    path: list[int | str] = []
    for part in location:
        if shape.choice is not None and part in (TEXT_TAG, *shape.choice.sections):
            section = shape.choice.sections.get(str(part))
            shape = Shape(section) if section is not None else Shape(str)
            continue
        if part == "[key]":
            continue
        parent = shape
        path.append(part)
        section = shape.section
        if section is None:
            shape = item_shape(shape)
        elif part in section.model_fields:
            shape = field_shape(section, str(part))
        else:
            shape = Shape(object)
    return tuple(path), shape, parent


def _problems(detail: ErrorDetails, path: Path, shape: Shape, parent: Shape) -> list[FieldProblem]:
    kind = detail["type"]
    value = detail["input"]
    if kind == "extra_forbidden":
        return [_unknown_key(path, parent, value)]
    if kind == "missing":
        return [FieldProblem(path, _missing(path, shape))]
    if kind in ("union_tag_not_found", "union_tag_invalid") and shape.choice is not None:
        return [_no_alternative(path, shape.choice, value)]
    if kind == "value_error":
        cause = detail["ctx"]["error"]
        if isinstance(cause, FieldProblemsError):
            return [problem._replace(path=(*path, *problem.path)) for problem in cause.problems]
        return [FieldProblem(path, str(cause))]
    if kind == "literal_error":
        words = words_of(shape)
        hint = did_you_mean(str(value), words)
        return [FieldProblem(path, f"{describe_value(value)} is none of: {', '.join(words)}", hint)]
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return [
            FieldProblem(path, f"{describe_value(value)} where a mapping belongs; write 'key: value' lines")
        ]
    if kind in ("tuple_type", "list_type"):
        return [FieldProblem(path, f"{describe_value(value)} where a list belongs; write '[...]'")]
    message = detail["msg"]
    return [FieldProblem(path, f"{describe_value(value)}: {message[:1].lower()}{message[1:]}")]


def _unknown_key(path: Path, parent: Shape, value: object) -> FieldProblem:
    key = str(path[-1])
    known = list(parent.section.model_fields) if parent.section is not None else []
    if len(path) == 1:
        known.append("extends")
    hint = did_you_mean(key, known, listed="known keys")
    # A key with settings below it may be meant for a plug-in.
    if parent.extra(MadeWhenAsked) is not None and isinstance(value, dict):
        hint = f"{hint}{'' if str(hint).endswith('?') else ';'} or {ADVICE}"
    return FieldProblem(path, "unknown key", hint, of_key=True)


def _missing(path: Path, shape: Shape) -> str:
    name = path[-1]
    if shape.choice is not None:
        first = next(iter(shape.choice.sections))
        return f"missing; write '{name}:' with '{shape.choice.key}: {first}' or another below it"
    if name == "format":
        return f"missing; write 'format: {FORMAT}'"
    words = words_of(shape)
    if words:
        return f"missing; write '{name}: {words[0]}'" + (" or another" if len(words) > 1 else "")
    return f"missing; write '{name}:'" if shape.section is not None else f"missing; write '{name}: ...'"


def _no_alternative(path: Path, choice: Choice, value: Any) -> FieldProblem:
    names = list(choice.sections)
    listed = f"one of: {', '.join(names)}"
    if not isinstance(value, dict):
        return FieldProblem(
            path,
            f"{describe_value(value)} where a mapping belongs; write '{choice.key}: {names[0]}' below it",
        )
    if value.get(choice.key) is None:
        return FieldProblem((*path, choice.key), f"missing; write {listed}")
    written = value[choice.key]
    if isinstance(choice, Registered):
        hint: str | None = choice.hint(str(written))
    else:
        hint = did_you_mean(str(written), names)
    return FieldProblem((*path, choice.key), f"{describe_value(written)} is not {listed}", hint)
