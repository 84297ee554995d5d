from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from device_profiles import fields


def message(kind: Any, value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    (detail,) = caught.value.errors()
    return str(detail["ctx"]["error"])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (fields.Seconds, "300 ms", 0.3),
        (fields.BitsPerSecond, "50 Mbit/s", 5e7),
        (fields.Bytes, "64 KiB", 65536),
        (fields.Fraction, "30%", 0.3),
        (fields.Fraction, 0.3, 0.3),
        (fields.Ratio, "130%", 1.3),
        (fields.PositiveInt, "1_000", 1000),
        (fields.PositiveInt, "010", 10),
        (fields.PositiveInt, 7, 7),
        (fields.PositiveFloat, "1e-3", 0.001),
        (fields.StrictBool, "true", True),
        (fields.StrictBool, False, False),
        (fields.Text, "no", "no"),
    ],
)
def test_text_gets_the_meaning_of_its_field(kind: Any, text: object, value: object) -> None:
    parsed = TypeAdapter(kind).validate_python(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (fields.Seconds, 45, "'45' has no unit; write '45 s'"),
        (fields.Seconds, True, "'True' where a duration belongs; write '5 s'"),
        (fields.Seconds, None, "nothing where a duration belongs; write '5 s'"),
        (fields.Bytes, ["1 B"], "a list where a size in bytes belongs; write '5 KiB'"),
        (fields.PositiveSeconds, "0 s", "'0 s' is zero; write more, such as '5 s'"),
        (fields.BitsPerSecond, "0 bit/s", "'0 bit/s' is zero; write more, such as '5 Mbit/s'"),
        (fields.OperationsPerSecond, "190", "'190' has no unit; write '190 Mop/s'"),
        (fields.OperationsPerSecond, "0 op/s", "'0 op/s' is zero; write more, such as '5 Mop/s'"),
        (
            fields.OperationsPerSecond,
            "1 GFLOP/s",
            "'1 GFLOP/s' is a compute rate, not an operation rate; write '1 Mop/s'",
        ),
        (fields.PositiveInt, "2.5", "'2.5' is not a whole number; write one such as '2'"),
        (fields.PositiveInt, "1e3", "'1e3' is not a whole number; write one such as '1000'"),
        (fields.PositiveInt, "0", "'0' is too small; write 1 or more"),
        (fields.NonNegativeInt, "-1", "'-1' is too small; write 0 or more"),
        (fields.PositiveInt, "9" * 20, f"'{'9' * 20}' is too large; write {2**53} or less"),
        (fields.PositiveInt, {}, "a mapping where a value belongs; write one such as '10'"),
        (fields.PositiveInt, True, "'True' where a value belongs; write one such as '10'"),
        (fields.PositiveFloat, "nan", "'nan' is not a number; write one, such as '0.5' or '1e-3'"),
        (fields.PositiveFloat, float("inf"), "'inf' is not a number; write one, such as '0.5' or '1e-3'"),
        (fields.PositiveFloat, "0", "'0' is not positive; write a number above 0"),
        (fields.NonNegativeFloat, "-1", "'-1' is too small; write 0 or more"),
        (fields.PositiveFraction, "0%", "'0%' is zero; write more, such as '30%'"),
        (fields.StrictBool, "yes", "'yes' is not 'true' or 'false'; write 'true'"),
        (fields.StrictBool, "False", "'False' is not 'true' or 'false'; write 'false'"),
        (fields.StrictBool, "maybe", "'maybe' is not 'true' or 'false'; write one of them"),
        (fields.Text, "  ", "empty text; write something or leave the key out"),
        (fields.Text, 5, "'5' where text belongs; write it in quotes"),
    ],
)
def test_refusals_say_what_to_write(kind: Any, value: object, expected: str) -> None:
    assert message(kind, value) == expected


class Everything(BaseModel):
    duration: fields.Seconds
    rate: fields.BitsPerSecond
    size: fields.Bytes
    share: fields.Fraction
    number: fields.PositiveInt
    real: fields.PositiveFloat
    truth: fields.StrictBool


def accepted(schema: dict[str, Any], value: object) -> bool:
    """Judge a scalar by the few keywords that the field types use."""
    if "anyOf" in schema:
        return any(accepted(option, value) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] == "boolean":
        return isinstance(value, bool)
    if schema["type"] == "string":
        return isinstance(value, str) and re.search(schema["pattern"], value) is not None
    right_type = isinstance(value, int if schema["type"] == "integer" else int | float)
    return right_type and value >= schema.get("minimum", value) and value <= schema.get("maximum", value)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("duration", ["300 ms", "1.5e3 s", " 5 min"], ["45", 45, "5 Mbit/s", "-5 s", "5 m"]),
        ("rate", ["50 Mbit/s", "1 MB/s"], ["50", "50 Mbit", "50 mbps"]),
        ("size", ["64 KiB", "3 B"], ["64", "64 KB"]),
        ("share", ["30%", "0.3", 0.3, 1], ["a third", 1.5, "-1%"]),
        ("number", [3, "3", "1_000"], [0, 2.5, "2.5"]),
        ("real", [0.5, "1e-3", 3], ["nan", "x", "-1e-3"]),
        ("truth", [True, "true"], ["yes", 1.5]),
    ],
)
def test_editors_accept_what_the_fields_accept(name: str, good: list[object], bad: list[object]) -> None:
    schema = Everything.model_json_schema()["properties"][name]
    assert [value for value in good if not accepted(schema, value)] == []
    assert [value for value in bad if accepted(schema, value)] == []
