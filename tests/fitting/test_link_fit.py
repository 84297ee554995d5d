from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from fitting_helpers import WRONG, network, transfers

from edge.core.vocabulary import Direction
from edge.fitting.links import _fit_quiet, fit_link, normal_cdf
from edge.fitting.rates import RateSpread
from edge.fitting.replay import fit_corrected, ks_distance, matches, replay
from edge.network.conditions import LinkConditions


def test_a_network_is_found_again() -> None:
    truth = network()
    rows = transfers(truth, 150)
    fit = fit_link(rows, WRONG)
    for name, most in (
        ("down_bps", 0.12),
        ("up_bps", 0.12),
        ("rtt_s", 0.03),
        ("jitter_s", 0.15),
        ("rate_sigma", 0.12),
    ):
        estimate = fit.values[name]
        assert estimate.measured
        assert estimate.low < estimate.value < estimate.high
        assert estimate.value == pytest.approx(truth[name], rel=most), name
    assert fit["promotion_s"] == pytest.approx(0.26, abs=0.01)
    assert fit["rate_rho"] == pytest.approx(0.8, abs=0.15)
    # There are no devices that differ, nothing slow, and no outages to be found.
    assert fit["outage_fraction"] == fit["device_sigma"] == fit["slow_sigma"] == 0.0
    assert not fit.values["device_sigma"].measured
    assert (fit.transfers, fit.devices) == (len(rows), 150)
    for match in matches(rows, fit):
        assert match.ks < 0.1 + match.by_chance, (match.direction, match.sizes)


def test_devices_that_differ_are_found() -> None:
    truth = network(device_sigma=0.7, rate_sigma=0.4)
    fit = fit_link(transfers(truth, 150, seed=2), WRONG, replicates=40)
    found = fit.values["device_sigma"]
    assert found.measured
    assert found.value == pytest.approx(0.7, rel=0.2)
    assert fit["rate_sigma"] == pytest.approx(0.4, rel=0.25)


def test_outages_are_found() -> None:
    truth = network(outage_fraction=0.08, outage_mean_s=6.0, loss=0.0)
    fit = fit_link(transfers(truth, 100, seed=3), WRONG, replicates=20)
    share, mean = fit.values["outage_fraction"], fit.values["outage_mean_s"]
    assert share.measured
    assert mean.measured
    assert share.low < 0.08 < share.high
    assert mean.low < 6.0 < mean.high


def test_the_loss_is_that_of_counted_retransmissions() -> None:
    rows = transfers(network(), 30)
    packets = np.ceil(rows.size / 1448).sum()
    rows = dataclasses.replace(rows, resent=np.where(rows.size > 1e6, 12, 0))
    lost = rows.resent.sum()
    estimate = fit_link(rows, WRONG, rounds=1, replicates=2).values["loss"]
    assert estimate.measured
    assert estimate.value == pytest.approx(lost / (packets + lost), rel=0.02)
    unknown = dataclasses.replace(rows, resent=np.full(len(rows), -1))
    estimate = fit_link(unknown, WRONG, rounds=1, replicates=2).values["loss"]
    assert (estimate.value, estimate.measured) == (WRONG.loss, False)


def test_small_transfers_alone_tell_no_rate() -> None:
    rows = transfers(network(loss=0.0), 40, size=np.full(960, 400.0))
    fit = fit_link(rows, WRONG)
    assert (fit["down_bps"], fit["up_bps"]) == (WRONG.down_bps, WRONG.up_bps)
    for name in ("down_bps", "up_bps", "rate_sigma", "rate_rho", "slow_sigma", "device_sigma"):
        assert not fit.values[name].measured, name
    assert fit["rtt_s"] == pytest.approx(0.021, rel=0.1)
    assert fit.notes == ("no transfers large enough to tell rates",)


def test_large_transfers_alone_tell_no_round_trip_unless_it_was_measured() -> None:
    rows = transfers(network(loss=0.0), 40, size=np.full(960, 500_000.0))
    fit = fit_link(rows, WRONG, replicates=2)
    assert not fit.values["rtt_s"].measured
    assert not fit.values["jitter_s"].measured
    trips = 0.021 + np.random.default_rng(1).exponential(0.004, len(rows))
    fit = fit_link(dataclasses.replace(rows, rtt_s=trips), WRONG, replicates=2)
    assert fit.values["rtt_s"].measured
    assert fit["rtt_s"] == pytest.approx(0.021, rel=0.02)


def test_one_direction_tells_nothing_of_the_other() -> None:
    rows = transfers(network(loss=0.0), 40, up=np.zeros(960, np.bool_))
    fit = fit_link(rows, WRONG, replicates=5)
    assert fit.values["down_bps"].measured
    assert not fit.values["up_bps"].measured


def test_the_mean_over_a_duration_has_the_spread_that_is_said() -> None:
    spread = RateSpread(0.09, 0.16, 0.25, 0.8, 40.0)
    n = 3000
    one = np.ones(n)
    links = LinkConditions(
        4,
        np.arange(n),
        sigma_log=0.5 * one,
        rho_1s=0.8 * one,
        outage_fraction=0 * one,
        outage_mean_s=one,
        slow_sigma_log=0.4 * one,
        slow_time_s=40.0 * one,
    )
    own = np.exp(0.3 * np.random.default_rng(3).standard_normal(n) - 0.045)
    start = 500.0 + np.random.default_rng(4).random(n) * 32
    for seconds in (1.0, 6.0, 50.0):
        means = [
            np.mean([links.multiplier(slot, float(start[slot] + t)) for t in np.linspace(0, seconds, 60)])
            for slot in range(n)
        ]
        found = np.log(own * np.array(means)).std()
        assert float(spread.averaged_sd(np.array([seconds]))[0]) == pytest.approx(found, rel=0.08)


def test_a_replay_is_repeatable_and_of_each_device_alone() -> None:
    truth = network(device_sigma=0.4, slow_sigma=0.3)
    rows = transfers(truth, 6)
    again = replay(rows, truth, 1)
    assert (again == rows.seconds).all()
    assert (replay(rows, truth, 2) != rows.seconds).any()


def test_ks_is_the_largest_distance() -> None:
    assert ks_distance(np.arange(10.0), np.arange(10.0)) == 0.0
    assert ks_distance(np.arange(10.0), np.arange(10.0) + 5.0) == pytest.approx(0.5)


def test_the_normal_distribution() -> None:
    z = np.array([-3.0, -1.0, 0.0, 0.5, 2.0])
    found, density = normal_cdf(z)
    assert found == pytest.approx([0.5 * math.erfc(-x / math.sqrt(2)) for x in z.tolist()], abs=1e-7)
    assert density == pytest.approx(np.exp(-z * z / 2) / math.sqrt(2 * math.pi))


def test_carrying_knows_no_direction() -> None:
    # What the likelihood takes for granted: one multiplier for both directions.
    one = np.ones(1)
    link = LinkConditions(
        1, np.arange(1), sigma_log=one, rho_1s=0 * one, outage_fraction=0 * one, outage_mean_s=one
    )
    assert link.pace(0, Direction.DOWN, 3.0) == link.pace(0, Direction.UP, 3.0)


def test_low_rates_are_no_outages() -> None:
    truth = network(rate_sigma=0.9, slow_sigma=1.0, loss=0.0)
    fit = fit_link(transfers(truth, 60, seed=5), WRONG, replicates=5)
    assert fit["outage_fraction"] == 0.0
    assert fit.values["outage_fraction"].high < 0.1


def test_intervals_of_a_threshold_hold_it() -> None:
    draw = np.random.default_rng(3)
    held = np.zeros(2)
    for _ in range(40):
        values = 0.02 + draw.exponential(0.005, 60)
        base, delay = _fit_quiet(values, np.full(60, 1e-9), 0.0, 1.0)
        held += base.low <= 0.02 <= base.high, delay.low <= 0.005 <= delay.high
    # Fewer than 34 of 40 happen once in eighty times where 95 % hold.
    assert (held >= 34).all()


def test_a_bias_that_shows_in_simulation_is_taken_off() -> None:
    rows = transfers(network(rate_rho=0.87, loss=0.0), 60, seed=4)
    plain, corrected = fit_link(rows, WRONG), fit_corrected(rows, WRONG)
    one, other = plain.values["up_bps"], corrected.values["up_bps"]
    assert other.value != one.value
    assert math.log(other.high / other.low) > math.log(one.high / one.low)
    assert corrected.values["loss"] == plain.values["loss"]
