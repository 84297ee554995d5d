from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.vocabulary import Direction
from edge.network.conditions import BLOCK_STEPS, LinkConditions
from edge.network.slow_rates import cell_seconds, device_factors, slow_multipliers

KEY = 0x0FED_CBA9_8765_4321
Floats = npt.NDArray[np.float64]


def _normals(n: int, start_s: int, seconds: int, time_s: float) -> Floats:
    """The standard normals behind the slow factors of n devices, a column a second."""
    blocks = [
        slow_multipliers(KEY, np.arange(n), at, BLOCK_STEPS, np.ones(n), np.full(n, time_s))
        for at in range(start_s, start_s + seconds, BLOCK_STEPS)
    ]
    return np.asarray(np.log(np.hstack(blocks)) + 0.5)


@pytest.mark.parametrize(
    ("time_s", "cell_s"), [(0.3, 1), (16.0, 1), (47.9, 2), (600.0, 32), (86_400.0, 4096)]
)
def test_cells_are_a_power_of_two_seconds_and_a_sixteenth_of_the_time_or_less(
    time_s: float, cell_s: int
) -> None:
    assert cell_seconds(np.array([time_s])).tolist() == [cell_s]


@pytest.mark.parametrize("time_s", [3.0, 20.0, 45.0, 130.0, 700.0])
@pytest.mark.few(2)
def test_spread_and_correlation_are_those_asked_for(time_s: float) -> None:
    n = 20_000
    # About an anchor, which is where a process made of blocks would forget.
    anchor_s = 256 * int(cell_seconds(np.array([time_s]))[0])
    around_s = min(512, anchor_s)
    x = _normals(n, 5 * anchor_s - around_s // 2 // BLOCK_STEPS * BLOCK_STEPS, around_s, time_s)
    noise = 5 / math.sqrt(n)
    assert np.abs(x.mean(axis=0)).max() < noise
    assert np.abs(x.var(axis=0) - 1).max() < noise * math.sqrt(2)
    cell_s = int(cell_seconds(np.array([time_s]))[0])
    for lag_s in (1, 7, 32, 100, 200):
        # Cells hold for a while: a lag within cells is met by the next cell for a share of the pairs.
        near = lag_s // cell_s * cell_s
        share = (lag_s - near) / cell_s
        held = (1 - share) * math.exp(-near / time_s) + share * math.exp(-(near + cell_s) / time_s)
        assert held == pytest.approx(math.exp(-lag_s / time_s), abs=0.04)
        measured = np.mean(x[:, :-lag_s] * x[:, lag_s:])
        assert measured == pytest.approx(held, abs=noise * math.sqrt(2) + 0.01)


def test_multipliers_have_mean_one_and_a_log_normal_spread() -> None:
    n, sigma = 40_000, 0.8
    found = slow_multipliers(KEY, np.arange(n), 64, BLOCK_STEPS, np.full(n, sigma), np.full(n, 900.0))[:, 0]
    assert found.mean() == pytest.approx(1.0, abs=5 * math.sqrt(math.expm1(sigma**2) / n))
    assert np.log(found).std() == pytest.approx(sigma, rel=0.02)
    x = np.log(found) / sigma
    assert ((x - x.mean()) ** 4).mean() == pytest.approx(3.0, abs=0.25)


@settings(deadline=None, max_examples=20)
@given(
    devices=st.lists(
        st.tuples(st.integers(0, 2**40), st.floats(0.1, 1e7), st.floats(0.0, 2.0)), min_size=1, max_size=20
    ),
    block=st.integers(0, 10**7),
)
def test_a_slow_rate_depends_on_nobody_else(devices: list[tuple[int, float, float]], block: int) -> None:
    ids, times, sigmas = (np.array(column) for column in zip(*devices, strict=True))
    together = slow_multipliers(KEY, ids, block * BLOCK_STEPS, BLOCK_STEPS, sigmas, times)
    for i in range(len(ids)):
        row = slice(i, i + 1)
        alone = slow_multipliers(KEY, ids[row], block * BLOCK_STEPS, BLOCK_STEPS, sigmas[row], times[row])
        assert (alone[0] == together[i]).all()
        # A second is the same in whatever stretch of seconds it is asked for.
        for second in (0, 13, 31):
            one = slow_multipliers(KEY, ids[row], block * BLOCK_STEPS + second, 1, sigmas[row], times[row])
            assert one[0, 0] == together[i, second]


def _conditions(
    ids: list[int], sigma: list[float], slow: list[float] | None, seed: int = 3
) -> LinkConditions:
    n = len(ids)
    return LinkConditions(
        seed,
        np.array(ids),
        sigma_log=np.array(sigma),
        rho_1s=np.full(n, 0.8),
        outage_fraction=np.zeros(n),
        outage_mean_s=np.ones(n),
        slow_sigma_log=None if slow is None else np.array(slow),
        slow_time_s=None if slow is None else np.full(n, 90.0),
    )


def test_links_without_a_slow_process_have_the_bits_that_they_had() -> None:
    ids, sigma = [4, 9, 2**33, 7], [0.6, 0.0, 1.1, 0.3]
    before, off = _conditions(ids, sigma, None), _conditions(ids, sigma, [0.0] * 4)
    mixed = _conditions(ids, sigma, [0.0, 0.0, 0.7, 0.0])
    for t_s in (0.0, 31.5, 32.0, 4_000.2):
        for slot in (0, 1, 3):
            told = before.pace(slot, Direction.DOWN, t_s)
            assert off.pace(slot, Direction.DOWN, t_s) == told
            assert mixed.pace(slot, Direction.DOWN, t_s) == told
        assert mixed.pace(2, Direction.UP, t_s) != before.pace(2, Direction.UP, t_s)


def test_a_link_is_as_fast_as_both_processes_together() -> None:
    both, fast = _conditions([5], [0.6], [0.5]), _conditions([5], [0.6], None)
    slow = _conditions([5], [0.0], [0.5])
    for t_s in (3.2, 77.0, 1e6):
        product = fast.multiplier(0, t_s) * slow.multiplier(0, t_s)
        assert both.multiplier(0, t_s) == pytest.approx(product, rel=1e-12)
    transfer = both.alone_time(0, Direction.DOWN, 5e6, 1e6, 0.05, 12.0)
    again = _conditions([17, 5], [0.1, 0.6], [0.9, 0.5])
    again.prepare(np.arange(2), 12.0)
    assert again.alone_time(1, Direction.DOWN, 5e6, 1e6, 0.05, 12.0) == transfer


@pytest.mark.parametrize(("sigma", "time_s"), [(-0.1, 60.0), (math.nan, 60.0), (0.5, 0.0), (0.5, math.inf)])
def test_senseless_slow_rates_are_refused(sigma: float, time_s: float) -> None:
    one = np.ones(1)
    with pytest.raises(ValueError, match="slow_rate"):
        LinkConditions(
            1,
            np.array([0]),
            sigma_log=0 * one,
            rho_1s=one,
            outage_fraction=0 * one,
            outage_mean_s=one,
            slow_sigma_log=sigma * one,
            slow_time_s=time_s * one,
        )


def test_device_factors_are_log_normal_with_mean_one_and_none_without_a_spread() -> None:
    n, sigma = 50_000, 0.7
    found = device_factors(KEY, np.arange(n), np.full(n, sigma))
    assert found.mean() == pytest.approx(1.0, abs=5 * math.sqrt(math.expm1(sigma**2) / n))
    assert np.log(found).std() == pytest.approx(sigma, rel=0.02)
    assert (device_factors(KEY, np.arange(10), np.zeros(10)) == 1.0).all()
    picked = np.array([77, 3, 41_234])
    assert (device_factors(KEY, picked, np.full(3, sigma)) == found[picked]).all()
