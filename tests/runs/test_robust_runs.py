"""Runs with poisoned updates: what rules and norm bounds are worth, and who is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_helpers import rows_of, run_text

from coordinator.run.runner import RunOutcome

TEXT = """
format: 2
title: small
seed: 3
data: {source: synthetic-ratings, users: 60, items: 40, ratings_per_user: 20}
fleet: {mix: global_android_2024, availability: always_on}
learning:
  algorithm: fedrecon
  factors: 2
  weighting: uniform
  upload: dense
  optimizer: {kind: sgd}
  learning_rate: 1.0
rounds: {count: 4, cohort: 20, quorum: 100%, deadline: 120 s}
evaluation: {every: 4}
"""
SPARSE = "learning.upload=sparse"
HUGE = "{kind: huge-norm, scale: 1000}"
UNCLIPPED = "{kind: huge-norm, scale: 1000, ignores_bound: true}"
BOUNDED = "aggregation={rule: mean, norm_bound: 0.5}"
MASKED = "secure_aggregation={mode: secagg, crypto: modelled}"


def poisoned(fault: str) -> str:
    return f"faults=[{{name: attackers, on: {{fraction: 10%, fixed: true}}, poisoned_updates: {fault}}}]"


def rmse(folder: Path, name: str, *overrides: str) -> float:
    rows = rows_of(run_text(folder, TEXT, overrides, name), "evaluations")
    return float([row["value"] for row in rows if row["metric"] == "rmse" and row["tag"] == "all"][-1])


@pytest.mark.slow
def test_rules_withstand_what_the_mean_does_not(tmp_path: Path) -> None:
    honest = rmse(tmp_path, "honest", SPARSE)
    assert rmse(tmp_path, "mean", SPARSE, poisoned(HUGE)) > 2 * honest
    # Six attackers: in rows that thirteen or more sent they are fewer than half.
    rules = (
        "median, min_senders: 13",
        "trimmed-mean, trim: 45%, min_senders: 13",
        "multi-krum, attackers: 30%",
    )
    for rule in rules:
        found = rmse(tmp_path, rule[:5], SPARSE, poisoned(HUGE), f"aggregation={{rule: {rule}}}")
        assert found < 1.1 * honest, rule


def test_who_ignores_the_bound_is_refused_where_the_coordinator_sees_it(tmp_path: Path) -> None:
    run = run_text(tmp_path, TEXT, (SPARSE, poisoned(UNCLIPPED), BOUNDED), "ignores")
    attackers = {row["device"] for row in rows_of(run, "faults")}
    assert len(attackers) >= 3
    for row in rows_of(run, "device_rounds"):
        refused = row["outcome"] == "failed" and row["reason"] == "garbage"
        assert refused is (row["device"] in attackers), row


def test_who_ignores_the_norm_that_noise_is_sized_for_is_refused_too(tmp_path: Path) -> None:
    privacy = "privacy={mechanism: central-gaussian, clip_norm: 0.5, noise_multiplier: 1, accounting: false}"
    run = run_text(tmp_path, TEXT, (poisoned(UNCLIPPED), privacy), "private")
    attackers = {row["device"] for row in rows_of(run, "faults")}
    refused = {row["device"] for row in rows_of(run, "device_rounds") if row["reason"] == "garbage"}
    assert refused == attackers != set()


def test_who_keeps_the_bound_is_applied_and_counted_as_clipped(tmp_path: Path) -> None:
    run = run_text(tmp_path, TEXT, (SPARSE, poisoned(HUGE), BOUNDED), "keeps")
    rows = rows_of(run, "device_rounds")
    assert {row["outcome"] for row in rows} == {"completed"}
    struck = {(row["round"], row["device"]) for row in rows_of(run, "faults")}
    for row in rows_of(run, "rounds"):
        false = sum(number == row["round"] for number, _ in struck)
        assert row["clipped_updates_fraction"] >= false / 20 > 0


@pytest.mark.slow
def test_a_secure_sum_hides_who_ignores_the_bound(tmp_path: Path) -> None:
    flipped = "kind: sign-flip, scale: 1000"
    honest = run_text(tmp_path, TEXT, (MASKED, BOUNDED), "honest")
    kept = run_text(tmp_path, TEXT, (MASKED, BOUNDED, poisoned(f"{{{flipped}}}")), "kept")
    ignores = poisoned(f"{{{flipped}, ignores_bound: true}}")
    ignored = run_text(tmp_path, TEXT, (MASKED, BOUNDED, ignores), "ignored")
    assert {row["outcome"] for row in rows_of(ignored, "device_rounds")} == {"completed"}
    # Elements are clipped to 1, and there are 120: a device that ignores the bound has a norm of up to 11.
    assert moved(honest, ignored) > 4 * moved(honest, kept) > 0


def moved(one: RunOutcome, other: RunOutcome) -> float:
    """Return how far the models of two runs are apart."""
    first, second = (np.load(run.directory / "model.npz") for run in (one, other))
    return float(np.sqrt(sum(((first[name] - second[name]) ** 2).sum() for name in first)))


@pytest.mark.slow
def test_a_run_with_a_rule_does_not_depend_on_batches(tmp_path: Path) -> None:
    models = []
    for batch in (1, 256):
        settings = (SPARSE, "aggregation={rule: median}", f"compute.batch={batch}")
        run = run_text(tmp_path, TEXT, settings, f"batch{batch}")
        models.append(dict(np.load(run.directory / "model.npz")))
    for name, array in models[0].items():
        np.testing.assert_array_equal(array, models[1][name])


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median, min_senders: 13", "multi-krum, attackers: 30%"])
def test_a_buffer_takes_a_rule(tmp_path: Path, rule: str) -> None:
    buffered = "rounds.pacing={mode: buffered, concurrency: 30}"
    honest = rmse(tmp_path, "honest", SPARSE, buffered)
    found = rmse(tmp_path, "found", SPARSE, buffered, poisoned(HUGE), f"aggregation={{rule: {rule}}}")
    assert found < 1.1 * honest
