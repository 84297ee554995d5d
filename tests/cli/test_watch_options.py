"""``run --watch``: where the page is, when it goes, and what is refused."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from coordinator.cli.entry import execute


def digest(folder: Path) -> str:
    found: str = json.loads((folder / "manifest.json").read_text())["digest"]
    return found


@pytest.mark.slow
def test_a_watched_run_is_the_same_and_ends_by_itself_if_asked(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", str(scenario), "--quiet", "--out", "alone"]) == 0
    assert capsys.readouterr().err == ""
    assert execute(["run", str(scenario), "--quiet", "--out", "seen", "--watch", "--watch-exit"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("dashboard: http://127.0.0.1:")
    assert shown.err.count("\n") == 1
    assert shown.out == "seen\n"
    assert digest(in_folder / "alone") == digest(in_folder / "seen")


@pytest.mark.parametrize("option", [["--watch-exit"], ["--watch-port", "8000"]])
def test_how_to_watch_without_watching_is_an_error(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert execute(["run", str(scenario), *option]) == 2
    assert "add --watch" in capsys.readouterr().err
    assert list(in_folder.glob("runs/*")) == []


def test_a_port_that_is_taken_is_an_error_before_the_run(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert execute(["run", str(scenario), "--watch", "--watch-port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"no page can be served at port {port}" in said
    assert "name another --watch-port, or none" in said
    assert list(in_folder.glob("runs/*")) == []
