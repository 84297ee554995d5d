"""Runs beside each other: grouped, with differences, in tables and in JSON."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from sweep_helpers import SCENARIO, Sweep, cells_of

from coordinator.results.comparison import Comparison, ComparisonError, compare_runs
from coordinator.results.comparison_report import comparison_record, comparison_suites, render_comparison
from coordinator.results.intervals import difference, estimate
from coordinator.results.tables.reader import RunFormatError, open_run

pytestmark = pytest.mark.slow


def rendered(comparison: Comparison, width: int = 200) -> str:
    written = io.StringIO()
    console = Console(file=written, width=width)
    for part in render_comparison(comparison, width):
        console.print(part)
    return written.getvalue()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two cells with seeds 3 and 4, and one of another method with seeds 4 and 5."""
    folder = tmp_path_factory.mktemp("compared")
    Sweep(cells_of(folder), folder / "sweep")
    other = (
        SCENARIO.replace("factors: 4", "factors: 8")
        .replace("seed: 3", "seed: 4")
        .replace("  device.wasted_work: [rate < 5%]\n", "  round.duration: [max < 9 s]\n")
    )
    Sweep(cells_of(folder, other + "sweep: {repeat: 2}\n"), folder / "wider")
    return folder


def up_bytes(directory: Path) -> float:
    return float(sum(open_run(directory).read("rounds", ["up_bytes"])["up_bytes"].to_pylist()))


def test_cells_of_a_sweep_are_groups_paired_by_seed(runs: Path) -> None:
    comparison = compare_runs([runs / "sweep"])
    # In the order of the sweep's cells, not of the names of their directories.
    assert [group.differing["rounds.over_select"] for group in comparison.groups] == ["100%", "150%"]
    assert [sorted(group.runs) for group in comparison.groups] == [[3, 4], [3, 4]]
    (row,) = [row for row in comparison.rows if row.name == "up bytes"]
    first, second = (
        {seed: up_bytes(run.directory) for seed, run in group.runs.items()} for group in comparison.groups
    )
    assert row.estimates[0] == estimate([first[3], first[4]])
    assert row.differences[0] is None
    assert row.differences[1] == difference(first, second)
    assert row.differences[1] is not None
    assert row.differences[1].paired
    text = rendered(comparison)
    assert "paired by seed" in text
    assert "rounds.over_select: 150%" in text


def test_runs_of_other_methods_compare_what_both_have(runs: Path) -> None:
    comparison = compare_runs([runs / "wider", runs / "sweep"])
    assert [sorted(group.runs) for group in comparison.groups] == [[4, 5], [3, 4], [3, 4]]
    names = [row.name for row in comparison.rows]
    # The threshold's figure of one scenario alone, and those that every run has.
    assert {"round.duration p95", "model.rmse last", "up bytes"} <= set(names)
    assert "round.duration max" not in names
    assert comparison.notes == ("not in A and another: round.duration max",)
    # Only one has a threshold on it; every run has the figure.
    assert "device.wasted_work rate" in [row.name for row in comparison.rows]
    (row,) = [row for row in comparison.rows if row.name == "up bytes"]
    change = row.differences[1]
    assert change is not None
    assert not change.paired
    assert change.estimate.half_width is not None
    assert "unpaired" in rendered(comparison)
    assert [group.differing["learning.factors"] for group in comparison.groups] == ["8", "4", "4"]


def test_groups_that_do_not_fit_beside_each_other_have_tables_of_their_own(runs: Path) -> None:
    comparison = compare_runs([runs / "wider", runs / "sweep"])
    assert rendered(comparison, 200).count("differences to A") == 1
    narrow = rendered(comparison, 100)
    assert narrow.count("differences to A") == 2
    assert "B − A" in narrow
    assert "C − A" in narrow
    # Nothing is cut or broken.
    assert narrow.count("round.completed") == 2
    assert "…" not in narrow


def test_runs_that_the_table_of_a_sweep_does_not_name_are_left_out(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(runs / "sweep", folder)
    old = next(path for path in sorted((runs / "wider").iterdir()) if path.is_dir())
    shutil.copytree(old, folder / "old")
    shutil.copytree(old, folder / ".old.17.old")
    comparison = compare_runs([folder])
    assert [sorted(group.runs) for group in comparison.groups] == [[3, 4], [3, 4]]
    left_out, *_ = comparison.notes
    assert left_out == f"{folder}: 1 left out, not in sweep.json: old"
    (folder / "sweep.json").unlink()
    assert len(compare_runs([folder]).groups) == 3
    (folder / "sweep.json").write_text("{}")
    with pytest.raises(RunFormatError, match=r"sweep\.json: is damaged"):
        compare_runs([folder])


def test_single_runs_have_no_interval_and_that_is_said(runs: Path) -> None:
    first, second = (
        next(path for path in sorted((runs / name).iterdir()) if path.is_dir()) for name in ("sweep", "wider")
    )
    comparison = compare_runs([first, second])
    assert all(
        found is None or found.half_width is None for row in comparison.rows for found in row.estimates
    )
    text = rendered(comparison)
    assert "no interval, n = 1" in text
    assert "±" not in text.partition("differences to A")[2]


def test_the_same_seed_of_the_same_scenario_again_is_a_group_of_its_own(runs: Path, tmp_path: Path) -> None:
    """So runs of two versions can be compared."""
    shutil.copytree(runs / "wider", tmp_path / "new")
    comparison = compare_runs([runs / "wider", tmp_path / "new"])
    assert [sorted(group.runs) for group in comparison.groups] == [[4, 5], [4, 5]]
    assert all(group.differing == {} for group in comparison.groups)
    changes = [row.differences[1] for row in comparison.rows]
    assert all(change is not None and change.paired for change in changes)
    assert {change.estimate.mean for change in changes if change is not None} == {0.0}


def test_json_says_the_same(runs: Path) -> None:
    comparison = compare_runs([runs / "wider", runs / "sweep"])
    record = json.loads(json.dumps(comparison_record(comparison), allow_nan=False))
    assert [group["group"] for group in record["groups"]] == ["A", "B", "C"]
    assert [[run["seed"] for run in group["runs"]] for group in record["groups"]] == [[4, 5], [3, 4], [3, 4]]
    (row,) = [row for row in comparison.rows if row.name == "up bytes"]
    (figure,) = [figure for figure in record["figures"] if figure["figure"] == "up bytes"]
    estimated = row.estimates[2]
    change = row.differences[2]
    assert estimated is not None
    assert change is not None
    assert figure["groups"]["C"]["mean"] == estimated.mean
    assert figure["groups"]["C"]["difference"]["half_width"] == change.estimate.half_width
    assert figure["groups"]["C"]["difference"]["paired"] is False
    assert "difference" not in figure["groups"]["A"]


def test_thresholds_of_a_group_fail_if_any_run_missed_them(runs: Path) -> None:
    suites = comparison_suites(compare_runs([runs / "sweep"]))
    missed = [[case.name for case in suite.cases if case.failure is not None] for suite in suites]
    assert sorted(missed) == [[], ["device.wasted_work: rate < 5%"]]


def test_what_cannot_be_compared_is_said(runs: Path, tmp_path: Path) -> None:
    one = next(path for path in sorted((runs / "wider").iterdir()) if path.is_dir())
    with pytest.raises(ComparisonError, match="is given twice; a run does not differ from itself"):
        compare_runs([one, one])
    with pytest.raises(ComparisonError, match="2 runs of one scenario with the same settings"):
        compare_runs([runs / "wider"])
    with pytest.raises(ComparisonError, match="give runs that differ"):
        compare_runs([one])
    with pytest.raises(ComparisonError, match="no such directory"):
        compare_runs([tmp_path / "gone"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ComparisonError, match="is no finished run and holds none"):
        compare_runs([tmp_path / "empty"])
    partial = tmp_path / "sweep" / "x.partial"
    shutil.copytree(one, partial)
    manifest = json.loads((partial / "manifest.json").read_text())
    (partial / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    with pytest.raises(ComparisonError, match="the run is killed; only finished runs"):
        compare_runs([partial, one])
    shutil.copytree(one, tmp_path / "sweep" / "whole")
    comparison = compare_runs([runs / "sweep", tmp_path / "sweep"])
    assert comparison.notes[0] == f"{tmp_path / 'sweep'}: 1 left out, not finished: x.partial"
