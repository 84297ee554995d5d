"""The samples of the pages on plug-ins do what the pages say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from coordinator.cli.entry import execute

DOCS = Path(__file__).parents[2] / "docs"
SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)


PAGES = {
    "adding-an-algorithm": ("algorithm", "biases"),
    "adding-a-fault": ("fault", "solar_flare"),
    "adding-a-selector": ("selector", "most-data"),
    "adding-a-reader": ("reader", "blocks"),
    "adding-a-sink": ("sink", "round-times"),
}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.few(2)
def test_the_sample_of_a_page_is_what_init_writes_and_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    kind, plugin = PAGES[page]
    assert execute(["init", f"--{kind}", plugin]) == 0
    for language in ("python", "yaml"):
        ((name, sample),) = re.findall(
            rf"^`(\w+\.\w+)`[^`]*(?:`[^`]*`[^`]*)?\n```{language}\n(.*?)```", text, re.M | re.S
        )
        assert Path(name).read_text(encoding="utf-8") == sample
    commands = [shlex.split(line)[1:] for block in SHELL.findall(text) for line in block.splitlines()]
    assert {command[0] for command in commands} >= {"check-plugin", "run"}
    for command in commands:
        if command[0] != "swarm":  # processes of its own; tests/plugins/test_plugin_files.py has it
            assert execute(command) == 0, capsys.readouterr().err
    # The method of the tutorial counts no work of its own.
    assert ("estimated from the shapes" in capsys.readouterr().out) == (page == "adding-an-algorithm")
