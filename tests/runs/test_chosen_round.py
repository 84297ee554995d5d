"""Rounds that are chosen on validation ratings, and tested once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from run_helpers import report_on, rows_of, run_text

from coordinator.engine.best_round import BestRound
from coordinator.engine.facts import MetricValue
from coordinator.results.comparison import compare_runs
from coordinator.results.figures import run_figures
from coordinator.results.summary_tables import render
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import open_run
from coordinator.run import assembling
from coordinator.run.assembling import assemble
from coordinator.run.predicting import predict
from coordinator.run.runner import RunOutcome
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load
from coordinator.service.refusals import refuse_on_real_clock
from edge.data.split import Split

SCENARIO = """
format: 2
seed: 3
data:
  source: synthetic-ratings
  users: 60
  items: 50
  ratings_per_user: 12
  split: {kind: ratio, test: 20%, validation: 20%}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.2}
rounds: {count: 12, cohort: 20, deadline: 120 s}
evaluation: {every: 2, select: rmse}
"""


def evaluations(outcome: RunOutcome, split: str, metric: str = "rmse") -> list[tuple[int, float]]:
    """Return the rounds and values of a metric of all users on a part of the split."""
    return [
        (row["round"], row["value"])
        for row in rows_of(outcome, "evaluations")
        if (row["split"], row["metric"], row["tag"]) == (split, metric, "all")
    ]


def summary_of(outcome: RunOutcome) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((outcome.directory / "summary.json").read_text())
    return read


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    return run_text(tmp_path_factory.mktemp("chosen"), SCENARIO)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    """The same training, tested after every second round."""
    return run_text(tmp_path_factory.mktemp("plain"), SCENARIO.replace(", select: rmse", ""))


def test_the_best_round_on_validation_is_tested_once(chosen: RunOutcome, plain: RunOutcome) -> None:
    decided = evaluations(chosen, "validation")
    assert [number for number, _ in decided] == [0, 2, 4, 6, 8, 10, 12]
    best = min(decided, key=lambda pair: pair[1])[0]
    # The rate is so high that the last round is not the best: there is something to choose.
    assert 0 < best < 12
    tested = evaluations(chosen, "test")
    assert tested == [pair for pair in evaluations(plain, "test") if pair[0] == best]
    rows = [row for row in rows_of(chosen, "evaluations") if row["round"] == best]
    assert {row["time_s"] for row in rows} == {rows[0]["time_s"]}


def test_the_model_of_the_chosen_round_is_what_the_run_leaves(chosen: RunOutcome, tmp_path: Path) -> None:
    ((best, value),) = evaluations(chosen, "test")
    shorter = run_text(
        tmp_path, SCENARIO.replace("count: 12", f"count: {best}").replace(", select: rmse", "")
    )
    with np.load(chosen.directory / "model.npz") as left, np.load(shorter.directory / "model.npz") as there:
        assert sorted(left.files) == sorted(there.files)
        assert all(np.array_equal(left[name], there[name]) for name in left.files)
    scored = predict(chosen.directory, top=50).table().to_pylist()
    squares = [(row["score"] - row["rating"]) ** 2 for row in scored if row["rating"] is not None]
    assert np.sqrt(np.mean(squares)) == pytest.approx(value, rel=1e-5)


def test_summary_figures_and_report_say_which_round_was_chosen(chosen: RunOutcome) -> None:
    ((best, value),) = evaluations(chosen, "test")
    summary = summary_of(chosen)
    assert summary["selected"] == {"metric": "rmse", "round": best}
    rows = {row["split"]: row for row in summary["accuracy"] if row["metric"] == "rmse"}
    assert (rows["test"]["last"], rows["test"]["best"], rows["test"]["last_round"]) == (value, None, best)
    assert rows["validation"]["best_round"] == best
    console = Console(width=160, record=True)
    console.print(render(summary))
    shown = console.export_text()
    assert f"{value:.5g} after round {best}, chosen by rmse on validation" in shown
    figures = run_figures(open_run(chosen.directory), ())
    assert figures["model.rmse last"].value == value
    assert figures["model.rmse{split=validation} min"].value == rows["validation"]["best"]
    assert f"after round {best}, chosen by rmse on validation" in report_on(chosen)


def test_what_is_recommended_has_no_best(tmp_path: Path) -> None:
    how = "select: auc, ranking: {metrics: [auc, coverage, novelty]}"
    outcome = run_text(tmp_path, SCENARIO.replace("select: rmse", how).replace("count: 12", "count: 4"))
    rows = {row["metric"]: row for row in summary_of(outcome)["accuracy"] if row["split"] == "validation"}
    assert rows["auc"]["best"] == max(value for _, value in evaluations(outcome, "validation", "auc"))
    for metric in ("coverage@10", "novelty@10"):
        assert (rows[metric]["best"], rows[metric]["reached"]) == (None, [])


def test_without_a_choice_the_last_round_is_what_is_said(plain: RunOutcome) -> None:
    summary = summary_of(plain)
    assert summary["selected"] is None
    (row,) = (row for row in summary["accuracy"] if row["metric"] == "rmse")
    values = dict(evaluations(plain, "test"))
    assert (row["last"], row["last_round"], row["best"]) == (values[12], 12, None)
    # Values on the way that were better do not count: the way ends at the last.
    assert min(values.values()) < values[12] < values[0]
    assert row["reached"][-1]["value"] == pytest.approx(values[0] + 0.99 * (values[12] - values[0]))
    console = Console(width=160, record=True)
    console.print(render(summary))
    assert "best" not in console.export_text()
    assert f"{min(values.values()):.5g}" not in console.export_text()


def test_comparison_races_to_what_validation_says(
    chosen: RunOutcome, plain: RunOutcome, tmp_path: Path
) -> None:
    slower = run_text(tmp_path, SCENARIO.replace("0.2", "0.1"))
    names = [row.name for row in compare_runs([chosen.directory, slower.directory]).rows]
    races = [name for name in names if name.startswith("bytes to")]
    # The figures of one test are no race.
    assert len(races) > 0
    assert all("validation" in name for name in races if "rmse" in name)
    # Without validation the goal is the least good of the last values, not of the best on the test.
    other = run_text(tmp_path, SCENARIO.replace("0.2", "0.1").replace(", select: rmse", ""), name="other")
    goals = [
        row.name
        for row in compare_runs([plain.directory, other.directory]).rows
        if "bytes to rmse" in row.name
    ]
    lasts = [evaluations(run, "test")[-1][1] for run in (plain, other)]
    assert goals == [f"bytes to rmse ≤ {max(lasts):.4g}"]


def test_training_ends_when_validation_gets_no_better(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, SCENARIO.replace("select: rmse", "select: rmse, patience: 2"))
    decided = evaluations(outcome, "validation")
    best = min(decided, key=lambda pair: pair[1])[0]
    assert decided[-1][0] == best + 4 < 12
    assert "no better on validation" in str(outcome.reason)
    assert [number for number, _ in evaluations(outcome, "test")] == [best]


def test_targets_and_thresholds_are_about_validation_on_the_way_and_the_test_at_the_end(
    chosen: RunOutcome, tmp_path: Path
) -> None:
    values = dict(evaluations(chosen, "validation"))
    text = SCENARIO.replace("deadline: 120 s", f"deadline: 120 s, target: model.rmse <= {values[2]}")
    promises = "thresholds: {'model.rmse{split=validation}': [count == 2], model.rmse: [count == 1]}\n"
    outcome = run_text(tmp_path, text + promises)
    assert outcome.reason == "target reached"
    assert [number for number, _ in evaluations(outcome, "validation")] == [0, 2]
    assert [number for number, _ in evaluations(outcome, "test")] == [2]
    assert [verdict.held for verdict in outcome.verdicts] == [True, True]
    assert not [one for one in summary_of(outcome)["notices"] if "rounds.target" in one]
    source = TableMetricSource(open_run(outcome.directory))
    assert source.values("model.rmse", {}).tolist() == [evaluations(outcome, "test")[0][1]]


def test_a_target_on_the_test_is_said_to_choose_by_it(tmp_path: Path) -> None:
    text = SCENARIO.replace(", select: rmse", "").replace("120 s", "120 s, target: model.rmse <= 100")
    outcome = run_text(tmp_path, text)
    assert any("ends training by a figure on test ratings" in one for one in summary_of(outcome)["notices"])


def test_devices_that_keep_rows_are_tested_with_those_of_the_chosen_round(tmp_path: Path) -> None:
    keeping = SCENARIO.replace(
        "factors: 4,",
        "factors: 4, user_factors: persistent, reconstruction: {method: gradient-steps, steps: 1},",
    )
    chosen = run_text(tmp_path, keeping, name="chosen")
    plain = run_text(tmp_path, keeping.replace(", select: rmse", ""), name="plain")
    ((best, value),) = evaluations(chosen, "test")
    assert 0 < best < 12
    assert dict(evaluations(plain, "test"))[best] == value


def test_test_ratings_have_no_part_in_the_chosen_model(
    chosen: RunOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_of = assembling._split

    def flipped(*arguments: Any) -> Split:
        split = split_of(*arguments)
        assert split.test is not None
        codes = split.test.ratings
        other = (codes.max() + codes.min() - codes).astype(codes.dtype)
        return replace(split, test=replace(split.test, ratings=other))

    monkeypatch.setattr(assembling, "_split", flipped)
    outcome = run_text(tmp_path, SCENARIO)
    ((number, value),) = evaluations(outcome, "test")
    ((best, other),) = evaluations(chosen, "test")
    assert number == best
    assert value != other
    with np.load(chosen.directory / "model.npz") as left, np.load(outcome.directory / "model.npz") as there:
        assert all(np.array_equal(left[name], there[name]) for name in left.files)


def test_steps_of_buffered_pacing_are_chosen_too(tmp_path: Path) -> None:
    buffered = SCENARIO.replace("120 s", "120 s, pacing: {mode: buffered, concurrency: 20}")
    chosen = run_text(tmp_path, buffered.replace("cohort: 20", "cohort: 10"), name="chosen")
    decided = evaluations(chosen, "validation")
    assert decided[-1][0] == 12
    assert [number for number, _ in evaluations(chosen, "test")] == [
        min(decided, key=lambda pair: pair[1])[0]
    ]


def test_validation_alone_leaves_its_best_model_and_no_test(tmp_path: Path) -> None:
    text = SCENARIO.replace("select: rmse", "select: rmse, on: validation").replace("count: 12", "count: 4")
    outcome = run_text(tmp_path, text)
    assert evaluations(outcome, "test") == []
    assert summary_of(outcome)["selected"] == {"metric": "rmse", "round": None}


def test_the_test_ratings_have_no_part_in_the_choice(chosen: RunOutcome, tmp_path: Path) -> None:
    """The evaluation on the way never gathers a test rating."""
    (tmp_path / "s.yaml").write_text(SCENARIO)
    assembly: Any = assemble(load(tmp_path / "s.yaml"))
    split = assembly.workload.split
    assert [one.query is split.validation for one in assembly.validation._populations] == [True]
    assert [one.query is split.test for one in assembly.evaluator._populations] == [True]


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ("select: loss", "evaluation.select: 'loss' is no metric to choose a round by"),
        ("select: rsme", "did you mean 'rmse'"),
        ("select: ndcg@10", "'ndcg@10' is not measured"),
        ("select: ndcg@10, ranking: {k: [5]}", "'ndcg@10' is not measured"),
        ("select: ndcg@10/99neg, ranking: {}", "'ndcg@10/99neg' is not measured: .* write 'ndcg@10'"),
        ("select: coverage@10, ranking: {metrics: [coverage]}", "is no metric to choose a round by"),
        ("patience: 3", "is about the round that 'select' chooses"),
        ("select: rmse, on: devices", "devices measure on test ratings alone"),
    ],
)
def test_what_cannot_choose_is_refused(evaluation: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("every: 2, select: rmse", evaluation))
    with pytest.raises(ScenarioError, match=r"(?s)" + message):
        load(tmp_path / "s.yaml")


def test_a_split_without_validation_a_service_and_tags_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    with pytest.raises(
        ScenarioError, match=r"evaluation\.select: the split keeps nothing back for validation"
    ):
        load(tmp_path / "s.yaml", ["data.split.validation=0%"])
    with pytest.raises(ScenarioError, match="does not have the model of the best round"):
        refuse_on_real_clock(load(tmp_path / "s.yaml"))
    with pytest.raises(ScenarioError, match="no validation ratings are scored; write 'split=test'"):
        load(
            tmp_path / "s.yaml",
            ["evaluation.select=null", "thresholds={'model.rmse{split=validation}': [last < 9]}"],
        )


def test_a_test_that_is_scored_once_is_not_compared_with_its_first(tmp_path: Path) -> None:
    text = SCENARIO + "thresholds: {'METRIC': [last < 0.9 * first]}\n"
    (tmp_path / "s.yaml").write_text(text.replace("METRIC", "model.rmse"))
    with pytest.raises(ScenarioError, match=r"(?s)scored once.*write 'model\.rmse\{split=validation\}'"):
        load(tmp_path / "s.yaml")
    for fine in ("model.rmse{split=validation}", "model.loss"):
        (tmp_path / "s.yaml").write_text(text.replace("METRIC", fine))
        assert len(load(tmp_path / "s.yaml").scenario.thresholds) == 1


@pytest.mark.parametrize(
    ("values", "ended", "chosen"),
    [
        ([0.5, 0.4, 0.4, 0.4], [False, False, False, True], 1),
        # A model that came to have no number is no better, for as long as it has none.
        ([0.5, 0.4, math.nan, math.nan], [False, False, False, True], 1),
        # Before the first number there is nothing to wait for.
        ([math.nan, math.nan, math.nan, math.nan, 0.9], [False] * 5, 4),
    ],
)
def test_patience_counts_evaluations_without_a_number(
    values: list[float], ended: list[bool], chosen: int
) -> None:
    workload: Any = SimpleNamespace(kept=None)
    best = BestRound("rmse", 2 if len(values) == 4 else 1, workload)
    said = [
        best.offer(number, float(number), [MetricValue("rmse", value, 9)], {"a": np.zeros(1)})
        for number, value in enumerate(values)
    ]
    assert (said, best.round) == (ended, chosen)
