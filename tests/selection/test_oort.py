"""Oort's utility against numbers computed by hand, and its pacer, exploration, clipping and blacklist."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from selection_helpers import fleet_of, knowledge_of, report

from coordinator.engine.selection.base import Knowledge
from coordinator.engine.selection.oort import Oort
from coordinator.engine.selection.pool import Pool
from coordinator.scenario.registered_sections import SECTIONS


def oort(knowledge: Knowledge, **settings: Any) -> Oort:
    section: Any = SECTIONS["oort"].model_validate({"policy": "oort", **settings})
    return Oort(knowledge, Pool(knowledge.fleet, knowledge.seed, available_only=False), section)


def test_the_score_is_the_formula() -> None:
    knowledge = knowledge_of(fleet_of(10))
    # Statistical utilities 20, 60 and 100; clipped at the median, 60. Durations 1, 2 and 4 s: T is 2 s.
    report(knowledge.seen, 4, round_number=1, examples=10, loss=2.0, duration_s=1.0)
    report(knowledge.seen, 5, round_number=4, examples=20, loss=3.0, duration_s=2.0)
    report(knowledge.seen, 6, round_number=8, examples=25, loss=4.0, duration_s=4.0)
    policy = oort(knowledge, clip="50%", preferred="50%", penalty="2")
    assert policy.preferred_s() == 2.0
    span, lowest = 100 - 0.999 * 20, 0.999 * 20
    uncertainty = [math.sqrt(0.1 * math.log(9) / last) for last in (1, 4, 8)]
    expected = [
        (20 - lowest) / span + uncertainty[0],
        (60 - lowest) / span + uncertainty[1],
        ((60 - lowest) / span + uncertainty[2]) * (2.0 / 4.0) ** 2,
    ]
    assert policy.scores(np.array([4, 5, 6]), 9) == pytest.approx(expected, rel=1e-12)


def test_fairness_outweighs_utility() -> None:
    knowledge = knowledge_of(fleet_of(10))
    for device, reports in ((1, 1), (2, 4)):
        for _ in range(reports):
            report(knowledge.seen, device, loss=float(device))
    ids = np.array([1, 2])
    assert oort(knowledge, fairness="100%").scores(ids, 1) == pytest.approx([0.75, 0.0], abs=1e-12)
    plain, half = oort(knowledge).scores(ids, 1), oort(knowledge, fairness="50%").scores(ids, 1)
    assert half == pytest.approx(0.5 * plain + 0.5 * np.array([0.75, 0.0]), rel=1e-12)


def test_the_losses_of_late_rounds_replace_the_earlier() -> None:
    knowledge = knowledge_of(fleet_of(10))
    report(knowledge.seen, 1, loss=9.0, examples=3)
    report(knowledge.seen, 1, round_number=2, loss=2.0, examples=5)
    assert knowledge.seen.statistical_utility(np.array([1, 2])) == pytest.approx(
        [10.0, math.nan], nan_ok=True
    )
    assert dict(knowledge.seen.utility_of_round) == {1: 27.0, 2: 10.0}


def test_exploration_decays_to_its_floor() -> None:
    knowledge = knowledge_of(fleet_of(1000))
    for device in range(500):
        report(knowledge.seen, device)
    policy = oort(knowledge, exploration="80%", exploration_decay="50%", exploration_floor="30%")
    explored = [int(np.sum(policy.draw(10, number, 0, 0.0) >= 500)) for number in range(1, 6)]
    assert explored == [8, 4, 3, 3, 3]


def test_one_kind_fills_up_for_the_other() -> None:
    knowledge = knowledge_of(fleet_of(100))
    assert len(oort(knowledge).draw(10, 1, 0, 0.0)) == 10  # nobody has reported yet
    for device in range(98):
        report(knowledge.seen, device)
    drawn = oort(knowledge, exploration="90%").draw(10, 1, 0, 0.0)
    assert len(drawn) == 10
    assert np.sum(drawn >= 98) == 2


def test_exploitation_prefers_useful_and_quick_devices() -> None:
    knowledge = knowledge_of(fleet_of(300))
    for device in range(300):
        useful, slow = device < 100, 50 <= device < 100
        report(knowledge.seen, device, loss=5.0 if useful else 0.5, duration_s=9.0 if slow else 1.0)
    policy = oort(knowledge, exploration="0", exploration_floor="0")
    drawn = np.concatenate([policy.draw(10, number, 0, 0.0) for number in range(1, 21)])
    assert np.mean(drawn < 50) == 1.0


def test_the_pacer_widens_the_preferred_duration_when_utility_falls() -> None:
    def preferred(losses: list[float]) -> float:
        knowledge = knowledge_of(fleet_of(50))
        policy = oort(knowledge, pacer_window="2", pacer_step="10%")
        for number, loss in enumerate(losses, start=1):
            policy.draw(1, number, 0, 0.0)
            report(knowledge.seen, number, round_number=number, loss=loss)
        policy.draw(1, len(losses) + 1, 0, 0.0)
        return policy.preferred

    assert preferred([3.0, 3.0, 1.0]) == pytest.approx(0.3)
    assert preferred([3.0, 3.0, 1.0, 1.0]) == pytest.approx(0.4)
    assert preferred([1.0, 1.0, 3.0, 3.0]) == pytest.approx(0.3)
    assert preferred([3.0, 3.0, 1.0, 1.0, 0.5, 0.5]) == pytest.approx(0.5)


def test_a_blacklisted_device_is_the_last_resort() -> None:
    knowledge = knowledge_of(fleet_of(20))
    for device in range(20):
        for _ in range(3 if device < 5 else 1):
            report(knowledge.seen, device, loss=9.0 if device < 5 else 1.0)
    policy = oort(knowledge, blacklist_after="3", exploration="0", exploration_floor="0")
    assert policy.draw(12, 1, 0, 0.0).min() >= 5
    drawn = policy.draw(18, 1, 1, 0.0)
    assert np.sum(drawn < 5) == 3
