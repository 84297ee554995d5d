from __future__ import annotations

import math
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from availability_models import DAY_S, HOUR_S, PROFILES, TRACE, battery, model

from device_profiles.availability import (
    BatteryGated,
    Bernoulli,
    Diurnal,
    Exponential,
    HeavyTail,
    LengthDistribution,
    LogNormal,
    OnOffSessions,
    RegionalOutage,
    TraceAvailability,
)
from device_profiles.traces import AvailabilityTrace
from edge.core.vocabulary import Stage
from edge.device.availability import NO_STAGE, AvailabilityModel, build
from edge.device.availability.battery import BatteryAvailability
from edge.device.availability.models import HeavyTailAvailability

Floats = npt.NDArray[np.float64]


def within(share: float, expected: float, n: int) -> bool:
    """Return whether an observed share of n independent draws lies within four standard errors."""
    return abs(share - expected) <= 4 * math.sqrt(expected * (1 - expected) / n)


# -- diurnal


@pytest.mark.parametrize("offset_h", [-5.0, 0.0, 9.5])
def test_diurnal_share_follows_the_local_hour(offset_h: float) -> None:
    profile = Diurnal("night", mean_available=0.2, peak_to_trough=5.0, peak_local_hour=3.0)
    asked = build(profile, 1, utc_offset_s=offset_h * HOUR_S)
    ids = np.arange(200_000)

    def share(local_hour: float) -> float:
        return float(asked.available(ids, (3 * 24 + local_hour - offset_h) * HOUR_S).mean())

    # Trough a, peak 5a, mean 3a = 0.2. Slots of 30 min around the hour flatten the cosine by under 0.3 %.
    assert share(3.0) == pytest.approx(1 / 3, rel=0.003, abs=4 * math.sqrt(0.22 / ids.size))
    assert share(15.0) == pytest.approx(1 / 15, rel=0.003, abs=4 * math.sqrt(0.063 / ids.size))
    assert share(3.0) / share(15.0) == pytest.approx(5.0, rel=0.07)
    assert share(9.0) == pytest.approx(0.2, rel=0.003, abs=4 * math.sqrt(0.16 / ids.size))


def test_diurnal_mean_over_a_day() -> None:
    asked = model("diurnal")
    ids = np.arange(4000)
    hours = np.arange(24, 72, 0.5)
    mean = np.mean([asked.available(ids, hour * HOUR_S).mean() for hour in hours])
    assert within(float(mean), 0.15, ids.size * hours.size)


def test_diurnal_devices_do_not_switch_together() -> None:
    ids = np.arange(5000)
    ends = model("diurnal").until(ids, 1e5)
    ends = ends[ends > 1e5]
    assert np.unique(ends).size == ends.size


def test_a_fleet_that_is_always_available_never_ends() -> None:
    asked = build(Diurnal("flat", 1.0, 1.0, 0.0), 1, utc_offset_s=0.0)
    assert np.all(np.isinf(asked.until(np.arange(50), 0.0)))


# -- sessions


def walk(asked: AvailabilityModel, n: int, start_s: float, end_s: float) -> tuple[Floats, Floats]:
    """Return how many sessions of each device begin in the window, and its time available in it."""
    ids = np.arange(n)
    begun, spent = np.zeros(n), np.zeros(n)
    time = np.full(n, start_s)
    while np.any(time < end_s):
        end = np.minimum(asked.until(ids, time), end_s)
        spent += end - time
        following = np.minimum(asked.next_available(ids, end), end_s)
        begun += following < end_s
        time = following
    return begun, spent


@pytest.mark.parametrize(
    ("on", "off"),
    [
        (LogNormal(22_000.0, 0.9), LogNormal(30_000.0, 0.9)),
        (Exponential(60.0), Exponential(5.0)),
        (LogNormal(600.0, 0.3), Exponential(1200.0)),
    ],
)
def test_sessions_have_the_share_and_the_mean_lengths_asked_for(
    on: LengthDistribution, off: LengthDistribution
) -> None:
    means = [
        d.mean_s if isinstance(d, Exponential) else d.median_s * math.exp(d.sigma_log**2 / 2)
        for d in (on, off)
    ]
    share = means[0] / sum(means)
    asked = build(OnOffSessions("sessions", on, off), 3, utc_offset_s=0.0)
    ids = np.arange(200_000)
    for t_s in (0.0, 12_345.6, 3e6):
        assert within(float(asked.available(ids, t_s).mean()), share, ids.size)

    n, cycles = 1000, 30
    begun, spent = walk(asked, n, 1000.0, 1000.0 + cycles * sum(means))
    for found, expected in ((begun, cycles), (spent, cycles * means[0])):
        assert abs(found.mean() - expected) < 4 * found.std() / math.sqrt(n)
    # The two together give the mean length of a session.
    assert spent.sum() / begun.sum() == pytest.approx(means[0], rel=0.02)


def test_cuts_disturb_few_sessions() -> None:
    # Constant lengths: whatever is not 1000·c, c = 1 + (1/4)/N and N = 4, touches a cut. An epoch has 4.25
    # sessions. A cut touches none where it lies between two gaps, and one otherwise: 0.75 sessions an epoch.
    asked = build(
        OnOffSessions("steady", LogNormal(1000.0, 0.0), LogNormal(1000.0, 0.0)), 3, utc_offset_s=0.0
    )
    ids = np.arange(1000)
    starts, lengths = asked.next_available(ids, asked.until(ids, 5e5)), []
    for _ in range(40):
        ends = asked.until(ids, starts)
        lengths.append(ends - starts)
        starts = asked.next_available(ids, ends)
    ordinary = np.mean(np.abs(np.stack(lengths) - 1062.5) < 1e-6)
    assert ordinary == pytest.approx(1 - 0.75 / 4.25, abs=0.01)


# -- regional outages


def test_a_region_goes_down_as_one() -> None:
    profile = cast(RegionalOutage, PROFILES["outage"])
    region = np.arange(4000) % 8
    asked = build(profile, 5, utc_offset_s=0.0, region=region)
    ids = np.arange(4000)
    seen = set()
    for t_s in np.linspace(0.0, 40 * 8100.0, 200):
        on = asked.available(ids, float(t_s)).reshape(-1, 8)
        assert np.all(on == on[0])
        np.testing.assert_array_equal(asked.available(ids, np.full(4000, t_s)), on.reshape(-1))
        seen.update(np.flatnonzero(~on[0]).tolist())
    assert seen == set(range(8))


def test_outages_take_their_share_of_time() -> None:
    asked = build(RegionalOutage("many", 2000, 7200.0, 900.0), 5, utc_offset_s=0.0, region=np.arange(2000))
    ids = np.arange(2000)
    times = np.arange(40) * 40_000.0  # far apart: independent looks
    share = np.mean([asked.available(ids, float(t)).mean() for t in times])
    assert within(float(share), 7200 / 8100, 2000 * 40)
    begun, spent = walk(asked, 2000, 0.0, 81_000.0)
    assert abs(begun.mean() - 10.0) < 4 * begun.std() / math.sqrt(2000)
    assert abs(spent.mean() - 72_000.0) < 4 * spent.std() / math.sqrt(2000)


def test_devices_without_a_region_are_spread_evenly() -> None:
    asked = build(RegionalOutage("spread", 4, 1e6, 1e6), 5, utc_offset_s=0.0)
    ids = np.arange(40_000)
    # A region's devices share every answer, so that the pattern over times names the region.
    pattern = sum(
        asked.available(ids, t * 3e6).astype(np.int64) << np.int64(k) for k, t in enumerate(range(1, 25))
    )
    counts = np.unique(pattern, return_counts=True)[1]
    assert counts.size == 4
    assert np.all(np.abs(counts - 10_000) < 4 * math.sqrt(40_000 * 0.25 * 0.75))


def test_a_region_that_the_profile_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="write 0 to 7"):
        build(PROFILES["outage"], 5, utc_offset_s=0.0, region=np.array([0, 8]))


# -- heavy tail


def test_the_most_active_devices_do_most_of_it() -> None:
    asked = cast(HeavyTailAvailability, build(HeavyTail("flash", 0.1, 0.3, 0.86), 2, utc_offset_s=0.0))
    ids = np.arange(20_000)
    times = np.arange(60) * 30_000.0
    participations = sum(asked.available(ids, float(t)).astype(np.float64) for t in times)
    assert isinstance(participations, np.ndarray)
    most_active = np.argsort(-asked.activity(ids))[: int(0.3 * ids.size)]
    assert participations[most_active].sum() / participations.sum() == pytest.approx(0.86, abs=0.01)
    # The mean of u^g is 1/(g + 1), g + 1 = ln 0.14/ln 0.7.
    assert asked.activity(ids).mean() == pytest.approx(math.log(0.7) / math.log(0.14), rel=0.03)
    np.testing.assert_allclose(participations.mean() / 60, asked.activity(ids).mean(), rtol=0.03)


def test_failures_differ_by_device_and_average_to_the_mean() -> None:
    asked = cast(HeavyTailAvailability, model("heavy-tail"))
    ids = np.arange(4000)
    dropped = np.stack([asked.dropout(ids, k).stage != NO_STAGE for k in range(250)])
    rate = asked.failure(ids)
    assert dropped.mean() == pytest.approx(rate.mean(), abs=4 * math.sqrt(0.1 / dropped.size))
    # v^9 has mean 1/10 and mean square 1/19.
    assert rate.mean() == pytest.approx(0.1, abs=4 * math.sqrt((1 / 19 - 0.01) / ids.size))
    per_device = dropped.mean(axis=0)
    assert np.corrcoef(per_device, rate)[0, 1] > 0.98


def test_no_failures_where_none_are_asked_for() -> None:
    asked = build(HeavyTail("tough", 0.0, 0.3, 0.86), 2, utc_offset_s=0.0)
    assert np.all(asked.dropout(np.arange(100), 1).stage == NO_STAGE)


# -- Bernoulli


def test_bernoulli_rate_and_stages() -> None:
    asked = build(Bernoulli("b", 0.08, 0.2, 0.5, 0.3), 4, utc_offset_s=0.0)
    ids = np.arange(500_000)
    drop = asked.dropout(ids, 12)
    dropped = drop.stage != NO_STAGE
    assert within(float(dropped.mean()), 0.08, ids.size)
    n = int(dropped.sum())
    for stage, share in ((Stage.DOWNLOAD, 0.2), (Stage.COMPUTE, 0.5), (Stage.REPORT, 0.3)):
        assert within(float((drop.stage == stage).sum() / n), share, n)
    assert np.all(drop.fraction[~dropped | (drop.stage == Stage.DOWNLOAD)] == 0)
    inside = drop.fraction[dropped & (drop.stage != Stage.DOWNLOAD)]
    assert 0 < inside.min() < inside.max() < 1
    assert abs(inside.mean() - 0.5) < 4 * math.sqrt(1 / 12 / inside.size)
    assert not np.array_equal(asked.dropout(ids, 13).stage, drop.stage)


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_bernoulli_extremes(probability: float, expected: float) -> None:
    asked = build(Bernoulli("b", probability, 0.0, 1.0, 0.0), 4, utc_offset_s=0.0)
    stage = asked.dropout(np.arange(1000), 0).stage
    assert np.mean(stage == Stage.COMPUTE) == expected


# -- battery


def state_of_charge(asked: BatteryAvailability, ids: npt.NDArray[np.int64], t_s: Floats) -> Floats:
    """How full each battery is at ``t_s``, float64[n] in [0, 1]."""
    day = asked._day(ids, t_s)
    unplugged = np.clip(np.minimum(t_s, day.plug_s) - day.unplug_s, 0.0, None)
    plugged = np.clip(t_s - day.plug_s, 0.0, None)
    return np.clip(np.maximum(day.soc - day.drain * unplugged, 0.0) + day.gain * plugged, 0.0, 1.0)


def charge_by_steps(
    asked: BatteryAvailability, ids: npt.NDArray[np.int64], plugged_s: float, step_s: float, n_steps: int
) -> Floats:
    """Follow the charge from the start by the rates of each device, step by step, float64[steps + 1, n]."""
    day = asked._day(ids, np.zeros(ids.size))
    soc = state_of_charge(asked, ids, np.zeros(ids.size))
    curve = [soc]
    for k in range(n_steps):
        since_unplug = ((k + 0.5) * step_s - day.end_s) % DAY_S
        rate = np.where(since_unplug < DAY_S - plugged_s, -day.drain, day.gain)
        soc = np.clip(soc + step_s * rate, 0.0, 1.0)
        curve.append(soc)
    return np.stack(curve)


@pytest.mark.parametrize("kind", ["battery", "battery-weak", "battery-plugged"])
def test_the_charge_curve_is_what_stepping_through_time_gives(kind: str) -> None:
    asked = cast(BatteryAvailability, model(kind))
    profile = cast(BatteryGated, PROFILES[kind])
    n, step_s, days = 30, 60.0, 7
    ids = np.arange(n)
    times = np.arange(int(days * DAY_S / step_s) + 1) * step_s
    stepped = charge_by_steps(asked, ids, profile.plugged_hours * HOUR_S, step_s, times.size - 1)
    every_id, every_time = np.tile(ids, times.size), np.repeat(times, n)
    direct = state_of_charge(asked, every_id, every_time).reshape(times.size, n)
    # Two switches a day between draining and charging, each misplaced by at most half a step.
    allowed = 2 * days * (step_s / 2) * profile.charge_power_w / profile.capacity_j
    assert np.abs(stepped - direct).max() < allowed
    on = asked.available(every_id, every_time).reshape(times.size, n)
    clear = np.abs(direct - profile.min_charge) > 1e-9
    np.testing.assert_array_equal(on[clear], (direct >= profile.min_charge)[clear])
    assert 0 < on.mean() < 1


def test_the_charge_at_the_start_is_uniform() -> None:
    asked = cast(BatteryAvailability, model("battery"))
    soc = state_of_charge(asked, np.arange(50_000), np.zeros(50_000))
    assert 0.1 <= soc.min() < 0.101
    assert 0.999 < soc.max() <= 1.0
    assert abs(soc.mean() - 0.55) < 4 * 0.9 / math.sqrt(12 * 50_000)


def test_batteries_of_the_fleet_replace_the_profiles() -> None:
    profile = battery("own", idle_w=1.0, charge_w=10.0, plugged_hours=7.0, least=0.3)
    small, ordinary = [
        build(profile, 7, utc_offset_s=0.0, battery_j=np.full(1000, joules)) for joules in (20_000.0, np.nan)
    ]
    ids = np.arange(1000)
    evening_s = 3 * DAY_S + 20 * HOUR_S
    assert not small.available(ids, evening_s).any()
    np.testing.assert_array_equal(
        ordinary.available(ids, evening_s), build(profile, 7, utc_offset_s=0.0).available(ids, evening_s)
    )
    assert ordinary.available(ids, evening_s).mean() > 0.2


# -- trace


def test_the_trace_is_replayed_with_each_clients_period() -> None:
    asked = model("trace")
    rng = np.random.default_rng(3)
    ids, times = rng.integers(0, 1000, 3000), rng.uniform(0, 1e6, 3000)
    expected = []
    for device, t_s in zip(ids.tolist(), times.tolist(), strict=True):
        client = device % 5
        sessions = slice(TRACE.indptr[client], TRACE.indptr[client + 1])
        phase_s = math.fmod(t_s, float(TRACE.period_s[client]))
        inside = (TRACE.starts_s[sessions] <= phase_s) & (phase_s < TRACE.ends_s[sessions])
        expected.append(bool(inside.any()))
    assert asked.available(ids, times).tolist() == expected


def test_trace_sessions_by_hand() -> None:
    asked = model("trace")
    ids = np.array([0, 0, 1, 2, 3, 5, 1])
    times = np.array([100.0, 5000.0, 8000.0, 10.0, 10.0, 20_150.0, 500.0])
    assert asked.available(ids, times).tolist() == [True, False, True, True, False, True, False]
    assert asked.until(ids, times).tolist() == [4000.5, 5000.0, 10_500.0, np.inf, 10.0, 24_000.5, 500.0]
    assert asked.next_available(ids, times).tolist() == [
        100.0,
        9000.0,
        8000.0,
        10.0,
        np.inf,
        20_150.0,
        7000.0,
    ]


def test_a_trace_without_a_session_is_never_available() -> None:
    trace = AvailabilityTrace.from_sessions([0, 1], [[], []], [100.0, 200.0])
    asked = build(TraceAvailability("empty", trace), 1, utc_offset_s=0.0)
    ids = np.arange(4)
    assert not asked.available(ids, 150.0).any()
    assert np.all(np.isinf(asked.next_available(ids, 150.0)))
