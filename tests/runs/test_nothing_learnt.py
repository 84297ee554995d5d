"""A run that learns nothing is no success, in whatever way it learns nothing and wherever it is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from run_helpers import SMALL, Silent, report_on, run_text

from coordinator.cli.entry import execute
from coordinator.engine.divergence import has_run_away
from coordinator.engine.facts import MetricValue
from coordinator.engine.stop_reason import StopReason
from coordinator.results.comparison import compare_runs
from coordinator.results.comparison_report import comparison_record
from coordinator.results.learnt import judge_learning
from coordinator.results.run_directory import run_status
from coordinator.results.tables.reader import RunTables, open_run
from coordinator.results.verdicts import read_verdicts
from coordinator.run.runner import RunOutcome, outcome_record, run_scenario, suites_of_run
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import load
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.local_run import run_watched
from coordinator.sweeps.runs import Task, perform

TOO_FAST = "learning.learning_rate=1e4"
TOO_SOON = "rounds.deadline=1 ms"
BUFFERED = "rounds.pacing={mode: buffered, concurrency: 30}"
LINEAR = """
format: 2
seed: 3
data: {source: synthetic-regression, clients: 10, samples_per_client: 20, features: 4}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: linear-regression}
rounds: {count: 6, cohort: 10, deadline: 120 s}
evaluation: {every: 1}
"""


def manifest_of(outcome: RunOutcome) -> dict[str, object]:
    found: dict[str, object] = json.loads((outcome.directory / "manifest.json").read_text())
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("settings", "status", "threshold", "likely"),
    [
        ([TOO_FAST], "diverged", "model.rmse: last <= 10 * first", "learning.learning_rate 10000"),
        ([TOO_FAST, BUFFERED], "diverged", "model.rmse: last <= 10 * first", "learning.learning_rate"),
        (["learning.learning_rate=1e29"], "diverged", "model.rmse: last <= 10 * first", "learning_rate"),
        (
            [TOO_FAST, "data.split={kind: none}", "rounds.count=6"],
            "diverged",
            "model.loss: last <= 10 * first",
            "learning_rate",
        ),
        ([TOO_SOON], "no-round-completed", "round.completed: count > 0", "rounds.deadline 1 ms"),
        ([TOO_SOON, BUFFERED], "no-round-completed", "round.completed: count > 0", "rounds.deadline"),
    ],
)
def test_nothing_learnt_is_a_promise_missed(
    settings: list[str], status: str, threshold: str, likely: str, tmp_path: Path
) -> None:
    outcome = run_text(tmp_path, SMALL, settings)
    assert outcome.exit_code is ExitCode.THRESHOLD_MISSED
    assert outcome.status == status
    (verdict,) = outcome.verdicts
    assert (str(verdict.threshold), verdict.held, verdict.implicit) == (threshold, False, True)
    assert outcome.ending is not None
    assert "round" in outcome.ending
    assert likely in outcome.ending.partition("likely ")[2]
    # It lies under its plain name, judged, and says everywhere what it is.
    assert outcome.directory == tmp_path / "run-out"
    manifest = manifest_of(outcome)
    assert (manifest["status"], manifest["ending"]) == (status, outcome.ending)
    assert run_status(outcome.directory, manifest) == status
    assert json.loads((outcome.directory / "summary.json").read_text())["status"] == status
    (record,) = read_verdicts(outcome.directory)
    assert (record["threshold"], record["held"], record["reason"]) == (threshold, False, outcome.ending)
    assert f"Nothing was learnt ({status})" in report_on(outcome)


def test_a_linear_regression_is_judged_by_its_errors(tmp_path: Path) -> None:
    text = LINEAR.replace("linear-regression}", "linear-regression, learning_rate: 1e6}")
    outcome = run_text(tmp_path, text)
    assert (outcome.status, outcome.exit_code) == ("diverged", ExitCode.THRESHOLD_MISSED)
    (verdict,) = outcome.verdicts
    assert verdict.threshold.metric == "model.rmse"
    assert verdict.value is not None
    assert verdict.limit is not None
    assert verdict.margin == verdict.limit - verdict.value < 0
    assert "since round 1" in str(outcome.ending)
    assert run_text(tmp_path, LINEAR, name="sound").status == "finished"


def test_a_model_that_is_not_finite_has_diverged_whatever_its_last_metric(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SMALL)
    scenario = load(tmp_path / "run.yaml").scenario
    learnt = judge_learning(scenario, open_run(outcome.directory), StopReason.DIVERGED)
    assert learnt.status == "diverged"
    assert "not finite after round 3" in str(learnt.ending)
    assert learnt.verdict is not None
    assert not learnt.verdict.held


def evaluations(metric: str, values: list[float], users: int) -> list[list[MetricValue]]:
    return [[MetricValue(metric, value, users, "test")] for value in values]


@pytest.mark.parametrize(
    ("metric", "first", "last", "users", "away"),
    [
        ("rmse", 1.0, 9.9, 100, False),
        ("rmse", 1.0, 10.1, 100, True),
        ("rmse", 1.0, math.inf, 100, True),
        ("rmse", 1.0, math.nan, 100, True),
        ("hr@10", 0.2, 0.021, 100, False),
        ("hr@10", 0.2, 0.019, 100, True),
        ("hr@10", 0.2, math.nan, 100, True),
        # One hit of five users comes and goes by chance.
        ("hr@10", 0.2, 0.0, 5, False),
        ("accuracy", 0.4, 0.03, 1000, True),
    ],
)
def test_ten_times_worse(metric: str, first: float, last: float, users: int, away: bool) -> None:
    before, now = evaluations(metric, [first, last], users)
    assert has_run_away(before, now) is away


class OneMetric:
    """The tables of a run, with the evaluations of one metric in place of its own."""

    def __init__(self, run: RunTables, metric: str, values: list[float]) -> None:
        self._run = run
        self._rows = [
            {"round": number, "metric": metric, "split": "test", "population": "seen", "tag": "all",
             "value": value, "users": 100}
            for number, value in enumerate(values)
        ]  # fmt: skip

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        if table != "evaluations":
            return self._run.read(table, columns)
        return pa.Table.from_pylist(self._rows).select(columns)


@pytest.mark.parametrize(
    ("metric", "last", "expect", "threshold", "held"),
    [
        ("hr@10", 0.019, [], "model.hr@10: last >= 0.1 * first", False),
        ("hr@10", 0.019, ["expect=diverged"], "model.hr@10: last < 0.1 * first", True),
        ("hr@10", 0.021, ["expect=diverged"], "model.hr@10: last < 0.1 * first", False),
        ("accuracy", 0.019, [], "model.accuracy: last >= 0.1 * first", False),
    ],
)
def test_of_some_metrics_less_is_worse(
    metric: str, last: float, expect: list[str], threshold: str, held: bool, tmp_path: Path
) -> None:
    run = OneMetric(open_run(run_text(tmp_path, SMALL).directory), metric, [0.2, 0.3, last])
    verdict = judge_learning(load(tmp_path / "run.yaml", expect).scenario, run, StopReason.LAST_ROUND).verdict
    assert verdict is not None
    assert (str(verdict.threshold), verdict.held, verdict.value) == (threshold, held, last)
    assert verdict.limit == pytest.approx(0.02)
    assert verdict.margin == pytest.approx(0.02 - last if expect else last - 0.02)


def test_a_run_that_learns_has_no_further_verdict(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SMALL)
    assert (outcome.status, outcome.verdicts, outcome.ending) == ("finished", (), None)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("settings", "expect", "status", "threshold", "held"),
    [
        ([TOO_FAST], "diverged", "diverged", "model.rmse: last > 10 * first", True),
        ([TOO_SOON], "no-round-completed", "no-round-completed", "round.completed: count == 0", True),
        ([], "diverged", "finished", "model.rmse: last > 10 * first", False),
        ([], "no-round-completed", "finished", "round.completed: count == 0", False),
        ([TOO_FAST], "no-round-completed", "diverged", "round.completed: count == 0", False),
        ([TOO_SOON], "diverged", "no-round-completed", "round.completed: count > 0", False),
    ],
)
def test_a_scenario_accepts_the_ending_that_it_expects_and_no_other(
    settings: list[str], expect: str, status: str, threshold: str, held: bool, tmp_path: Path
) -> None:
    outcome = run_text(tmp_path, SMALL, [*settings, f"expect={expect}"])
    assert outcome.status == status
    assert [(str(verdict.threshold), verdict.held) for verdict in outcome.verdicts] == [(threshold, held)]
    assert outcome.exit_code is (ExitCode.HELD if held else ExitCode.THRESHOLD_MISSED)
    assert "expects" in str(outcome.verdicts[0].reason) or held


def test_what_is_expected_excuses_no_threshold(tmp_path: Path) -> None:
    text = SMALL + "expect: diverged\nthresholds: {round.completed: [rate < 1%]}\n"
    outcome = run_text(tmp_path, text, [TOO_FAST])
    assert [verdict.held for verdict in outcome.verdicts] == [True, False]
    assert outcome.exit_code is ExitCode.THRESHOLD_MISSED


def test_a_run_that_was_interrupted_is_not_judged(tmp_path: Path) -> None:
    class Impatient(Silent):
        def on_start(self, name: str, rounds: int | None) -> None:
            raise KeyboardInterrupt

    file = tmp_path / "run.yaml"
    file.write_text(SMALL)
    outcome = run_scenario(load(file, [TOO_SOON]), target=tmp_path / "out", observer=Impatient())
    assert (outcome.status, outcome.verdicts, outcome.ending) == ("interrupted", (), None)


@pytest.mark.slow
def test_a_baseline_that_learns_nothing_is_no_baseline(tmp_path: Path) -> None:
    text = SMALL + "baseline: same-seed-without-faults\nexpect: diverged\n"
    outcome = run_text(tmp_path, text, [TOO_FAST])
    assert (outcome.status, outcome.exit_code) == ("failed", ExitCode.THRESHOLD_MISSED)
    assert "learning.learning_rate" in str(outcome.reason)


@pytest.mark.slow
def test_ci_and_scripts_see_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_text(tmp_path, SMALL, [TOO_FAST])
    loaded = load(tmp_path / "run.yaml", [TOO_FAST])
    record = outcome_record(loaded, outcome)
    assert (record["status"], record["exit_code"], record["ending"]) == ("diverged", 3, outcome.ending)
    ((ran, case),) = (suite.cases for suite in suites_of_run(loaded, outcome))
    assert (ran.error, case.error) == (None, None)
    assert "learning_rate" in str(case.failure)
    arguments = ["run", str(tmp_path / "run.yaml"), "--set", TOO_FAST, "--out", str(tmp_path / "again")]
    assert execute(arguments) == 3
    shown = capsys.readouterr()
    assert "run diverged" in shown.out
    assert f"diverged: {outcome.ending}" in shown.out.replace("\n", " ")
    assert execute([*arguments, "--overwrite", "--quiet"]) == 3
    assert f"diverged: {outcome.ending}\n" in capsys.readouterr().err


@pytest.mark.slow
def test_sweeps_and_comparisons_see_it(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(SMALL)
    for setting, status in ((TOO_FAST, "diverged"), (TOO_SOON, "no-round-completed")):
        task = Task(load(file, [setting]), tmp_path / status)
        first, again = perform(task, Silent()), perform(task, Silent())
        assert (first.status, first.kept) == (status, False)
        assert (again.status, again.kept) == (status, True)
        expected = Task(load(file, [setting, f"expect={status}"]), tmp_path / f"expected-{status}")
        assert perform(expected, Silent()).status == "held"
    record = comparison_record(compare_runs([tmp_path / "diverged", tmp_path / "no-round-completed"]))
    runs = [run["status"] for group in record["groups"] for run in group["runs"]]
    assert runs == ["diverged", "no-round-completed"]


def test_whoever_watches_sees_it(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(SMALL)
    live = LiveState()
    outcome = run_watched(load(file, [TOO_FAST]), target=tmp_path / "out", observer=Silent(), live=live)
    shown = live.changes(-1)
    assert (shown["run"]["status"], shown["run"]["ending"]) == ("diverged", outcome.ending)
    assert [one["held"] for one in shown["thresholds"]] == [False]


@pytest.mark.slow
def test_an_evaluation_over_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_text(tmp_path, SMALL, ["data.split={kind: none}"])
    assert outcome.exit_code is ExitCode.HELD
    why = manifest_of(outcome)["unscored"]
    assert why == "the split keeps nothing back for test (data.split: none)"
    assert f"The model was not evaluated: {why}." in report_on(outcome)
    arguments = ["run", str(tmp_path / "run.yaml"), "--set", "data.split={kind: none}", "--plain"]
    assert execute([*arguments, "--out", str(tmp_path / "again")]) == 0
    shown = capsys.readouterr()
    assert "after round 0: nothing to score" in shown.err
    assert "the split keeps nothing back for test" in shown.out
