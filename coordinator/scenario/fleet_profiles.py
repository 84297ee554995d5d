"""Further profiles of a fleet: files of the catalogue's form, and profiles written in the scenario itself."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, GetJsonSchemaHandler, PlainValidator, TypeAdapter
from pydantic_core import CoreSchema

from coordinator.scenario.errors import FieldProblem, FieldProblemsError
from device_profiles import CATALOGUE_SECTIONS
from device_profiles.catalogue_reading import models_of
from device_profiles.fields import Form, Text, describe_value, whole_schema

_EXAMPLE: Final = "write '[FILE]', or profiles such as 'devices: {our_phone: {like: ...}}'"
_SOURCES: Final = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "Citation of each source that is not in the catalogue.",
}
_LIKE: Final = {
    "type": "string",
    "minLength": 1,
    "description": "Name of a profile of this section that this one takes everything else from.",
}


def _read(value: object) -> Any:
    """Return the value as it is written; what is inside a mapping is for the reader of the catalogue.

    Raises
    ------
    FieldProblemsError : neither names of files nor mappings.
    """
    if isinstance(value, dict):
        return value
    if not isinstance(value, list | tuple):
        message = f"{describe_value(value)} where a list or a mapping belongs; {_EXAMPLE}"
        raise FieldProblemsError([FieldProblem((), message)])
    wrong = [
        FieldProblem(
            (index,), f"{describe_value(one)} where the name of a file or a mapping belongs; {_EXAMPLE}"
        )
        for index, one in enumerate(value)
        if not isinstance(one, dict) and not (isinstance(one, str) and one.strip())
    ]
    if wrong:
        raise FieldProblemsError(wrong)
    return tuple(value)


def _write(value: tuple[Any, ...] | dict[str, Any]) -> Any:
    return value if isinstance(value, dict) else list(value)


class InlineProfiles(BaseModel):
    """Profiles in the form of a catalogue file, as JSON Schema has them; read they are as those files."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        sections: dict[str, Any] = {"sources": _SOURCES}
        for name in CATALOGUE_SECTIONS:
            kinds = {"anyOf": [_profile_schema(model, handler) for model in models_of(name)]}
            sections[name] = {"type": "object", "additionalProperties": kinds}
        return {"type": "object", "properties": sections, "additionalProperties": False}


def _profile_schema(model: type[BaseModel], handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """Return the schema of a profile that may be like another: no key is required or has a default."""
    whole = handler.resolve_ref_schema(handler(whole_schema(model)))
    keys: dict[str, Any] = {"like": _LIKE}
    for key, body in whole["properties"].items():
        own = {word: value for word, value in body.items() if word != "default"}
        # Null removes what the other profile has.
        keys[key] = {"anyOf": [{"type": "null"}, own]}
    # One text holds for all numbers.
    keys["sources"]["anyOf"].append({"type": "string", "minLength": 1})
    return {"type": "object", "properties": keys, "additionalProperties": False}


class _AsInJson:
    """Gives ``Profiles`` the JSON Schema of what is written; pydantic does so by itself from 2.9 on."""

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(TypeAdapter(list[Text | InlineProfiles] | InlineProfiles).core_schema)


Profiles = Annotated[
    tuple[str | dict[str, Any], ...] | dict[str, Any],
    PlainValidator(_read),
    _AsInJson(),
    Form("list of names of files and of mappings, or one mapping", _write),
]
"""What ``fleet.profiles`` is: names of files and profiles themselves, or the latter alone."""
