from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outage_stretches import stretch_at

from edge.core.rng import stream_key
from edge.core.vocabulary import Direction
from edge.network.conditions import (
    BLOCK_STEPS,
    LinkConditions,
    rate_multipliers,
)
from edge.network.tcp import INITIAL_WINDOW_BYTES, ack_clock_period, data_time, goodput

KEY = 0x0FED_CBA9_8765_4321
N = 200


def _conditions(
    sigma: float, rho: float = 0.8, fraction: float = 0.0, mean_s: float = 0.0, seed: int = 3
) -> LinkConditions:
    return LinkConditions(
        seed,
        np.arange(N),
        sigma_log=np.full(N, sigma),
        rho_1s=np.full(N, rho),
        outage_fraction=np.full(N, fraction),
        outage_mean_s=np.full(N, mean_s),
    )


def _logs(n: int, block: int, sigma: float, rho: float) -> npt.NDArray[np.float64]:
    """The standard normals behind the multipliers."""
    rates = rate_multipliers(KEY, np.arange(n), block, np.full(n, sigma), np.full(n, rho))
    return np.asarray((np.log(rates) + sigma**2 / 2) / sigma)


def test_multipliers_have_mean_one_and_the_spread_asked_for() -> None:
    n = 20_000
    for sigma in (0.1, 0.7):
        rates = rate_multipliers(KEY, np.arange(n), 5, np.full(n, sigma), np.full(n, 0.8))
        assert rates.shape == (n, BLOCK_STEPS)
        # Seconds of one block are correlated: about 32 * (1-0.8)/(1+0.8) = 4 independent ones.
        sd = math.sqrt(math.expm1(sigma**2) / (n * 4))
        assert rates.mean() == pytest.approx(1.0, abs=4 * sd)
        assert np.log(rates).std() == pytest.approx(sigma, rel=0.02)


def test_every_second_of_a_block_is_standard_normal() -> None:
    n = 40_000
    x = _logs(n, 2, 0.5, 0.85)
    assert np.abs(x.mean(axis=0)).max() < 5 / math.sqrt(n)
    assert np.abs(x.var(axis=0) - 1).max() < 5 * math.sqrt(2 / n)
    # Box and Muller's two branches land in different seconds; the fourth moment tells
    # a normal from its likes.
    assert np.abs((x**4).mean(axis=0) - 3).max() < 5 * math.sqrt(96 / n)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.99])
def test_neighbouring_seconds_correlate_by_rho_per_step(rho: float) -> None:
    n = 40_000
    x = _logs(n, 0, 0.6, rho)
    for k, lag in [(0, 1), (12, 1), (30, 1), (5, 3), (0, 24), (10, 16)]:
        assert (x[:, k] * x[:, k + lag]).mean() == pytest.approx(rho**lag, abs=5 * math.sqrt(2 / n))


def test_blocks_and_devices_are_independent() -> None:
    n = 40_000
    a, b = _logs(n, 0, 0.6, 0.9), _logs(n, 1, 0.6, 0.9)
    assert (a[:, -1] * b[:, 0]).mean() == pytest.approx(0.0, abs=5 / math.sqrt(n))
    assert (a[1:, 9] * a[:-1, 9]).mean() == pytest.approx(0.0, abs=5 / math.sqrt(n))


def test_it_is_the_recursion() -> None:
    # With the same draws, rho = 0 gives the innovations and any other rho the process that they drive.
    z, x = _logs(50, 7, 1.0, 0.0), _logs(50, 7, 1.0, 0.8)
    expected = np.empty_like(z)
    expected[:, 0] = z[:, 0]
    for k in range(1, BLOCK_STEPS):
        expected[:, k] = 0.8 * expected[:, k - 1] + 0.6 * z[:, k]
    np.testing.assert_allclose(x, expected, atol=1e-12)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 2**40), min_size=1, max_size=40), block=st.integers(0, 10**6))
def test_a_rate_depends_on_nobody_else(ids: list[int], block: int) -> None:
    devices = np.array(ids)
    sigma, rho = np.linspace(0.0, 1.0, len(ids)), np.linspace(0.0, 1.0, len(ids))
    together = rate_multipliers(KEY, devices, block, sigma, rho)
    mixed = rate_multipliers(KEY, devices, np.full(len(ids), block), sigma, rho)
    assert (together == mixed).all()
    for i in range(len(ids)):
        alone = rate_multipliers(KEY, devices[i : i + 1], block, sigma[i : i + 1], rho[i : i + 1])
        assert (alone[0] == together[i]).all()


@pytest.mark.parametrize(
    ("sigma", "rho"), [(-0.1, 0.5), (np.nan, 0.5), (np.inf, 0.5), (0.5, -0.1), (0.5, 1.1)]
)
def test_senseless_rates_are_refused(sigma: float, rho: float) -> None:
    with pytest.raises(ValueError, match="rate_"):
        rate_multipliers(KEY, np.arange(2), 0, np.array([0.1, sigma]), np.array([0.5, rho]))


def test_a_steady_link_takes_the_closed_form_exactly() -> None:
    still = _conditions(0.0)
    assert still.alone_time(5, Direction.DOWN, 3_000_000, 2e6, 0.05, 0.3) == data_time(3_000_000, 2e6, 0.05)
    assert still.carry_s(5, Direction.UP, 0.3, 12.75) == 12.75
    assert still.outage_at(5, 0.3) == (False, math.inf)


def test_a_transfer_within_a_second_takes_the_closed_form_at_that_rate_exactly() -> None:
    fading = _conditions(0.7)
    rate = 1e7 * fading.multiplier(9, 100.1)
    assert rate != 1e7
    assert fading.alone_time(9, Direction.DOWN, 30_000, 1e7, 0.03, 100.1) == data_time(30_000, rate, 0.03)
    assert fading.carry_s(9, Direction.DOWN, 100.1, 0.01) == 0.01 / fading.multiplier(9, 100.1)


def test_the_multiplier_is_that_of_its_second() -> None:
    fading = _conditions(0.7)
    block = rate_multipliers(
        stream_key(3, "link", "rate"), np.array([9]), 2, np.array([0.7]), np.array([0.8])
    )
    for t in (64.0, 64.999, 80.5, 95.999):
        assert fading.multiplier(9, t) == block[0, int(t) - 64]


def test_outages_are_those_of_the_pure_functions() -> None:
    flaky = _conditions(0.0, fraction=0.3, mean_s=4.0)
    key, share, means = stream_key(3, "link", "outage"), np.array([0.3]), np.array([4.0])
    for t in np.linspace(0, 1_000, 501):
        assert flaky.outage_at(7, float(t)) == tuple(stretch_at(key, np.array([7]), t, share, means))


@settings(deadline=None)
@given(
    slot=st.integers(0, N - 1),
    start=st.floats(0, 1e5),
    first=st.floats(0, 60),
    second=st.floats(0, 60),
)
def test_carrying_is_additive(slot: int, start: float, first: float, second: float) -> None:
    # What two pieces take one after the other is what the whole takes: nothing carried twice or forgotten.
    rough = _conditions(0.8, fraction=0.2, mean_s=5.0)
    once = rough.carry_s(slot, Direction.UP, start, first + second)
    ahead = rough.carry_s(slot, Direction.UP, start, first)
    after = rough.carry_s(slot, Direction.UP, start + ahead, second)
    assert ahead + after == pytest.approx(once, rel=1e-6, abs=1e-6)
    assert once >= 0


@pytest.mark.slow
def test_over_a_long_time_the_mean_rate_is_what_the_link_carries() -> None:
    rough = _conditions(0.5, fraction=0.1, mean_s=3.0)
    taken = [rough.carry_s(slot, Direction.UP, 0.0, 1_000.0) for slot in range(N)]
    assert np.mean(taken) == pytest.approx(1_000 / 0.9, rel=0.02)


def test_a_long_transfer_walks_through_rates_and_outages() -> None:
    rough = _conditions(0.8, fraction=0.2, mean_s=5.0)
    rate, rtt, payload = 1e6, 0.05, 5_000_000
    for slot in range(20):
        seconds, window = rough.alone_time(slot, Direction.DOWN, payload, rate, rtt, 10.5)
        # Bytes that the varying link can carry in that time: the payload, and no more than slow start wastes.
        edges = np.arange(10.5, 10.5 + seconds, 1e-2)
        open_ = np.array([not rough.outage_at(slot, float(t))[0] for t in edges])
        carried = sum(rough.multiplier(slot, float(t)) * goodput(rate) * 1e-2 for t in edges[open_])
        assert carried >= payload * 0.99
        assert carried <= payload * 1.25
        assert window >= INITIAL_WINDOW_BYTES


def test_slow_start_waits_for_the_round_trip_and_not_for_the_rate() -> None:
    fading = _conditions(0.3)
    # A fast link with a long round trip: the transfer is all waiting, several seconds long.
    seconds, _ = fading.alone_time(3, Direction.DOWN, 14_480 * (1 + 2 + 4 + 8 + 1), 1e10, 1.5, 0.2)
    assert seconds == pytest.approx(4 * ack_clock_period(1e10, 1.5), rel=1e-3)


def test_a_long_outage_restarts_the_window() -> None:
    flaky = _conditions(0.0, fraction=0.5, mean_s=50.0)
    slot = next(s for s in range(N) if flaky.outage_at(s, 200.0)[0])
    _, up_again = flaky.outage_at(slot, 200.0)
    seconds, _ = flaky.alone_time(slot, Direction.DOWN, 100_000, 1e9, 0.05, 200.0, window_bytes=1e6)
    assert seconds == pytest.approx(up_again - 200.0 + data_time(100_000, 1e9, 0.05)[0])


def test_preparing_many_links_changes_no_answer() -> None:
    prepared, lazy = _conditions(0.8, 0.9, 0.2, 5.0), _conditions(0.8, 0.9, 0.2, 5.0)
    prepared.prepare(np.arange(N), 500.0)
    prepared.prepare(np.arange(0, N, 2), 3_000.0)
    for slot in range(0, N, 7):
        for start in (500.0, 3_000.0, 40.0):
            for conditions in (prepared, lazy):
                conditions.multiplier(slot, 9_999.0)
            assert prepared.carry_s(slot, Direction.UP, start, 30.0) == lazy.carry_s(
                slot, Direction.DOWN, start, 30.0
            )


def test_forgetting_what_was_computed_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = _conditions(0.8, 0.9, 0.2, 5.0)
    monkeypatch.setattr("edge.network.conditions._FEWEST_CACHED", 4)
    tight = _conditions(0.8, 0.9, 0.2, 5.0)
    for slot in [*range(30), *range(30)]:
        assert tight.carry_s(slot, Direction.UP, 77.7, 20.0) == roomy.carry_s(slot, Direction.UP, 77.7, 20.0)


def test_a_mixed_fleet_keeps_its_steady_links_steady() -> None:
    mixed = LinkConditions(
        3,
        np.array([40, 41]),
        sigma_log=np.array([0.0, 0.7]),
        rho_1s=np.full(2, 0.8),
        outage_fraction=np.array([0.0, 0.2]),
        outage_mean_s=np.array([0.0, 5.0]),
    )
    mixed.prepare(np.array([0, 1]), 0.0)
    assert mixed.carry_s(0, Direction.UP, 0.5, 30.0) == pytest.approx(30.0, rel=1e-12)
    assert mixed.carry_s(1, Direction.UP, 0.5, 30.0) != pytest.approx(30.0, rel=1e-3)
