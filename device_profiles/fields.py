"""Field types of everything read from YAML: pydantic types over :mod:`device_profiles.units`.

Every scalar of a document arrives as text, exactly as it was written, and these types give it its meaning.
A type whose text carries a unit accepts text only, so a bare number can never pass for seconds or bytes; a
type without a unit also accepts a number that already is one. ``Form`` keeps, beside a field, how to
read it, how to write it back and what an editor may accept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, WithJsonSchema

from device_profiles import units
from device_profiles.quantities import (
    BYTE_RATE,
    COMPUTE_RATE,
    DURATION,
    ENERGY,
    ENERGY_PER_BIT,
    OPERATION_RATE,
    POWER,
    RATE,
    SIZE,
    Quantity,
    UnitError,
    quoted,
)

_WHOLE: Final = re.compile(r"[+-]?[0-9][0-9_]*")
_LARGEST_WHOLE: Final = 2**53


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of a field are written: kept in the annotation of the field.

    Attributes
    ----------
    describe : the form for people, such as ``duration, like '5 s'``.
    write : text for a value, which reads back to the same value.
    """

    describe: str
    write: Callable[[Any], str]


TEXT_TAG: Final = "text"
"""Names, inside pydantic, the alternative of a choice that is plain text; never shown."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A section whose keys depend on the value of one of them.

    Attributes
    ----------
    key : the key that decides, such as ``source``.
    sections : its values, each with the section it selects.
    text : what plain text in place of a mapping stands for, or None where it is an error.
    """

    key: str
    sections: Mapping[str, type[BaseModel]]
    text: str | None = None


def describe_value(value: object) -> str:
    """Return what to call a value of a document in a message."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else quoted(value)


def _with_unit(quantity: Quantity, *, positive: bool = False) -> Callable[[object], float]:
    def read(value: object) -> float:
        if not isinstance(value, str):
            if isinstance(value, int | float) and not isinstance(value, bool):
                raise UnitError(f"{quoted(value)} has no unit; write '{value} {quantity.usual}'")
            wrong = f"{describe_value(value)} where {quantity.name} belongs"
            raise UnitError(f"{wrong}; write '5 {quantity.usual}'")
        number = quantity.parse_whole(value) if quantity.whole else quantity.parse(value)
        if positive and number <= 0:
            raise UnitError(f"{quoted(value)} is zero; write more, such as '5 {quantity.usual}'")
        return number

    return read


def _as_text(value: object, example: str) -> str:
    """Return the text of a scalar; a number becomes text that reads back to it."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnitError(f"{describe_value(value)} where a value belongs; write one such as '{example}'")
    return value if isinstance(value, str) else repr(value)


def _whole(lowest: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        text = _as_text(value, "10").strip()
        if len(text) > 40 or not _WHOLE.fullmatch(text):
            raise UnitError(
                f"{quoted(text)} is not a whole number; write one such as '{_nearest_whole(text)}'"
            )
        number = int(text)
        if number < lowest:
            raise UnitError(f"{quoted(text)} is too small; write {lowest} or more")
        if number > _LARGEST_WHOLE:
            raise UnitError(f"{quoted(text)} is too large; write {_LARGEST_WHOLE} or less")
        return number

    return read


def _nearest_whole(text: str) -> int:
    """Return the whole number to propose to somebody who wrote ``text``: ``1e3`` is 1000, ``2.5`` is 2."""
    try:
        number = units.parse_number(text)
    except UnitError:
        return 10
    return max(1, int(number)) if number < _LARGEST_WHOLE else 10


def _real(*, lowest: float | None = None, positive: bool = False) -> Callable[[object], float]:
    def read(value: object) -> float:
        text = _as_text(value, "0.5")
        number = float(units.parse_number(text))
        if positive and number <= 0:
            raise UnitError(f"{quoted(text)} is not positive; write a number above 0")
        if lowest is not None and number < lowest:
            raise UnitError(f"{quoted(text)} is too small; write {lowest:g} or more")
        return number

    return read


def _share(parse: Callable[[str], float], *, positive: bool = False) -> Callable[[object], float]:
    def read(value: object) -> float:
        text = _as_text(value, "30%")
        number = parse(text)
        if positive and number <= 0:
            raise UnitError(f"{quoted(text)} is zero; write more, such as '30%'")
        return number

    return read


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = _as_text(value, "true").strip()
    if text in ("true", "false"):
        return text == "true"
    meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    low = text.lower()
    hint = (
        f"write '{meant.get(low, low)}'" if low in meant or low in ("true", "false") else "write one of them"
    )
    raise UnitError(f"{quoted(text)} is not 'true' or 'false'; {hint}")


def _line(value: object) -> str:
    if not isinstance(value, str):
        raise UnitError(f"{describe_value(value)} where text belongs; write it in quotes")
    if not value.strip():
        raise UnitError("empty text; write something or leave the key out")
    return value


def _write_number(value: float) -> str:
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def _write_truth(value: bool) -> str:
    return "true" if value else "false"


_NUMBER_TEXT: Final = r"[+]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"


def _quantity_schema(quantity: Quantity) -> WithJsonSchema:
    known = "|".join(re.escape(unit) for unit in sorted(quantity.units, key=lambda unit: (-len(unit), unit)))
    example = f"5 {quantity.usual}"
    return WithJsonSchema(
        {"type": "string", "pattern": rf"^\s*{_NUMBER_TEXT}\s*({known})\s*$", "examples": [example]}
    )


def _number_schema(kind: str, pattern: str, **limits: float) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind, **limits}, {"type": "string", "pattern": pattern}]})


_WHOLE_TEXT: Final = r"^\s*[+]?[0-9][0-9_]*\s*$"
_REAL_TEXT: Final = rf"^\s*{_NUMBER_TEXT}\s*$"
_SHARE_TEXT: Final = rf"^\s*{_NUMBER_TEXT}\s*%?\s*$"


def _form(quantity: Quantity) -> Form:
    return Form(f"{quantity.name.partition(' ')[2]}, like `5 {quantity.usual}`", quantity.write)


_NUMBER_FORM: Final = Form("number", _write_number)
_WHOLE_FORM: Final = Form("whole number", str)
_SHARE_FORM: Final = Form("fraction, like `30%`", units.write_ratio)

Seconds = Annotated[
    float,
    BeforeValidator(_with_unit(DURATION)),
    _quantity_schema(DURATION),
    _form(DURATION),
]
PositiveSeconds = Annotated[
    float,
    BeforeValidator(_with_unit(DURATION, positive=True)),
    _quantity_schema(DURATION),
    _form(DURATION),
]
BitsPerSecond = Annotated[
    float,
    BeforeValidator(_with_unit(RATE, positive=True)),
    _quantity_schema(RATE),
    _form(RATE),
]
BytesPerSecond = Annotated[
    float,
    BeforeValidator(_with_unit(BYTE_RATE, positive=True)),
    _quantity_schema(BYTE_RATE),
    _form(BYTE_RATE),
]
FlopsPerSecond = Annotated[
    float,
    BeforeValidator(_with_unit(COMPUTE_RATE, positive=True)),
    _quantity_schema(COMPUTE_RATE),
    _form(COMPUTE_RATE),
]
OperationsPerSecond = Annotated[
    float,
    BeforeValidator(_with_unit(OPERATION_RATE, positive=True)),
    _quantity_schema(OPERATION_RATE),
    _form(OPERATION_RATE),
]
Bytes = Annotated[
    int,
    BeforeValidator(_with_unit(SIZE)),
    _quantity_schema(SIZE),
    _form(SIZE),
]
PositiveBytes = Annotated[
    int,
    BeforeValidator(_with_unit(SIZE, positive=True)),
    _quantity_schema(SIZE),
    _form(SIZE),
]
Watts = Annotated[
    float,
    BeforeValidator(_with_unit(POWER)),
    _quantity_schema(POWER),
    _form(POWER),
]
Joules = Annotated[
    float,
    BeforeValidator(_with_unit(ENERGY)),
    _quantity_schema(ENERGY),
    _form(ENERGY),
]
JoulesPerBit = Annotated[
    float,
    BeforeValidator(_with_unit(ENERGY_PER_BIT)),
    _quantity_schema(ENERGY_PER_BIT),
    _form(ENERGY_PER_BIT),
]
Fraction = Annotated[
    float,
    BeforeValidator(_share(units.parse_fraction)),
    _number_schema("number", _SHARE_TEXT, minimum=0, maximum=1),
    _SHARE_FORM,
]
"""Zero to one: ``30%`` or ``0.3``."""
PositiveFraction = Annotated[
    float,
    BeforeValidator(_share(units.parse_fraction, positive=True)),
    _number_schema("number", _SHARE_TEXT, exclusiveMinimum=0, maximum=1),
    _SHARE_FORM,
]
Ratio = Annotated[
    float,
    BeforeValidator(_share(units.parse_ratio)),
    _number_schema("number", _SHARE_TEXT, minimum=0),
    Form("ratio, like `130%`", units.write_ratio),
]
"""Zero or more, and above one too: ``130%`` or ``1.3``."""
PositiveInt = Annotated[
    int, BeforeValidator(_whole(1)), _number_schema("integer", _WHOLE_TEXT, minimum=1), _WHOLE_FORM
]
NonNegativeInt = Annotated[
    int, BeforeValidator(_whole(0)), _number_schema("integer", _WHOLE_TEXT, minimum=0), _WHOLE_FORM
]
PositiveFloat = Annotated[
    float,
    BeforeValidator(_real(positive=True)),
    _number_schema("number", _REAL_TEXT, exclusiveMinimum=0),
    _NUMBER_FORM,
]
NonNegativeFloat = Annotated[
    float, BeforeValidator(_real(lowest=0.0)), _number_schema("number", _REAL_TEXT, minimum=0), _NUMBER_FORM
]
Number = Annotated[float, BeforeValidator(_real()), _number_schema("number", _REAL_TEXT), _NUMBER_FORM]
StrictBool = Annotated[
    bool,
    BeforeValidator(_truth),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": ["true", "false"]}]}),
    Form("`true` or `false`", _write_truth),
]
Text = Annotated[
    str, BeforeValidator(_line), WithJsonSchema({"type": "string", "minLength": 1}), Form("text", str)
]
"""Text with at least one character that is not a space."""
