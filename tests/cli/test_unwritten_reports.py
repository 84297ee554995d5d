"""A report that cannot be written loses nothing else of its run, and can be written afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.entry import execute
from coordinator.results.tables.reader import open_run
from coordinator.run import runner

SCENARIO = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 30, items: 30, ratings_per_user: 10}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 3, learning_rate: 0.05}
rounds: {count: 2, cohort: 8, deadline: 120 s}
evaluation: {every: 1}
thresholds: {model.rmse: [last < LIMIT]}
"""


@pytest.mark.parametrize(("limit", "code"), [("9", 0), ("0.001", 3)])
@pytest.mark.parametrize("quiet", [False, True])
def test_a_report_that_cannot_be_written_is_said_and_loses_no_run(
    limit: str, code: int, quiet: bool, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OverflowError("a number too many")

    (tmp_path / "s.yaml").write_text(SCENARIO.replace("LIMIT", limit))
    run = tmp_path / "run"
    command = ["run", str(tmp_path / "s.yaml"), "--out", str(run), *(["--quiet"] if quiet else [])]
    with monkeypatch.context() as patched:
        patched.setattr(runner, "write_report", broken)
        patched.setattr(runner, "write_trace", broken)
        assert execute(command) == code
    said = capsys.readouterr()
    where = said.err if quiet else said.out
    why = "was not written (OverflowError: a number too many); the run is whole"
    assert f"trace.json.gz {why}\n" in where
    assert f"report.html {why}; write it with: recfleet report {run}\n" in where
    assert "Traceback" not in said.err
    tables = open_run(run)
    assert tables.complete
    assert (tables.manifest["status"], len(tables.read("rounds"))) == ("finished", 2)
    assert tables.manifest["unwritten"].keys() == {"report.html", "trace.json.gz"}
    (verdict,) = json.loads((run / "verdicts.json").read_text())["thresholds"]
    assert verdict["held"] is (code == 0)
    assert not (run / "report.html").exists()
    assert execute(["report", str(run)]) == 0
    assert (run / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(("limit", "code"), [("9", 0), ("0.001", 3)])
def test_the_verdict_is_printed_before_the_report_is_written(
    limit: str, code: int, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []

    def slow(*_: object) -> None:
        printed.append(capsys.readouterr().out)

    (tmp_path / "s.yaml").write_text(SCENARIO.replace("LIMIT", limit))
    with monkeypatch.context() as patched:
        patched.setattr(runner, "write_report", slow)
        assert execute(["run", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "run")]) == code
    assert "device rounds" in printed[0]
    assert "model.rmse: last <" in printed[0]
    # What is said after it, once.
    rest = capsys.readouterr().out
    assert rest.splitlines() == [
        f"report: {tmp_path / 'run' / 'report.html'}",
        f"run directory: {tmp_path / 'run'}",
    ]
