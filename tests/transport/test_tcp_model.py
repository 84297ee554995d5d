from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.network import tcp as tcp_model
from edge.network.tcp import (
    INITIAL_WINDOW_BYTES,
    ack_bytes,
    data_time,
    retransmission_timeout,
    segments,
    small_round_trip,
    tcp_ip_bytes,
    window_after_idle,
    wire_bits,
)

# Minima of cold transfers over kernel TCP (cubic): rate bit/s, round trip s, payload bytes, s up, s down.
MEASURED_COLD = [
    (1e6, 0.02, 1_000, 0.051038, 0.051008),
    (1e6, 0.1, 100_000, 1.031751, 1.031757),
    (10e6, 0.02, 1_000_000, 0.883045, 0.879027),
    (10e6, 0.3, 100_000, 1.250475, 1.251021),
    (50e6, 0.1, 10_000, 0.202233, 0.203204),
    (50e6, 0.3, 1_000_000, 2.419489, 2.428228),
    (50e6, 0.3, 5_000_000, 3.238213, 3.279062),
]

payloads = st.integers(0, 50_000_000)
rates = st.floats(1e4, 1e10)
round_trips = st.floats(0.0, 2.0)
windows = st.floats(1448.0, 1e8)


def transfer_time(
    payload_bytes: float,
    rate_bps: float,
    rtt_s: float,
    handshakes: int = 1,
    window_bytes: float = INITIAL_WINDOW_BYTES,
) -> float:
    """Return the seconds from the wish to send to the arrival of a one-byte answer, as it was measured."""
    seconds, _ = data_time(payload_bytes, rate_bps, rtt_s, window_bytes)
    return (handshakes + 1) * small_round_trip(rate_bps, rtt_s) + seconds


@pytest.mark.parametrize(("rate_bps", "rtt_s", "payload_bytes", "up_s", "down_s"), MEASURED_COLD)
def test_cold_transfers_take_as_long_as_measured(
    rate_bps: float, rtt_s: float, payload_bytes: int, up_s: float, down_s: float
) -> None:
    predicted_s = transfer_time(payload_bytes, rate_bps, rtt_s)
    assert predicted_s == pytest.approx(up_s, rel=0.02)
    assert predicted_s == pytest.approx(down_s, rel=0.02)


def _errors(rows: list[list[str]], predict: Callable[[float, float, int, str], float]) -> list[float]:
    cells: dict[tuple[str, ...], float] = {}
    for row in rows:
        cell = tuple(row[:9])
        cells[cell] = min(cells.get(cell, math.inf), float(row[10]))
    return sorted(
        abs(predict(float(cell[1]) * 1e6, float(cell[2]) * 1e-3, int(cell[7]), cell[6]) / seconds - 1)
        for cell, seconds in cells.items()
    )


def test_all_measured_cold_cells(measured: Callable[[str], list[list[str]]]) -> None:
    errors = _errors(
        measured("grid_cubic.csv"), lambda rate, rtt, payload, _: transfer_time(payload, rate, rtt)
    )
    assert len(errors) == 90
    assert sum(errors) / len(errors) <= 0.02
    assert errors[int(0.95 * len(errors))] <= 0.06


def test_all_measured_warm_cells(measured: Callable[[str], list[list[str]]]) -> None:
    # Each connection had just carried 20,000 bytes upwards; downwards its window was still the initial one.
    def predict(rate_bps: float, rtt_s: float, payload_bytes: int, direction: str) -> float:
        _, opened = data_time(20_000, rate_bps, rtt_s)
        window = opened if direction == "u" else INITIAL_WINDOW_BYTES
        return transfer_time(payload_bytes, rate_bps, rtt_s, handshakes=0, window_bytes=window)

    errors = _errors(measured("grid_warm.csv"), predict)
    assert len(errors) == 24
    assert sum(errors) / len(errors) <= 0.02
    assert errors[int(0.95 * len(errors))] <= 0.06


def test_an_initial_window_leaves_without_a_stall() -> None:
    seconds, window = data_time(14_480, 8e6 * 1500 / 1448, 0.1)
    assert seconds == pytest.approx(14_480e-6)
    assert window == 2 * INITIAL_WINDOW_BYTES


def test_slow_start_waits_once_per_window() -> None:
    # At 1 Tbit/s only the waiting counts: windows of 14,480 and 28,960 bytes, then the rest.
    seconds, window = data_time(14_480 + 28_960 + 1, 1e12, 0.25)
    assert seconds == pytest.approx(0.5, rel=1e-5)
    assert window == 4 * INITIAL_WINDOW_BYTES + 1


def test_a_window_that_fills_the_link_costs_nothing_more_and_grows_no_more() -> None:
    seconds, window = data_time(10_000_000, 1e6, 0.1)
    assert seconds == pytest.approx(10_000_000 / tcp_model.goodput(1e6), rel=0.01)
    assert window == INITIAL_WINDOW_BYTES


def test_the_window_of_a_connection_in_use_stays_bounded() -> None:
    window: float = INITIAL_WINDOW_BYTES
    for _ in range(50):
        _, window = data_time(1_000_000, 50e6, 0.1, window)
    assert window <= 2 * tcp_model.goodput(50e6) * tcp_model.ack_clock_period(50e6, 0.1)


@settings(deadline=None)
@given(payload=payloads, rate=rates, rtt=round_trips, window=windows)
def test_more_bytes_never_take_less_time(payload: int, rate: float, rtt: float, window: float) -> None:
    shorter, _ = data_time(payload, rate, rtt, window)
    longer, _ = data_time(payload + 1448, rate, rtt, window)
    assert shorter <= longer * (1 + 1e-12)
    assert shorter >= payload / tcp_model.goodput(rate) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("payload", "rate", "window", "says"),
    [
        (1, 0.0, 14_480, "rate is positive"),
        (1, -1.0, 14_480, "rate is positive"),
        (1, math.nan, 14_480, "rate is positive"),
        (1, 1e6, 0.0, "window is positive"),
        (-1, 1e6, 14_480, "0 or more bytes"),
        (math.nan, 1e6, 14_480, "not a number"),
    ],
)
def test_senseless_arguments_are_refused(payload: float, rate: float, window: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        data_time(payload, rate, 0.1, window)


@pytest.mark.parametrize(
    ("payload", "count", "headers", "acks"),
    [
        (0, 0, 0, 0),
        (1, 1, 52, 52),
        (1448, 1, 52, 52),
        (1449, 2, 104, 52),
        (14_480, 10, 520, 260),
        (4_344, 3, 156, 104),
    ],
)
def test_segments_and_their_headers(payload: int, count: int, headers: int, acks: int) -> None:
    assert segments(payload) == count
    assert tcp_ip_bytes(payload) == headers
    assert ack_bytes(payload) == acks
    assert wire_bits(payload) == 8 * (payload + headers)


def test_small_round_trip_counts_both_packets() -> None:
    assert small_round_trip(1e6, 0.05) == pytest.approx(0.05 + 960e-6)


def test_retransmission_timeout_keeps_its_floor() -> None:
    assert retransmission_timeout(0.06) == pytest.approx(0.26)
    assert retransmission_timeout(0.06, deviation_s=0.1) == pytest.approx(0.46)


def test_a_long_silence_restarts_the_window() -> None:
    assert window_after_idle(100_000.0, 0.26, 0.26) == 100_000.0
    assert window_after_idle(100_000.0, 0.27, 0.26) == INITIAL_WINDOW_BYTES
    assert window_after_idle(2_896.0, 9.0, 0.26) == 2_896.0
