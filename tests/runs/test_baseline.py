"""The run without faults that thresholds compare with, and thresholds that end a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from run_helpers import SCENARIOS, SMALL, rows_of, run_text, tables_of

from coordinator.results.summary import summarise
from coordinator.results.tables.reader import open_run
from coordinator.results.verdicts import read_verdicts
from coordinator.run.runner import RunOutcome
from coordinator.scenario.exit_codes import ExitCode

STORMY = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 12}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {cohort: 20, deadline: 60 s}
phases:
  - {name: calm, rounds: 2}
  - {name: storm, rounds: 2}
  - {name: after, rounds: 2}
faults:
  - {name: storm, during: storm, at_stage: compute, on: {fraction: 40%}, vanish: {}}
baseline: same-seed-without-faults
evaluation: {every: 6}
"""


def stormy(folder: Path, thresholds: str, *overrides: str) -> RunOutcome:
    return run_text(folder, f"{STORMY}thresholds: {{{thresholds}}}\n", overrides)


@pytest.mark.slow
def test_a_threshold_is_compared_with_the_same_figure_without_faults(tmp_path: Path) -> None:
    outcome = stormy(
        tmp_path,
        "'round.duration{phase=storm}': [p95 < 2 * baseline, max >= 1.5 * baseline],"
        " 'round.duration{phase=calm}': p95 == baseline, device.dropped: count > baseline",
    )
    calm = open_run(outcome.directory / "baseline").read("rounds").to_pylist()
    assert [row["phase"] for row in calm] == [row["phase"] for row in rows_of(outcome, "rounds")]
    assert sum(row["dropped"] for row in calm) == 0
    durations_s = [row["duration_s"] for row in calm if row["phase"] == "storm"]
    # A vanished device holds its round until the deadline.
    assert [row["duration_s"] for row in rows_of(outcome, "rounds")[2:4]] == [60.0, 60.0]

    by_percentile, by_maximum, before, dropped = outcome.verdicts
    assert by_percentile.baseline == float(np.percentile(durations_s, 95))
    assert by_percentile.limit == 2 * float(np.percentile(durations_s, 95))
    assert not by_percentile.held
    assert by_maximum.held
    assert by_maximum.baseline == max(durations_s)
    # Until the faults strike the two are one run.
    assert before.held
    assert before.value == before.baseline
    assert (dropped.value, dropped.baseline) == (16.0, 0.0)
    assert outcome.exit_code is ExitCode.THRESHOLD_MISSED
    records = read_verdicts(outcome.directory)
    assert [record["held"] for record in records] == [False, True, True, True]
    assert records[1]["baseline"] == max(durations_s)


@pytest.mark.slow
def test_what_a_fault_is_aimed_at_is_not_asked_of_the_baseline(tmp_path: Path) -> None:
    outcome = stormy(
        tmp_path,
        "'device.dropped{phase=storm}': rate > 0%, 'device.dropped{phase=after}': rate == 0%,"
        " round.completed: rate == 100%, round.duration: max < 99 * baseline",
    )
    asked = [str(verdict.threshold) for verdict in outcome.baseline_verdicts]
    assert asked == ["device.dropped{phase=after}: rate == 0%", "round.completed: rate == 100%"]
    assert outcome.exit_code is ExitCode.HELD


def test_a_baseline_that_misses_its_own_thresholds_ends_the_run(tmp_path: Path) -> None:
    outcome = stormy(tmp_path, "round.duration: max < 1 ms, device.dropped: rate <= 100%")
    assert outcome.exit_code is ExitCode.THRESHOLD_MISSED
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert "the baseline, without faults, missed round.duration: max < 1 ms; nothing" in outcome.reason
    assert [verdict.held for verdict in outcome.baseline_verdicts] == [False, True]
    assert outcome.verdicts == ()
    # What was written is there: the whole baseline, and a run without a round.
    assert outcome.directory.name == "run-out.partial"
    assert open_run(outcome.directory / "baseline").read("rounds").num_rows == 6
    assert tables_of(outcome).read("rounds").num_rows == 0
    assert json.loads((outcome.directory / "summary.json").read_text())["status"] == "failed"


def baseline_written_ns(outcome: RunOutcome) -> int:
    return (outcome.directory / "baseline" / "manifest.json").stat().st_mtime_ns


@pytest.mark.slow
def test_a_baseline_that_is_there_is_used_again(tmp_path: Path) -> None:
    held = "round.completed: rate == 100%, round.duration: p95 < 100 * baseline"
    first = stormy(tmp_path, held)
    written = baseline_written_ns(first)
    second = stormy(tmp_path, held)
    assert baseline_written_ns(second) == written
    assert second.verdicts == first.verdicts
    assert second.baseline_verdicts == first.baseline_verdicts
    # Faults are no part of it; the cohort is.
    milder = stormy(tmp_path, held, "faults[0].on.fraction=10%")
    assert baseline_written_ns(milder) == written
    assert baseline_written_ns(stormy(tmp_path, held, "rounds.cohort=19")) != written


@pytest.mark.slow
def test_a_baseline_of_another_version_or_broken_is_made_anew(tmp_path: Path) -> None:
    first = stormy(tmp_path, "round.completed: rate == 100%")
    manifest = first.directory / "baseline" / "manifest.json"
    contents = json.loads(manifest.read_text())
    contents["host"]["recfleet"] = "0.0.1"
    manifest.write_text(json.dumps(contents))
    second = stormy(tmp_path, "round.completed: rate == 100%")
    manifest = second.directory / "baseline" / "manifest.json"
    assert json.loads(manifest.read_text())["host"]["recfleet"] != "0.0.1"
    (second.directory / "baseline" / "rounds.parquet").unlink()
    third = stormy(tmp_path, "round.completed: rate == 100%")
    assert open_run(third.directory / "baseline").read("rounds").num_rows == 6


@pytest.mark.slow
def test_a_run_killed_during_its_baseline_can_be_read_and_run_again(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(STORMY.replace("{name: calm, rounds: 2}", "{name: calm, rounds: 1000000}"))
    command = [sys.executable, "-m", "coordinator.cli", "run", str(file), "--plain", "--out"]
    with subprocess.Popen(
        [*command, str(tmp_path / "out"), "--set", "evaluation.every=1", "--set", "evaluation.users=5"],
        cwd=SCENARIOS.parent,
        env=dict(os.environ, OPENBLAS_NUM_THREADS="1"),
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        calm = tmp_path / "out.partial" / "baseline.partial"
        for line in process.stderr:
            # Rows are written a second's rounds at a time.
            if line.startswith("after round ") and open_run(calm).read("rounds", ["round"]).num_rows >= 2:
                break
        process.kill()
        process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    partial = tmp_path / "out.partial"
    assert summarise(open_run(partial))["status"] == "killed"
    assert open_run(partial / "baseline.partial").read("rounds").num_rows >= 2
    file.write_text(STORMY)
    again = subprocess.run([*command, str(tmp_path / "out")], cwd=SCENARIOS.parent, check=False, timeout=600)
    assert again.returncode == ExitCode.HELD
    assert (tmp_path / "out" / "baseline" / "verdicts.json").is_file()
    assert not partial.exists()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("threshold", "rounds"),
    [
        # Rounds 3 and 4 last for the 60 s of their deadline; the others take under a second.
        ("{expect: max < 30 s, abort: true}", 3),
        ("{expect: max < 30 s, abort: true, after: 4 rounds}", 4),
        ("{expect: max < 30 s, abort: true, after: 90 s}", 4),
        ("{expect: max < 30 s, abort: true, after: 9 rounds}", 6),
        ("{expect: max < 30 s, abort: false}", 6),
        ("{expect: p50 < 30 s, abort: true}", 4),
        ("{expect: p50 < 20 * baseline, abort: true}", 4),
        ("{expect: max < 2 * min, abort: true, after: 3 rounds}", 3),
    ],
)
def test_a_missed_threshold_ends_the_run_at_once(tmp_path: Path, threshold: str, rounds: int) -> None:
    outcome = stormy(
        tmp_path,
        f"round.completed: rate == 100%, 'round.duration': [{threshold}]",
        "baseline=same-seed-without-faults" if "baseline" in threshold else "baseline=null",
    )
    assert tables_of(outcome).complete
    assert [row["round"] for row in rows_of(outcome, "rounds")] == list(range(1, rounds + 1))
    assert outcome.status == "finished"
    completed, duration = outcome.verdicts
    assert completed.held
    if rounds == 6:
        assert outcome.reason is None
        # Both medians are below the limit at the end; the maximum is not.
        assert duration.held is False
        assert outcome.exit_code is ExitCode.THRESHOLD_MISSED
        return
    assert outcome.exit_code is ExitCode.THRESHOLD_MISSED
    assert not duration.held
    assert duration.observations == rounds
    assert outcome.reason is not None
    assert outcome.reason.startswith("threshold missed: round.duration: ")
    manifest = json.loads((outcome.directory / "manifest.json").read_text())
    assert manifest["stopped_by"] == outcome.reason
    assert manifest["digest"]
    assert (outcome.directory / "model.npz").is_file()


@pytest.mark.slow
def test_figures_of_devices_and_evaluations_end_a_run_too(tmp_path: Path) -> None:
    thresholds = "thresholds: {'device.up_bytes{class=phone_mid_2020}': [{expect: p99 < 1 B, abort: true}]}"
    outcome = run_text(tmp_path, f"{SMALL}\n{thresholds}\n")
    # The first round's last receipt is still under way when the second begins; only then it is over.
    assert len(rows_of(outcome, "rounds")) == 2
    thresholds = "thresholds: {model.rmse: [{expect: last > 99, abort: true, after: 2 rounds}]}"
    outcome = run_text(tmp_path, f"{SMALL}\n{thresholds}\n")
    assert len(rows_of(outcome, "rounds")) == 2


def test_what_has_not_been_observed_yet_ends_nothing(tmp_path: Path) -> None:
    thresholds = "thresholds: {'round.duration{phase=after}': [{expect: max < 30 s, abort: true}]}"
    text = STORMY.replace("baseline: same-seed-without-faults", thresholds)
    outcome = run_text(tmp_path, text)
    assert len(rows_of(outcome, "rounds")) == 6
    assert outcome.exit_code is ExitCode.HELD
