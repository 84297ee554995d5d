"""The output that the README shows is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import ROOT, without_measured

from coordinator.cli.entry import execute

SAMPLE = re.compile(r"<!-- sample: recfleet (?P<command>.*?) -->\n```text\n(?P<output>.*?)```", re.DOTALL)


def test_the_readme_shows_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SAMPLE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "122")
    assert execute(found["command"].split()) == 0
    printed = capsys.readouterr().out
    assert without_measured(printed) == without_measured(found["output"]), (
        f"run `COLUMNS=122 recfleet {found['command']}` and copy its output to README.md"
    )
    assert len(printed.splitlines()) <= 35  # five of which are answers
