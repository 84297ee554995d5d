from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from metrics_samples import (
    NAMES,
    facts,
    sample_evaluation,
    sample_inference,
    sample_round,
    three_device_log,
    three_devices,
)

from coordinator.engine.facts import MetricValue
from coordinator.results.tables.batches import round_batches
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.writer import RunWriter
from coordinator.scenario.metric_names import METRICS
from coordinator.scenario.threshold_evaluation import MetricSource, evaluate
from coordinator.scenario.thresholds import parse_thresholds
from edge.core.vocabulary import Reason, RoundOutcome

BUDGET = {"tag": "class", "group": "budget"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TableMetricSource:
    directory = tmp_path_factory.mktemp("run")
    with RunWriter(directory) as writer:
        writer.write("evaluations", sample_evaluation(0, [MetricValue("rmse", 2.0, 3)]))
        writer.write_round(sample_round(1))
        writer.write(
            "evaluations",
            sample_evaluation(
                1,
                [
                    MetricValue("rmse", 1.0, 3),
                    MetricValue("rmse", 1.25, 2, **BUDGET),
                    MetricValue("rmse", 1.5, 2, population="unseen"),
                    MetricValue("rmse", 0.5, 3, split="validation"),
                    MetricValue("ndcg@10", 0.25, 4, population="unseen"),
                    MetricValue("mae", math.nan, 0),
                    MetricValue("accuracy", math.nan, 5),
                ],
            ),
        )
        abandoned = {"outcome": RoundOutcome.ABANDONED, "reason": Reason.QUORUM, "loss": math.nan}
        writer.write_round(sample_round(2, phase="storm", end_s=250.0, **abandoned))
        writer.write("evaluations", sample_evaluation(2, [MetricValue("rmse", 0.75, 3)], phase="storm"))
        writer.write("inferences", sample_inference(1))
        writer.write("inferences", sample_inference(2, phase="storm"))
        writer.finish()
    return TableMetricSource(open_run(directory))


@pytest.mark.parametrize(
    ("metric", "tags", "expected"),
    [
        ("round.completed", {}, [1, 0]),
        ("round.completed", {"phase": "storm"}, [0]),
        ("round.duration", {}, [20, 50]),
        ("round.duration", {"phase": "never"}, []),
        ("device.completed", {}, [1, 0, 0] * 2),
        ("device.completed", {"class": "flagship"}, [1, 1]),
        ("device.dropped", {"network": "3g"}, [1, 1]),
        ("device.dropped", {"network": "wifi"}, [0, 0, 0, 0]),
        ("device.latency", {}, [9, 21] * 2),
        ("device.work_share", {}, [0.5, 0.5]),
        ("device.staleness", {"phase": "calm"}, [2]),
        ("device.shielded", {}, [1, 1] * 2),
        ("device.shielded", {"way": "secure"}, []),
        ("device.up_bytes", {"way": "clear", "phase": "calm"}, [1270, 943]),
        ("device.latency", {"class": "budget", "phase": "calm"}, [21]),
        ("device.up_bytes", {"phase": "calm"}, [1270, 110, 943]),
        ("device.down_bytes", {"class": "flagship", "phase": "calm"}, [1347]),
        ("device.energy", {"phase": "storm"}, [3.5, 1.25, 12.0]),
        ("device.wasted_work", {"phase": "calm"}, [0, 1, 1]),
        ("inference.latency", {}, [0.001, 0.004, 0.002, 0.008]),
        ("inference.latency", {"class": "budget"}, [0.004, 0.008]),
        ("inference.energy", {"network": "wifi", "phase": "storm"}, [0.004]),
        ("inference.max_error", {"phase": "calm"}, [1e-7, 3e-7]),
        ("model.loss", {}, [0.5]),
        ("model.loss", {"phase": "storm"}, []),
        ("model.loss", {"class": "flagship"}, [0.5, 0.5]),
        ("model.loss", {"class": "budget"}, []),
        ("model.loss", {"users": "unseen"}, []),
        ("model.rmse", {}, [2.0, 1.0, 0.75]),
        ("model.rmse", {"phase": "storm"}, [0.75]),
        ("model.rmse", {"class": "budget"}, [1.25]),
        ("model.rmse", {"users": "unseen"}, [1.5]),
        ("model.rmse", {"class": "budget", "network": "3g"}, []),
        ("model.ndcg@10", {}, [0.25]),
        # Over nobody there was nothing to observe; a value of somebody that is no number was.
        ("model.mae", {}, []),
        ("model.accuracy", {}, [math.nan]),
    ],
)
def test_values(source: TableMetricSource, metric: str, tags: dict[str, str], expected: list[float]) -> None:
    values = source.values(metric, tags)
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, np.array(expected, dtype=np.float64))


def test_loss_of_a_class_is_weighted_by_examples(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        cohort = three_devices(outcome=np.zeros(3, dtype=np.int8), loss=np.array([1.0, 2.0, 4.0]),
                               examples=np.array([5, 10, 30]))  # fmt: skip
        writer.write_round(round_batches(facts(1), cohort, NAMES, three_device_log().columns()))
        writer.finish()
    values = TableMetricSource(open_run(tmp_path)).values("model.loss", {"class": "budget"})
    np.testing.assert_allclose(values, [(10 * 2.0 + 30 * 4.0) / 40], rtol=1e-15)


def test_every_metric_of_the_scenario_format_has_a_source(source: TableMetricSource) -> None:
    for metric in METRICS.values():
        for tags in ({}, dict.fromkeys(metric.tags, "nothing")):
            assert source.values(metric.name, tags).dtype == np.float64


def test_what_does_not_exist_is_refused(source: TableMetricSource) -> None:
    with pytest.raises(ValueError, match=r"unknown metric 'device\.speed'"):
        source.values("device.speed", {})
    with pytest.raises(ValueError, match="cannot be narrowed by 'class'"):
        source.values("round.duration", {"class": "budget"})


def test_thresholds_are_judged_on_the_tables(source: TableMetricSource) -> None:
    typed: MetricSource = source
    thresholds = parse_thresholds(
        {
            "round.completed": ["rate == 100%"],
            "round.completed{phase=calm}": ["rate == 100%"],
            "device.latency": ["p95 < 30 s"],
            "model.rmse": ["last < 0.4 * first"],
        }
    )
    assert [result.held for result in evaluate(thresholds, typed)] == [False, True, True, True]
