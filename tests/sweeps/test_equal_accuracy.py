"""What it took runs to come to the same accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from coordinator.results.analysis.learning_curves import TRAINING_LOSS, Curve
from coordinator.results.comparison import costs_to_equal_accuracy


def curve(
    metric: str,
    values: Sequence[float],
    epsilon: float = math.nan,
    population: str = "seen",
    pace: float = 1.0,
    split: str = "test",
) -> Curve:
    """Return a curve whose n-th evaluation was after n rounds, each of a second, 10 bytes and 3 joules."""
    rounds = np.arange(len(values))
    spent = rounds * epsilon
    return Curve(
        metric,
        split,
        population,
        rounds,
        rounds * pace,
        rounds * 10.0,
        rounds * 3.0,
        spent,
        np.array(values),
    )


def test_the_goal_is_what_the_worst_was_at_its_best_on_validation() -> None:
    slow = curve("rmse", [2.0, 1.5, 1.2, 1.1, 1.3], epsilon=0.5, split="validation")
    quick = curve("rmse", [2.0, 1.1, 0.9, 0.8, 0.7], pace=7.0, split="validation")
    (first, second), without = costs_to_equal_accuracy([[slow], [quick]])
    assert without == []
    assert {name: figure.value for name, figure in first.items()} == {
        "simulated time to rmse ≤ 1.1": 3.0,
        "bytes to rmse ≤ 1.1": 30.0,
        "energy to rmse ≤ 1.1": 9.0,
        "epsilon zero-out to rmse ≤ 1.1": 1.5,
    }
    assert {name: figure.value for name, figure in second.items()} == {
        "simulated time to rmse ≤ 1.1": 7.0,
        "bytes to rmse ≤ 1.1": 10.0,
        "energy to rmse ≤ 1.1": 3.0,
    }


def test_on_the_test_the_goal_is_what_the_worst_was_at_the_end() -> None:
    slow, quick = curve("rmse", [2.0, 1.5, 1.2, 1.1, 1.3]), curve("rmse", [2.0, 1.1, 0.9, 0.8, 1.0])
    (first, second), _ = costs_to_equal_accuracy([[slow], [quick]])
    assert (first["bytes to rmse ≤ 1.3"].value, second["bytes to rmse ≤ 1.3"].value) == (20.0, 10.0)


def test_a_test_of_one_round_is_no_race() -> None:
    run = [curve("rmse", [2.0, 1.0], split="validation"), curve("rmse", [1.2])]
    (first, _), without = costs_to_equal_accuracy([run, run])
    assert without == []
    assert set(first) == {
        f"{cost} to rmse (validation, seen users) ≤ 1" for cost in ("simulated time", "bytes", "energy")
    }


def test_of_rankings_more_is_better() -> None:
    runs = [[curve("ndcg@10", [0.1, 0.2, 0.3])], [curve("ndcg@10", [0.1, 0.35, 0.3])]]
    (first, second), _ = costs_to_equal_accuracy(runs)
    assert first["bytes to ndcg@10 ≥ 0.3"].value == 20.0
    assert second["bytes to ndcg@10 ≥ 0.3"].value == 10.0


@pytest.mark.parametrize("values", [[2.0, 2.1], [2.0], [2.0, 2.0]])
def test_where_all_were_there_from_the_first_is_no_race(values: list[float]) -> None:
    found, without = costs_to_equal_accuracy([[curve("rmse", [2.0, 0.9])], [curve("rmse", values)]])
    assert found == [{}, {}]
    assert without == ["rmse"]


def test_who_was_there_from_the_first_took_nothing() -> None:
    local, trained = curve("rmse", [1.0, 1.0]), curve("rmse", [2.0, 1.5, 0.9])
    (first, second), without = costs_to_equal_accuracy([[local], [trained]])
    assert without == []
    assert first["bytes to rmse ≤ 1"].value == 0.0
    assert second["bytes to rmse ≤ 1"].value == 20.0


def test_metrics_that_one_run_lacks_and_losses_are_left_out() -> None:
    one = [curve("rmse", [2.0, 1.0]), curve("mae", [2.0, 1.0]), curve(TRAINING_LOSS, [2.0, 1.0])]
    other = [curve("rmse", [2.0, 1.0]), curve(TRAINING_LOSS, [2.0, 1.0])]
    (first, _), without = costs_to_equal_accuracy([one, other])
    assert set(first) == {f"{cost} to rmse ≤ 1" for cost in ("simulated time", "bytes", "energy")}
    assert without == []


def test_populations_are_told_apart() -> None:
    run = [curve("rmse", [2.0, 1.0]), curve("rmse", [2.0, 1.5], population="unseen")]
    (first, _), _ = costs_to_equal_accuracy([run, run])
    assert "bytes to rmse (test, unseen users) ≤ 1.5" in first
