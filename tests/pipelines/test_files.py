"""The files that other tools read: hook, action, container."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from coordinator.cli.verbs import cli

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".github" / "actions" / "recfleet"
PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def test_the_hook_is_a_verb_and_takes_scenarios() -> None:
    (hook,) = read(ROOT / ".pre-commit-hooks.yaml")
    command, verb = hook["entry"].split()
    assert (command, verb in cli.commands) == ("recfleet", True)
    assert f"id: {hook['id']}" in PAGE
    assert re.search(hook["files"], "scenarios/storm.yaml")
    assert re.search(hook["files"], "study/scenarios/storm.yaml")
    assert not re.search(hook["files"], "mkdocs.yaml")


def test_the_action_hands_on_each_input_and_the_page_names_it() -> None:
    action = read(ACTION / "action.yml")
    text = (ACTION / "action.yml").read_text(encoding="utf-8")
    for name in action["inputs"]:
        assert f"inputs.{name}" in text.partition("runs:")[2]
        assert f"| `{name}` |" in PAGE
    # What an input holds is a value, never part of a program.
    assert [step["run"] for step in action["runs"]["steps"] if "${{" in step.get("run", "")] == []
    script = (ACTION / "run.sh").read_text(encoding="utf-8")
    (running,) = (step for step in action["runs"]["steps"] if "run.sh" in step.get("run", ""))
    assert [name for name in running["env"] if f"${name}" not in script] == []


RECFLEET = """\
#!/usr/bin/env bash
printf '<%s>' "$@"
case $2 in held*) exit 0 ;; missed*) exit 3 ;; *) exit 2 ;; esac
"""


def run_action(folder: Path, recfleet: str, scenarios: str) -> subprocess.CompletedProcess[str]:
    command = folder / "bin" / "recfleet"
    command.parent.mkdir()
    command.write_text(recfleet, encoding="utf-8")
    command.chmod(0o755)
    given = {"SCENARIOS": scenarios, "SETTINGS": "rounds.count=2\ntitle=a b\n", "PLUGINS": "", "OUT": "out"}
    return subprocess.run(
        ["bash", str(ACTION / "run.sh")],
        cwd=folder,
        env={
            **os.environ,
            **given,
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_action_runs_every_scenario_and_fails_with_the_first_that_did(tmp_path: Path) -> None:
    done = run_action(
        tmp_path, RECFLEET, "held\nstudies/missed.yaml\n\ninvalid.yaml\n".replace("studies/", "")
    )
    assert done.returncode == 3
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert re.findall("^### (.*)", summary, re.MULTILINE) == [
        "held: exit code 0", "missed.yaml: exit code 3", "invalid.yaml: exit code 2",
    ]  # fmt: skip
    assert "<run><held><--set><rounds.count=2><--set><title=a b><--plain><--out><out/held>" in done.stdout
    assert re.findall("^::error .*", done.stdout, re.MULTILINE) == [
        "::error title=recfleet::missed.yaml: a threshold was missed",
        "::error title=recfleet::invalid.yaml: it is invalid, or its data cannot be read",
    ]


def test_the_action_holds_when_all_do(tmp_path: Path) -> None:
    assert run_action(tmp_path, RECFLEET, "held\nheld_again").returncode == 0


def test_options_of_the_action_are_options_of_the_verb() -> None:
    script = (ACTION / "run.sh").read_text(encoding="utf-8")
    used = set(re.findall(r"(?<= )--[a-z]+|(?<=\()--[a-z]+", script))
    known = {option for parameter in cli.commands["run"].params for option in parameter.opts}
    assert used == {"--set", "--plugin", "--plain", "--out", "--junit"} & known


def test_the_container_has_a_base_to_choose_a_user_of_its_own_and_the_command() -> None:
    text = (ROOT / ".ci" / "Containerfile").read_text(encoding="utf-8")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if re.match("[A-Z]+ ", line)]
    assert lines[0][0] == "ARG"
    assert lines[0][1].startswith("BASE=")
    assert [value.split()[0] for word, value in lines if word == "FROM"] == ["${BASE}", "${BASE}"]
    last = [word for word, _ in lines][::-1]
    user = lines[len(lines) - 1 - last.index("USER")][1]
    assert re.fullmatch("[1-9][0-9]*:[1-9][0-9]*", user)
    assert last.index("USER") < last.index("RUN")
    assert ["ENTRYPOINT", '["recfleet"]'] in lines


@pytest.mark.parametrize("needed", ["edge", "coordinator", "device_profiles", "recfleet", "scenarios"])
def test_the_container_is_built_from_what_the_wheel_needs(needed: str) -> None:
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert kept[0] == "*"
    assert f"!{needed}" in kept
