"""What all policies of selection have in common, and what each of them does."""

from __future__ import annotations

import numpy as np
import pytest
from selection_helpers import fleet_of, knowledge_of, report, selector_of

from coordinator.engine.selection.pool import Pool, sample_by_weight
from coordinator.scenario.registered_sections import SECTIONS
from device_profiles.availability import AvailabilityProfile, Diurnal
from edge.core.rng import stream

POLICIES = list(SECTIONS)
NIGHTLY: AvailabilityProfile = Diurnal(
    "nightly", mean_available=0.15, peak_to_trough=4.0, peak_local_hour=2.0
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("wanted", [1, 7, 60, 100, 500])
def test_devices_are_drawn_once_and_never_while_they_are_busy(policy: str, wanted: int) -> None:
    fleet = fleet_of(100)
    fleet.busy[::5] = True
    knowledge = knowledge_of(fleet)
    for device in range(0, 100, 3):
        report(knowledge.seen, device, loss=float(device))
    drawn = selector_of(policy, knowledge).draw(wanted, 2, 0, 0.0)
    assert len(drawn) == min(wanted, 80)
    assert len(set(drawn.tolist())) == len(drawn)
    assert not fleet.busy[drawn].any()


@pytest.mark.parametrize("policy", POLICIES)
def test_draws_follow_from_seed_round_and_attempt(policy: str) -> None:
    def draw(seed: int = 1, number: int = 3, attempt: int = 0) -> list[int]:
        knowledge = knowledge_of(fleet_of(400, seed=1), seed=seed)
        for device in range(0, 400, 2):
            report(knowledge.seen, device, loss=1.0 + device % 7, duration_s=1.0 + device % 5)
        drawn: list[int] = selector_of(policy, knowledge).draw(20, number, attempt, 0.0).tolist()
        return drawn

    assert draw() == draw()
    assert draw() != draw(seed=2)
    # Whose turn it is depends on nothing but who was invited.
    again = policy == "round-robin"
    assert (draw() == draw(number=4)) is again
    assert (draw() == draw(attempt=1)) is again


@pytest.mark.parametrize("policy", [name for name in POLICIES if not SECTIONS[name].even])
def test_only_devices_that_are_available_are_drawn(policy: str) -> None:
    fleet = fleet_of(2000, NIGHTLY)
    knowledge = knowledge_of(fleet)
    for device in range(0, 2000, 2):
        report(knowledge.seen, device)
    drawn = selector_of(policy, knowledge).draw(40, 1, 0, 3600.0)
    assert len(drawn) == 40
    assert fleet.availability.available(drawn, 3600.0).all()


@pytest.mark.parametrize(
    "policy", [name for name in POLICIES if "available_only" in SECTIONS[name].model_fields]
)
def test_any_device_can_be_asked_where_the_scenario_says_so(policy: str) -> None:
    fleet = fleet_of(300, NIGHTLY)
    drawn = selector_of(policy, knowledge_of(fleet), available_only="false").draw(200, 1, 0, 3600.0)
    assert len(drawn) == 200
    assert not fleet.availability.available(drawn, 3600.0).all()


def test_a_draw_can_be_restricted() -> None:
    for policy in POLICIES:
        selector = selector_of(policy, knowledge_of(fleet_of(100)))
        drawn = selector.draw(50, 1, 0, 0.0, among=lambda ids: ids < 30)
        assert sorted(drawn.tolist()) == list(range(30)), policy
        assert len(selector.draw(50, 2, 0, 0.0)) == 50  # and the next one is free again


class TestRoundRobin:
    def test_everybody_is_asked_once_before_anybody_is_asked_twice(self) -> None:
        fleet = fleet_of(90)
        selector = selector_of("round-robin", knowledge_of(fleet))
        asked: list[int] = []
        for number in range(1, 10):
            drawn = selector.draw(20, number, 0, 0.0)
            selector.invited(drawn)
            asked += drawn.tolist()
        assert [np.bincount(asked[:count], minlength=90).max() for count in (80, 90, 100)] == [1, 1, 2]
        assert np.bincount(asked, minlength=90).tolist() == [2] * 90

    def test_those_that_were_drawn_in_vain_keep_their_turn(self) -> None:
        selector = selector_of("round-robin", knowledge_of(fleet_of(90)))
        assert selector.draw(20, 1, 0, 0.0).tolist() == selector.draw(20, 1, 1, 0.0).tolist()

    def test_who_was_away_comes_first_when_it_is_back(self) -> None:
        fleet = fleet_of(60)
        selector = selector_of("round-robin", knowledge_of(fleet))
        fleet.busy[:10] = True
        for number in range(1, 11):
            selector.invited(selector.draw(10, number, 0, 0.0))
        fleet.busy[:10] = False
        assert sorted(selector.draw(10, 11, 0, 0.0).tolist()) == list(range(10))


class TestPowerOfChoice:
    def test_candidates_with_unknown_losses_come_first_then_the_highest(self) -> None:
        knowledge = knowledge_of(fleet_of(40))
        for device in range(30):
            report(knowledge.seen, device, loss=float(device))
        # As many candidates as devices: the choice is the same whatever the draw.
        selector = selector_of("power-of-choice", knowledge, candidates="10000%")
        drawn = selector.draw(15, 2, 0, 0.0)
        assert sorted(drawn[:10].tolist()) == list(range(30, 40))
        assert drawn[10:].tolist() == [29, 28, 27, 26, 25]

    def test_the_last_report_counts(self) -> None:
        knowledge = knowledge_of(fleet_of(4))
        for device in range(4):
            report(knowledge.seen, device, loss=5.0)
            report(knowledge.seen, device, loss=float(device), round_number=2)
        drawn = selector_of("power-of-choice", knowledge, candidates="400%").draw(1, 3, 0, 0.0)
        assert drawn.tolist() == [3]

    def test_candidates_are_drawn_in_proportion_to_their_data(self) -> None:
        # One candidate for each device wanted: the draw itself is seen.
        n = 1000
        examples = np.where(np.arange(n) < 100, 90, 10)
        selector = selector_of(
            "power-of-choice", knowledge_of(fleet_of(n), examples=examples), candidates="1"
        )
        shares = [np.mean(selector.draw(1, number, 0, 0.0) < 100) for number in range(1, 2001)]
        # The first hundred hold half of the data: sd of the mean 0.011.
        assert np.mean(shares) == pytest.approx(0.5, abs=0.045)

    def test_few_eligible_devices_are_all_found(self) -> None:
        fleet = fleet_of(5000)
        fleet.busy[:] = True
        fleet.busy[[17, 230, 4711]] = False
        drawn = selector_of("power-of-choice", knowledge_of(fleet)).draw(10, 1, 0, 0.0)
        assert sorted(drawn.tolist()) == [17, 230, 4711]


class TestDeadlineAware:
    def test_devices_that_are_expected_to_be_late_are_left_out(self) -> None:
        predicted = np.where(np.arange(50) < 20, 61.0, 59.0)
        selector = selector_of("deadline-aware", knowledge_of(fleet_of(50), predicted_s=predicted))
        assert sorted(selector.draw(50, 1, 0, 0.0).tolist()) == list(range(20, 50))

    def test_what_was_reported_outweighs_the_profile(self) -> None:
        predicted = np.where(np.arange(50) < 20, 61.0, 59.0)
        knowledge = knowledge_of(fleet_of(50), predicted_s=predicted)
        report(knowledge.seen, 3, duration_s=50.0)
        report(knowledge.seen, 30, duration_s=70.0)
        drawn = selector_of("deadline-aware", knowledge).draw(50, 2, 0, 0.0).tolist()
        assert 3 in drawn
        assert 30 not in drawn

    def test_the_margin_widens_or_narrows_the_deadline(self) -> None:
        predicted = np.arange(100.0)
        knowledge = knowledge_of(fleet_of(100), predicted_s=predicted)
        for margin, expected in (("50%", 31), ("150%", 91)):
            assert (
                len(selector_of("deadline-aware", knowledge, margin=margin).draw(100, 1, 0, 0.0)) == expected
            )


def test_a_uniform_sample_is_uniform() -> None:
    pool = Pool(fleet_of(1000), 1, available_only=False)
    counts = np.zeros(1000)
    for number in range(2000):
        counts[pool.sample(10, stream(1, "test", number), 0.0, lambda ids: ids % 2 == 0)] += 1
    assert counts[1::2].sum() == 0
    even = counts[::2]
    # 20,000 draws over 500 devices: 40 each, and a chi-square with 499 degrees of freedom (sd 31.6).
    assert ((even - 40) ** 2 / 40).sum() == pytest.approx(499, abs=130)


def test_weighted_samples_follow_the_weights() -> None:
    ids, weights = np.arange(3), np.array([1.0, 2.0, 5.0])
    first = [int(sample_by_weight(ids, weights, 1, stream(2, "test", k))[0]) for k in range(4000)]
    # Standard deviations of the shares: below 0.008.
    assert np.bincount(first) / 4000 == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.03)
