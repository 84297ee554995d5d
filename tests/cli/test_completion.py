"""What Tab offers; the shells' side of it is click's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from coordinator.cli.verbs import cli

ROOT = Path(__file__).resolve().parents[2]


def offered(*words: str) -> list[tuple[str, str]]:
    """Return type and value of what is offered for the last of the words that follow ``recfleet``."""
    *before, incomplete = words
    shell = BashComplete(cli, {}, "recfleet", "_RECFLEET_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(before, incomplete)]


def test_all_verbs_are_offered_as_the_help_lists_them() -> None:
    assert offered("") == [("plain", name) for name in cli.commands]


def test_verbs_that_begin_so_are_offered() -> None:
    assert offered("va") == [("plain", "validate")]


def test_options_before_the_verb_are_offered() -> None:
    assert offered("--d") == [("plain", "--debug")]


def test_options_of_a_verb_are_offered() -> None:
    assert offered("run", "--o") == [("plain", "--out"), ("plain", "--overwrite")]


@pytest.mark.parametrize("verb", ["run", "validate", "show", "sweep", "serve", "upgrade"])
def test_shipped_scenarios_and_files_are_offered(verb: str, in_folder: Path) -> None:
    Path("quicker.yaml").touch()
    Path("quick.csv").touch()
    assert offered(verb, "quick") == [("plain", "quickstart"), ("plain", "quicker.yaml")]
    assert offered(verb, "./quick") == [("file", "./quick")]


def test_names_and_choices_of_options_are_offered() -> None:
    assert offered("init", "--fleet", "nig") == [("plain", "nigeria_2024")]
    assert offered("scenarios", "--copy", "quick") == [("plain", "quickstart")]
    assert offered("run", "quickstart", "--clock", "r") == [("plain", "real")]


def test_verbs_of_a_verb_are_offered() -> None:
    assert offered("profiles", "s") == [("plain", "show")]


def test_a_verb_that_does_not_exist_offers_none_of_another_and_says_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert offered("rnu", "--ov") == []
    assert capsys.readouterr() == ("", "")


def test_offering_verbs_imports_none_of_them() -> None:
    program = (
        "import os, sys\n"
        "os.environ.update(_RECFLEET_COMPLETE='bash_complete', COMP_WORDS='recfleet r', COMP_CWORD='1')\n"
        "from coordinator.cli.entry import execute\n"
        "try:\n"
        "    execute([])\n"
        "finally:\n"
        "    print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *verbs, imported = done.stdout.splitlines()
    assert verbs == ["plain,run", "plain,report", "plain,recommend"]
    assert {"numpy", "pydantic", "pyarrow", "rich", "ruamel"}.isdisjoint(imported.split())
