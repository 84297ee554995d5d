"""The pace of a link with effects of faults on it, by the times at which it changes."""

from __future__ import annotations

import math

import pytest

from edge.core.vocabulary import Direction, Stage
from edge.network.disturbances import FrameFaults, LinkEffect

RATE_BPS = 8e6


class Unsteady:
    """Conditions under which a link has three quarters of its rate, and changes every second."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    def pace(self, slot: int, direction: Direction, t_s: float) -> tuple[float, float]:
        assert (slot, direction) == (4, Direction.UP)
        self.asked_s.append(t_s)
        return 0.75, math.floor(t_s) + 1.0


def pace_at(t_s: float, *effects: LinkEffect) -> tuple[tuple[float, float], list[float]]:
    """Return factor and time of the next change at ``t_s``, and when the conditions were asked."""
    conditions = Unsteady()
    faults = FrameFaults(4, Direction.UP, Stage.REPORT, list(effects), lambda *_: None)
    return faults.pace(conditions, RATE_BPS)(t_s), conditions.asked_s  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("effects", "at_s", "expected"),
    [
        ((), 10.5, (0.75, 11.0)),
        ((LinkEffect(scale=0.5),), 10.5, (0.375, 11.0)),
        ((LinkEffect(cap_bps=2e6),), 10.5, (0.25, 11.0)),
        ((LinkEffect(scale=0.5), LinkEffect(scale=0.5)), 10.5, (0.1875, 11.0)),
        ((LinkEffect(scale=0.5, start_s=10.8),), 10.5, (0.75, 10.8)),
        ((LinkEffect(scale=0.5, end_s=10.7),), 10.5, (0.375, 10.7)),
        ((LinkEffect(scale=0.5, end_s=10.7),), 10.7, (0.75, 11.0)),
        ((LinkEffect(scale=0.5, direction=Direction.DOWN),), 10.5, (0.75, 11.0)),
    ],
)
def test_effects_cut_the_pace_and_add_times_of_change(
    effects: tuple[LinkEffect, ...], at_s: float, expected: tuple[float, float]
) -> None:
    found, _ = pace_at(at_s, *effects)
    assert found == pytest.approx(expected)


def test_a_link_that_is_down_is_passed_over_in_one_step() -> None:
    """Ten hours of a dead link are one step, not one for each of the link's own changes."""
    found, asked_s = pace_at(10.5, LinkEffect(scale=0.0, start_s=10.0, end_s=36_010.0))
    assert found == (0.0, 36_010.0)
    assert asked_s == []


def test_of_two_effects_the_longer_one_decides_when_the_link_is_back() -> None:
    shorter = LinkEffect(scale=0.0, end_s=100.0)
    longer = LinkEffect(scale=0.0, end_s=200.0)
    assert pace_at(50.0, shorter, longer)[0] == (0.0, 200.0)
    # A cap that ends sooner changes nothing of a link that is down.
    assert pace_at(50.0, LinkEffect(cap_bps=1.0, end_s=60.0), longer)[0] == (0.0, 200.0)


def test_a_flapping_link_is_down_until_its_next_period() -> None:
    flapping = LinkEffect(period_s=30.0, up_s=20.0, offset_s=5.0)
    assert pace_at(24.5, flapping)[0] == (0.75, 25.0)  # up from 5 to 25 s
    assert pace_at(25.0, flapping)[0] == (0.0, 35.0)
    assert pace_at(35.0, flapping)[0] == (0.75, 36.0)
