"""Sweeps that are run: their table, whatever the number of processes, and what interrupts them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from rich.table import Table
from sweep_helpers import SCENARIO, SWEEP, Sweep, cells_of, die_at_once

from coordinator.cluster import local
from coordinator.cluster.jobs import TRIES
from coordinator.cluster.local import LocalCluster
from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.progress import RunObserver
from coordinator.results.figures import run_figures
from coordinator.results.intervals import estimate, t_quantile
from coordinator.results.run_directory import RunDirectoryError
from coordinator.results.sweep import CellResult, Result, leaves, sweep_tables, telling
from coordinator.results.tables.reader import open_run
from coordinator.results.verdicts import read_verdicts
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import load
from coordinator.scenario.sweep import load_cells
from coordinator.sweeps import runs
from coordinator.sweeps.execution import run_sweep
from coordinator.sweeps.runs import Task, perform, run_all

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sweep]:
    folder = tmp_path_factory.mktemp("sweep")
    return folder, Sweep(cells_of(folder), folder / "out")


@pytest.mark.slow
def test_every_run_is_an_ordinary_run_directory(swept: tuple[Path, Sweep]) -> None:
    folder, sweep = swept
    assert sweep.outcome.exit_code is ExitCode.THRESHOLD_MISSED
    assert sorted((number, seed) for number, seed, _ in sweep.told) == [(1, 3), (1, 4), (2, 3), (2, 4)]
    directories = sorted(path for path in (folder / "out").iterdir() if path.is_dir())
    assert len(directories) == 4
    for directory in directories:
        manifest = json.loads((directory / "manifest.json").read_text())
        assert manifest["status"] == "finished"
        assert open_run(directory).read("rounds").num_rows == 2
        assert "sweep" not in load(directory / "scenario.resolved.yaml").document.root


@pytest.mark.slow
def test_the_table_holds_means_and_intervals_of_the_runs(swept: tuple[Path, Sweep]) -> None:
    folder, sweep = swept
    first, second = sweep.table["cells"]
    assert first["settings"] == {"rounds.over_select": "100%"}
    assert (first["held"], first["finished"], second["held"]) == (2, 2, 0)
    assert [run["status"] for run in second["runs"]] == ["missed", "missed"]
    assert second["thresholds"] == [
        {"threshold": "round.completed: rate == 100%", "held": 2, "of": 2},
        {"threshold": "device.wasted_work: rate < 5%", "held": 0, "of": 2},
    ]
    values = []
    for run in second["runs"]:
        tables = open_run(folder / "out" / run["directory"])
        values.append(sum(tables.read("rounds", ["up_bytes"])["up_bytes"].to_pylist()))
    figure = second["figures"]["up bytes"]
    assert figure["values"] == {"3": values[0], "4": values[1]}
    assert figure["mean"] == sum(values) / 2
    # Of two values the standard error is half their distance, and t of one degree of freedom 12.706.
    assert figure["half_width"] == pytest.approx(abs(values[0] - values[1]) / 2 * t_quantile(0.95, 1))
    assert figure["n"] == 2
    # Half of the invited are surplus: 10 of 30.
    assert second["figures"]["device.completed rate"]["mean"] == pytest.approx(2 / 3)
    assert list(second["figures"])[:2] == ["round.completed rate", "device.wasted_work rate"]
    assert {"model.rmse last", "round.duration p50", "round.duration p95"} <= set(second["figures"])


def test_csv_says_the_same(swept: tuple[Path, Sweep]) -> None:
    folder, sweep = swept
    with (folder / "out" / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["rounds.over_select"] for row in rows] == ["100%", "150%"]
    assert [(row["runs"], row["finished"], row["held"]) for row in rows] == [("2", "2", "2"), ("2", "2", "0")]
    for row, cell in zip(rows, sweep.table["cells"], strict=True):
        for name, figure in cell["figures"].items():
            assert float(row[f"{name} mean"]) == figure["mean"]
            assert float(row[f"{name} half_width"]) == figure["half_width"]
            assert row[f"{name} n"] == "2"


def headings(table: Table) -> list[str]:
    """Return the headings of a table, each in one line."""
    lines = [str(column.header) for column in table.columns]
    return [re.sub(r"\n", " ", re.sub(r"\.\n", ".", re.sub(r"\n\{", "{", each))) for each in lines]


def cells_under(table: Table, heading: str) -> list[str]:
    return [str(cell) for cell in table.columns[headings(table).index(heading)].cells]


def test_the_terminal_has_a_row_a_cell_and_a_column_a_threshold(swept: tuple[Path, Sweep]) -> None:
    _, sweep = swept
    (table,) = sweep_tables(sweep.outcome.cells, 80)
    assert headings(table) == [
        "cell", "rounds.over_select", "held", "round.completed rate == 100%", "device.wasted_work rate < 5%",
    ]  # fmt: skip
    assert str(table.title).endswith("interval, ✗ missed by a run")
    assert cells_under(table, "rounds.over_select") == ["100%", "150%"]
    assert cells_under(table, "held") == ["2 of 2", "0 of 2"]
    assert not any("✗" in cell for cell in cells_under(table, "round.completed rate == 100%"))
    assert [cell.endswith(" ✗") for cell in cells_under(table, "device.wasted_work rate < 5%")] == [
        False,
        True,
    ]


def test_a_narrow_terminal_has_one_table_too(swept: tuple[Path, Sweep]) -> None:
    _, sweep = swept
    (wide,) = sweep_tables(sweep.outcome.cells, 200)
    (stacked,) = sweep_tables(sweep.outcome.cells, 66)
    assert headings(stacked) == headings(wide)
    heading = "device.wasted_work rate < 5%"
    unstacked = [re.sub(r"\s*\n", " ", re.sub(" ✗", "", cell)) for cell in cells_under(stacked, heading)]
    assert [one.strip() for one in unstacked] == [
        re.sub("✗", "", cell).strip() for cell in cells_under(wide, heading)
    ]
    assert [cell.splitlines()[0].endswith(" ✗") for cell in cells_under(stacked, heading)] == [False, True]
    (long,) = sweep_tables(sweep.outcome.cells, 50)
    assert headings(long) == ["cell", "setting", "held", "threshold", "figure"]
    rows = list(zip(*(cells_under(long, each) for each in headings(long)), strict=True))
    assert [row[:4] for row in rows] == [
        ("1", "rounds.over_select=100%", "2 of 2", "round.completed: rate == 100%"),
        ("", "", "", "device.wasted_work: rate < 5%"),
        ("2", "rounds.over_select=150%", "0 of 2", "round.completed: rate == 100%"),
        ("", "", "", "device.wasted_work: rate < 5%"),
    ]
    assert [row[4].endswith(" ✗") for row in rows] == [False, False, False, True]
    console = Console(width=66, file=io.StringIO())
    assert console.measure(stacked).maximum <= 66


def test_all_figures_break_into_tables_that_fit(swept: tuple[Path, Sweep]) -> None:
    _, sweep = swept
    (whole,) = sweep_tables(sweep.outcome.cells, 1000, everything=True)
    assert whole.row_count == 2
    names = headings(whole)
    assert names[:3] == ["cell", "rounds.over_select", "held"]
    assert set(sweep.table["cells"][0]["figures"]) == set(names[3:])
    narrow = sweep_tables(sweep.outcome.cells, 80, everything=True)
    assert len(narrow) > 2
    assert [name for table in narrow for name in headings(table)[3:]] == names[3:]
    console = Console(width=80, file=io.StringIO())
    assert all(console.measure(table).maximum <= 80 for table in narrow)


def test_without_thresholds_one_table_has_the_first_figures(swept: tuple[Path, Sweep]) -> None:
    _, sweep = swept
    bare = [
        CellResult(one.cell, {seed: replace(each, verdicts=()) for seed, each in one.results.items()})
        for one in sweep.outcome.cells
    ]
    (table,) = sweep_tables(bare, 80)
    whole = headings(sweep_tables(bare, 1000, everything=True)[0])
    assert 4 < len(headings(table)) < len(whole)
    assert headings(table) == whole[: len(headings(table))]


def test_a_limit_of_some_cells_is_no_heading_and_what_was_not_observed_is_marked(
    swept: tuple[Path, Sweep],
) -> None:
    _, sweep = swept
    first, second = sweep.outcome.cells
    record = {"key": "model.auc{phase=after}", "aggregation": "last", "implicit": False, "held": False}

    def judged(cell: CellResult, *limits: str) -> CellResult:
        verdicts = tuple({**record, "threshold": f"{record['key']}: {limit}"} for limit in limits)
        return CellResult(
            cell.cell, {seed: replace(each, verdicts=verdicts) for seed, each in cell.results.items()}
        )

    (table,) = sweep_tables([judged(first, "last > 0.5", "last < 1"), judged(second, "last < 1")], 80)
    assert headings(table)[3:] == ["model.auc{phase=after} last < 1"]
    (table,) = sweep_tables([judged(first, "last > 0.5"), judged(second, "last > 0.6")], 80)
    assert headings(table)[3:] == ["model.auc{phase=after} last"]
    assert cells_under(table, "model.auc{phase=after} last") == ["– ✗", "– ✗"]


def test_cells_that_differ_in_sections_are_told_apart_by_single_settings() -> None:
    cells = [
        [("learning", '{"algorithm": "lipm", "client": {"steps": "2"}}'), ("rounds.count", "5")],
        [("learning", '{"algorithm": "blur", "client": {"steps": "2"}}'), ("rounds.count", "6")],
        [("learning", '{"algorithm": "blur", "client": {"steps": "3"}}'), ("rounds.count", "7")],
    ]
    found = [leaves(cell) for cell in cells]
    assert found[2] == {"learning.algorithm": "blur", "learning.client.steps": "3", "rounds.count": "7"}
    assert telling(found) == ("learning.algorithm", "learning.client.steps")
    assert telling(found[:1]) == ("learning.algorithm", "learning.client.steps", "rounds.count")


@pytest.mark.slow
def test_the_table_does_not_depend_on_the_number_of_processes(
    swept: tuple[Path, Sweep], tmp_path: Path
) -> None:
    folder, _ = swept
    Sweep(cells_of(tmp_path), tmp_path / "out", jobs=1)
    for name in ("sweep.json", "sweep.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / "out" / name).read_bytes()


@pytest.mark.slow
def test_finished_runs_are_kept_and_others_run_again(swept: tuple[Path, Sweep], tmp_path: Path) -> None:
    swept_in, first = swept
    folder = tmp_path / "sweep"
    shutil.copytree(swept_in, folder)
    table = (folder / "out" / "sweep.json").read_bytes()
    again = Sweep(cells_of(folder), folder / "out")
    assert again.kept() == 4
    assert (folder / "out" / "sweep.json").read_bytes() == table
    # One more value, one run without an end and one of another version: three runs to do.
    damaged, aged = (folder / "out" / run["directory"] for run in first.table["cells"][0]["runs"])
    (damaged / "manifest.json").unlink()
    manifest = json.loads((aged / "manifest.json").read_text())
    manifest["host"]["recfleet"] = "0.0.1"
    (aged / "manifest.json").write_text(json.dumps(manifest))
    for file in damaged.iterdir():
        file.unlink()
    (cell, *_) = cells_of(folder, SCENARIO + SWEEP.replace("repeat: 2", "repeat: 3"))
    third = Sweep((cell,), folder / "out")
    assert (len(third.told), third.kept()) == (3, 0)
    assert third.table["cells"][0]["figures"]["up bytes"]["n"] == 3


@pytest.mark.slow
def test_a_run_that_cannot_be_done_does_not_stop_the_others(tmp_path: Path) -> None:
    ratings = "userId,movieId,rating,timestamp\n"
    good = "".join(
        f"{user},{item},{1 + (user * item) % 5},{item}\n" for user in range(30) for item in range(12)
    )
    (tmp_path / "good.csv").write_text(ratings + good)
    (tmp_path / "bad.csv").write_text(ratings + "1,2,high,3\n")
    text = SCENARIO.replace(
        "{source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 12}",
        "{source: movielens-csv, path: good.csv}",
    )
    sweep = Sweep(cells_of(tmp_path, text + "sweep: {data.path: [bad.csv, good.csv]}\n"), tmp_path / "out")
    bad, good_cell = sweep.table["cells"]
    assert bad["runs"][0]["status"] == "refused"
    assert "bad.csv:2" in bad["runs"][0]["error"]
    assert bad["figures"] == {}
    assert good_cell["runs"][0]["status"] == "held"
    assert sweep.outcome.exit_code is ExitCode.INVALID_SCENARIO


def test_a_bug_is_reported_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    (cell, *_) = cells_of(tmp_path)
    monkeypatch.setattr(runs, "run_assembled", broken)
    result = perform(Task(cell.runs[0], tmp_path / "run"), RunObserver())
    assert (result.status, result.error) == ("failed", "ZeroDivisionError: a bug")
    assert result.trace is not None
    assert "in broken" in result.trace


@contextmanager
def killing(is_one: Callable[[psutil.Process], bool], most: int = 1000) -> Iterator[list[int]]:
    """Kill the children that are chosen, as often as ``most``, as soon as they are seen; gives their ids."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        while not over.is_set() and len(killed) < most:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                    if child.pid not in killed and is_one(child):
                        child.kill()
                        killed.append(child.pid)
                        break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_a_run_whose_process_dies_again_and_again_has_failed_alone(tmp_path: Path) -> None:
    long = SCENARIO.replace("count: 2", "count: 1000000").replace(
        "thresholds:", "compute: {batch: 64}\nthresholds:"
    )
    (endless,) = load_cells(load(_write(tmp_path, "long", long + "sweep: {repeat: 1}\n")))
    cells = cells_of(tmp_path)
    tasks = [Task(endless.runs[0], tmp_path / "endless")]
    tasks += [
        Task(run, tmp_path / f"{cell.number}-{run.scenario.seed}") for cell in cells for run in cell.runs
    ]
    found: dict[int, Result] = {}
    with (
        killing(lambda process: _is_at(process, tmp_path / "endless.partial")) as killed,
        LocalCluster(2) as cluster,
    ):
        assert not run_all(tasks, cluster, found.__setitem__, lambda *_: None)
    assert len(killed) == TRIES
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert found[0].status == "failed"
    assert found[0].error == "its worker died 3 times, the last time (signal 9)"
    assert [found[number].status for number in (1, 2)] == ["held", "held"]
    assert [found[number].status for number in (3, 4)] == ["missed", "missed"]


@pytest.mark.slow
def test_a_sweep_whose_processes_are_killed_has_the_table_of_one_left_alone(tmp_path: Path) -> None:
    cells = load_cells(load(_write(tmp_path, "long", LONG + "sweep: {rounds.over_select: [100%, 110%]}\n")))

    def is_at_a_run(process: psutil.Process) -> bool:
        return any(".partial" in file.path for file in process.open_files())

    with killing(is_at_a_run, most=2) as killed:
        disturbed = Sweep(cells, tmp_path / "disturbed")
    assert len(killed) == 2
    undisturbed = Sweep(cells, tmp_path / "undisturbed")
    assert disturbed.outcome.exit_code == undisturbed.outcome.exit_code
    tables = [(tmp_path / name / "sweep.json").read_bytes() for name in ("disturbed", "undisturbed")]
    assert tables[0] == tables[1]
    # Nothing is left of the runs that were cut short.
    names = [
        sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("disturbed", "undisturbed")
    ]
    assert names[0] == names[1]


@pytest.mark.slow
def test_runs_have_failed_when_no_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "serve", die_at_once)
    sweep = Sweep(cells_of(tmp_path), tmp_path / "out")
    assert sweep.outcome.exit_code is ExitCode.INTERNAL_ERROR
    errors = {run["error"] for cell in sweep.table["cells"] for run in cell["runs"]}
    assert errors == {"no worker could be started: 3 have died at once, the last by exit code 9"}


def _write(folder: Path, name: str, text: str) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return file


def _is_at(process: psutil.Process, directory: Path) -> bool:
    return any(Path(file.path).parent == directory for file in process.open_files())


COMMAND = [sys.executable, "-m", "coordinator.cli", "sweep"]
LONG = SCENARIO.replace("count: 2", "count: 40").replace("cohort: 20", "cohort: 50")


def start(file: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, str(file), "--out", str(out), "--jobs", "2"],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_line(process: subprocess.Popen[str], start_of_line: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(start_of_line):
            return
    raise AssertionError("the sweep ended before it was stopped")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_sweep_goes_on_where_it_was(tmp_path: Path, number: signal.Signals) -> None:
    file = _write(tmp_path, "long", LONG + "sweep: {rounds.over_select: [100%, 110%], repeat: 3}\n")
    out = tmp_path / "out"
    with start(file, out) as process:
        wait_for_line(process, "2/6 ")
        children = psutil.Process(process.pid).children()
        process.send_signal(number)
        _, errors = process.communicate(timeout=600)
    assert "Traceback" not in errors
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        # The workers end by themselves.
        assert psutil.wait_procs(children, timeout=600)[1] == []
    else:
        assert process.returncode == ExitCode.INTERRUPTED
        assert "the same command goes on from here" in errors
        table = json.loads((out / "sweep.json").read_text())
        statuses = {run["status"] for cell in table["cells"] for run in cell["runs"]}
        assert statuses >= {"interrupted", "not run"}
    # A killed run can lie under a name that begins with a dot, or under .partial.
    finished = {path.name for path in out.glob("[!.]*") if path.suffix != ".partial" and path.is_dir()}
    assert 2 <= len(finished) < 6

    cells = load_cells(load(file))
    again = Sweep(cells, out)
    assert again.kept() == len(finished)
    whole = Sweep(cells, tmp_path / "whole")
    assert whole.kept() == 0
    assert (out / "sweep.json").read_bytes() == (tmp_path / "whole" / "sweep.json").read_bytes()
    assert not list(out.glob("*.partial"))


@pytest.mark.slow
def test_two_sweeps_do_not_share_a_directory(tmp_path: Path) -> None:
    file = _write(tmp_path, "long", LONG.replace("count: 40", "count: 1000000") + "sweep: {repeat: 1}\n")
    out = tmp_path / "out"
    with start(file, out) as process:
        while not list(out.glob("*.partial")):
            assert process.poll() is None
            time.sleep(0.05)
        with pytest.raises(RunDirectoryError, match="another process is at a sweep here"):
            run_sweep(
                load_cells(load(file)),
                target=out,
                choice=ClusterChoice(workers=1),
                on_result=lambda *_: None,
                on_lost=lambda *_: None,
            )
        process.kill()
        process.communicate(timeout=600)


def test_a_sweep_says_where_it_cannot_write(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for target in (file, file / "out"):
        with pytest.raises(RunDirectoryError, match=r"cannot be made \(.+\); give another --out"):
            run_sweep(
                cells_of(tmp_path),
                target=target,
                choice=ClusterChoice(workers=1),
                on_result=lambda *_: None,
                on_lost=lambda *_: None,
            )


@pytest.mark.slow
def test_runs_on_other_data_are_done_again(tmp_path: Path) -> None:
    ratings = tmp_path / "ratings.csv"
    head = "userId,movieId,rating,timestamp\n"
    rows = [f"{user},{item},{1 + (user * item) % 5},{item}\n" for user in range(30) for item in range(12)]
    ratings.write_text(head + "".join(rows))
    text = SCENARIO.replace(
        "{source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 12}",
        "{source: movielens-csv, path: ratings.csv}",
    )
    cells = cells_of(tmp_path, text + SWEEP)
    first = Sweep(cells, tmp_path / "out")
    assert [cell["finished"] for cell in first.table["cells"]] == [2, 2]
    assert Sweep(cells, tmp_path / "out").kept() == 4
    # One rating is another: as many rows, the same scenario.
    assert rows[-1] == "29,11,5,11\n"
    ratings.write_text(head + "".join(rows[:-1]) + "29,11,3,11\n")
    assert Sweep(cells, tmp_path / "out").kept() == 0


def test_a_sweep_does_not_go_into_a_run(swept: tuple[Path, Sweep]) -> None:
    folder, _ = swept
    run = next(path for path in (folder / "out").iterdir() if (path / "manifest.json").is_file())
    with pytest.raises(RunDirectoryError, match="is the directory of a run"):
        run_sweep(
            cells_of(folder),
            target=run,
            choice=ClusterChoice(workers=1),
            on_result=lambda *_: None,
            on_lost=lambda *_: None,
        )


@pytest.mark.slow
def test_a_baseline_that_fails_is_a_cell_that_missed(tmp_path: Path) -> None:
    text = SCENARIO.replace("device.wasted_work: [rate < 5%]", "round.duration: [max < 1 ms]")
    sweep = Sweep(
        cells_of(tmp_path, text + "baseline: same-seed-without-faults\nsweep: {repeat: 1}\n"),
        tmp_path / "out",
    )
    (cell,) = sweep.table["cells"]
    assert (cell["finished"], cell["held"]) == (0, 0)
    assert cell["runs"][0]["status"] == "missed"
    assert "the baseline, without faults, missed round.duration: max < 1 ms" in cell["runs"][0]["error"]
    assert sweep.outcome.exit_code is ExitCode.THRESHOLD_MISSED


def test_figures_of_a_run_are_those_of_its_tables(swept: tuple[Path, Sweep]) -> None:
    folder, sweep = swept
    directory = folder / "out" / sweep.table["cells"][1]["runs"][0]["directory"]
    tables = open_run(directory)
    figures = run_figures(tables, read_verdicts(directory))
    rounds = tables.read("rounds").to_pylist()
    assert figures["simulated time"].value == rounds[-1]["end_s"]
    assert figures["model.loss last"].value == rounds[-1]["loss"]
    assert figures["round.duration p50"].value == estimate([row["duration_s"] for row in rounds]).mean
    assert figures["wasted bytes"].value == sum(row["wasted_bytes"] for row in rounds)
    assert os.fspath(directory).endswith(sweep.table["cells"][1]["runs"][0]["directory"])


@pytest.mark.slow
def test_the_shipped_sweep_shows_how_much_over_selection_it_takes(tmp_path: Path) -> None:
    cells = load_cells(load(ROOT / "scenarios" / "dropout_sweep.yaml", ["sweep.repeat=1"]))
    table = Sweep(cells, tmp_path / "out").table["cells"]
    held = {tuple(cell["settings"].values()): cell["held"] for cell in table}
    # 150 % is the scenario as it is written; with less, rounds wait for those who have vanished.
    assert held[("150%", "20 s")] == held[("150%", "10 s")] == 1
    assert [held[(share, deadline)] for share in ("100%", "130%") for deadline in ("10 s", "20 s")] == [0] * 4
    duration_s = {
        tuple(cell["settings"].values()): cell["figures"]["round.duration{phase=dropouts} p95"]["mean"]
        for cell in table
    }
    # Without over-selection every round lasts until its deadline.
    assert duration_s[("100%", "10 s")] == pytest.approx(10.0)
    assert duration_s[("100%", "20 s")] == pytest.approx(20.0)
    assert duration_s[("150%", "20 s")] < 2.0
