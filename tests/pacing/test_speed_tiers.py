"""Tiers of speed: who is in which, and which a round is drawn from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from coordinator.engine.pacing.tiers import UNHEARD, SpeedTiers
from coordinator.engine.selection.experience import Experience
from coordinator.scenario.rounds_section import Tiers


def heard(durations_s: dict[int, float], n: int) -> Experience:
    experience = Experience(n)
    for device, duration_s in durations_s.items():
        experience.answered(device, 1, duration_s)
    return experience


def tiers_of(experience: Experience, seed: int = 1, **settings: int) -> SpeedTiers:
    section = {"tiers": 4, "profiling": 2, "every": 5, "credits": 3} | settings
    return SpeedTiers(experience, seed, Tiers.model_validate({"mode": "tiers", **section}))


def first_choice(tiers: SpeedTiers, number: int) -> int | None:
    tier, _ = next(tiers.choices(number))
    return tier


def test_the_first_rounds_draw_from_everybody() -> None:
    tiers = tiers_of(heard({0: 1.0}, 4))
    for number in (1, 2):
        assert list(tiers.choices(number)) == [(None, None)]
    assert None not in dict(tiers.choices(3))


def test_devices_are_sorted_by_speed_into_tiers_of_equal_size() -> None:
    durations_s = {device: float((device * 7) % 10) for device in range(10)}
    tiers = tiers_of(heard(durations_s, 10))
    list(tiers.choices(3))
    by_speed = sorted(durations_s, key=lambda device: durations_s[device])
    assert tiers.tier[by_speed].tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]


def test_those_that_were_not_heard_of_are_a_tier_of_their_own() -> None:
    tiers = tiers_of(heard({device: 1.0 + device for device in range(8)}, 20))
    choices = dict(tiers.choices(3))
    assert set(choices) == {UNHEARD, 0, 1, 2, 3}
    members = {tier: accept(np.arange(20)) for tier, accept in choices.items() if accept is not None}
    assert np.flatnonzero(members[UNHEARD]).tolist() == list(range(8, 20))
    assert np.flatnonzero(members[0]).tolist() == [0, 1]
    assert sum(mask.sum() for mask in members.values()) == 20


def test_ties_fall_by_the_number_of_the_device() -> None:
    backwards = dict.fromkeys(reversed(range(8)), 2.0)
    tiers = tiers_of(heard(backwards, 8))
    list(tiers.choices(3))
    assert tiers.tier.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_tiers_are_made_anew_after_every_so_many_rounds() -> None:
    experience = heard({device: float(device) for device in range(8)}, 8)
    tiers = tiers_of(experience)
    list(tiers.choices(3))
    experience.answered(0, 3, 100.0)
    for number in range(4, 8):
        list(tiers.choices(number))
        assert tiers.tier[0] == 0
    list(tiers.choices(8))
    assert tiers.tier[0] == 3
    assert tiers.tier[1:].tolist() == [0, 0, 1, 1, 2, 2, 3]


def test_every_tier_has_as_many_rounds_as_any_other() -> None:
    tiers = tiers_of(heard({device: float(device) for device in range(8)}, 8), every=1000)
    drawn: Counter[int | None] = Counter()
    for number in range(3, 3 + 4 * 3 * 10):
        tier = first_choice(tiers, number)
        tiers.spend(tier)
        drawn[tier] += 1
        if (number - 2) % 12 == 0:
            # Four tiers of three credits each: all are spent at the same time.
            assert len(set(drawn.values())) == 1
    assert drawn == dict.fromkeys(range(4), 30)


def test_a_tier_without_credits_is_tried_last() -> None:
    tiers = tiers_of(heard({device: float(device) for device in range(8)}, 8), every=1000)
    list(tiers.choices(3))
    for _ in range(5):  # once more than it has
        tiers.spend(2)
    assert tiers.credits[2] == 0
    for number in range(4, 40):
        assert [tier for tier, _ in tiers.choices(number)][-1] == 2


def test_the_order_of_tiers_is_decided_by_seed_and_round() -> None:
    def order(seed: int) -> list[int | None]:
        tiers = tiers_of(heard({device: float(device) for device in range(8)}, 8), seed)
        return [first_choice(tiers, number) for number in range(3, 30)]

    assert order(1) == order(1) != order(2)
    assert set(order(1)) == {0, 1, 2, 3}


@pytest.mark.parametrize("known", [0, 1, 3])
def test_fewer_devices_than_tiers_leave_tiers_empty(known: int) -> None:
    tiers = tiers_of(heard({device: float(device) for device in range(known)}, 6))
    choices = dict(tiers.choices(3))
    assert len(choices) == known + 1
    assert UNHEARD in choices
