from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.results.threshold_watch import RunningFigures
from coordinator.scenario.errors import FieldProblemsError
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.metric_names import METRICS, MetricKind, find_metric
from coordinator.scenario.threshold_evaluation import (
    ThresholdResult,
    Values,
    aggregate,
    baseline_figure,
    evaluate,
    evaluate_one,
    exit_code,
    percentile,
)
from coordinator.scenario.thresholds import AbortRule, Limit, Threshold, parse_thresholds, written_thresholds


def one(metric: str, expectation: str) -> Threshold:
    (threshold,) = parse_thresholds({metric: [expectation]})
    return threshold


def judged(metric: str, expectation: str, *values: float) -> ThresholdResult:
    return evaluate_one(one(metric, expectation), np.array(values, dtype=np.float64))


@pytest.mark.parametrize(
    ("metric", "expectation", "aggregation", "operator", "limit"),
    [
        ("round.completed", "rate == 100%", "rate", "==", Limit(1.0)),
        ("round.completed", "rate>=0.99", "rate", ">=", Limit(0.99)),
        ("round.completed", "count > 3", "count", ">", Limit(3.0)),
        ("round.duration", "p95 < 20 s", "p95", "<", Limit(20.0)),
        ("round.duration", "p99.9 <= 1.5 min", "p99.9", "<=", Limit(90.0)),
        ("round.duration", "count >= 3", "count", ">=", Limit(3.0)),
        ("device.up_bytes", "max < 64 KiB", "max", "<", Limit(65536.0)),
        ("device.energy", "mean < 10 mJ", "mean", "<", Limit(0.01)),
        ("model.rmse", "last < 0.9 * first", "last", "<", Limit(0.9, "first")),
        ("model.rmse", "last < first", "last", "<", Limit(1.0, "first")),
        ("round.duration", "max <= 150% * med", "max", "<=", Limit(1.5, "med")),
        ("model.ndcg@10/99neg", "last > 0.2", "last", ">", Limit(0.2)),
    ],
)
def test_expectations(metric: str, expectation: str, aggregation: str, operator: str, limit: Limit) -> None:
    threshold = one(metric, expectation)
    assert (threshold.aggregation, threshold.operator, threshold.limit) == (aggregation, operator, limit)
    assert str(threshold) == f"{metric}: {expectation}"


def test_tags_are_sorted_and_trimmed() -> None:
    threshold = one("device.latency{ phase=storm , network=4g_slow }", "max < 1 s")
    assert threshold.tags == (("network", "4g_slow"), ("phase", "storm"))
    assert threshold.key == "device.latency{network=4g_slow,phase=storm}"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            {"round.completed": "rate = 100%"},
            "'rate = 100%' is not an expectation; write one such as 'p95 < 20 s'",
        ),
        ({"round.completed": "mean == 100%"}, "this metric has no 'mean'; write one of rate, count"),
        ({"round.duration": "p100.5 < 1 s"}, "'p100.5' is no percentile; write 'p0' to 'p100'"),
        ({"round.duration": "p95 < 20"}, "'20' has no unit; write '20 s'"),
        ({"round.duration": "p95 < 20 KiB"}, "'20 KiB' is a size in bytes, not a duration; write '20 s'"),
        ({"round.duration": "p95 < 2 * rate"}, "this metric has no 'rate'"),
        ({"round.duration": "p95 < -2 s"}, "'-2 s' is negative"),
        ({"round.duration": "p95 < x * first"}, "'x' is not a ratio"),
        ({"model.rmse": "last < nan"}, "this metric has no 'nan'"),
        ({"model.rmse{users=all,users=b}": "last < 1"}, "the tag 'users' is given twice; keep one"),
        ({"model.rmse{users}": "last < 1"}, "'users' is not a tag; write 'tag=value'"),
        ({"model.rmse{class=a,network=b}": "last < 1"}, "model.rmse is measured by one of class, network"),
        ({"model.rmse{": "last < 1"}, "'model.rmse{' is not a metric; write 'metric{tag=value}'"),
        ({"round.completed{class=x}": "rate > 0"}, "round.completed has no tag 'class'"),
        ({"model.ndcg@0": "last > 0"}, "unknown metric 'model.ndcg@0'"),
        ({"round.completed": [None]}, "an expectation is text; write one such as 'p95 < 20 s'"),
        ({"round.completed": None}, "expectations are a list"),
        ({"round.completed": [{"expct": "rate > 0"}]}, "unknown key; missing; write 'expect: p99 < 90 s'"),
        (["round.completed"], "thresholds are a mapping"),
    ],
)
def test_refusals_say_what_to_write(written: object, message: str) -> None:
    with pytest.raises(FieldProblemsError) as caught:
        parse_thresholds(written)
    assert str(caught.value).startswith(message)


def test_what_is_written_reads_back() -> None:
    written = {
        "round.completed": ["rate >= 99%", "count > 3"],
        "round.duration{phase=a}": ["p95 < 20 s", {"expect": "max < 90 s", "abort": "true"}],
        "device.latency": [{"expect": "p99 < 2 * baseline", "abort": "true", "after": "2 rounds"}],
    }
    assert written_thresholds(parse_thresholds(written)) == written


@pytest.mark.parametrize(
    ("written", "abort"),
    [
        ({"abort": "true"}, AbortRule()),
        ({"abort": "true", "after": "2 rounds"}, AbortRule(after_rounds=2)),
        ({"abort": "true", "after": "1 round"}, AbortRule(after_rounds=1)),
        ({"abort": "true", "after": "10 min"}, AbortRule(after_s=600.0)),
        ({"abort": "false"}, None),
        ({}, None),
    ],
)
def test_when_a_missed_threshold_ends_the_run(written: dict[str, str], abort: AbortRule | None) -> None:
    (threshold,) = parse_thresholds({"round.duration": [{"expect": "max < 1 s", **written}]})
    assert threshold.abort == abort


@pytest.mark.parametrize(
    ("expectation", "values", "baseline", "held", "limit", "reason"),
    [
        ("p95 <= 1.10 * baseline", (2.0, 4.2), 4.0, True, 4.4, None),
        ("p95 <= 110% * baseline", (5.0,), 4.0, False, 4.4, "it was 5 s, the limit 4.4 s"),
        ("max < baseline", (4.0,), 4.0, False, 4.0, "it was 4 s (exactly 4.0), the limit 4 s"),
        (
            "max < baseline",
            (4.0,),
            None,
            False,
            None,
            "no data: the metric was never observed in the baseline",
        ),
        ("max < baseline", (), 4.0, False, None, "no data: the metric was never observed"),
        ("count <= baseline", (), 2.0, True, 2.0, None),
    ],
)
def test_a_limit_relative_to_the_baseline(
    expectation: str,
    values: tuple[float, ...],
    baseline: float | None,
    held: bool,
    limit: float | None,
    reason: str | None,
) -> None:
    result = evaluate_one(one("round.duration", expectation), np.array(values), baseline)
    assert (result.held, result.reason, result.baseline) == (held, reason, baseline)
    assert result.limit == pytest.approx(limit)


class _Source:
    """A metric source that has the same observations of everything."""

    def __init__(self, *values: float) -> None:
        self._values = np.array(values, dtype=np.float64)

    def values(self, metric: str, tags: Mapping[str, str]) -> Values:
        """Return them."""
        return self._values


@pytest.mark.parametrize(
    ("metric", "expectation", "values", "figure"),
    [
        ("round.duration", "p50 < 2 * baseline", (1.0, 3.0, 9.0), 3.0),
        ("round.duration", "max < 2 * baseline", (1.0, 3.0, 9.0), 9.0),
        ("round.completed", "rate >= baseline", (1.0, 0.0, 0.0, 0.0), 0.25),
        ("device.dropped", "count <= 2 * baseline", (1.0, 0.0, 1.0), 2.0),
        ("device.dropped", "count <= 2 * baseline", (), 0.0),
        ("round.duration", "max < baseline", (), None),
        ("round.duration", "max < 2 s", (1.0,), None),
    ],
)
def test_the_figure_of_the_baseline_is_the_same_aggregate(
    metric: str, expectation: str, values: tuple[float, ...], figure: float | None
) -> None:
    assert baseline_figure(one(metric, expectation), _Source(*values)) == figure


@given(
    st.lists(st.lists(st.floats(0, 1e6) | st.just(math.inf), max_size=8), min_size=1, max_size=12),
    st.sampled_from(["p0", "p37.5", "med", "p95", "p100", "min", "max", "first", "last", "count", "mean"]),
)
def test_running_figures_equal_those_of_the_whole_series(
    batches: list[list[float]], aggregation: str
) -> None:
    running = RunningFigures(percentiles=True)
    seen: list[float] = []
    for batch in batches:
        running.add(np.array(batch))
        seen += batch
        if seen:
            whole = aggregate(np.array(seen), aggregation)
            close = 1e-12 if aggregation == "mean" else 0.0
            assert running.figure(aggregation) == pytest.approx(whole, rel=close, abs=0.0)
    assert running.size == len(seen)


def test_a_value_that_is_no_number_spoils_the_running_figures() -> None:
    running = RunningFigures(percentiles=True)
    for batch in ([2.0, math.nan], [1.0], [3.0]):
        running.add(np.array(batch))
    assert all(math.isnan(running.figure(name)) for name in ("p50", "max", "min", "mean"))
    assert running.figure("last") == 3.0


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values: list[float], percentage: float) -> None:
    expected = float(np.percentile(np.array(values), percentage))
    assert percentile(np.array(values), percentage) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("count", 4.0), ("min", 1.0), ("max", 10.0), ("mean", 4.5), ("med", 3.5), ("p50", 3.5), ("p0", 1.0),
        ("p100", 10.0), ("p25", 2.5), ("p95", 9.1), ("first", 10.0), ("last", 4.0), ("rate", 4.5),
    ],
)  # fmt: skip
def test_aggregations_of_known_values(aggregation: str, expected: float) -> None:
    # Sorted 1, 3, 4, 10; p25 is rank 0.75 and p95 is rank 2.85.
    assert aggregate(np.array([10.0, 1.0, 3.0, 4.0]), aggregation) == pytest.approx(expected, rel=1e-15)


def test_an_unknown_aggregation_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown aggregation 'sum'"):
        aggregate(np.array([1.0]), "sum")


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50), st.integers(0, 100))
def test_percentiles_interpolate_between_the_closest_ranks(values: list[float], percent: int) -> None:
    ordered = sorted(values)
    rank = (len(values) - 1) * percent / 100
    low = math.floor(rank)
    expected = ordered[low] + (rank - low) * (ordered[min(low + 1, len(values) - 1)] - ordered[low])
    assert aggregate(np.array(values), f"p{percent}") == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("metric", "expectation", "values", "held", "margin"),
    [
        ("round.duration", "max < 5 s", (1.0, 4.0), True, 1.0),
        ("round.duration", "max < 5 s", (1.0, 5.0), False, 0.0),
        ("round.duration", "max <= 5 s", (1.0, 5.0), True, 0.0),
        ("round.duration", "min > 2 s", (1.0, 5.0), False, -1.0),
        ("round.duration", "min >= 1 s", (1.0, 5.0), True, 0.0),
        ("round.duration", "count == 2", (1.0, 5.0), True, 0.0),
        ("round.duration", "count == 3", (1.0, 5.0), False, -1.0),
        ("round.completed", "rate == 100%", (1.0, 1.0), True, 0.0),
        ("round.completed", "rate == 100%", (1.0, 0.0), False, -0.5),
        ("device.dropped", "count == 0", (0.0, 0.0, 0.0), True, 0.0),
        ("device.dropped", "count == 0", (0.0, 1.0, 1.0), False, -2.0),
        ("device.dropped", "rate < 50%", (0.0, 1.0, 1.0, 0.0, 0.0), True, 0.1),
        ("model.rmse", "last < 0.9 * first", (1.0, 0.95, 0.8), True, 0.1),
        ("model.rmse", "last < 0.9 * first", (0.8, 0.95, 0.8), False, -0.08),
    ],
)
def test_verdicts(
    metric: str, expectation: str, values: tuple[float, ...], held: bool, margin: float
) -> None:
    result = judged(metric, expectation, *values)
    assert result.held is held
    assert result.margin == pytest.approx(margin, abs=1e-12)
    assert (result.reason is None) is held


def test_no_data_is_no_evidence() -> None:
    result = judged("round.duration", "max < 5 s")
    assert not result.held
    assert result.value is None
    assert result.reason == "no data: the metric was never observed"
    assert judged("round.duration", "count == 0").held
    assert not judged("round.completed", "rate == 0%").held
    assert judged("device.dropped", "count == 0").held


def test_what_is_not_a_number_does_not_hold() -> None:
    for expectation in ("last > 0", "max < 5", "mean < 5", "last < 2 * first"):
        result = judged("model.rmse", expectation, math.nan, 1.0, math.nan)
        assert not result.held
        assert result.reason == "the metric was not a number (NaN) at least once"


def test_infinities_compare() -> None:
    assert not judged("model.loss", "last < 5", math.inf).held
    result = judged("model.loss", "last <= first", math.inf, math.inf)
    assert result.held
    assert result.margin == 0.0


@pytest.mark.parametrize(
    ("metric", "expectation", "values", "text"),
    [
        ("round.duration", "max < 5 s", (12.44,), "MISSED round.duration: max < 5 s (it was 12.4 s)"),
        ("round.completed", "rate == 100%", (1.0, 0.0), "MISSED round.completed: rate == 100% (it was 50%)"),
        ("device.up_bytes", "max < 1 KiB", (2048.0,), "MISSED device.up_bytes: max < 1 KiB (it was 2 KiB)"),
        ("round.duration", "count > 3", (1.0,), "MISSED round.duration: count > 3 (it was 1)"),
        ("model.rmse", "last < 0.9 * first", (1.0, 0.95),
         "MISSED model.rmse: last < 0.9 * first (it was 0.95, the limit 0.9)"),
        ("round.duration", "max < 5 s", (5.001,),
         "MISSED round.duration: max < 5 s (it was 5 s (exactly 5.001))"),
        ("model.rmse", "last < 1", (0.5,), "held model.rmse: last < 1"),
    ],
)  # fmt: skip
def test_verdicts_in_words(metric: str, expectation: str, values: tuple[float, ...], text: str) -> None:
    assert str(judged(metric, expectation, *values)) == text


class Source:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []

    def values(self, metric: str, tags: Mapping[str, str]) -> Values:
        self.asked.append((metric, dict(tags)))
        return np.array([1.0, 0.0] if metric == "round.completed" else [3.0])


def test_a_source_is_asked_for_each_threshold() -> None:
    source = Source()
    thresholds = parse_thresholds(
        {"device.latency{phase=a,class=b}": ["max < 4 s"], "round.completed": ["rate > 50%"]}
    )
    results = evaluate(thresholds, source)
    assert source.asked == [("device.latency", {"class": "b", "phase": "a"}), ("round.completed", {})]
    assert [result.held for result in results] == [True, False]
    assert exit_code(results) is ExitCode.THRESHOLD_MISSED
    assert exit_code(results[:1]) is ExitCode.HELD
    assert exit_code(()) is ExitCode.HELD


def test_exit_codes_are_what_scripts_rely_on() -> None:
    assert [(code.name, code.value) for code in ExitCode] == [
        ("HELD", 0), ("INTERNAL_ERROR", 1), ("INVALID_SCENARIO", 2), ("THRESHOLD_MISSED", 3),
        ("INTERRUPTED", 4), ("OUTPUT_CLOSED", 141),
    ]  # fmt: skip


def test_metrics() -> None:
    assert find_metric("round.duration") is METRICS["round.duration"]
    ranking = find_metric("model.hr@20")
    assert ranking is not None
    assert ranking.kind is MetricKind.NUMBER
    assert find_metric("model.hr") is None
    assert find_metric("model.hr@10/neg") is None
    assert MetricKind.EVENT.show(0.99999999) == "100%"
    assert MetricKind.EVENT.show(0.999999) == "99.9999%"
