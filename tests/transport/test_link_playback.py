from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_profiles.traces import RateTrace
from edge.core.vocabulary import Direction
from edge.network.playback import TracePlayback
from edge.network.tcp import WIRE_BYTES_PER_PAYLOAD_BYTE, data_time

WIRE_BITS = 8 * WIRE_BYTES_PER_PAYLOAD_BYTE


def _trace(
    times_s: list[float], down_bps: list[float], rtt_s: float = 0.05, period_s: float = 10.0
) -> RateTrace:
    n = len(times_s)
    return RateTrace(
        times_s=np.array(times_s),
        down_bps=np.array(down_bps),
        up_bps=np.array(down_bps) / 2,
        rtt_s=np.full(n, rtt_s),
        loss=np.full(n, 0.01),
        period_s=period_s,
    )


@settings(deadline=None)
@given(
    payload=st.integers(1, 5_000_000),
    rate=st.floats(1e5, 1e9),
    rtt=st.floats(0.001, 0.5),
    start=st.floats(0, 1_000),
    window=st.floats(1448, 1e6),
)
def test_a_steady_trace_is_the_closed_form(
    payload: int, rate: float, rtt: float, start: float, window: float
) -> None:
    link = TracePlayback(_trace([0.0], [rate], rtt), np.zeros(1))
    seconds, end_window = link.alone_time(0, Direction.DOWN, payload, 1e6, 0.05, start, window_bytes=window)
    expected, expected_window = data_time(payload, rate, rtt, window)
    assert seconds == pytest.approx(expected, rel=1e-6, abs=1e-9 * (start + 1))
    assert end_window == pytest.approx(expected_window, rel=1e-6)


def test_known_time_across_a_change_and_an_outage() -> None:
    # 2 s at 1 Mbit/s, 3 s of nothing, then 4 Mbit/s; the window never limits.
    link = TracePlayback(_trace([0.0, 2.0, 5.0], [1e6, 0.0, 4e6], rtt_s=0.0), np.array([0.0, 1.0]))
    seconds, _ = link.alone_time(0, Direction.DOWN, 6e6 / WIRE_BITS, 1e6, 0.05, 0.0, window_bytes=1e9)
    assert seconds == pytest.approx(6.0)
    seconds, _ = link.alone_time(0, Direction.UP, 3e6 / WIRE_BITS, 1e6, 0.05, 0.0, window_bytes=1e9)
    assert seconds == pytest.approx(6.0)
    # The other link is a second further in the trace.
    seconds, _ = link.alone_time(1, Direction.DOWN, 6e6 / WIRE_BITS, 1e6, 0.05, 0.0, window_bytes=1e9)
    assert seconds == pytest.approx(5.25)


def test_it_goes_on_where_the_trace_starts_again() -> None:
    link = TracePlayback(_trace([0.0, 5.0], [1e6, 3e6], rtt_s=0.0), np.zeros(1))
    seconds, _ = link.alone_time(
        0, Direction.DOWN, 20e6 / WIRE_BITS + 4e6 / WIRE_BITS, 1e6, 0.05, 9.0, window_bytes=1e9
    )
    # 3 Mbit in the last second, 20 Mbit in the repetition, 1 Mbit in the first second of the next.
    assert seconds == pytest.approx(1 + 10 + 1)


def test_a_message_of_nothing_takes_no_time() -> None:
    link = TracePlayback(_trace([0.0], [1e6]), np.zeros(1))
    assert link.alone_time(0, Direction.UP, 0, 1e6, 0.05, 3.0) == (0.0, 14_480)


def test_values_of_the_moment() -> None:
    trace = RateTrace(
        times_s=np.array([0.0, 4.0]),
        down_bps=np.array([1e6, 2e6]),
        up_bps=np.array([1e6, 0.0]),
        rtt_s=np.array([0.05, 0.2]),
        loss=np.array([0.0, 0.1]),
        period_s=8.0,
    )
    link = TracePlayback(trace, np.array([0.0, 4.0]))
    assert (link.rtt_s(0, 1.0), link.rtt_s(1, 1.0)) == (0.05, 0.2)
    assert (link.loss(0, 1.0), link.loss(1, 1.0)) == (0.0, 0.1)
    assert link.pace(0, Direction.DOWN, 1.0) == (pytest.approx(1e6 / 1.5e6), 4.0)
    assert link.pace(0, Direction.UP, 1.0) == (pytest.approx(1e6 / 0.5e6), 4.0)


def test_carrying_a_whole_period_at_the_mean_rate_takes_a_period() -> None:
    link = TracePlayback(_trace([0.0, 3.0], [1e6, 9e6]), np.array([0.0, 6.5]))
    assert link.carry_s(0, Direction.UP, 1.25, 10.0) == pytest.approx(10.0)
    assert link.carry_s(1, Direction.DOWN, 0.0, 20.0) == pytest.approx(20.0)
    # 3 s at 1 Mbit/s is 3 of the 6.6 Mbit/s * 10 s.
    assert link.carry_s(0, Direction.DOWN, 0.0, 3 / 6.6) == pytest.approx(3.0)


def test_senseless_arguments_are_refused() -> None:
    trace = _trace([0.0], [1e6])
    with pytest.raises(ValueError, match="offsets_s"):
        TracePlayback(trace, np.array([0.0, -1.0]))
    link = TracePlayback(trace, np.zeros(1))
    for payload, start, window in [(-1, 0.0, 1e4), (1, -1.0, 1e4), (1, 0.0, 0.0)]:
        with pytest.raises(ValueError, match="0 or more"):
            link.alone_time(0, Direction.UP, payload, 1e6, 0.05, start, window_bytes=window)
    with pytest.raises(ValueError, match="up or down"):
        link.alone_time(0, Direction.NONE, 1, 1e6, 0.05, 0.0)
