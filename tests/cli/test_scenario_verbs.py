from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.cli.entry import execute
from coordinator.scenario.load import load


def test_validate_says_ok_of_each_file(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate", str(scenario), str(scenario)]) == 0
    assert capsys.readouterr().out == f"{scenario}: ok\n" * 2


def test_validate_shows_every_error_of_every_file(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = scenario.with_name("wrong.yaml")
    wrong.write_text(
        scenario.read_text(encoding="utf-8").replace("60 s", "60").replace("factors: 4", "factros: 4"),
        encoding="utf-8",
    )
    missing = scenario.with_name("missing.yaml")
    assert execute(["validate", str(wrong), str(missing), str(scenario)]) == 2
    shown = capsys.readouterr()
    assert shown.out == f"{scenario}: ok\n"
    assert f"{wrong}:6:33: learning.factros:" in shown.err
    assert "'60' has no unit; write '60 s'" in shown.err
    assert f"{missing}:1:1: there is no such file" in shown.err
    assert "Traceback" not in shown.err


def test_validate_without_a_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate"]) == 2
    assert "SCENARIO" in capsys.readouterr().err


def test_settings_apply_before_the_check(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate", str(scenario), "--set", "rounds.cohort=61"]) == 2
    assert "--set:1:15: rounds.cohort: 61 devices, but the data has 60 clients" in capsys.readouterr().err


def test_what_show_prints_is_the_same_scenario(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", str(scenario), "--set", "rounds.deadline=90 s"]) == 0
    again = scenario.with_name("again.yaml")
    again.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load(again).scenario == load(scenario, ["rounds.deadline=90 s"]).scenario


def test_show_of_an_invalid_scenario_exits_with_2(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["show", str(scenario), "--set", "seed=-1"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "--set:1:6: seed:" in shown.err


def test_schema_is_json_that_describes_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"data", "fleet", "learning", "rounds"} <= set(schema["else"]["required"])
