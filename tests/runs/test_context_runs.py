"""Runs of the context baselines."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_helpers import rows_of, run_text

from coordinator.scenario.load import ScenarioError

TEXT = """
format: 2
title: small
seed: 3
data:
  source: synthetic-ratings
  users: 60
  items: 40
  ratings_per_user: 20
  features: {kind: synthetic}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: federated-context}
rounds: {count: 6, cohort: 20, deadline: 120 s}
evaluation: {every: 6}
"""
LOCAL = "learning={algorithm: local-context, model: {kind: one-order}}"


def errors(folder: Path, name: str, *overrides: str) -> list[float]:
    rows = rows_of(run_text(folder, TEXT, overrides, name), "evaluations")
    return [row["value"] for row in rows if row["metric"] == "rmse" and row["tag"] == "all"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "factorization-machine", "network"])
def test_a_federated_model_learns(tmp_path: Path, kind: str) -> None:
    before, after = errors(tmp_path, kind, f"learning.model.kind={kind}")
    assert after < 0.98 * before


def test_local_models_are_as_good_before_the_first_round_and_upload_next_to_nothing(tmp_path: Path) -> None:
    run = run_text(tmp_path, TEXT, [LOCAL], "local")
    rows = rows_of(run, "evaluations")
    before, after = [row["value"] for row in rows if row["metric"] == "rmse" and row["tag"] == "all"]
    assert before == after
    devices = rows_of(run, "device_rounds")
    assert {row["outcome"] for row in devices} == {"completed"}
    assert not any(row["up_payload_bytes"] for row in devices)


def test_under_a_secure_sum_a_federated_model_is_the_same_but_for_rounding(tmp_path: Path) -> None:
    uniform = ("learning.weighting=uniform", "rounds.cohort=60", "rounds.count=1", "evaluation.every=1")
    clear = errors(tmp_path, "clear", *uniform)
    summed = errors(
        tmp_path, "summed", *uniform, "secure_aggregation={mode: secagg, crypto: modelled, clip: 8}"
    )
    assert summed == pytest.approx(clear, rel=1e-4)
    assert summed != clear


@pytest.mark.parametrize("learning", [LOCAL, "learning={algorithm: federated-context}"])
def test_without_features_the_scenario_is_refused(tmp_path: Path, learning: str) -> None:
    with pytest.raises(ScenarioError, match=r"data.features: missing; \w+-context learns from the features"):
        run_text(tmp_path, TEXT.replace("  features: {kind: synthetic}\n", ""), [learning])
