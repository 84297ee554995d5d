from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_profiles.errors import TraceError
from device_profiles.traces import AvailabilityTrace, RateTrace


def trace(**changes: Any) -> RateTrace:
    arrays: dict[str, Any] = {
        "times_s": [0.0, 1.0, 3.0],
        "down_bps": [8e6, 0.0, 2e6],
        "up_bps": [1e6, 1e6, 1e6],
        "rtt_s": [0.02, 0.5, 0.1],
        "loss": [0.0, 0.1, 0.01],
        "period_s": 5.0,
    }
    return RateTrace(**(arrays | changes))


def test_steps_hold_until_the_next_and_the_whole_repeats() -> None:
    times = np.array([0.0, 0.999, 1.0, 2.9, 3.0, 4.999, 5.0, 6.5, 103.5])
    want = np.array([8e6, 8e6, 0.0, 0.0, 2e6, 2e6, 8e6, 0.0, 2e6])
    np.testing.assert_array_equal(trace().rate_at(times, "down"), want)
    np.testing.assert_array_equal(
        trace().rtt_at(times), np.select([want == 8e6, want == 0], [0.02, 0.5], 0.1)
    )
    assert trace().rate_at(6.5, "down") == 0.0
    assert trace().rtt_at(3.2) == 0.1
    assert trace().loss_at(6.5) == 0.1


def test_bits_carried() -> None:
    # 8 Mbit in the first second, nothing for two, 4 Mbit in the last two: 12 Mbit a period.
    times = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 5.5, 51.0])
    want = np.array([0.0, 4e6, 8e6, 8e6, 8e6, 10e6, 12e6, 16e6, 128e6])
    np.testing.assert_array_equal(trace().bits_until(times, "down"), want)


@pytest.mark.parametrize(
    ("start_s", "bits", "end_s"),
    [
        (0.0, 4e6, 0.5),
        (0.0, 8e6, 1.0),  # done when the outage begins, not when it ends
        (0.0, 9e6, 3.5),
        (2.0, 0.0, 2.0),
        (2.0, 1e6, 3.5),
        (0.0, 12e6, 5.0),
        (0.0, 36e6, 15.0),
        (4.0, 2e6, 5.0),
        (4.0, 10e6, 6.0),
        (1003.0, 4e6 + 120e6, 1055.0),
    ],
)
def test_time_for_bits_by_hand(start_s: float, bits: float, end_s: float) -> None:
    assert trace().time_for_bits(start_s, bits, "down") == end_s
    assert trace().time_for_bits(np.array([start_s]), np.array([bits]), "down").tolist() == [end_s]


@st.composite
def traces(draw: st.DrawFn) -> RateTrace:
    steps = draw(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12))
    rates = st.one_of(st.just(0.0), st.floats(1.0, 1e9))
    down = draw(st.lists(rates, min_size=len(steps), max_size=len(steps)).filter(any))
    edges = np.concatenate([[0.0], np.cumsum(steps)])
    ones = np.ones(len(steps))
    return RateTrace(edges[:-1], np.array(down), ones, ones, ones * 0, float(edges[-1]))


@given(traces(), st.floats(0, 1e5), st.floats(0, 20), st.data())
def test_the_inverse_undoes_the_integral(
    played: RateTrace, start_s: float, periods: float, data: st.DataObject
) -> None:
    bits = periods * played.bits_until(played.period_s, "down")
    end_s = played.time_for_bits(start_s, bits, "down")
    assert end_s >= start_s
    carried = played.bits_until(end_s, "down") - played.bits_until(start_s, "down")
    # The time itself is only good to a rounding of its own size, during which the fastest step moves bits.
    slack = 1e-9 * (end_s + 1) * float(played.down_bps.max()) + 1e-9 * played.bits_until(end_s, "down")
    assert carried == pytest.approx(bits, abs=slack)
    # No earlier time would have done.
    earlier = data.draw(st.floats(start_s, end_s)) if end_s > start_s else start_s
    assert played.bits_until(earlier, "down") - played.bits_until(start_s, "down") <= bits + slack


@given(traces(), st.lists(st.floats(0, 1e5), min_size=2, max_size=50))
def test_the_integral_never_falls(played: RateTrace, times: list[float]) -> None:
    bits = played.bits_until(np.sort(times), "down")
    assert np.all(np.diff(bits) >= 0)


def test_the_integral_does_not_fall_from_one_period_to_the_next() -> None:
    # 61 periods and all but the last instant of another rounded to more than 62 periods.
    played = trace(times_s=[0.0], down_bps=[907531.0], up_bps=[1.0], rtt_s=[0.1], loss=[0.0], period_s=3.701)
    around = np.array([229.462, 229.46200000000002])
    first, second = played.bits_until(around, "down").tolist()
    assert first <= second
    assert [played.bits_until(t, "down") for t in around.tolist()] == [first, second]


@given(traces(), st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e12)), min_size=1, max_size=30))
def test_arrays_and_floats_agree_bit_for_bit(played: RateTrace, pairs: list[tuple[float, float]]) -> None:
    starts, bits = np.array(pairs).T
    directions: tuple[Literal["down", "up"], ...] = ("down", "up")
    for direction in directions:
        rates, until = played.rate_at(starts, direction), played.bits_until(starts, direction)
        ends = played.time_for_bits(starts, bits, direction)
        for i, (start, size) in enumerate(pairs):
            assert played.rate_at(start, direction) == rates[i]
            assert played.bits_until(start, direction) == until[i]
            assert played.time_for_bits(start, size, direction) == ends[i]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times_s": [0.5, 1.0, 3.0]}, r"times_s\[0\]: a trace starts at 0 s"),
        ({"times_s": [0.0, 3.0, 3.0]}, r"times_s\[2\]: 3 s does not come after 3 s"),
        ({"times_s": []}, "the trace is empty"),
        ({"period_s": 3.0}, "period_s: 3 s must be later"),
        ({"period_s": math.nan}, "period_s"),
        ({"down_bps": [1.0, 2.0]}, r"down_bps: expected shape \(3,\)"),
        ({"down_bps": [1.0, -2.0, 1.0]}, r"down_bps\[1\]"),
        ({"up_bps": [0.0, 0.0, 0.0]}, "never carries anything up"),
        ({"rtt_s": [0.1, math.inf, 0.1]}, r"rtt_s\[1\]"),
        ({"loss": [0.0, 0.0, 1.0]}, r"loss\[2\]: must be below 1, not 1; write 0.02 for 2%"),
    ],
)
def test_arrays_that_make_no_trace(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        trace(**changes)


def test_a_trace_has_two_directions() -> None:
    with pytest.raises(ValueError, match="'down' or 'up', not 'sideways'"):
        trace().rate_at(0.0, "sideways")  # type: ignore[call-overload]


def test_a_trace_is_a_copy_that_cannot_change() -> None:
    down = np.array([8e6, 0.0, 2e6])
    held = trace(down_bps=down)
    down[:] = 1.0
    assert held.rate_at(0.0, "down") == 8e6
    with pytest.raises(ValueError, match="read-only"):
        held.down_bps[0] = 1.0


def test_sessions_are_sorted_and_joined() -> None:
    made = AvailabilityTrace.from_sessions(
        [7, 9, 11],
        [[(50.0, 60.0), (10.0, 20.0), (20.0, 30.0), (15.0, 18.0), (70.0, 70.0)], [], [(0.0, 5.0)]],
        [100.0, 1.0, 5.0],
    )
    assert made.n_clients == 3
    assert made.indptr.tolist() == [0, 2, 2, 3]
    assert made.starts_s.tolist() == [10.0, 50.0, 0.0]
    assert made.ends_s.tolist() == [30.0, 60.0, 5.0]


@pytest.mark.parametrize(
    ("ids", "sessions", "periods", "message"),
    [
        ([], [], [], "client_ids"),
        ([1], [[(0.0, 11.0)]], [10.0], "within the period"),
        ([1], [[(5.0, 4.0)]], [10.0], "end after its start"),
        ([1], [[(-1.0, 4.0)]], [10.0], r"starts_s\[0\]"),
        ([1], [[]], [0.0], "period_s"),
        ([1, 2], [[]], [10.0, 10.0], "indptr"),
    ],
)
def test_sessions_that_make_no_trace(ids: Any, sessions: Any, periods: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        AvailabilityTrace.from_sessions(ids, sessions, periods)


def test_sessions_given_directly_must_lie_apart() -> None:
    with pytest.raises(TraceError, match="lie apart"):
        AvailabilityTrace(
            np.array([1]), np.array([0, 2]), np.array([0.0, 4.0]), np.array([4.0, 6.0]), np.array([10.0])
        )
