from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from coordinator.cli.entry import execute

SWEEP = "sweep: {rounds.over_select: [100%, 150%]}\n"


@pytest.fixture
def swept(scenario: Path) -> Path:
    """The small scenario, with a sweep."""
    scenario.write_text(scenario.read_text(encoding="utf-8") + SWEEP, encoding="utf-8")
    return scenario


@pytest.mark.slow
def test_sweep_prints_a_table_and_writes_it(
    swept: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", str(swept), "--jobs", "1", "--set", "rounds.count=2"]
    assert execute([*command, "--json", "t.json", "--junit", "t.xml"]) == 0
    shown = capsys.readouterr()
    assert "1/2 cell 1, rounds.over_select=100%, seed 3: held" in shown.err
    assert "1 of 1" in shown.out
    both = "cell 1, rounds.over_select=100%; cell 2, rounds.over_select=150%"
    assert f"thresholds held in every run of: {both}\n" in shown.out
    files = "runs/small-sweep/sweep.json, runs/small-sweep/sweep.csv"
    assert f"every figure: {files} (--all prints them)\n" in shown.out
    assert "energy" not in shown.out
    table = json.loads(Path("t.json").read_text(encoding="utf-8"))
    assert table == json.loads(Path("runs/small-sweep/sweep.json").read_text(encoding="utf-8"))
    assert [cell["held"] for cell in table["cells"]] == [1, 1]
    suites = ET.parse("t.xml").getroot()
    assert [suite.get("name") for suite in suites] == [
        "small, rounds.over_select=100%", "small, rounds.over_select=150%",
    ]  # fmt: skip
    assert (suites.get("tests"), suites.get("failures")) == ("6", "0")
    assert all(float(suite.get("time") or 0) == float(suite[0].get("time") or 0) > 0 for suite in suites)
    assert execute([*command, "--all"]) == 0
    again = capsys.readouterr()
    assert "seed 3: held, kept" in again.err
    assert "energy" in again.out
    assert f"every figure: {files}\n" in again.out

    cells = sorted(path for path in Path("runs/small-sweep").iterdir() if path.is_dir())
    assert execute(["compare", *map(str, cells), "--json", "c.json", "--junit", "c.xml"]) == 0
    shown = capsys.readouterr()
    assert "B − A" in shown.out
    assert "no interval, n = 1" in shown.out
    assert len(json.loads(Path("c.json").read_text(encoding="utf-8"))["groups"]) == 2
    assert ET.parse("c.xml").getroot().get("tests") == "6"


@pytest.mark.slow
def test_sweep_exits_with_3_when_a_threshold_was_missed(
    swept: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = 'thresholds."device.wasted_work"=[rate < 5%]'
    assert execute(["sweep", str(swept), "--set", missed, "--junit", "t.xml"]) == 3
    shown = capsys.readouterr().out
    assert "0 of 1" in shown
    assert "thresholds held in every run of: cell 1, rounds.over_select=100%\n" in shown
    failures = [suite.get("failures") for suite in ET.parse("t.xml").getroot()]
    assert failures == ["0", "1"]


def test_a_wrong_cell_is_refused_before_anything_runs(
    swept: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = 'sweep."rounds.deadline"=[10 s, 45]'
    for verb in ("sweep", "validate", "show"):
        assert execute([verb, str(swept), "--set", wrong]) == 2
        assert "--set:1:25: rounds.deadline: '45' has no unit" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_sweep_of_a_scenario_without_one_says_so(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["sweep", str(scenario)]) == 2
    assert "has no section 'sweep'; add one, or use: recfleet run" in capsys.readouterr().err


def test_show_lists_the_cells_and_run_leaves_them_alone(
    swept: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["show", str(swept)]) == 0
    shown = capsys.readouterr().out
    assert "# sweep: 2 cells, 1 run each: 2 runs" in shown
    assert "#   cell 2: rounds.over_select=150%" in shown
    assert execute(["run", str(swept), "--quiet", "--out", "run"]) == 0
    assert capsys.readouterr().err == ""
    assert "over_select: 100%" in Path("run/scenario.resolved.yaml").read_text(encoding="utf-8")
    assert execute(["run", str(swept), "--out", "run", "--overwrite"]) == 0
    note = f"note: one run, without the scenario's section sweep; recfleet sweep {swept} runs its cells\n"
    assert note in capsys.readouterr().err


def test_run_writes_verdicts_for_machines(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = 'thresholds."round.duration"=[max < 1 ms]'
    settings = ["--set", missed, "--out", "run", "--quiet"]
    assert execute(["run", str(scenario), *settings, "--json", "v.json", "--junit", "v.xml"]) == 3
    verdicts = json.loads(Path("v.json").read_text(encoding="utf-8"))
    assert (verdicts["exit_code"], verdicts["status"], verdicts["seed"]) == (3, "finished", 3)
    assert [record["held"] for record in verdicts["thresholds"]] == [True, True, False]
    written = json.loads(Path("run/verdicts.json").read_text(encoding="utf-8"))
    assert written["thresholds"] == verdicts["thresholds"]
    (suite,) = ET.parse("v.xml").getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("small", "4", "1")
    manifest = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    parts = ("assemble_s", "run_s", "write_s")
    took = f"{sum(manifest['measured'][part] for part in parts):.3f}"
    assert [case.get("time") for case in suite] == [took, "0.000", "0.000", "0.000"]
    (failure,) = suite.iter("failure")
    assert (failure.get("message") or "").startswith("MISSED round.duration: max < 1 ms (it was ")


def test_a_failed_baseline_is_a_suite_of_its_own(
    scenario: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [
        "--set",
        'thresholds."round.duration"=[max < 1 ms]',
        "--set",
        "baseline=same-seed-without-faults",
    ]
    assert execute(["run", str(scenario), *settings, "--out", "run", "--junit", "v.xml"]) == 3
    shown = capsys.readouterr().out
    assert "thresholds of the baseline: 1 of 3 missed" in shown
    assert "failed: the baseline, without faults, missed round.duration: max < 1 ms" in shown
    of_baseline, of_run = ET.parse("v.xml").getroot()
    assert (of_baseline.get("name"), of_baseline.get("failures")) == ("small baseline", "1")
    assert (of_run.get("tests"), of_run.get("errors")) == ("1", "1")


def test_compare_of_what_is_no_run_exits_with_2(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["compare", "gone"]) == 2
    assert "error: gone: no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    option: str, swept: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("run", "sweep"):
        assert execute([verb, str(swept), option, "gone/file"]) == 2
        assert "there is no folder 'gone'; make it first" in capsys.readouterr().err
    assert not Path("runs").exists()
