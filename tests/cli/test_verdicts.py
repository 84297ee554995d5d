from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from coordinator.cli.verdicts import verdict_table
from coordinator.results.verdicts import verdict_record
from coordinator.scenario.threshold_evaluation import evaluate_one
from coordinator.scenario.thresholds import parse_thresholds


def row_of(metric: str, expectation: str, observations: list[float]) -> list[str]:
    """Return the cells of the one row for a threshold over some observations."""
    (threshold,) = parse_thresholds({metric: expectation})
    table = verdict_table([evaluate_one(threshold, np.array(observations, np.float64))])
    written = io.StringIO()
    Console(file=written, width=200).print(table)
    (line,) = [line for line in written.getvalue().splitlines() if metric in line]
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


@pytest.mark.parametrize(
    ("metric", "expectation", "observations", "expected"),
    [
        ("round.duration", "max < 20 s", [4.0, 5.0], ["5 s", "20 s", "+15 s", "held"]),
        ("round.duration", "max < 4 s", [4.0, 5.0], ["5 s", "4 s", "-1 s", "MISSED"]),
        ("round.duration", "max <= 5 s", [4.0, 5.0], ["5 s", "5 s", "+0 s", "held"]),
        ("round.completed", "rate >= 90%", [1.0, 1.0, 0.0, 1.0], ["75%", "90%", "-15%", "MISSED"]),
        ("device.up_bytes", "count == 3", [9.0, 9.0], ["2", "3", "-1", "MISSED"]),
        ("model.rmse", "last < 0.5 * first", [1.0, 0.75], ["0.75", "0.5", "-0.25", "MISSED"]),
    ],
)
def test_a_row_shows_value_limit_margin_and_verdict(
    metric: str, expectation: str, observations: list[float], expected: list[str]
) -> None:
    assert row_of(metric, expectation, observations) == expected


def test_a_promise_relative_to_the_baseline_shows_the_figure_of_the_baseline() -> None:
    (threshold,) = parse_thresholds({"round.duration": "max <= 1.5 * baseline"})
    table = verdict_table([evaluate_one(threshold, np.array([4.0, 5.0]), 4.0)])
    written = io.StringIO()
    Console(file=written, width=200).print(table)
    (line,) = [line for line in written.getvalue().splitlines() if "baseline" in line and "1.5" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")][1:] == ["5 s", "6 s", "4 s", "+1 s", "held"]


def test_a_promise_about_what_was_never_observed_is_missed_for_that_reason() -> None:
    cells = row_of("round.duration", "max < 20 s", [])
    assert cells == ["–", "–", "–", "MISSED: no data: the metric was never observed"]


def test_a_promise_about_what_is_no_number_is_missed_for_that_reason() -> None:
    cells = row_of("model.rmse", "last < 1", [math.nan])
    assert cells[2:] == ["–", "MISSED: the metric was not a number (NaN) at least once"]


@pytest.mark.parametrize(
    ("values", "figures", "texts"),
    [
        ([1.0, 3.0], (3.0, 2.0, -1.0), ("3 s", "2 s", "-1 s")),
        ([1.0], (1.0, 2.0, 1.0), ("1 s", "2 s", "+1 s")),
        ([], (None, None, None), ("–", "–", "–")),
        ([math.nan], (None, 2.0, None), ("nan s", "2 s", "–")),
    ],
)
def test_a_verdict_is_kept_for_reports(
    values: list[float], figures: tuple[float | None, ...], texts: tuple[str, ...]
) -> None:
    (threshold,) = parse_thresholds({"round.duration": ["max < 2 s"]})
    kept = verdict_record(evaluate_one(threshold, np.array(values)))
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept
    assert (kept["value"], kept["limit"], kept["margin"]) == figures
    assert tuple(kept["shown"].values()) == texts
    assert (kept["threshold"], kept["observations"]) == ("round.duration: max < 2 s", len(values))
    assert (kept["reason"] is None) == kept["held"] == (values == [1.0])
