"""JSON Schema of the section ``thresholds``: metrics, their tags, and what may be expected of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from coordinator.scenario.metric_names import Metric, MetricKind, metric_names
from coordinator.scenario.thresholds import BASELINE, EVENT_AGGREGATIONS, OPERATORS, VALUE_AGGREGATIONS
from device_profiles.fields import NUMBER_TEXT, SHARE_TEXT, quantity_text
from device_profiles.quantities import DURATION, ENERGY, SIZE

_PREFIX: Final = "Expectations"
_COUNT: Final = "count"
_PERCENTILE: Final = r"p(?:0?[0-9]{1,2}(?:\.[0-9]{1,6})?|100(?:\.0{1,6})?)"
_OPERATOR: Final = "|".join(sorted(OPERATORS, key=len, reverse=True))
_SIGNED: Final = f"-?{NUMBER_TEXT}"
_LIMITS: Final[Mapping[MetricKind, str]] = {
    MetricKind.DURATION: quantity_text(DURATION),
    MetricKind.BYTES: quantity_text(SIZE),
    MetricKind.ENERGY: quantity_text(ENERGY),
    MetricKind.NUMBER: _SIGNED,
    MetricKind.SHARE: SHARE_TEXT,
    MetricKind.EVENT: SHARE_TEXT,
}
_EXAMPLES: Final[Mapping[MetricKind, str]] = {
    MetricKind.DURATION: "p95 < 20 s",
    MetricKind.BYTES: "max < 64 KiB",
    MetricKind.ENERGY: "mean < 5 J",
    MetricKind.NUMBER: "last < 0.95 * first",
    MetricKind.SHARE: "max < 5%",
    MetricKind.EVENT: "rate >= 99%",
}


def threshold_schema() -> dict[str, Any]:
    """Return the schema of the section; it refers to the definitions of :func:`expectation_definitions`."""
    fixed, patterns = {}, {}
    for name, pattern, metric in metric_names():
        about = {"$ref": f"#/$defs/{_definition(metric.kind)}", "description": _said_of(metric)}
        fixed[name] = dict(about)
        patterns[_key_pattern(pattern, metric.tags)] = about
    return {
        "type": "object",
        "properties": fixed,
        "patternProperties": patterns,
        "additionalProperties": False,
    }


def expectation_definitions() -> dict[str, Any]:
    """Return what may be expected of metrics of each kind, by the name of its definition."""
    texts = {f"{_definition(kind)}Text": _expectation(kind) for kind in MetricKind}
    return {_definition(kind): _expectations(kind) for kind in MetricKind} | texts


def _definition(kind: MetricKind) -> str:
    return f"{_PREFIX}{kind.value.title()}"


def _said_of(metric: Metric) -> str:
    tags = f" Tags: {', '.join(metric.tags)}."
    return f"{metric.kind.value}, {metric.description}.{tags}"


def _key_pattern(name: str, tags: Iterable[str]) -> str:
    """Return the pattern of a key: a metric whose name fits a pattern, with or without tags."""
    tag = rf"\s*(?:{'|'.join(tags)})\s*=\s*[^\s,{{}}][^,{{}}]*"
    return rf"^\s*{name}\s*(?:\{{{tag}(?:,{tag})*\}})?\s*$"


def _expectation(kind: MetricKind) -> dict[str, Any]:
    """Return the schema of one expectation: aggregation, operator, limit."""
    words = EVENT_AGGREGATIONS if kind is MetricKind.EVENT else (*VALUE_AGGREGATIONS, _PERCENTILE)
    relative = rf"(?:{SHARE_TEXT}\s*\*\s*)?(?:{'|'.join(words)}|{BASELINE})"
    # How many there were is a number, whatever they are.
    values = "|".join(word for word in words if word != _COUNT)
    judged = rf"(?:{values})\s*(?:{_OPERATOR})\s*(?:{_LIMITS[kind]}|{relative})"
    counted = rf"{_COUNT}\s*(?:{_OPERATOR})\s*(?:{_SIGNED}|{relative})"
    return {"type": "string", "pattern": rf"^\s*(?:{judged}|{counted})\s*$", "examples": [_EXAMPLES[kind]]}


def _expectations(kind: MetricKind) -> dict[str, Any]:
    """Return the schema of what stands below a metric: one expectation, or a list of them."""
    text = {"$ref": f"#/$defs/{_definition(kind)}Text"}
    long_form = {
        "type": "object",
        "properties": {
            "expect": {**text, "description": "What has to hold."},
            "abort": {
                "enum": [True, False, "true", "false"],
                "description": "Whether a run that misses it ends.",
            },
            "after": {
                "type": "string",
                "pattern": rf"^\s*(?:[0-9]{{1,9}}\s+rounds?|{quantity_text(DURATION)})\s*$",
                "description": "Rounds or simulated time that have to have passed before it does.",
                "examples": ["2 rounds", "10 min"],
            },
        },
        "required": ["expect"],
        "additionalProperties": False,
    }
    return {
        "anyOf": [dict(text), {"type": "array", "minItems": 1, "items": {"anyOf": [dict(text), long_form]}}]
    }
