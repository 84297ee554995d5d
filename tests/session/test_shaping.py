"""Shaped links: what is sent takes as long as the formula of the simulated link says."""

from __future__ import annotations

import pytest

from edge.transport.shaping import Lane, LinkShape, ShapedLink
from edge.transport.tcp_model import INITIAL_WINDOW_BYTES, data_time, small_round_trip

RATE_BPS, RTT_S = 2e6, 0.1


@pytest.mark.parametrize("size", [1, 1000, INITIAL_WINDOW_BYTES, 100_000, 5_000_000])
def test_one_message_takes_as_long_as_on_the_simulated_link(size: int) -> None:
    seconds, _ = data_time(size, RATE_BPS, RTT_S)
    arrival_s = Lane(RATE_BPS, RTT_S).carry(size, 3.0)
    assert arrival_s == pytest.approx(3.0 + seconds + 0.5 * small_round_trip(RATE_BPS, RTT_S))


def test_pieces_take_as_long_as_the_whole() -> None:
    whole, pieces = Lane(RATE_BPS, RTT_S), Lane(RATE_BPS, RTT_S)
    whole_s = whole.carry(1_000_000, 0.0)
    for _ in range(10):
        last_s = pieces.carry(100_000, 0.0)
    assert last_s == pytest.approx(whole_s, rel=0.02)


def test_latencies_of_messages_overlap() -> None:
    lane = Lane(RATE_BPS, RTT_S)
    first_s, second_s = lane.carry(1000, 0.0), lane.carry(1000, 0.0)
    assert second_s - first_s == pytest.approx(data_time(1000, RATE_BPS, RTT_S)[0])


def test_what_comes_later_arrives_later_whatever_rounding_does() -> None:
    lane = Lane(1e15, 0.0)
    arrivals = [lane.carry(1, 1e6) for _ in range(100)]
    assert arrivals == sorted(set(arrivals))


def test_after_a_pause_the_window_is_small_again() -> None:
    lane = Lane(RATE_BPS, RTT_S)
    first_s = lane.carry(100_000, 0.0)
    soon_s = lane.carry(100_000, first_s) - first_s
    late_s = lane.carry(100_000, 1000.0) - 1000.0
    assert soon_s < late_s
    assert late_s == pytest.approx(first_s)


def test_an_idle_radio_is_promoted_once_for_both_directions() -> None:
    plain = Lane(RATE_BPS, RTT_S).carry(1000, 0.0)
    link = ShapedLink(LinkShape(RATE_BPS, RATE_BPS, RTT_S, promotion_s=2.0, tail_s=10.0))
    first_s = link.down.carry(1000, 0.0)
    assert first_s == pytest.approx(2.0 + plain)
    assert link.up.carry(1000, first_s + 9.0) == pytest.approx(first_s + 9.0 + plain)
    assert link.up.carry(1000, 100.0) == pytest.approx(102.0 + plain)
