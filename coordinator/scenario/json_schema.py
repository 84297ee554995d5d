"""JSON Schema of scenario files, for editors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from coordinator.scenario.dump import written_default
from coordinator.scenario.fleet_profiles import InlineProfiles
from coordinator.scenario.schema import ScenarioSettings
from device_profiles.fields import is_on_demand

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_EXTENDS: Final = {
    "type": "string",
    "minLength": 1,
    "description": "scenario file to start from, relative to this one; mappings merge, lists replace, null "
    "removes",
}
_PARTIAL: Final = "Partial"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file.

    It takes text with units, and plain numbers where no unit is needed. A file that extends another may leave
    anything out. What needs more than one key to judge is left to ``recfleet validate``.
    """
    whole = ScenarioSettings.model_json_schema(schema_generator=_Written)
    definitions: dict[str, Any] = whole.pop("$defs")
    whole["properties"] = {"extends": _EXTENDS, **whole["properties"]}
    partial = _changed(copy.deepcopy(whole), _loosen)
    definitions |= {
        _PARTIAL + name: _changed(copy.deepcopy(body), _loosen) for name, body in definitions.items()
    }
    # A profile may be like another, and then leave anything out, too.
    definitions[InlineProfiles.__name__] = {"$ref": f"#/$defs/{_PARTIAL}{InlineProfiles.__name__}"}
    return {
        "$schema": DIALECT,
        "title": "recfleet scenario",
        "type": "object",
        "if": {"required": ["extends"]},
        "then": partial,
        "else": whole,
        "$defs": definitions,
    }


class _Written(GenerateJsonSchema):
    """A schema whose defaults are as they are written, with units."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        body = super().model_schema(schema)
        _write_defaults(body, schema["cls"])
        return body

    def field_title_should_be_set(self, schema: Any) -> bool:
        # A section that is defined elsewhere has a title there.
        return not is_on_demand(schema) and super().field_title_should_be_set(schema)


def _write_defaults(body: dict[str, Any], section: type[BaseModel]) -> None:
    """Put defaults as they are written, with units, in place of those in base units."""
    for name, field in body.get("properties", {}).items():
        if "default" in field:
            written = written_default(section, name)
            if written is None:
                del field["default"]
            else:
                field["default"] = written


def _loosen(body: dict[str, Any]) -> None:
    """Ask for no key, and let several alternatives fit at once: without the deciding key they all may."""
    body.pop("required", None)
    body.pop("discriminator", None)
    if "oneOf" in body:
        body["anyOf"] = body.pop("oneOf")
    if "$ref" in body:
        body["$ref"] = body["$ref"].replace("#/$defs/", f"#/$defs/{_PARTIAL}")


def _changed(body: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Apply ``change`` to a schema and to every schema inside it; return it."""
    change(body)
    for key, value in body.items():
        for inner in value.values() if key == "properties" else value if isinstance(value, list) else [value]:
            if isinstance(inner, dict) and key != "default":
                _changed(inner, change)
    return body
