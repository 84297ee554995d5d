from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from metrics_samples import sample_evaluation, sample_round, write_run

from coordinator.engine.facts import MetricValue
from coordinator.results.analysis.learning_curves import learning_curves, time_to_accuracy
from coordinator.results.analysis.participation import (
    accuracy_by_class,
    jain_index,
    participation,
    waste_by_outcome,
)
from coordinator.results.analysis.rows import read_rows
from coordinator.results.summary import summarise
from coordinator.results.tables.reader import RunTables, open_run
from coordinator.results.tables.writer import RunWriter


def run_of(directory: Path, evaluations: list[list[MetricValue]]) -> RunTables:
    """Write a run with an evaluation before its first round and one after each."""
    with RunWriter(directory) as writer:
        for number, values in enumerate(evaluations):
            if number:
                writer.write_round(sample_round(number))
            writer.write("evaluations", sample_evaluation(number, values))
        writer.finish()
    return open_run(directory)


@pytest.mark.parametrize(
    ("shares", "index"), [([1, 1, 1, 1], 1.0), ([0, 0, 5], 1 / 3), ([1, 3], 0.8), ([0, 0], None), ([], None)]
)
def test_jain_index(shares: list[float], index: float | None) -> None:
    found = jain_index(np.array(shares, dtype=np.float64))
    assert found == (None if index is None else pytest.approx(index))


def test_participation_by_class(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=3)
    found = participation(open_run(tmp_path))
    # Every round invites device 100 (flagship), which completes it, and two of class budget, which do not.
    assert (found.devices, found.invited, found.completed) == (
        3,
        {"budget": 6, "flagship": 3},
        {"budget": 0, "flagship": 3},
    )
    assert found.jain_devices == pytest.approx(1 / 3)
    assert found.jain_classes == pytest.approx(1 / 2)


def test_accuracy_by_class_takes_the_last_value(tmp_path: Path) -> None:
    def values(budget: float, flagship: float) -> list[MetricValue]:
        return [
            MetricValue("rmse", 1.0, 3),
            MetricValue("rmse", budget, 2, tag="class", group="budget"),
            MetricValue("rmse", flagship, 1, tag="class", group="flagship"),
            MetricValue("rmse", 5.0, 1, tag="network", group="wifi"),
        ]

    (row,) = accuracy_by_class(run_of(tmp_path, [values(1.5, 1.25), values(1.0, float("nan"))]))
    assert row["by_class"] == {"budget": 1.0, "flagship": 1.25}
    assert row["spread"] == 0.25
    assert (row["metric"], row["split"], row["population"]) == ("rmse", "test", "seen")


def test_waste_adds_up_to_the_table(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=2)
    run = open_run(tmp_path)
    found = waste_by_outcome(run)
    assert list(found) == ["completed", "late", "dropped"]
    rows = read_rows(run, "device_rounds", ["wasted_bytes", "wasted_compute_s"]).numbers
    assert sum(row["wasted_bytes"] for row in found.values()) == rows["wasted_bytes"].sum()
    assert sum(row["wasted_compute_s"] for row in found.values()) == rows["wasted_compute_s"].sum() == 22.0
    assert (found["completed"]["wasted_bytes"], found["completed"]["wasted_compute_s"]) == (2 * 580, 0.0)
    assert found["dropped"]["wasted_bytes"] == found["dropped"]["bytes"]


def test_time_to_accuracy_takes_the_first_evaluation_at_or_beyond(tmp_path: Path) -> None:
    errors = [MetricValue("rmse", value, 3, "validation") for value in (2.0, 1.5, 1.0, 1.2)]
    hits = [MetricValue("hr@10", value, 3, "validation") for value in (0.0, 0.49, 0.5, 0.9)]
    run = run_of(tmp_path, [list(pair) for pair in zip(errors, hits, strict=True)])
    loss, rmse, hit_rate = learning_curves(run)
    assert (loss.metric, loss.round.tolist(), loss.value[0]) == ("training loss", [1, 2, 3], 0.5)
    assert [row["round"] for row in time_to_accuracy(rmse)] == [1, 2, 2]
    assert [row["value"] for row in time_to_accuracy(rmse)] == pytest.approx([1.5, 1.1, 1.01])
    assert [row["round"] for row in time_to_accuracy(hit_rate)] == [1, 3, 3]
    rounds = read_rows(run, "rounds", ["down_bytes", "up_bytes"]).numbers
    sent = (rounds["down_bytes"] + rounds["up_bytes"]).cumsum()
    assert [row["bytes"] for row in time_to_accuracy(rmse)] == [sent[0], sent[1], sent[1]]
    assert [row["time_s"] for row in time_to_accuracy(rmse)] == [100.0, 200.0, 200.0]
    assert rmse.bytes.tolist() == [0.0, *sent.tolist()]
    energy_j = read_rows(run, "rounds", ["energy_j"]).numbers["energy_j"].cumsum()
    assert rmse.energy_j.tolist() == [0.0, *energy_j.tolist()]
    assert energy_j[-1] > 0
    assert np.isnan(rmse.epsilon).all()


def test_the_way_of_a_metric_of_the_test_ends_at_the_last_value(tmp_path: Path) -> None:
    run = run_of(tmp_path, [[MetricValue("rmse", value, 3)] for value in (2.0, 1.5, 1.0, 1.2)])
    reached = time_to_accuracy(learning_curves(run)[1])
    assert [row["value"] for row in reached] == pytest.approx([1.6, 1.28, 1.208])
    assert [row["round"] for row in reached] == [1, 2, 2]


def test_a_metric_that_never_improved_has_no_time(tmp_path: Path) -> None:
    run = run_of(tmp_path, [[MetricValue("rmse", value, 3)] for value in (1.0, 1.5)])
    assert time_to_accuracy(learning_curves(run)[1]) == []
    assert time_to_accuracy(learning_curves(run)[0]) == []


def test_the_summary_holds_the_analyses(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=3)
    summary = summarise(open_run(tmp_path), "finished")
    assert summary == json.loads(json.dumps(summary, allow_nan=False))
    assert summary["held_up"]["rounds_ended_by_deadline"] == 3
    assert summary["held_up"]["seconds_by_stage"] == {"compute": 30.0, "report": 30.0}
    assert summary["held_up"]["by_class_and_stage"][0] == {
        "class": "budget", "stage": "compute", "ended_by": "deadline", "seconds": 30.0, "share": 0.5,
    }  # fmt: skip
    assert summary["participation"]["jain_classes"] == pytest.approx(0.5)
    assert set(summary["waste_by_outcome"]) == {"completed", "late", "dropped"}
    rmse = next(row for row in summary["accuracy"] if row["metric"] == "rmse")
    assert [row["fraction"] for row in rmse["reached"]] == [0.5, 0.9, 0.99]
