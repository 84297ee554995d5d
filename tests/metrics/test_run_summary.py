from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from metrics_samples import sample_evaluation, sample_inference, sample_round, write_run
from rich.console import Console

from coordinator.engine.facts import MetricValue
from coordinator.results.answers import answers
from coordinator.results.summary import percentiles, summarise
from coordinator.results.summary_tables import render, render_details
from coordinator.results.tables import reference
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.writer import RunWriter
from coordinator.scenario.metric_names import higher_is_better
from edge.core.vocabulary import Direction, EventKind, Fate, Outcome, Reason, RoundOutcome, Stage

ROOT = Path(__file__).resolve().parents[2]


def test_summary_of_a_known_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with RunWriter(tmp_path / "run") as writer:
        writer.write(
            "evaluations", sample_evaluation(0, [MetricValue("rmse", 1.5, 3), MetricValue("hr@10", 0.2, 3)])
        )
        for number in (1, 2):
            writer.write_round(sample_round(number))
        values = [
            MetricValue("rmse", 1.1, 3),
            MetricValue("rmse", 9.0, 1, tag="class", group="budget"),
            MetricValue("hr@10", 0.4, 3),
        ]
        writer.write("evaluations", sample_evaluation(1, values))
        writer.write(
            "evaluations", sample_evaluation(2, [MetricValue("rmse", 1.2, 3), MetricValue("hr@10", 0.3, 3)])
        )
        writer.write_round(
            sample_round(
                3, outcome=RoundOutcome.ABANDONED, reason=Reason.QUORUM, loss=float("nan"), end_s=330.0
            )
        )
        writer.write("inferences", sample_inference(1))
        writer.write("inferences", sample_inference(2))
        writer.finish()
    summary = summarise(open_run(tmp_path / "run"), "finished")
    assert summary == json.loads(json.dumps(summary, allow_nan=False))
    assert summary["status"] == "finished"
    assert summary["rounds"]["finished"] == 3
    assert (summary["rounds"]["completed"], summary["rounds"]["abandoned"]) == (2, 1)
    assert summary["rounds"]["abandoned_reasons"] == {"quorum": 1}
    assert summary["rounds"]["duration_s"] == {"p50": 20.0, "p95": 29.0, "p99": 29.8, "max": 30.0}
    assert summary["simulated_s"] == 330.0
    assert summary["device_rounds"] == 9
    assert summary["outcomes"]["completed"] == 3
    assert summary["latency_s"]["p50"] == 15.0
    assert summary["bytes"]["up"] == 3 * (1270 + 110 + 943 + 139)
    assert summary["bytes"]["lost"] == 3 * 250
    assert summary["energy_j"] == 3 * 16.75
    assert summary["loss"] == {"first": 0.5, "last": 0.25}
    assert summary["not_completed"] == [
        {"outcome": "dropped", "stage": "compute", "reason": "vanished", "count": 3},
        {"outcome": "late", "stage": "report", "reason": "deadline", "count": 3},
    ]
    budget = summary["by_class"]["budget"]
    assert (budget["device_rounds"], budget["completed"], budget["dropped"]) == (6, 0, 3)
    assert budget["latency_s"]["p50"] == 21.0
    assert budget["mean_up_bytes"] == (110 + 943) / 2
    assert list(summary["by_network"]) == ["3g", "wifi"]
    assert summary["by_network"]["3g"]["latency_s"] is None
    assert summary["by_way"].keys() == {"clear"}
    clear = summary["by_way"]["clear"]
    assert (clear["device_rounds"], clear["share"], clear["completed"], clear["late"]) == (6, 1.0, 3, 3)
    assert clear["mean_up_bytes"] == (1270 + 943) / 2
    rmse, hit_rate = summary["accuracy"]
    # On test ratings none is the best: no round may be chosen by them.
    assert (rmse["first"], rmse["last"], rmse["best"], rmse["best_round"]) == (1.5, 1.2, None, None)
    assert (hit_rate["best"], hit_rate["best_round"]) == (None, None)
    assert list(summary["inference_by_class"]) == ["budget", "flagship"]
    flagship = summary["inference_by_class"]["flagship"]
    assert flagship["inferences"] == 2
    assert flagship["latency_s"]["p50"] == pytest.approx(0.0015)
    assert flagship["mean_energy_j"] == pytest.approx(0.003)
    assert (flagship["model_bytes"], flagship["max_memory_bytes"]) == (2000, 3000)
    here = summary["measured"].pop("inference")
    assert here["host_latency_s"]["p50"] == pytest.approx(2e-5)
    assert here["host_session_bytes"]["max"] == 8192
    assert here["max_relative_error"]["max"] == 3e-7
    assert summary["measured"] == {"wall_s": 0.75, "device_rounds_per_s": 12.0, "max_host_rss_bytes": 3000}
    assert "on-device inference" in _shown(summary | {"measured": {**summary["measured"], "inference": here}})


def test_a_killed_run_has_a_summary(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=2, finish=False)
    (tmp_path / "manifest.json").write_text('{"status": "running"}')
    summary = summarise(open_run(tmp_path))
    assert summary["status"] == "killed"
    assert summary["rounds"]["finished"] == 2


def test_a_run_without_rounds_has_a_summary(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.finish()
    summary = summarise(open_run(tmp_path))
    assert summary["rounds"]["duration_s"] is None
    assert (summary["loss"], summary["accuracy"], summary["by_class"]) == (None, [], {})
    assert summary["measured"]["device_rounds_per_s"] is None
    assert (summary["inference_by_class"], summary["measured"]["inference"]) == ({}, None)
    assert "on-device inference" not in _shown(summary)
    assert dict(answers(summary, []))["rounds"] == "0 completed, 0 abandoned"


def _shown(summary: dict[str, object]) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(render(summary), render_details(summary))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_terminal_shows_the_figures(tmp_path: Path) -> None:
    write_run(tmp_path, rounds=3)
    text = _shown(summarise(open_run(tmp_path), "finished"))
    for expected in (
        "run finished",
        "compute 50%, report 50%",
        "ended 3 rounds or stages of sums and 100% of the time",
        "0.333 over devices, 0.500 over classes; least budget, 0% completed",
        "completed 3, late 3, dropped 3",
        "rmse (test, seen users)",
        "per device class",
        "flagship",
        "per network",
        "vanished",
    ):
        assert expected in text


def test_percentiles_interpolate() -> None:
    assert percentiles(np.array([1.0, np.nan, 2.0, 3.0])) == pytest.approx(
        {"p50": 2.0, "p95": 2.9, "p99": 2.98, "max": 3.0}
    )
    assert percentiles(np.array([np.nan])) is None


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("rmse", False),
        ("mae", False),
        ("loss", False),
        ("ndcg@10", True),
        ("hr@5/99neg", True),
        ("recall@1", True),
    ],
)
def test_which_way_a_metric_is_better(metric: str, higher: bool) -> None:
    assert higher_is_better(metric) is higher


def test_the_documentation_of_the_tables_is_current() -> None:
    written = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert written == reference.render(), "renew it: recfleet schema --page metrics > docs/metrics.md"


@pytest.mark.parametrize("vocabulary", [Stage, Outcome, RoundOutcome, Reason, EventKind, Direction, Fate])
def test_every_word_of_the_vocabulary_is_explained(vocabulary: type[Stage]) -> None:
    silent = {name for name, meaning in reference.member_meanings(vocabulary).items() if not meaning}
    assert silent <= {"none"}
