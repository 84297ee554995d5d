from __future__ import annotations

from collections import Counter

import pytest

from coordinator.scenario.faults_section import KINDS
from coordinator.scenario.load import load_text
from coordinator.scenario.registered_sections import SECTIONS
from coordinator.swarm.generator import QUIET, document, text_of
from coordinator.swarm.invariants.recovery import ends_s, is_healthy
from coordinator.swarm.storms import STORM
from edge.core.rng import Draws

SCENARIOS = 300


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 21])
def test_every_scenario_is_valid(seed: int) -> None:
    for index in range(SCENARIOS):
        load_text(text_of(document(seed, index)), f"{seed}-{index}")


def test_a_scenario_is_a_function_of_seed_and_number() -> None:
    assert document(4, 17) == document(4, 17)
    assert document(4, 17) != document(4, 18)
    assert document(4, 17) != document(5, 17)


def test_a_part_has_draws_of_its_own() -> None:
    first, again, other = Draws(1, 2, "fleet"), Draws(1, 2, "fleet"), Draws(1, 2, "rounds")
    drawn = [first.whole(0, 10**9) for _ in range(3)]
    assert drawn == [again.whole(0, 10**9) for _ in range(3)]
    assert drawn != [other.whole(0, 10**9) for _ in range(3)]


def test_draws_keep_to_their_bounds() -> None:
    draws = Draws(1, "bounds")
    assert {draws.whole(2, 4) for _ in range(100)} == {2, 3, 4}
    assert all(0.01 <= draws.between(0.01, 10) <= 10 for _ in range(100))
    assert Counter(draws.weighted({"a": 1, "b": 0}) for _ in range(20)) == {"a": 20}
    chosen = draws.some("abcdef", 3)
    assert len(set(chosen)) == 3
    assert chosen == sorted(chosen)
    assert not any(draws.chance(0.0) for _ in range(20))
    assert all(draws.chance(1.0) for _ in range(20))


def test_everything_is_drawn() -> None:
    made = [document(3, index) for index in range(600)]
    assert {key for one in made for fault in one["faults"] for key in fault if key in KINDS} == set(KINDS)
    sections = [part.get("secure_aggregation") for one in made for part in (one, *one["phases"])]
    modes = {section["mode"] for section in sections if section}
    assert modes == {"secagg", "secagg-plus", "active", "ckks"}
    assert {one["privacy"]["mechanism"] for one in made if "privacy" in one} == {
        "central-gaussian", "local-gaussian", "distributed-discrete-gaussian", "personal-gaussian"
    }  # fmt: skip
    assert {one["rounds"]["selection"] for one in made} == set(SECTIONS)
    pacing = [one["rounds"].get("pacing", {}) for one in made]
    assert {one.get("mode", "synchronous") for one in pacing} == {
        "synchronous", "partial-work", "tiers", "buffered"
    }  # fmt: skip
    assert any("grace" in one for one in pacing)
    assert any("shielded" in one.get("secure_aggregation", {}) for one in made)


@pytest.mark.slow
def test_faults_end_before_the_quiet() -> None:
    healthy = 0
    for index in range(SCENARIOS):
        scenario = load_text(text_of(document(6, index)), "quiet").scenario
        assert [phase.name for phase in scenario.phases] == [STORM, QUIET]
        assert all(fault.during in (None, (STORM,)) for fault in scenario.faults)
        assert all(ends_s(fault) < float("inf") or fault.battery_drain for fault in scenario.faults)
        healthy += is_healthy(scenario)
    # Enough of them are such that recovery is asked for.
    assert healthy > SCENARIOS / 50
