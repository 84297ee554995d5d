"""Field types of everything read from YAML: pydantic types over :mod:`device_profiles.units`.

Every scalar of a document arrives as text, exactly as it was written, and these types give it its meaning.
A type whose text carries a unit accepts text only, so a bare number can never pass for seconds or bytes; a
type without a unit also accepts a number that already is one. ``Form`` keeps, beside a field, how to
read it, how to write it back, what an editor may accept and which values code may give it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

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
class Bounds:
    """The values that a number may have.

    Attributes
    ----------
    admits : whether a number is one of them. words : what is said of one that is not.
    """

    admits: Callable[[float], bool]
    words: str


POSITIVE: Final = Bounds(lambda value: value > 0, "must be above zero")
NON_NEGATIVE: Final = Bounds(lambda value: value >= 0, "must be zero or more")
UP_TO_ONE: Final = Bounds(lambda value: 0 <= value <= 1, "must lie between 0 and 1 (0% and 100%)")
BELOW_ONE: Final = Bounds(lambda value: 0 <= value < 1, "must be at least 0 and below 1 (100%)")
ABOVE_ZERO_TO_ONE: Final = Bounds(lambda value: 0 < value <= 1, "must be above 0 and at most 1 (100%)")
INSIDE_ONE: Final = Bounds(lambda value: 0 < value < 1, "must be above zero and below 1 (100%)")
_WHOLE_FROM_ONE: Final = Bounds(
    lambda value: isinstance(value, int) and value >= 1, "must be a whole number, 1 or more"
)
_WHOLE_FROM_ZERO: Final = Bounds(
    lambda value: isinstance(value, int) and value >= 0, "must be a whole number, 0 or more"
)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """How the values of a field are written: annotates it.

    Attributes
    ----------
    describe : the form for people, such as ``duration, like '5 s'``.
    write : text for a value, which reads back to the same value.
    read : value of what a document holds, before pydantic looks at it; raises UnitError. None: as it stands.
    schema : JSON Schema of what may be written; None: pydantic's.
    bounds : of the values that code may give to such a field; None: any.
    """

    describe: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any] | None = None
    schema: Mapping[str, Any] | None = None
    bounds: Bounds | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source)
        return inner if self.read is None else core_schema.no_info_before_validator_function(self.read, inner)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(schema) if self.schema is None else dict(self.schema)


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


class _Reader:
    """Reads the mapping of a section, whose validator is built when the first one comes."""

    def __init__(self, section: type[BaseModel]) -> None:
        self.section = section

    def __call__(self, value: object) -> BaseModel:
        return value if isinstance(value, self.section) else self.section.model_validate(value)


def _schema_of(section: type[BaseModel]) -> CoreSchema:
    return core_schema.no_info_plain_validator_function(_Reader(section))


def whole_schema(section: type[BaseModel]) -> CoreSchema:
    """Return the schema of a section itself, built if it was not yet."""
    section.model_rebuild()
    return section.__pydantic_core_schema__


def _schema_read(reading: Any) -> Any:
    section = reading["function"]["function"].section
    # Its name in JSON Schema, where it is defined once.
    return {**whole_schema(section), "ref": f"{section.__module__}.{section.__qualname__}:{id(section)}"}


def _replaced(schema: Any, kind: str, make: Callable[[Any], CoreSchema]) -> Any:
    """Return a schema, or that of a field, in which ``make`` has replaced what is of a kind."""
    if schema["type"] == kind:
        return make(schema)
    kept = {key: value for key, value in schema.items() if key != "metadata"}
    return {**kept, "schema": _replaced(schema["schema"], kind, make)}


@dataclass(frozen=True, slots=True)
class OnDemand:
    """A section that is built when a value is first read; annotates its class.

    Building is most of what a section costs, and a scenario names few of them.
    """

    def __get_pydantic_core_schema__(self, source: type[BaseModel], handler: object) -> CoreSchema:
        return _schema_of(source)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        def defined(reading: Any) -> CoreSchema:
            section = _schema_read(reading)
            reference = core_schema.definition_reference_schema(section["ref"])
            return core_schema.definitions_schema(reference, [section])

        return handler(_replaced(schema, "function-plain", defined))


@dataclass(frozen=True, slots=True)
class ByKey:
    """One of several sections, chosen by the value of a key; annotates their union.

    As a discriminator of pydantic, but each section is built when it is first chosen.

    Attributes
    ----------
    key : the key that decides, such as ``kind``; its type is a ``Literal`` in every section.
    """

    key: str

    def sections(self, members: Iterable[type[BaseModel]]) -> dict[str, type[BaseModel]]:
        """Return the members of a union by the words that choose them."""
        return {
            str(word): section
            for section in members
            for word in get_args(section.model_fields[self.key].annotation)
        }

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        choices = {word: _schema_of(section) for word, section in self.sections(get_args(source)).items()}
        return core_schema.tagged_union_schema(choices, discriminator=self.key)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        def whole(union: Any) -> CoreSchema:
            choices = {word: _schema_read(choice) for word, choice in union["choices"].items()}
            return core_schema.tagged_union_schema(choices, discriminator=self.key)

        return handler(_replaced(schema, "tagged-union", whole))


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


NUMBER_TEXT: Final = r"[+]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?"
"""Pattern of a number, zero or more, as Python and ECMAScript read it; so are those below."""
SHARE_TEXT: Final = rf"{NUMBER_TEXT}\s*%?"
_WHOLE_TEXT: Final = r"^\s*[+]?[0-9][0-9_]*\s*$"
_REAL_TEXT: Final = rf"^\s*{NUMBER_TEXT}\s*$"
_SIGNED_TEXT: Final = rf"^\s*-?{NUMBER_TEXT}\s*$"
_SHARE_TEXT: Final = rf"^\s*{SHARE_TEXT}\s*$"


def quantity_text(quantity: Quantity) -> str:
    """Return the pattern of a number with a unit."""
    units = sorted(quantity.units, key=lambda unit: (-len(unit), unit))
    return rf"{NUMBER_TEXT}\s*(?:{'|'.join(map(re.escape, units))})"


def _quantity(quantity: Quantity, *, positive: bool = False) -> Form:
    """Return the form of a number with a unit."""
    usual = f"5 {quantity.usual}"
    bounds = POSITIVE if positive else NON_NEGATIVE
    if quantity.whole:
        bounds = _WHOLE_FROM_ONE if positive else _WHOLE_FROM_ZERO
    return Form(
        f"{quantity.name.partition(' ')[2]}, like `{usual}`",
        quantity.write,
        _with_unit(quantity, positive=positive),
        {"type": "string", "pattern": rf"^\s*{quantity_text(quantity)}\s*$", "examples": [usual]},
        bounds,
    )


def _bare(kind: str, pattern: str, **limits: float) -> dict[str, Any]:
    """Return the JSON Schema of a number without a unit, which may be written as text."""
    return {"anyOf": [{"type": kind, **limits}, {"type": "string", "pattern": pattern}]}


def _whole_number(lowest: int, bounds: Bounds) -> Form:
    return Form("whole number", str, _whole(lowest), _bare("integer", _WHOLE_TEXT, minimum=lowest), bounds)


def _real_number(read: Callable[[object], float], bounds: Bounds | None = None, **limits: float) -> Form:
    pattern = _SIGNED_TEXT if bounds is None else _REAL_TEXT
    return Form("number", _write_number, read, _bare("number", pattern, **limits), bounds)


def _fraction(read: Callable[[object], float], bounds: Bounds, **limits: float) -> Form:
    schema = _bare("number", _SHARE_TEXT, **limits)
    return Form("fraction, like `30%`", units.write_ratio, read, schema, bounds)


Seconds = Annotated[float, _quantity(DURATION)]
PositiveSeconds = Annotated[float, _quantity(DURATION, positive=True)]
BitsPerSecond = Annotated[float, _quantity(RATE, positive=True)]
BytesPerSecond = Annotated[float, _quantity(BYTE_RATE, positive=True)]
FlopsPerSecond = Annotated[float, _quantity(COMPUTE_RATE, positive=True)]
OperationsPerSecond = Annotated[float, _quantity(OPERATION_RATE, positive=True)]
Bytes = Annotated[int, _quantity(SIZE)]
PositiveBytes = Annotated[int, _quantity(SIZE, positive=True)]
Watts = Annotated[float, _quantity(POWER)]
Joules = Annotated[float, _quantity(ENERGY)]
JoulesPerBit = Annotated[float, _quantity(ENERGY_PER_BIT)]
Fraction = Annotated[float, _fraction(_share(units.parse_fraction), UP_TO_ONE, minimum=0, maximum=1)]
"""Zero to one: ``30%`` or ``0.3``."""
PositiveFraction = Annotated[
    float,
    _fraction(_share(units.parse_fraction, positive=True), ABOVE_ZERO_TO_ONE, exclusiveMinimum=0, maximum=1),
]
Ratio = Annotated[
    float,
    Form(
        "ratio, like `130%`",
        units.write_ratio,
        _share(units.parse_ratio),
        _bare("number", _SHARE_TEXT, minimum=0),
        NON_NEGATIVE,
    ),
]
"""Zero or more, and above one too: ``130%`` or ``1.3``."""
PositiveInt = Annotated[int, _whole_number(1, _WHOLE_FROM_ONE)]
NonNegativeInt = Annotated[int, _whole_number(0, _WHOLE_FROM_ZERO)]
PositiveFloat = Annotated[float, _real_number(_real(positive=True), POSITIVE, exclusiveMinimum=0)]
NonNegativeFloat = Annotated[float, _real_number(_real(lowest=0.0), NON_NEGATIVE, minimum=0)]
Number = Annotated[float, _real_number(_real())]
StrictBool = Annotated[
    bool,
    Form(
        "`true` or `false`",
        _write_truth,
        _truth,
        {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false"]}]},
    ),
]
Text = Annotated[str, Form("text", str, _line, {"type": "string", "minLength": 1})]
"""Text with at least one character that is not a space."""
