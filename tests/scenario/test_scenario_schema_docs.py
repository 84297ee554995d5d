from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario_files import sections_of

from coordinator.cli.entry import execute
from coordinator.scenario import reference
from coordinator.scenario.json_schema import json_schema
from coordinator.scenario.metric_names import METRICS
from coordinator.scenario.schema import ScenarioSettings

PAGE = Path(__file__).parents[2] / "docs" / "scenario-reference.md"


def test_the_reference_is_up_to_date() -> None:
    message = "run: recfleet schema --page scenarios > docs/scenario-reference.md"
    assert PAGE.read_text(encoding="utf-8") == reference.render(), message


def test_the_reference_names_every_key_and_metric() -> None:
    page = reference.render()
    for section in sections_of(ScenarioSettings):
        for name in section.model_fields:
            assert f"`{name}`" in page or f", `{name}: " in page
    for metric in METRICS:
        assert f"| `{metric}` |" in page


def test_the_verb_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["schema", "--page", "scenarios"]) == 0
    assert capsys.readouterr().out == reference.render()


DECIDING_KEYS = ("policy", "mode", "source", "kind", "algorithm", "method", "distribution", "mechanism")
"""Keys that say which section it is; the section describes itself."""


def test_every_field_is_described() -> None:
    missing = [
        f"{section.__name__}.{name}"
        for section in sections_of(ScenarioSettings)
        for name, info in section.model_fields.items()
        if not info.description and name not in DECIDING_KEYS
    ]
    assert missing == []


def schemas_in(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from schemas_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from schemas_in(value)


def test_the_json_schema_is_whole() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    names = set(schema["$defs"])
    for inner in schemas_in(schema):
        if isinstance(inner.get("$ref"), str):
            assert inner["$ref"].removeprefix("#/$defs/") in names
        if isinstance(inner.get("pattern"), str):
            re.compile(inner["pattern"])


def test_a_file_that_extends_may_leave_anything_out() -> None:
    schema = json_schema()
    assert schema["if"] == {"required": ["extends"]}
    assert "required" not in schema["then"]
    assert set(schema["else"]["required"]) == {"format", "data", "fleet", "learning", "rounds"}
    partial = schema["$defs"]["PartialRounds"]
    assert "required" not in partial
    assert set(partial["properties"]) == set(schema["$defs"]["Rounds"]["properties"])
    assert schema["$defs"]["Rounds"]["required"] == ["cohort"]


def test_defaults_in_the_json_schema_are_as_written() -> None:
    properties = json_schema()["$defs"]["Rounds"]["properties"]
    assert properties["deadline"]["default"] == "1 min"
    assert properties["over_select"]["default"] == "100%"
    assert "default" not in properties["target"]
