"""What each device has spent, and the ε of the one that has spent most."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.privacy import accounting
from edge.privacy.accounting import Accountant, GaussianRelease, Neighbours, Release
from edge.privacy.ledger import Epsilon, Ledger

pytestmark = pytest.mark.skipif(not accounting.available(), reason="needs recfleet[dp]")

DELTA = 1e-5


def spent(*releases: Release) -> Epsilon:
    found = []
    for neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE):
        accountant = Accountant(neighbours)
        for release in releases:
            accountant.compose(release)
        found.append(accountant.epsilon(DELTA))
    return Epsilon(*found)


def test_each_tier_has_the_epsilon_of_its_device_that_reported_most() -> None:
    tiers = [GaussianRelease(4.0), GaussianRelease(2.0), GaussianRelease(1.0)]
    ledger = Ledger(np.array([0, 0, 1, 1, 2, 2]), [tiers], DELTA)
    assert ledger.epsilon() == (0.0, 0.0)
    for devices in ([0, 4], [1, 4], [0], [4]):
        ledger.count(0, np.array(devices))
    expected = [spent(*[tiers[0]] * 2), Epsilon(0.0, 0.0), spent(*[tiers[2]] * 3)]
    assert [ledger.epsilon(tier) for tier in range(3)] == expected
    assert [ledger.most(tier) for tier in range(3)] == [2, 0, 3]
    assert ledger.epsilon() == expected[2]
    ledger.count(0, None)
    assert ledger.counts.tolist() == [[3, 2, 1, 1, 4, 1]]
    assert [ledger.most(tier) for tier in range(3)] == [3, 1, 4]


def test_no_noise_is_infinite_once_there_is_a_report() -> None:
    ledger = Ledger(np.array([0, 1]), [[GaussianRelease(0.0), GaussianRelease(0.0)]], DELTA)
    ledger.count(0, np.array([0]))
    assert [ledger.epsilon(tier) for tier in (0, 1)] == [(math.inf, math.inf), (0.0, 0.0)]


def test_a_tier_without_devices_has_spent_nothing() -> None:
    ledger = Ledger(np.array([1, 1]), [[GaussianRelease(0.0), GaussianRelease(1.0)]], DELTA)
    ledger.count(0, None)
    assert ledger.epsilon() == spent(GaussianRelease(1.0))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.none() | st.sets(st.integers(0, 5), min_size=1)), max_size=12)
)
@settings(deadline=None, max_examples=60)
def test_it_is_the_largest_over_all_devices_whatever_was_released_when(
    story: list[tuple[int, set[int] | None]],
) -> None:
    tier = np.array([0, 1, 0, 1, 1, 0])
    kinds = [[GaussianRelease(3.0 + kind + 2 * one) for one in (0, 1)] for kind in range(3)]
    ledger = Ledger(tier, kinds, DELTA)
    counts = np.zeros((3, 6), int)
    for kind, devices in story:
        ledger.count(kind, None if devices is None else np.array(sorted(devices)))
        counts[kind, sorted(range(6) if devices is None else devices)] += 1
    each = [
        spent(*(kinds[kind][tier[device]] for kind in range(3) for _ in range(counts[kind, device])))
        for device in range(6)
    ]
    found = ledger.epsilon()
    assert found == pytest.approx((max(one[0] for one in each), max(one[1] for one in each)), rel=1e-12)
    again = Ledger(tier, kinds, DELTA)
    again.recall(ledger.counts)
    assert again.epsilon() == found
