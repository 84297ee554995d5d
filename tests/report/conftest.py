"""A small run with everything in it, and the helpers of the tests of runs and metrics."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "metrics"), str(TESTS / "runs")]

from run_helpers import Silent  # noqa: E402

from coordinator.run.runner import run_scenario  # noqa: E402
from coordinator.scenario.load import load  # noqa: E402

SCENARIO = """
format: 2
title: '<script>alert(1)</script> & "quotes" </title>'
description: '<img src=x onerror=alert(2)>'
seed: 5
data: {source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 12}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {cohort: 20, over_select: 120%, quorum: 40%, deadline: 10 s}
phases:
  - {name: calm, rounds: 3}
  - {name: storm, rounds: 3}
faults:
  - {name: '</script><b>gone', during: storm, at_stage: compute, on: {fraction: 30%}, vanish: {}}
evaluation: {every: 2}
thresholds:
  round.completed: [rate == 100%]
  round.duration: [max < 2 s]
  model.rmse: [last < first]
"""


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a finished run with two phases, a fault and a missed threshold."""
    file = tmp_path_factory.mktemp("finished") / "run.yaml"
    file.write_text(SCENARIO, encoding="utf-8")
    outcome = run_scenario(load(file), target=file.with_name("run-out"), observer=Silent())
    assert [verdict.held for verdict in outcome.verdicts] == [True, False, True]
    return outcome.directory
