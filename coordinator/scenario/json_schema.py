"""JSON Schema of scenario files, for editors."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from coordinator.scenario.dump import written_default
from coordinator.scenario.fleet_profiles import InlineProfiles
from coordinator.scenario.fleet_section import ScenarioFleet
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.sections import FORMAT
from coordinator.scenario.threshold_schema import expectation_definitions, threshold_schema
from device_profiles import catalogue, fields
from device_profiles.fields import Form

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FILE: Final = "recfleet.schema.json"
"""The file that scenarios name as their schema; it lies beside them."""
MODELINE: Final = f"# yaml-language-server: $schema={SCHEMA_FILE}"
"""The comment by which editors find it."""
_EXTENDS: Final = {
    "type": "string",
    "minLength": 1,
    "description": "scenario file to start from, relative to this one; mappings merge, lists replace, null "
    "removes",
}
_PARTIAL: Final = "Partial"
_SCALARS: Final = ["string", "number", "boolean"]
_NULL: Final = {"type": "null"}
_UNKNOWN: Final = {**_NULL, "errorMessage": "unknown key"}
"""What stands below a key that there is not; editors show the message."""
_ABOUT_KEYS: Final = ("title", "description", "default")
_ABOUT: Final = (*_ABOUT_KEYS, "examples")
"""What a schema says about a value without limiting it; the first of a key, the last of any such value."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file.

    It takes every valid scenario: text with units, plain numbers where no unit is needed, null where it
    removes. A file that extends another may leave anything out. What needs more than one key to judge, or
    more than the file, is left to ``recfleet validate``.
    """
    whole = ScenarioSettings.model_json_schema(schema_generator=_Written)
    definitions: dict[str, Any] = whole.pop("$defs")
    whole["properties"] = {"extends": _EXTENDS, **whole["properties"]}
    partial, loosened = _loosened(whole, definitions)
    definitions |= loosened
    for file in (whole, partial):
        file["properties"]["format"]["enum"] = [*range(FORMAT, 0, -1), *map(str, range(FORMAT, 0, -1))]
        said = file["properties"]["thresholds"]["description"]
        file["properties"]["thresholds"] = {"description": said, **threshold_schema()}
    for body in (whole, partial, *definitions.values()):
        _changed(body, _refer_to_forms)
    definitions |= {name: copy.deepcopy(body) for name, body in _FORMS.items()} | expectation_definitions()
    for body in (whole, partial, *definitions.values()):
        _changed(body, _take_any_scalar)
        _changed(body, _allow_removal)
    # A profile may be like another, and then leave anything out, too.
    definitions[InlineProfiles.__name__] = {"$ref": f"#/$defs/{_PARTIAL}{InlineProfiles.__name__}"}
    names = catalogue.load().names()
    for prefix in ("", _PARTIAL):
        _suggest(definitions[prefix + ScenarioFleet.__name__], names)
    definitions[ScenarioFleet.__name__] |= _only_of_catalogue(names)
    return {
        "$schema": DIALECT,
        "title": "recfleet scenario",
        "type": "object",
        "if": {"required": ["extends"]},
        "then": partial,
        "else": whole,
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the contents of :data:`SCHEMA_FILE`."""
    schema = json_schema()
    definitions = schema.pop("$defs")
    lines = [f"{_compact(name)}: {_compact(body)}" for name, body in schema.items()]
    inside = ",\n".join(f"{_compact(name)}: {_compact(body)}" for name, body in definitions.items())
    # A line a definition: it is no longer than it has to be, and versions can be compared.
    return '{{\n{},\n"$defs": {{\n{}\n}}}}\n'.format(",\n".join(lines), inside)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class _Written(GenerateJsonSchema):
    """A schema whose defaults are as they are written, with units."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        body = super().model_schema(schema)
        _write_defaults(body, schema["cls"])
        return body

    def field_title_should_be_set(self, schema: Any) -> bool:
        # It would be the key, which is there already.
        return False


def _write_defaults(body: dict[str, Any], section: type[BaseModel]) -> None:
    """Put defaults as they are written, with units, in place of those in base units."""
    for name, field in body.get("properties", {}).items():
        if "default" in field:
            written = written_default(section, name)
            if written is None:
                del field["default"]
            else:
                field["default"] = written


def _forms() -> dict[str, dict[str, Any]]:
    """Return the schemas of the types of single values, by the first name that each has."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in vars(fields).items():
        for form in getattr(kind, "__metadata__", ()):
            if isinstance(form, Form) and form.schema is not None and form.schema not in found.values():
                found[name] = dict(form.schema)
    return found


_FORMS: Final = _forms()


def _refer_to_forms(body: dict[str, Any]) -> None:
    """Name the type of a value in place of what it is limited to, which hundreds of keys share."""
    limits = {word: value for word, value in body.items() if word not in _ABOUT_KEYS}
    name = next((name for name, form in _FORMS.items() if form == limits), None)
    if name is not None:
        for word in limits:
            del body[word]
        body["$ref"] = f"#/$defs/{name}"


def _take_any_scalar(body: dict[str, Any]) -> None:
    """Let text be written without quotes: what YAML takes for a number or a truth value is text, too."""
    if body.get("type") == "string" and not {"pattern", "enum", "const"} & body.keys():
        body["type"] = _SCALARS


def _loosened(
    whole: dict[str, Any], definitions: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the schema of a file that may leave anything out, and the definitions that are others in it."""
    partial = _changed(copy.deepcopy(whole), _loosen)
    loose = {name: _changed(copy.deepcopy(body), _loosen) for name, body in definitions.items()}
    others = {name for name, body in definitions.items() if loose[name] != body}
    inside = {name: _references(body) for name, body in definitions.items()}
    while more := {name for name, names in inside.items() if names & others} - others:
        others |= more
    renamed = {f"#/$defs/{name}": f"#/$defs/{_PARTIAL}{name}" for name in others}

    def rename(body: dict[str, Any]) -> None:
        if "$ref" in body:
            body["$ref"] = renamed.get(body["$ref"], body["$ref"])

    return _changed(partial, rename), {
        _PARTIAL + name: _changed(loose[name], rename) for name in sorted(others)
    }


def _references(body: dict[str, Any]) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    found: set[str] = set()

    def note(inner: dict[str, Any]) -> None:
        if "$ref" in inner:
            found.add(inner["$ref"].removeprefix("#/$defs/"))

    _changed(body, note)
    return found


def _loosen(body: dict[str, Any]) -> None:
    """Ask for no key, and let several alternatives fit at once: without the deciding key they all may."""
    body.pop("required", None)
    body.pop("discriminator", None)
    if "oneOf" in body:
        body["anyOf"] = body.pop("oneOf")


def _allow_removal(body: dict[str, Any]) -> None:
    """Let null stand for each key that may be left out; it removes one that there is not, too."""
    required = body.get("required", ())
    for keyed in ("properties", "patternProperties"):
        if keyed in body:
            inner = body[keyed].items()
            body[keyed] = {key: one if key in required else _or_null(one) for key, one in inner}
    others = body.get("additionalProperties")
    if others is False:
        body["additionalProperties"] = dict(_UNKNOWN)
    elif isinstance(others, dict):
        body["additionalProperties"] = _or_null(others)


def _or_null(body: dict[str, Any]) -> dict[str, Any]:
    about = {word: value for word, value in body.items() if word in _ABOUT}
    limits = {word: value for word, value in body.items() if word not in _ABOUT}
    if not limits:  # anything goes
        return about
    if set(limits) == {"anyOf"}:
        others = [one for one in limits["anyOf"] if one != _NULL]
        return {**about, "anyOf": [*others, _NULL]}
    return {**about, "anyOf": [limits, _NULL]}


def _suggest(fleet: dict[str, Any], names: dict[str, tuple[str, ...]]) -> None:
    """Have editors offer the fleets of the catalogue, and its devices and networks as keys of shares."""
    mix = fleet["properties"]["mix"]
    mix["anyOf"] = [{"enum": list(names["fleets"])}, *mix["anyOf"]]
    for key in ("devices", "networks"):
        (shares,) = (one for one in fleet["properties"][key]["anyOf"] if one.get("type") == "object")
        shares["properties"] = dict.fromkeys(names[key], shares["additionalProperties"])


def _only_of_catalogue(names: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return what a fleet is limited to that brings no profiles of its own and extends no other."""
    known = {section: {"enum": [*of, None]} for section, of in names.items()}
    of_groups = {"device": "devices", "network": "networks", "availability": "availability"}
    limits = {
        "mix": known["fleets"],
        "devices": {"propertyNames": {"enum": list(names["devices"])}},
        "networks": {"propertyNames": {"enum": list(names["networks"])}},
        "availability": {"if": {"type": _SCALARS}, "then": known["availability"]},
        "groups": {
            "items": {"properties": {key: known[section] for key, section in of_groups.items()}},
        },
    }
    return {"if": {"not": {"required": ["profiles"]}}, "then": {"properties": limits}}


def _changed(body: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Apply ``change`` to a schema and to every schema inside it; return it."""
    change(body)
    for key, value in body.items():
        keyed = key in ("properties", "patternProperties")
        for inner in value.values() if keyed else value if isinstance(value, list) else [value]:
            if isinstance(inner, dict) and key != "default":
                _changed(inner, change)
    return body
