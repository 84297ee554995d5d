"""Writing a scenario back: flattened, with defaults and units, in YAML that loads to an equal scenario."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from coordinator.scenario.model import Shape, field_order, field_shape, item_shape
from coordinator.scenario.schema import ScenarioSettings
from device_profiles.documents import Node
from device_profiles.fields import Form
from edge.learning.updates import SUM_GROUPS

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./%+=<>*@{}()-]*(?: [A-Za-z0-9_./%+=<>*@{}()-]+)*")
_UNQUOTED: Final = re.compile(r"[A-Za-z0-9_./%+=<>*@() -]+")
_WORDS: Final = frozenset({"null", "yes", "no", "on", "off", "y", "n", "true", "false"})
_NOT_HASHED: Final = ("title", "description", "compute", "sweep")
"""What a scenario says that cannot change a result."""

_UNSAID_BEFORE: Final[Mapping[tuple[str, ...], Node]] = {
    ("data", "on_bad_row"): "error",
    ("data", "duplicates"): "last",
    ("evaluation", "error_max"): "2",
    ("evaluation", "by"): [],
    ("evaluation", "ranking", "metrics"): ["hr", "ndcg", "recall", "precision"],
}
"""Settings by the value that stands for how it was before there were any."""


_LOSSES_BEFORE: Final = {"fedncf": "cross-entropy"}
"""Losses of methods as they were before there was a choice; squared error of all others."""


class _Word(str):
    """Text that is written without quotes although a word of YAML: a number or a truth value."""

    __slots__ = ()


def resolved(scenario: ScenarioSettings) -> dict[str, Node]:
    """Return a scenario as a document: every default spelled out, every value as text with its unit."""
    node = _written(scenario, Shape(ScenarioSettings))
    assert isinstance(node, dict)
    return node


def written_default(section: type[BaseModel], name: str) -> Node:
    """Return the default of a field as it is written; None for a required field and for one without value."""
    info = section.model_fields[name]
    default = info.get_default(call_default_factory=True)
    if info.is_required() or default is None:
        return None
    return _written(default, field_shape(section, name))


def dump_resolved(scenario: ScenarioSettings) -> str:
    """Return the YAML of a scenario, flattened; loading it gives an equal scenario.

    Relative file names stay as they were written.
    """
    return "\n".join(yaml_lines(resolved(scenario))) + "\n"


def scenario_hash(scenario: ScenarioSettings) -> str:
    """Return 64 hexadecimal digits that name what the scenario asks for.

    Title, description and the sections ``compute`` (but for its groups of sums), ``sweep`` and
    ``connection.sockets`` cannot change a result and do not count; version and hash of the plug-ins that it
    uses do.
    """
    content: dict[str, Any] = {
        key: value for key, value in resolved(scenario).items() if key not in _NOT_HASHED
    }
    # As format 1 wrote it: a run keeps its name, and can be gone on with, when its file is upgraded.
    content["format"] = "1"
    # As runs of before were named.
    content = _said_before(content, ())
    data = content["data"]
    if isinstance(data, dict) and "held_out_negatives" in data and not scenario.draws_items:
        content["data"] = {**data, "held_out_negatives": "spared"}
    content["learning"] = _without_old_loss(content["learning"])
    connection = content.get("connection")
    if isinstance(connection, dict):
        content["connection"] = {key: value for key, value in connection.items() if key != "sockets"}
    if scenario.compute.sum_groups != SUM_GROUPS:
        content["compute"] = {"sum_groups": scenario.compute.sum_groups}
    plugins = [[one.kind, one.name, one.version, one.hash] for one in scenario.plugins]
    if plugins:
        content["plugins"] = plugins
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=32, person=b"recfleet-scen").hexdigest()


def _said_before(section: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return a section without settings that stand for how it was before there were any."""
    return {
        key: _said_before(value, (*path, key)) if isinstance(value, dict) else value
        for key, value in section.items()
        if (*path, key) not in _UNSAID_BEFORE or _UNSAID_BEFORE[*path, key] != value
    }


def _without_old_loss(learning: Node) -> Node:
    """Return a section ``learning`` without a loss that its methods had before there was a choice."""
    if not isinstance(learning, dict):
        return learning
    old = _LOSSES_BEFORE.get(str(learning.get("algorithm")), "squared-error")
    kept = {key: value for key, value in learning.items() if (key, value) != ("loss", old)}
    return kept | {key: _without_old_loss(value) for key, value in kept.items() if key == "base"}


def _written(value: Any, shape: Shape) -> Node:
    """Return the document form of a value."""
    form = shape.extra(Form)
    if form is not None and not isinstance(value, BaseModel):
        written = form.write(value)
        if isinstance(written, str):
            return written if isinstance(value, str) else _Word(written)
        return written  # type: ignore[no-any-return]
    if isinstance(value, BaseModel):
        model = type(value)
        fields = {name: getattr(value, name) for name in field_order(model, shape)}
        return {
            name: _written(inner, field_shape(model, name))
            for name, inner in fields.items()
            if inner is not None
        }
    if isinstance(value, dict):
        return {str(key): _written(inner, item_shape(shape)) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_written(inner, item_shape(shape)) for inner in value]
    if isinstance(value, bool):
        return _Word("true" if value else "false")
    return value if isinstance(value, str) else _Word(repr(value))


def yaml_lines(node: dict[str, Node], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping as YAML."""
    for key, value in node.items():
        yield from _entry(f"{indent}{_scalar(key)}:", value, indent)


def _entry(head: str, value: Node, indent: str) -> Iterator[str]:
    """Yield the lines of one mapping entry or, where ``head`` ends in a dash, of one list item."""
    if isinstance(value, dict) and value:
        if head.endswith("-"):
            first, *rest = yaml_lines(value, indent + "  ")
            yield f"{head} {first.lstrip(' ')}"
            yield from rest
        else:
            yield head
            yield from yaml_lines(value, indent + "  ")
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        yield head
        for item in value:
            yield from _entry(f"{indent}  -", item, indent + "  ")
    elif isinstance(value, list):
        yield f"{head} [{', '.join('null' if item is None else _scalar(str(item)) for item in value)}]"
    elif isinstance(value, dict):
        yield f"{head} {{}}"
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: str | None) -> str:
    """Return a scalar as YAML text: plain where every reader takes it for itself, else in double quotes."""
    if value is None:
        return "null"
    if isinstance(value, _Word):
        return str(value)
    if _UNQUOTED.fullmatch(value) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
