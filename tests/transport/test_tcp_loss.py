from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.network.loss import (
    MAX_BACKOFFS,
    Congestion,
    TransferFailedError,
    handshake_time,
    lossy_transfer,
    silence_limit,
)
from edge.network.tcp import (
    ack_clock_period,
    data_time,
    goodput,
    retransmission_timeout,
    segments,
    small_round_trip,
)

RATE_BPS, RTT_S = 10e6, 0.06
SEGMENT_S = 1448 / goodput(RATE_BPS)
PERIOD_S = ack_clock_period(RATE_BPS, RTT_S)


class Script:
    """Uniforms that lose the packets at the given places of the row of packets, and no others."""

    def __init__(self, loss: float, lost: list[int]) -> None:
        gaps = [b - a - 1 for a, b in zip([-1, *lost], lost, strict=False)] + [10**9]
        self._uniforms = [math.exp((gap + 0.5) * math.log1p(-loss)) for gap in gaps]
        self.draws = 0

    def __call__(self) -> float:
        self.draws += 1
        return max(self._uniforms[self.draws - 1], 1e-300)


def _cold_total(payload: int, loss: float, draw: Callable[[], float], congestion: Congestion) -> float:
    """Connect, send the payload, get one byte back."""
    connect_s = handshake_time(RTT_S, RATE_BPS, 1, loss, draw)
    there = lossy_transfer(payload, RATE_BPS, RTT_S, loss, draw, congestion)
    back = lossy_transfer(1, RATE_BPS, RTT_S, loss, draw, congestion)
    return (
        connect_s + there.seconds + back.seconds - 1 / goodput(RATE_BPS) + small_round_trip(RATE_BPS, RTT_S)
    )


@pytest.mark.slow
def test_measured_lossy_cells(measured: Callable[[str], list[list[str]]]) -> None:
    """Mean over the cubic and reno cells of |mean(model) / mean(measured) - 1|, 2,000 runs a cell."""
    cells: dict[tuple[Congestion, float, int], list[float]] = defaultdict(list)
    for row in measured("grid_loss.csv"):
        if row[0] in ("cubic", "reno"):
            assert (row[1], row[2]) == ("10", "60")
            congestion: Congestion = "cubic" if row[0] == "cubic" else "reno"
            cells[congestion, float(row[3]), int(row[7])].append(float(row[10]))
    assert len(cells) == 18
    errors = []
    for (congestion, loss, payload), seconds in sorted(cells.items()):
        draw = random.Random(f"{congestion} {loss} {payload}").random
        model = statistics.fmean(_cold_total(payload, loss, draw, congestion) for _ in range(2_000))
        errors.append(abs(model / statistics.fmean(seconds) - 1))
    assert statistics.fmean(errors) <= 0.15


def test_a_mean_that_was_measured_closely() -> None:
    # 18 transfers of 100,000 bytes, cubic, loss 1 %: mean 0.339 s, standard error 0.018 s.
    draw = random.Random(5).random
    model = statistics.fmean(_cold_total(100_000, 0.01, draw, "cubic") for _ in range(2_000))
    assert model == pytest.approx(0.339, rel=0.15)


@settings(deadline=None)
@given(
    payload=st.integers(1, 2_000_000),
    rate=st.floats(1e5, 1e9),
    rtt=st.floats(0.001, 1.0),
    loss=st.floats(1e-6, 0.2),
)
def test_without_a_loss_it_is_the_closed_form_for_one_draw(
    payload: int, rate: float, rtt: float, loss: float
) -> None:
    script = Script(loss, [])
    result = lossy_transfer(payload, rate, rtt, loss, script)
    assert (result.seconds, result.end_window_bytes) == data_time(payload, rate, rtt)
    assert result.retransmitted_segments == 0
    assert script.draws == 1


def test_a_loss_of_zero_draws_nothing() -> None:
    script = Script(0.5, [])
    result = lossy_transfer(50_000, RATE_BPS, RTT_S, 0.0, script)
    assert result.seconds == data_time(50_000, RATE_BPS, RTT_S)[0]
    assert handshake_time(RTT_S, RATE_BPS, 2, 0.0, script) == 2 * small_round_trip(RATE_BPS, RTT_S)
    assert script.draws == 0


def test_a_hole_in_the_last_flight_costs_a_round_trip() -> None:
    result = lossy_transfer(5 * 1448, RATE_BPS, RTT_S, 0.01, Script(0.01, [1]))
    assert result.seconds == pytest.approx(6 * SEGMENT_S + PERIOD_S)
    assert result.retransmitted_segments == 1


def test_a_lost_tail_costs_two_round_trips() -> None:
    result = lossy_transfer(5 * 1448, RATE_BPS, RTT_S, 0.01, Script(0.01, [4]))
    assert result.seconds == pytest.approx(6 * SEGMENT_S + 2 * RTT_S)
    assert result.retransmitted_segments == 1


def test_a_lost_probe_costs_the_timeout_as_well() -> None:
    result = lossy_transfer(5 * 1448, RATE_BPS, RTT_S, 0.01, Script(0.01, [4, 5]))
    assert result.seconds == pytest.approx(7 * SEGMENT_S + 2 * RTT_S + retransmission_timeout(RTT_S))
    assert result.retransmitted_segments == 2


def test_a_lone_segment_waits_for_the_timeout_which_doubles() -> None:
    timeout_s = retransmission_timeout(RTT_S)
    once = lossy_transfer(1448, RATE_BPS, RTT_S, 0.01, Script(0.01, [0]))
    thrice = lossy_transfer(1448, RATE_BPS, RTT_S, 0.01, Script(0.01, [0, 1, 2]))
    assert once.seconds == pytest.approx(2 * SEGMENT_S + timeout_s)
    assert thrice.seconds == pytest.approx(4 * SEGMENT_S + timeout_s * (1 + 1 + 2))
    assert thrice.retransmitted_segments == 3


@pytest.mark.parametrize(("congestion", "factor"), [("cubic", 0.7), ("reno", 0.5)])
def test_a_loss_shrinks_the_window(congestion: Congestion, factor: float) -> None:
    # The first packet of a window of 40 is lost: nothing ahead of it has opened the window further.
    result = lossy_transfer(
        40 * 1448, RATE_BPS, RTT_S, 0.01, Script(0.01, [0]), congestion, window_bytes=40 * 1448
    )
    assert result.end_window_bytes == pytest.approx(factor * 40 * 1448)


def test_what_arrives_ahead_of_a_loss_in_slow_start_opens_the_window_first() -> None:
    result = lossy_transfer(40 * 1448, RATE_BPS, RTT_S, 0.01, Script(0.01, [30]), window_bytes=40 * 1448)
    assert result.end_window_bytes == pytest.approx(0.7 * 70 * 1448)


def test_before_its_first_loss_the_window_doubles() -> None:
    # Flights of 10, 20 and 40, the first packet of the third lost.
    draw = Script(0.01, [30])
    result = lossy_transfer((10 + 20 + 39 + 5) * 1448, 1e8, 0.5, 0.01, draw, window_bytes=10 * 1448)
    assert result.end_window_bytes == pytest.approx(0.7 * 40 * 1448)


def test_cubic_is_back_at_its_old_window_after_its_period() -> None:
    # One loss at a window of 70 segments: K = (70*0.3/0.4)**(1/3) = 3.74 s, and RFC 9438's plateau around it.
    draw = Script(0.001, [0])
    quick = lossy_transfer(
        round(goodput(1e8) * 4.0), 1e8, 0.5, 0.001, draw, window_bytes=70 * 1448, queue_round_trips=1.0
    )
    assert quick.retransmitted_segments == 1
    assert quick.end_window_bytes > 70 * 1448


def test_cubic_is_no_slower_than_reno_on_short_round_trips() -> None:
    # RFC 9438, 4.3: from 28 segments on by 3*(1 - 0.7)/(1 + 0.7) = 0.529 a flight, long before cubic's own K.
    flights = (40 - 1, *(int(28 + 9 / 17 * n) for n in range(20)))
    draw = Script(0.001, [0])
    result = lossy_transfer((sum(flights) + 10) * 1448, 1e8, 0.02, 0.001, draw, window_bytes=40 * 1448)
    assert result.end_window_bytes == pytest.approx((28 + 9 / 17 * 20) * 1448, rel=1e-9)


def test_cubic_aims_lower_after_a_loss_below_its_old_window() -> None:
    # RFC 9438, 4.7: a loss at 70 segments, with 100 before, leaves (1 + 0.7)/2 * 70 = 59.5 to aim at, which
    # is reached K = ((59.5 - 49)/0.4)**(1/3) = 2.97 s later: after five flights of half a second.
    flights = (100 - 1, 70 - 1, 49, 56, 58, 59, 59)
    draw = Script(0.001, [0, 100])
    result = lossy_transfer((sum(flights) + 10) * 1448, 1e8, 0.5, 0.001, draw, window_bytes=100 * 1448)
    assert result.retransmitted_segments == 2
    assert result.end_window_bytes == pytest.approx(59.5 * 1448, rel=1e-4)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), loss=st.floats(0.001, 0.3), payload=st.integers(1, 300_000))
def test_losses_never_save_time_and_resend_at_least_themselves(seed: int, loss: float, payload: int) -> None:
    result = lossy_transfer(payload, RATE_BPS, RTT_S, loss, random.Random(seed).random)
    assert result.seconds >= payload / goodput(RATE_BPS) * (1 - 1e-12)
    assert result.end_window_bytes >= 1448


@pytest.mark.parametrize("loss", [0.01, 0.1])
def test_retransmissions_are_as_many_as_losses(loss: float) -> None:
    # Every packet is lost with probability p until it arrives: n*p/(1-p) retransmissions on average.
    draw = random.Random(3).random
    runs = [lossy_transfer(100_000, RATE_BPS, RTT_S, loss, draw).retransmitted_segments for _ in range(4_000)]
    expected = segments(100_000) * loss / (1 - loss)
    sigma = math.sqrt(segments(100_000) * loss / (1 - loss) ** 2 / len(runs))
    assert statistics.fmean(runs) == pytest.approx(expected, abs=4 * sigma)


def test_the_same_stream_gives_the_same_transfer() -> None:
    first = [lossy_transfer(10**6, RATE_BPS, RTT_S, 0.02, random.Random(8).random) for _ in range(3)]
    assert first[0] == first[1] == first[2]


def test_a_lost_syn_costs_a_second_then_two() -> None:
    quiet_s = small_round_trip(RATE_BPS, RTT_S)
    assert handshake_time(RTT_S, RATE_BPS, 1, 0.01, Script(0.01, [])) == quiet_s
    assert handshake_time(RTT_S, RATE_BPS, 1, 0.01, Script(0.01, [0])) == pytest.approx(quiet_s + 1)
    # The answer may be lost as well as the SYN.
    assert handshake_time(RTT_S, RATE_BPS, 1, 0.01, Script(0.01, [1])) == pytest.approx(quiet_s + 1)
    assert handshake_time(RTT_S, RATE_BPS, 1, 0.01, Script(0.01, [0, 2])) == pytest.approx(
        quiet_s + 3, abs=1e-3
    )


def test_a_lost_hello_costs_the_retransmission_timeout() -> None:
    seconds = handshake_time(RTT_S, RATE_BPS, 2, 0.01, Script(0.01, [2]))
    assert seconds == pytest.approx(2 * small_round_trip(RATE_BPS, RTT_S) + retransmission_timeout(RTT_S))


def test_an_open_connection_needs_no_handshake() -> None:
    assert handshake_time(RTT_S, RATE_BPS, 0, 0.5, Script(0.5, [])) == 0.0


def test_negative_handshakes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 for an open connection"):
        handshake_time(RTT_S, RATE_BPS, -1, 0.5, Script(0.5, []))


def test_a_dead_link_is_borne_for_all_doublings_of_the_timeout() -> None:
    assert silence_limit(RTT_S) == pytest.approx(sum(0.26 * 2**sent for sent in range(16)))


def test_a_link_that_loses_everything_is_given_up() -> None:
    def always_lost() -> float:
        return 1.0 - 2.0**-53

    with pytest.raises(TransferFailedError, match=f"{MAX_BACKOFFS + 1} times"):
        lossy_transfer(1_000, RATE_BPS, RTT_S, 0.5, always_lost)
    with pytest.raises(TransferFailedError, match=f"{MAX_BACKOFFS + 1} times"):
        handshake_time(RTT_S, RATE_BPS, 1, 0.5, always_lost)


@pytest.mark.parametrize("loss", [-0.1, 1.0, 1.5, math.nan])
def test_a_loss_that_is_no_probability_is_refused(loss: float) -> None:
    with pytest.raises(ValueError, match=r"probability in \[0, 1\)"):
        lossy_transfer(1_000, RATE_BPS, RTT_S, loss, random.Random(1).random)
    with pytest.raises(ValueError, match=r"probability in \[0, 1\)"):
        handshake_time(RTT_S, RATE_BPS, 1, loss, random.Random(1).random)


def test_an_unknown_congestion_control_is_refused() -> None:
    with pytest.raises(ValueError, match="write 'cubic' or 'reno'"):
        lossy_transfer(1_000, RATE_BPS, RTT_S, 0.5, Script(0.5, [0]), "bbr")  # type: ignore[arg-type]


def test_the_window_grows_to_what_the_link_and_its_queue_hold() -> None:
    def end_window(queue_round_trips: float) -> float:
        gaps = iter([math.exp(-4000 * 1e-3), math.exp(-5e5 * 1e-3)])
        loss = -math.expm1(-1e-3)  # so that a uniform of exp(-n/1000) is a gap of n packets
        found = lossy_transfer(
            5_800_000, 8e6, 0.1, loss, lambda: next(gaps), queue_round_trips=queue_round_trips
        )
        return found.end_window_bytes

    assert end_window(1.0) > 1.5 * end_window(0.0)
