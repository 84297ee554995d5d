"""What robust rules make of updates: the invariant's own working out, and sums that are something else."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from swarm_helpers import PLAIN, breakable, said, trial_of

from coordinator.scenario.aggregation_section import KrumRule, MedianRule, TrimmedMeanRule
from coordinator.swarm.invariants.rules import coordinatewise, single, taken_by_krum
from coordinator.swarm.invariants.sums import exact_sums
from coordinator.swarm.trial import Trial
from edge.wire.messages import Report

SHAPES = {"item_rows": (3, 1)}
MEDIAN = MedianRule(rule="median", min_senders=1)
SECTIONS = {
    "median": "rule: median",
    "lonely median": "rule: median, min_senders: 1",
    "trimmed": "rule: trimmed-mean, trim: 20%",
    "krum": "rule: krum, attackers: 10%",
    "multi-krum": "rule: multi-krum, attackers: 10%, norm_bound: 0.4",
}
BASE = PLAIN.replace("cohort: 5, over_select: 120%, quorum: 1", "cohort: 8, quorum: 5").replace(
    "deadline: 60 s", "deadline: 600 s"
)


def dense(*values: float) -> dict[str, Any]:
    return {"item_rows": np.array(values, np.float64)[:, None]}


def sparse(**values: float) -> dict[str, Any]:
    return {
        "items": np.array([int(name[1:]) for name in values], np.uint16),
        "item_rows": np.array(list(values.values()))[:, None],
    }


def test_an_update_is_taken_without_its_weight() -> None:
    arrays = {"items": np.array([4], np.uint16), "item_rows": np.array([[6.0]], np.float32)}
    one = single(Report("run", 1, 0, 3, 4.0, 0.0, arrays))
    assert one["item_rows"].tolist() == [[1.5]]
    assert one["items"].tolist() == [4]
    assert single(Report("run", 1, 0, 3, 0.0, 0.0, arrays))["item_rows"].tolist() == [[6.0]]


def test_medians_by_hand() -> None:
    estimates, sizes = coordinatewise([dense(1, 5, 0), dense(9, -4, 0), dense(2, 1, 3)], SHAPES, MEDIAN)
    assert estimates["item_rows"].ravel().tolist() == [6.0, 3.0, 0.0]
    estimates, sizes = coordinatewise([dense(1, -5, 0), dense(9, 4, 0)], SHAPES, MEDIAN)
    assert estimates["item_rows"].ravel().tolist() == [10.0, -1.0, 0.0]
    assert sizes["item_rows"].ravel().tolist() == [10.0, 9.0, 0.0]


def test_a_row_is_that_of_those_who_sent_it() -> None:
    updates = [sparse(i0=1.0, i2=4.0), sparse(i0=3.0), sparse(i0=100.0)]
    estimates, _ = coordinatewise(updates, SHAPES, MEDIAN)
    assert estimates["item_rows"].ravel().tolist() == [9.0, 0.0, 4.0]
    estimates, _ = coordinatewise(updates, SHAPES, MedianRule(rule="median", min_senders=2))
    assert estimates["item_rows"].ravel().tolist() == [9.0, 0.0, 0.0]


def test_trimmed_means_by_hand() -> None:
    rule = TrimmedMeanRule(rule="trimmed-mean", trim=0.2, min_senders=1)
    updates = [dense(value, 0, 1) for value in (50.0, 1.0, 2.0, 3.0, -7.0)]
    estimates, _ = coordinatewise(updates, SHAPES, rule)
    assert estimates["item_rows"].ravel().tolist() == [10.0, 0.0, 5.0]


def test_krum_by_hand() -> None:
    updates = [dense(0, value, 0) for value in (0.0, 1.0, 3.0, 7.0, 100.0)]
    # n − f − 2 = 2 nearest: 1 + 9, 1 + 4, 4 + 9, 16 + 36 and two that are far away.
    taken = taken_by_krum(updates, SHAPES, KrumRule(rule="krum", attackers=0.2))
    assert taken == ([1], True)
    taken = taken_by_krum(updates, SHAPES, KrumRule(rule="multi-krum", attackers=0.2))
    assert taken == ([0, 1, 2, 3], True)
    alike = [dense(0, value, 0) for value in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert not taken_by_krum(alike, SHAPES, KrumRule(rule="multi-krum", attackers=0.2)).sure


@pytest.fixture(scope="module", params=sorted(SECTIONS))
def trial(request: pytest.FixtureRequest) -> Trial:
    return trial_of(BASE + f"aggregation: {{{SECTIONS[request.param]}}}\n")


def test_a_run_without_bugs_keeps_it(trial: Trial) -> None:
    assert any(np.abs(made.aggregate.sums["item_rows"]).max() > 0 for (made,) in trial.record.sums.values())
    assert said(exact_sums, trial) == []


def test_a_mean_in_the_place_of_a_rule(trial: Trial) -> None:
    broken, _ = breakable(trial)
    for number, (made,) in trial.record.sums.items():
        reports = [one.report for one in trial.record.inputs if one.round_number == number and one.report]
        total = np.zeros_like(made.aggregate.sums["item_rows"])
        for report in reports:
            total[report.arrays["items"]] += report.arrays["item_rows"]
        sums = {"item_rows": total}
        broken.record.sums[number] = [made._replace(aggregate=dataclasses.replace(made.aggregate, sums=sums))]
    assert "the sum of 'item_rows' is wrong" in said(exact_sums, broken)[0]


def test_a_weight_that_a_rule_believes(trial: Trial) -> None:
    broken, _ = breakable(trial)
    number, (made,) = next(iter(trial.record.sums.items()))
    heavier = dataclasses.replace(made.aggregate, weight=made.aggregate.weight + 1)
    broken.record.sums[number] = [made._replace(aggregate=heavier)]
    assert "the weight of the survivors" in said(exact_sums, broken)[0]
