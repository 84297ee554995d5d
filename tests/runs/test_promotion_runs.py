"""Runs in which a few devices promote an item: its exposure beside that without them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from run_helpers import rows_of, run_text

from coordinator.run.runner import RunOutcome
from coordinator.scenario.errors import ScenarioError

TEXT = """
format: 2
title: small
seed: 3
data: {source: synthetic-ratings, users: 60, items: 40, ratings_per_user: 12}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 2, weighting: uniform, learning_rate: 0.1}
rounds: {count: 6, cohort: 30, quorum: 80%, deadline: 120 s}
evaluation: {every: 6}
"""
EXPOSURE = "evaluation.exposure={k: [3]}"


def promoted(kind: str, settings: str = "{}") -> str:
    return f"faults=[{{name: fakes, on: {{fraction: 10%, fixed: true}}, {kind}: {settings}}}]"


def ratios(run: RunOutcome) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows_of(run, "evaluations"):
        if row["metric"].startswith("er@"):
            assert (row["population"], row["tag"], row["split"]) == ("seen", "all", "test")
            found.setdefault(row["metric"], []).append(row["value"])
    return found


@pytest.mark.parametrize("kind", ["explicit_boosting", "hard_users"])
def test_a_few_devices_put_an_item_into_many_lists(kind: str, tmp_path: Path) -> None:
    calm = ratios(run_text(tmp_path, TEXT, (EXPOSURE,), "calm"))
    run = run_text(tmp_path, TEXT, (EXPOSURE, promoted(kind)), "struck")
    found = ratios(run)
    assert calm.keys() == found.keys() == {"er@3"}
    assert found["er@3"][0] == calm["er@3"][0]  # before the first round
    assert found["er@3"][-1] > calm["er@3"][-1] + 0.3
    assert {(row["kind"], row["stage"]) for row in rows_of(run, "faults")} == {(kind, "compute")}


def test_the_baseline_measures_the_same_item(tmp_path: Path) -> None:
    text = f"{TEXT}baseline: same-seed-without-faults\nthresholds:\n  model.er@5: [last > 2 * baseline]\n"
    run = run_text(tmp_path, text, (promoted("explicit_boosting"),), "struck")
    calm = ratios(run_text(tmp_path, TEXT, ("evaluation.exposure={}",), "calm"))
    assert ratios(run).keys() == calm.keys() == {"er@5", "er@10", "er@20"}
    (verdict,) = (one for one in run.verdicts if not one.implicit)
    assert (verdict.value, verdict.baseline) == (ratios(run)["er@5"][-1], calm["er@5"][-1])
    assert verdict.held


def test_the_same_seed_is_the_same_attack(tmp_path: Path) -> None:
    runs = [run_text(tmp_path, TEXT, (promoted("hard_users"),), name) for name in ("one", "two")]
    assert ratios(runs[0]) == ratios(runs[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "learning",
    [
        "{algorithm: fedmf, factors: 2}",
        "{algorithm: fedrec, factors: 2}",
        "{algorithm: fedavg-mf, factors: 2}",
        "{algorithm: pfedrec, factors: 2, upload: dense}",
        "{algorithm: fedrap, factors: 2}",
        "{algorithm: fcf, factors: 2, upload: dense}",
    ],
)
def test_every_method_with_item_rows_can_be_aimed_at(learning: str, tmp_path: Path) -> None:
    text = re.sub("learning: .*", f"learning: {learning}", TEXT)
    changes = ("evaluation.ranking={}", "rounds.count=2", promoted("explicit_boosting", "{scale: 1000}"))
    run = run_text(tmp_path, text, changes, "struck")
    assert len(ratios(run)["er@10"]) == 2
    assert len(rows_of(run, "faults")) > 0


def test_an_item_that_the_data_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"faults\[0\].hard_users.item: the data has no item '40'"):
        run_text(tmp_path, TEXT, (promoted("hard_users", "{item: 40}"),), "none")


@pytest.mark.slow
def test_the_attack_goes_through_a_secure_sum(tmp_path: Path) -> None:
    secure = ("secure_aggregation={mode: secagg, crypto: modelled}", "learning.upload=dense", EXPOSURE)
    found = ratios(run_text(tmp_path, TEXT, (*secure, promoted("explicit_boosting")), "struck"))
    calm = ratios(run_text(tmp_path, TEXT, secure, "calm"))
    assert found["er@3"][-1] > calm["er@3"][-1] + 0.3
