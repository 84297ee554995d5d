"""The array forms of the link formula, held equal to the scalar forms bit for bit."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_profiles.traces import RateTrace
from edge.core.rng import hashed_bits
from edge.core.vocabulary import Direction
from edge.network.conditions import LinkConditions, MixedConditions
from edge.network.loss import (
    LOSS,
    Congestion,
    LossyResults,
    TransferFailedError,
    _whole_gaps,
    frame_draws,
    lossy_transfer,
    lossy_transfers,
)
from edge.network.pace import Conditions
from edge.network.playback import TracePlayback
from edge.network.tcp import data_time, data_time_array

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Link = tuple[float, float, float, float, float, float]
"""Sigma, rho, outage fraction, mean outage, slow sigma and slow time."""
Transfer = tuple[int, int, float, float, float]
"""Link (modulo their number), payload, rate, round trip and start."""

LINKS = st.tuples(
    st.sampled_from([0.0, 0.0, 0.4, 1.5]),
    st.sampled_from([0.0, 0.8, 1.0]),
    st.sampled_from([0.0, 0.0, 0.05, 0.5, 0.95]),
    st.sampled_from([0.01, 0.3, 7.0, 300.0]),
    st.sampled_from([0.0, 0.0, 0.6]),
    st.sampled_from([0.5, 20.0, 600.0, 1e6]),
)
# Borders of seconds, of blocks of 32 and just before them, and blocks far apart.
STARTS = st.one_of(
    st.floats(0.0, 200.0),
    st.integers(0, 200).map(float),
    st.sampled_from([0.0, 31.0, 32.0, math.nextafter(32.0, 0.0), 64.0, 1e6, math.nextafter(3.2e6, 0.0)]),
    st.floats(0.0, 3e7),
)
PAYLOADS = st.one_of(st.sampled_from([0, 1, 1_448, 14_480, 14_481, 43_440, 10**6]), st.integers(0, 300_000))
TRANSFERS = st.lists(
    st.tuples(st.integers(0, 99), PAYLOADS, st.floats(1e4, 1e9), st.floats(0.0, 3.0), STARTS),
    min_size=1,
    max_size=12,
)


def _conditions(links: list[Link], *, slow: bool = True, first_id: int = 5) -> LinkConditions:
    sigma, rho, fraction, mean_s, slow_sigma, slow_s = (np.array(c) for c in zip(*links, strict=True))
    return LinkConditions(
        3,
        np.arange(first_id, first_id + len(links)),
        sigma_log=sigma,
        rho_1s=rho,
        outage_fraction=fraction,
        outage_mean_s=mean_s,
        slow_sigma_log=slow_sigma if slow else None,
        slow_time_s=slow_s if slow else None,
    )


def _assert_same(one_by_one: Conditions, together: Conditions, count: int, transfers: list[Transfer]) -> None:
    slots, payloads, rates, rtts, starts = (np.array(column) for column in zip(*transfers, strict=True))
    slots %= count
    steady_s = payloads * 8.0 / rates
    for direction in (Direction.DOWN, Direction.UP):
        alone = together.alone_times(slots, direction, payloads.astype(np.float64), rates, rtts, starts)
        carried = together.carry_times(slots, direction, starts, steady_s)
        for i, (_, payload, rate, rtt, start) in enumerate(transfers):
            slot = slots.item(i)
            assert alone[i] == one_by_one.alone_time(slot, direction, payload, rate, rtt, start)[0]
            assert carried[i] == one_by_one.carry_s(slot, direction, start, steady_s.item(i))


@settings(max_examples=40)
@given(links=st.lists(LINKS, min_size=1, max_size=6), slow=st.booleans(), transfers=TRANSFERS)
def test_transfers_together_are_those_one_by_one(
    links: list[Link], slow: bool, transfers: list[Transfer]
) -> None:
    # Long transfers with no end in sight take the scalar form a second at a time: not too slow a link.
    transfers = [(i, size, max(rate, size), rtt, start) for i, size, rate, rtt, start in transfers]
    _assert_same(_conditions(links, slow=slow), _conditions(links, slow=slow), len(links), transfers)


@settings(max_examples=10)
@given(links=st.lists(LINKS, min_size=1, max_size=3), transfers=TRANSFERS)
def test_what_was_asked_before_changes_nothing(links: list[Link], transfers: list[Transfer]) -> None:
    conditions = _conditions(links)
    for slots in (np.arange(len(links))[1:], np.arange(0), np.array([0])):
        conditions.prepare(slots, transfers[0][4])
        _assert_same(_conditions(links), conditions, len(links), transfers)
        _assert_same(conditions, conditions, len(links), transfers[::-1])


@settings(max_examples=20)
@given(
    links=st.lists(LINKS, min_size=2, max_size=4),
    offsets=st.lists(st.floats(0.0, 30.0), min_size=1, max_size=3),
    transfers=TRANSFERS,
)
def test_links_of_several_kinds_and_traces(
    links: list[Link], offsets: list[float], transfers: list[Transfer]
) -> None:
    trace = RateTrace(
        times_s=np.array([0.0, 2.0, 5.0]),
        down_bps=np.array([1e6, 0.0, 4e6]),
        up_bps=np.array([3e5, 2e5, 0.0]),
        rtt_s=np.array([0.05, 0.2, 0.01]),
        loss=np.full(3, 0.01),
        period_s=10.0,
    )
    count = 2 * len(links) + len(offsets)
    kind = np.array([(0, 1, 2)[i % 3] for i in range(count)])
    parts: list[Conditions] = [
        _conditions((links * count)[: np.count_nonzero(kind == 0)]),
        _conditions((links[::-1] * count)[: np.count_nonzero(kind == 1)], first_id=1_000),
        TracePlayback(trace, np.array((offsets * count)[: np.count_nonzero(kind == 2)])),
    ]
    mixed = MixedConditions(kind, parts)
    transfers = [(i, size, max(rate, size), rtt, start % 1e5) for i, size, rate, rtt, start in transfers]
    _assert_same(mixed, mixed, count, transfers)


def test_a_cohort_of_a_thousand_in_all_regimes() -> None:
    generator = np.random.default_rng(5)
    m = 1_000
    links = [
        (float(s), float(r), float(f), float(o), 0.0, 1.0)
        for s, r, f, o in zip(
            generator.choice([0.0, 0.5], m),
            generator.uniform(0, 1, m),
            generator.choice([0.0, 0.1], m),
            generator.uniform(0.1, 20, m),
            strict=True,
        )
    ]
    transfers = [
        (i, int(size), float(rate), float(rtt), float(start))
        for i, (size, rate, rtt, start) in enumerate(
            zip(
                np.exp(generator.uniform(0, 16, m)),
                np.exp(generator.uniform(13, 20, m)),
                generator.uniform(0, 0.4, m),
                generator.uniform(0, 500, m),
                strict=True,
            )
        )
    ]
    _assert_same(_conditions(links), _conditions(links), m, transfers)


def test_transfers_that_were_given_up_never_end() -> None:
    flaky = _conditions([(0.5, 0.8, 0.2, 3.0, 0.0, 1.0)])
    steady_s = np.array([1.0, math.inf])
    seconds = flaky.carry_times(np.zeros(2, np.int64), Direction.UP, np.zeros(2), steady_s)
    assert seconds[0] == flaky.carry_s(0, Direction.UP, 0.0, 1.0)
    assert seconds[1] == math.inf


def test_a_rate_of_nothing_is_refused() -> None:
    still = _conditions([(0.0, 0.0, 0.0, 1.0, 0.0, 1.0)])
    zero, one = np.zeros(1), np.ones(1)
    for payload, rate in [(one, zero), (-one, one), (one, one * math.nan)]:
        with pytest.raises(ValueError, match="positive rates"):
            still.alone_times(np.zeros(1, np.int64), Direction.UP, payload, rate, one, zero)


@given(
    messages=st.lists(
        st.tuples(PAYLOADS, st.floats(1e4, 1e9), st.floats(0.0, 3.0), st.floats(1.0, 1e7)), min_size=1
    )
)
def test_windows_of_their_own(messages: list[tuple[int, float, float, float]]) -> None:
    payloads, rates, rtts, windows = (np.array(column) for column in zip(*messages, strict=True))
    seconds = data_time_array(payloads.astype(np.float64), rates, rtts, windows)
    assert seconds.tolist() == [data_time(*message)[0] for message in messages]


def _one_by_one(
    payloads: Ints, rates: Floats, rtts: Floats, loss: Floats, keys: Keys, number: int, congestion: Congestion
) -> LossyResults:
    columns = (payloads, rates, rtts, loss, keys)
    rows = []
    for payload, rate, rtt, probability, key in zip(*(c.tolist() for c in columns), strict=True):
        draw = frame_draws(key, number, LOSS)
        try:
            result = lossy_transfer(payload, rate, rtt, probability, draw, congestion)
            rows.append((result.seconds, result.retransmitted_segments, math.nan))
        except TransferFailedError as error:
            rows.append((math.inf, 0, error.after_s))
    return LossyResults(*(np.array(column) for column in zip(*rows, strict=True)))


def _assert_same_losses(
    payloads: Ints, rates: Floats, rtts: Floats, loss: Floats, seed: int, congestion: Congestion
) -> LossyResults:
    keys = hashed_bits(seed, np.arange(len(payloads)))
    together = lossy_transfers(payloads, rates, rtts, loss, keys, 3, congestion)
    expected = _one_by_one(payloads, rates, rtts, loss, keys, 3, congestion)
    for found, wanted in zip(together, expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    return together


CONGESTION: st.SearchStrategy[Congestion] = st.sampled_from(["cubic", "reno"])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 200),
    segments=st.sampled_from([1, 12, 100, 700, 5_000]),
    loss=st.sampled_from([0.0, 1e-9, 0.001, 0.02, 0.1, 0.3, 0.5]),
    fast=st.booleans(),
    congestion=CONGESTION,
)
def test_losses_together_are_those_one_by_one(
    seed: int, count: int, segments: int, loss: float, fast: bool, congestion: Congestion
) -> None:
    generator = np.random.default_rng(seed)
    payloads = generator.integers(0, segments * 1_448 + 1, count)
    rates = np.exp(generator.uniform(*((16, 21) if fast else (10, 16)), count))
    rtts = generator.uniform(0.0, 0.4, count) * generator.choice([1.0, 0.0, 0.01], count)
    probabilities = loss * generator.choice([0.0, 0.1, 1.0], count)
    _assert_same_losses(payloads, rates, rtts, probabilities, seed, congestion)


@pytest.mark.parametrize("congestion", ["cubic", "reno"])
def test_a_cohort_of_lossy_links(congestion: Congestion) -> None:
    generator = np.random.default_rng(8)
    m = 3_000
    payloads = generator.integers(50 * 1_448, 500 * 1_448, m)
    rates, rtts = np.exp(generator.uniform(14, 19, m)), generator.uniform(0.01, 0.3, m)
    loss = np.exp(generator.uniform(-9, -3, m))
    results = _assert_same_losses(payloads, rates, rtts, loss, 5, congestion)
    assert np.count_nonzero(results.retransmitted_segments) > m / 3


def test_cohorts_too_large_to_draw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.network.loss._MOST_DRAWS", 700)
    m = 400
    generator = np.random.default_rng(4)
    payloads, rates = generator.integers(1, 300 * 1_448, m), np.exp(generator.uniform(14, 19, m))
    _assert_same_losses(payloads, rates, np.full(m, 0.05), np.full(m, 0.01), 2, "cubic")


def test_links_that_lose_nearly_everything_are_given_up() -> None:
    m = 100
    payloads, rates, rtts = np.full(m, 5 * 1_448), np.full(m, 1e6), np.full(m, 0.05)
    results = _assert_same_losses(payloads, rates, rtts, np.full(m, 0.97), 1, "cubic")
    given_up = ~np.isnan(results.gives_up_s)
    assert 0 < np.count_nonzero(given_up) < m
    assert (np.isinf(results.seconds) == given_up).all()


@given(loss=st.floats(1e-6, 0.9), gap=st.integers(0, 10**6), steps=st.integers(-3, 3))
def test_whole_gaps_at_the_borders(loss: float, gap: int, steps: int) -> None:
    uniform = math.exp(gap * math.log1p(-loss))
    for _ in range(abs(steps)):
        uniform = math.nextafter(uniform, math.copysign(1.0, steps) if steps > 0 else 0.0)
    uniform = min(max(uniform, 2.0**-54), 1.0)
    expected = int(math.log(uniform) / math.log1p(-loss))
    found = _whole_gaps(np.array([uniform]), np.array([loss]), np.array([10**9]))
    assert found.tolist() == [expected]
    assert _whole_gaps(np.array([uniform]), np.array([loss]), np.array([40])).tolist() == [min(expected, 40)]


@pytest.mark.parametrize(
    ("payload", "rate", "loss", "said"),
    [(1, 1e6, 1.0, "loss"), (1, 1e6, math.nan, "loss"), (1, 0.0, 0.1, "rates"), (-1, 1e6, 0.1, "messages")],
)
def test_senseless_lossy_links_are_refused(payload: int, rate: float, loss: float, said: str) -> None:
    keys, number = np.ones(1, np.uint64), 1
    with pytest.raises(ValueError, match=said):
        lossy_transfers(np.array([payload]), np.array([rate]), np.ones(1), np.array([loss]), keys, number)
