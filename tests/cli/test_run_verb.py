from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli.entry import execute
from coordinator.results.tables.reader import open_run

ROOT = Path(__file__).resolve().parents[2]


def run_directory(shown: str) -> Path:
    """Return the path that the last line of a run's output names."""
    return Path(shown.splitlines()[-1].removeprefix("run directory: "))


def test_a_run_that_keeps_its_promises(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", str(scenario)]) == 0
    shown = capsys.readouterr()
    assert "3 completed, 0 abandoned" in shown.out
    assert "thresholds: all held" in shown.out
    assert "round.completed: rate == 100%" in shown.out
    assert "round 3/3" in shown.err
    directory = run_directory(shown.out)
    assert directory.parent == Path("runs")
    assert directory.name.startswith("small-3-")
    tables = open_run(in_folder / directory)
    assert tables.complete
    assert tables.read("rounds").num_rows == 3
    assert tables.read("device_rounds").num_rows == 60
    assert f"report: {directory / 'report.html'}" in shown.out.splitlines()
    assert (in_folder / directory / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_summary_is_short_and_the_details_come_on_demand(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert execute(["run", str(scenario)]) == 0
    short = capsys.readouterr().out.splitlines()
    assert len(short) <= 35
    assert [line.partition(":")[0] for line in short[:5]] == ["promises", "rounds", "waste", "bytes", "model"]
    for said in ("held up in", "held up by", "fairness (Jain index)", "training loss"):
        assert any(said in line for line in short)
    assert not [line for line in short if "per device class" in line]
    assert execute(["run", str(scenario), "--details"]) == 0
    long = capsys.readouterr().out
    assert "per device class" in long
    assert "per stage" in long
    assert execute(["run", str(scenario), "--details", "--quiet"]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_a_missed_promise_exits_with_3_and_says_by_how_much(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = 'thresholds."round.duration"=[max < 1 ms, count == 4]'
    assert execute(["run", str(scenario), "--set", setting]) == 3
    shown = capsys.readouterr().out
    assert "thresholds: 2 of 4 missed" in shown
    assert shown.startswith("promises: 2 of 4 MISSED: round.duration: max < 1 ms, by ")
    (row,) = [line for line in shown.splitlines() if line.startswith("│") and "count == 4" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "round.duration: count == 4",
        "3",
        "4",
        "-1",
        "MISSED",
    ]


def test_quiet_prints_the_directory_alone(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", str(scenario), "--quiet", "--out", "here"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "here\n"
    assert shown.err == ""
    assert json.loads((in_folder / "here" / "manifest.json").read_text(encoding="utf-8"))["seed"] == 3


def test_quiet_still_names_a_missed_promise(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = 'thresholds."round.duration"=count == 4'
    assert execute(["run", str(scenario), "--quiet", "--set", setting]) == 3
    assert capsys.readouterr().err == "MISSED round.duration: count == 4 (it was 3)\n"


def test_quiet_and_plain_exclude_each_other(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(scenario), "--quiet", "--plain"]) == 2
    assert "leave one out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "missing.yaml:1:1: there is no such file"),
        (["small.yaml", "--set", "rounds.deadline=45"], "'45' has no unit; write '45 s'"),
        (["small.yaml", "--set", "rounds"], "write it like 'rounds.cohort=50'"),
        (["small.yaml", "--set", "fleet.mix=nowhere"], "--set:1:11: fleet.mix: unknown"),
        (["small.yaml", "--seed", "-1"], "--seed"),
        (["small.yaml", "--seed", "x"], "--seed"),
    ],
)
def test_what_cannot_be_run_exits_with_2(
    arguments: list[str], message: str, scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert sorted(path.name for path in in_folder.iterdir()) == ["small.yaml"]


def test_data_that_cannot_be_read_exits_with_2(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,high,3\n", encoding="utf-8")
    text = scenario.read_text(encoding="utf-8")
    ours = text.replace(
        "{source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 20}",
        "{source: movielens-csv, path: ratings.csv}",
    )
    scenario.write_text(ours, encoding="utf-8")
    assert execute(["run", str(scenario)]) == 2
    assert "ratings.csv:2" in capsys.readouterr().err
    assert not (in_folder / "runs").exists()


def test_a_directory_that_is_no_run_is_not_replaced(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = in_folder / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work", encoding="utf-8")
    assert execute(["run", str(scenario), "--out", "precious"]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert (precious / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_diff_of_equal_seeds_is_identical(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        assert execute(["run", str(scenario), "--quiet", "--seed", "11", "--out", name]) == 0
    capsys.readouterr()
    assert execute(["diff", "a", "b"]) == 0
    assert "identical" in capsys.readouterr().out


def test_diff_of_other_seeds_shows_where_they_part(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in ("11", "12"):
        assert execute(["run", str(scenario), "--quiet", "--seed", seed, "--out", seed]) == 0
    capsys.readouterr()
    assert execute(["diff", "11", "12"]) == 3
    assert "first difference: round " in capsys.readouterr().out


def test_diff_with_what_is_no_run_exits_with_2(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_folder / "empty").mkdir()
    assert execute(["diff", "empty", "empty"]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert execute(["diff", "missing", "empty"]) == 2
    assert "no such directory" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("request_to_end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_exits_with_4_and_stays_readable(
    request_to_end: signal.Signals, scenario: Path, in_folder: Path
) -> None:
    command = [sys.executable, "-m", "coordinator.cli", "run", str(scenario), "--plain", "--out", "run"]
    settings = ["--set", "rounds.count=1000000", "--set", "thresholds=null"]
    with subprocess.Popen(
        [*command, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any(line.startswith("round ") for line in lines)
        process.send_signal(request_to_end)
        output, errors = process.communicate(timeout=600)
    assert process.returncode == 4, errors
    assert "Traceback" not in errors
    directory = in_folder / run_directory(output)
    tables = open_run(directory)
    assert tables.manifest["status"] == "interrupted"
    assert tables.read("rounds").num_rows >= 1
    assert json.loads((directory / "summary.json").read_text(encoding="utf-8"))["status"] == "interrupted"
