"""Tunings that are run: their best, what they leave, and what interrupts them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tuning_helpers import SCENARIO, VARY, InProcess, Stopped, here, plan_of, tuned, write

import recfleet
from coordinator.cli.entry import execute
from coordinator.results.report.page import report_of
from coordinator.results.report.sections.swept import swept
from coordinator.results.report.sweep_table import TuningGoal, read_sweep_table
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import load
from coordinator.tuning.best import best_text
from coordinator.tuning.goal import TuneError
from coordinator.tuning.request import read_request
from coordinator.tuning.tuning import EndedTrial, TuningPlan

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("optuna", reason="needs the extra tune")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return here(monkeypatch)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, and ``out`` with a tuning of five trials."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        here(patch)
        tuned(plan_of(write(folder)), folder / "out")
    return folder


def brief(trial: EndedTrial) -> tuple[object, ...]:
    return trial.number, trial.cell.settings, trial.ended


def test_the_first_trial_is_the_scenario_as_written(done: Path) -> None:
    first = json.loads((done / "out" / "sweep.json").read_text())["cells"][0]
    assert first["settings"] == {"rounds.cohort": "12", "rounds.over_select": "100%"}


def test_the_best_scenario_is_a_file_that_gives_the_same_run(done: Path) -> None:
    out = done / "out"
    table = json.loads((out / "sweep.json").read_text())
    best = table["cells"][table["tuned"]["best"] - 1]
    held = [cell["figures"]["round.duration p95"]["mean"] for cell in table["cells"] if cell["held"] == 1]
    assert best["figures"]["round.duration p95"]["mean"] == min(held)
    written = (out / "best.yaml").read_text(encoding="utf-8")
    assert written.splitlines()[1] == "extends: ../small.yaml"
    again = recfleet.run(out / "best.yaml", out=done / "again")
    first = recfleet.open_run(out / best["runs"][0]["directory"])
    assert again.held
    assert again.manifest["digest"] == first.manifest["digest"]


def test_the_figures_are_those_of_the_runs(done: Path) -> None:
    table = json.loads((done / "out" / "sweep.json").read_text())
    assert len(table["cells"]) == 5
    for cell in table["cells"]:
        run = recfleet.open_run(done / "out" / cell["runs"][0]["directory"])
        figure = cell["figures"]["round.duration p95"]
        assert figure["mean"] == run.figures["round.duration p95"].value
        assert cell["held"] == run.held


def test_the_report_has_each_trial_and_both_settings(done: Path) -> None:
    page = report_of([done / "out"])
    assert "What did the tuning out change?" in page
    table = json.loads((done / "out" / "sweep.json").read_text())
    for cell in table["cells"]:
        settings = cell["settings"]
        assert f"cohort={settings['rounds.cohort']}, over_select={settings['rounds.over_select']}" in page
    for key in ("rounds.cohort", "rounds.over_select"):
        assert f"against {key}. cohort=12, over_select=100%: " in page


def test_the_report_begins_with_what_the_tuning_was_for(done: Path) -> None:
    table = json.loads((done / "out" / "sweep.json").read_text())["tuned"]
    sweep = read_sweep_table(done / "out")
    assert sweep is not None
    first, *_ = swept(sweep)[0].answers
    assert first.name == "Round time, p95"
    assert first.note.startswith(f"tuned: trial {table['best']}, cohort=")
    (without,) = (swept(replace(sweep, goal=TuningGoal("round.duration p95", False, None)))[0].answers)[:1]
    assert without.note == "no trial held every threshold"


def test_the_same_seed_gives_the_same_trials_and_another_gives_others(
    done: Path, tmp_path: Path, pool: InProcess
) -> None:
    file = write(tmp_path)
    for seed, same in ((1, True), (2, False)):
        tuned(plan_of(file, seed=seed), tmp_path / f"out{seed}")
        tables = [
            json.loads((folder / "sweep.json").read_text())["cells"]
            for folder in (done / "out", tmp_path / f"out{seed}")
        ]
        settings = [[cell["settings"] for cell in cells] for cells in tables]
        assert (settings[0] == settings[1]) is same
        assert (tables[0] == tables[1]) is same


@pytest.mark.parametrize("how", ["killed", pytest.param("interrupted", marks=pytest.mark.slow)])
def test_a_tuning_that_was_cut_short_goes_on_as_if_it_had_not(
    done: Path, tmp_path: Path, pool: InProcess, how: str
) -> None:
    plan = plan_of(write(tmp_path))
    if how == "killed":
        pool.stop_after = 3
        with pytest.raises(Stopped):
            tuned(plan, tmp_path / "out")
        # A line that was half written when the process died.
        with (tmp_path / "out" / "tuning.journal").open("a", encoding="utf-8") as file:
            file.write('{"op_code":4,"work')
        pool.stop_after = None
    else:
        pool.interrupt_after = 3
        outcome, told = tuned(plan, tmp_path / "out")
        assert outcome.exit_code is ExitCode.INTERRUPTED
        assert len(told) == 3
        pool.interrupt_after = None
    outcome, told = tuned(plan, tmp_path / "out")
    assert [trial.kept for trial in told] == [True] * 3 + [False] * 2
    assert len(pool.runs) == 5
    tables = [(folder / "out" / "sweep.json").read_text() for folder in (done, tmp_path)]
    assert tables[0] == tables[1]
    # More trials go on from there.
    outcome, told = tuned(plan_of(tmp_path / "small.yaml", trials=6), tmp_path / "out")
    assert (len(told), len(pool.runs), outcome.exit_code) == (6, 6, ExitCode.HELD)


def test_a_directory_is_kept_for_one_tuning(done: Path, pool: InProcess) -> None:
    for plan, other in (
        (plan_of(done / "small.yaml", minimise="up bytes"), "goal"),
        (plan_of(done / "small.yaml", VARY[0]), "space"),
        (plan_of(done / "small.yaml", seed=2), "search"),
    ):
        with pytest.raises(TuneError, match=f"holds a tuning with another {other}; give another --out"):
            tuned(plan, done / "out")
    changed = write(done, SCENARIO.replace("factors: 2", "factors: 3"), "changed")
    with pytest.raises(TuneError, match="holds a tuning with another scenario; "):
        tuned(plan_of(changed), done / "out")
    assert pool.runs == []


ABORTED = SCENARIO.replace("count: 2", "count: 6").replace(
    "device.wasted_work: [rate < 30%]", "device.wasted_work: [{expect: rate < 30%, abort: true}]"
)


def test_a_threshold_that_aborts_ends_a_trial_early(tmp_path: Path, pool: InProcess) -> None:
    plan = plan_of(write(tmp_path, ABORTED), "rounds.over_select=[100%, 200%]", trials=5)
    outcome, told = tuned(plan, tmp_path / "out")
    assert [(trial.cell.settings[0][1], trial.ended.how) for trial in told] == [
        ("100%", "held"), ("200%", "ended early"),
    ]  # fmt: skip
    assert outcome.exhausted
    early = told[1].ended
    assert early.value is None
    assert early.distances["device.wasted_work: rate < 30%"] < 0
    run = recfleet.open_run(tmp_path / "out" / early.runs[0][1])
    assert run.rounds.num_rows < 6


def test_no_trial_that_holds_is_said_and_leaves_no_best(tmp_path: Path, pool: InProcess) -> None:
    impossible = SCENARIO + "  round.duration: [max < 1 ns]\n"
    plan = plan_of(write(tmp_path, impossible), trials=2)
    outcome, told = tuned(plan, tmp_path / "out")
    assert outcome.best is None
    assert outcome.exit_code is ExitCode.THRESHOLD_MISSED
    assert not (tmp_path / "out" / "best.yaml").exists()
    # What a run came to is known although it may not be chosen.
    assert all(trial.ended.value is not None for trial in told)


@pytest.mark.slow
def test_repeats_are_means_whose_thresholds_hold_in_every_run(tmp_path: Path, pool: InProcess) -> None:
    outcome, told = tuned(
        plan_of(
            write(tmp_path),
            "rounds.cohort=[6, 12]",
            maximise="model.rmse last",
            minimise=None,
            trials=2,
            repeat=2,
        ),
        tmp_path / "out",
    )
    assert [[seed for seed, _ in trial.ended.runs] for trial in told] == [[3, 4], [3, 4]]
    for trial in told:
        values = [
            recfleet.open_run(tmp_path / "out" / name).figures["model.rmse last"].value
            for _, name in trial.ended.runs
        ]
        assert trial.ended.value == sum(values) / 2
    assert outcome.best is max(told, key=lambda trial: trial.ended.value or 0.0)
    assert load(tmp_path / "out" / "best.yaml").scenario.seed == 3


def test_settings_that_make_no_scenario_together_are_refused_one_by_one(
    tmp_path: Path, pool: InProcess
) -> None:
    plan = plan_of(write(tmp_path), "rounds.cohort=[4, 20]", "rounds.quorum=[2, 15]", trials=9)
    outcome, told = tuned(plan, tmp_path / "out")
    refused = [dict(trial.cell.settings) for trial in told if trial.ended.how == "refused"]
    assert refused == [{"rounds.cohort": "4", "rounds.quorum": "15"}]
    assert len(told) == 4
    assert outcome.exit_code is ExitCode.HELD
    # Kept like any other.
    _, again = tuned(plan, tmp_path / "out")
    assert [brief(trial) for trial in again] == [brief(trial) for trial in told]


def test_a_key_that_cannot_be_meant_is_refused_before_anything_runs(tmp_path: Path, pool: InProcess) -> None:
    file = write(tmp_path)
    for vary, said in (
        ("rounds.cohrt=1..5", "--vary:1:1: rounds.cohrt: unknown key"),
        ("rounds.deadline=1..5", "--vary:1:17: rounds.deadline: '1' has no unit"),
        ("learning.algorithm=[fedrecon, fedrcon]", "'fedrcon' is not one of: fedrecon"),
    ):
        with pytest.raises(ScenarioError) as caught:
            tuned(plan_of(file, vary), tmp_path / "out")
        assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_figure_that_is_never_observed_ends_the_tuning(tmp_path: Path, pool: InProcess) -> None:
    plan = plan_of(write(tmp_path), minimise="model.ndcg@10 last")
    with pytest.raises(TuneError, match=r"'model.ndcg@10 last' was not observed"):
        tuned(plan, tmp_path / "out")
    assert len(pool.runs) == 1


def test_what_was_set_and_names_of_files_are_in_the_best_scenario(
    tmp_path: Path, pool: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{user},{item},{1 + (user * item) % 5},{item}" for user in range(30) for item in range(12)]
    (tmp_path / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]) + "\n")
    (tmp_path / "deep").mkdir()
    made = "data: {source: synthetic-ratings, users: 40, items: 50, ratings_per_user: 8}"
    read = "data: {source: movielens-csv, path: ratings.csv}"
    file = write(tmp_path / "deep", SCENARIO.replace(made, read))
    monkeypatch.chdir(tmp_path)
    settings = [
        "data.path=ratings.csv",
        "rounds.count=1",
        'thresholds."device.wasted_work"=null',
    ]
    loaded = load(file, settings)
    space, goal = read_request(None, ["rounds.cohort=[6, 12]"], "up bytes", None)
    outcome, _ = tuned(TuningPlan(loaded, space, goal, 2), tmp_path / "elsewhere" / "out")
    assert outcome.best is not None
    found = load(tmp_path / "elsewhere" / "out" / "best.yaml")
    best = outcome.best.cell.runs[0]
    assert found.resolve(("data", "path")).samefile(tmp_path / "ratings.csv")
    assert found.scenario.rounds == best.scenario.rounds
    assert found.scenario.thresholds == best.scenario.thresholds


def test_a_scenario_in_another_tree_is_named_as_a_whole(tmp_path: Path) -> None:
    file = write(tmp_path)
    loaded = load(file)
    said = best_text(loaded, loaded, Path("/elsewhere/out"), "as it was").splitlines()
    assert said == ["# as it was", f"extends: {file}"]


def test_the_verb_prints_the_best_and_names_what_it_wrote(
    tmp_path: Path, pool: InProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    command = ["tune", "small.yaml", "--minimise", "up bytes", "--vary", "rounds.cohort=[12, 6]"]
    assert execute([*command, "--trials", "5", "--jobs", "1", "--json", "t.json"]) == 0
    shown = capsys.readouterr()
    assert "1/5 rounds.cohort=12: held, up bytes " in shown.err
    assert "best: trial 2, rounds.cohort=6: up bytes " in shown.out
    assert "run it with: recfleet run runs/small-tune/best.yaml" in shown.out
    assert "every setting has been tried" in shown.out
    assert "report: runs/small-tune/report.html" in shown.out
    assert Path("t.json").read_bytes() == Path("runs/small-tune/sweep.json").read_bytes()
    assert execute(["run", "runs/small-tune/best.yaml", "--quiet"]) == 0


def test_without_optuna_the_extra_is_named(
    tmp_path: Path, pool: InProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    file = write(tmp_path)
    command = ["tune", str(file), "--minimise", "up bytes", "--vary", VARY[0], "--out", str(tmp_path / "o")]
    assert execute(command) == 2
    assert "recfleet tune needs optuna: pip install 'recfleet[tune]'" in capsys.readouterr().err
    assert pool.runs == []


@pytest.mark.slow
def test_a_killed_tuning_of_two_processes_loses_what_was_running_alone(tmp_path: Path) -> None:
    file = write(tmp_path, SCENARIO.replace("count: 2", "count: 30"))
    vary = [word for one in VARY for word in ("--vary", one)]
    command = [
        sys.executable, "-m", "coordinator.cli", "tune", str(file), "--minimise", "round.duration p95", *vary,
        "--trials", "7", "--jobs", "2", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any(line.startswith("3/7 ") for line in process.stderr)
        children = psutil.Process(process.pid).children()
        process.kill()
    psutil.wait_procs(children, timeout=60)
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = [int(line.partition("/")[0]) for line in done.stderr.splitlines() if "/7 " in line]
    assert numbers[0] >= 4
    assert numbers[-1] == 7
    table = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert len(table["cells"]) == 7
    assert len({json.dumps(cell["settings"]) for cell in table["cells"]}) == 7
