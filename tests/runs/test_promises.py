"""``benchmarks/promises.py`` finds promises that are not good; those of the shipped scenarios are."""

from __future__ import annotations

import importlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from run_helpers import SCENARIOS

from coordinator.scenario.load import load
from coordinator.scenario.threshold_evaluation import ThresholdResult, evaluate_one
from coordinator.scenario.thresholds import Threshold, parse_thresholds

NAMES = sorted(file.stem for file in SCENARIOS.glob("*.yaml"))
SOME = ("context_baselines", "dropout_sweep", "quickstart", "subway")
"""Quick ones, with and without a baseline."""


@pytest.fixture
def promises(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCENARIOS.parent / "benchmarks"))
    return importlib.import_module("promises")


def one(metric: str, expectation: str) -> Threshold:
    (threshold,) = parse_thresholds({metric: [expectation]})
    return threshold


def verdicts(threshold: Threshold, *series: tuple[float, ...]) -> list[ThresholdResult]:
    """Return a verdict for each seed, of its observations; a baseline observes 1."""
    return [evaluate_one(threshold, np.array(values), 1.0) for values in series]


class TestTheJudge:
    """What makes a promise a bad one, one reason at a time."""

    def faults(
        self, promises: ModuleType, threshold: Threshold, shipped: Any, *beside: Threshold, **broken: Any
    ) -> Any:
        found = {way.replace("_", " "): verdicts(threshold, *series) for way, series in broken.items()}
        judged = promises.promise_of(threshold, verdicts(threshold, *shipped), found, (threshold, *beside))
        return judged.faults

    def test_a_good_one_has_none(self, promises: ModuleType) -> None:
        duration = one("round.duration", "max < 2 s")
        assert self.faults(promises, duration, [(1.0,), (1.2,)], no_reserve=[(9.0,), (8.0,)]) == ()

    def test_a_seed_that_misses_it_is_counted(self, promises: ModuleType) -> None:
        duration = one("round.duration", "max < 2 s")
        found = self.faults(promises, duration, [(1.0,), (2.5,), (1.0,)], no_reserve=[(9.0,)])
        assert found == ("missed by 1 of 3 seeds",)

    def test_a_limit_next_to_the_worst_seed_is_too_close(self, promises: ModuleType) -> None:
        duration = one("round.duration", "max < 2 s")
        found = self.faults(promises, duration, [(1.0,), (1.8,)], no_reserve=[(9.0,)])
        assert found == ("too close to the worst seed",)

    def test_one_broken_seed_that_holds_it_is_enough(self, promises: ModuleType) -> None:
        duration = one("round.duration", "max < 2 s")
        found = self.faults(promises, duration, [(1.0,), (1.2,)], no_reserve=[(9.0,), (1.9,)])
        assert found == ("nothing breaks it",)

    def test_a_limit_next_to_what_is_broken_is_too_close(self, promises: ModuleType) -> None:
        duration = one("round.duration", "max < 2 s")
        found = self.faults(promises, duration, [(1.0,), (1.2,)], no_reserve=[(2.1,), (9.0,)])
        assert found == ("too close to what is broken",)

    def test_greater_is_better_where_the_operator_says_so(self, promises: ModuleType) -> None:
        ranking = one("model.ndcg@10", "last >= 0.1")
        assert self.faults(promises, ranking, [(0.2,), (0.18,)], untrained=[(0.03,)]) == ()
        found = self.faults(promises, ranking, [(0.2,), (0.12,)], untrained=[(0.03,)])
        assert found == ("too close to the worst seed",)

    def test_a_model_that_learns_nothing_must_miss_it(self, promises: ModuleType) -> None:
        error = one("model.rmse", "last < 1.05")
        found = self.faults(
            promises, error, [(1.0, 0.98), (1.0, 0.97)], untrained=[(1.0, 1.0)], most_vanish=[(1.0, 1.2)]
        )
        assert found == ("holds without learning",)

    def test_a_multiple_of_the_baseline_needs_one_that_says_what_is_learnt(
        self, promises: ModuleType
    ) -> None:
        error, learnt = one("model.rmse", "last <= 1.05 * baseline"), one("model.rmse", "last < 0.9 * first")
        shipped, broken = [(1.2, 1.0), (1.2, 1.01)], {"untrained": [(1.0, 1.0)], "poisoned": [(1.2, 1.1)]}
        assert self.faults(promises, error, shipped, learnt, **broken) == ()
        found = self.faults(promises, error, shipped, **broken)
        assert found == ("no promise beside it says that anything is learnt",)

    def test_no_data_is_a_miss(self, promises: ModuleType) -> None:
        exact = one("secagg.sum_error", "max == 0")
        assert self.faults(promises, exact, [(0.0,), (0.0,)], in_the_clear=[()]) == ()


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_the_ways_to_break_it_load(promises: ModuleType, name: str) -> None:
    assert len(promises.ways_to_break(name)) >= 2
    for settings in promises.ways_to_break(name).values():
        load(SCENARIOS / f"{name}.yaml", ["thresholds=null", *settings], references=False)


def test_without_learning_the_model_stays_as_it_was_drawn(promises: ModuleType, tmp_path: Path) -> None:
    settings = promises.ways_to_break("quickstart")[promises.UNTRAINED]
    results = promises.measure(promises.Job("quickstart", settings, 1, tmp_path))
    (error,) = [result for result in results if result.threshold.metric == "model.rmse"]
    assert promises.figure(error) == pytest.approx(1, abs=1e-6)
    assert not error.held


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_some_are_kept_with_another_seed_and_missed_when_broken(
    promises: ModuleType, name: str, tmp_path: Path
) -> None:
    with ProcessPoolExecutor(1) as pool:
        judged = promises.judged(name, [1], [1], tmp_path, pool)
    # How far apart seeds lie takes more of them to say.
    margins = {"too close to the worst seed", "too close to what is broken"}
    wrong = [(str(one.threshold), set(one.faults) - margins) for one in judged]
    assert [found for found in wrong if found[1]] == []
