from __future__ import annotations

import ast
import heapq
import math
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.vocabulary import Direction
from edge.network.bottleneck import SharedLink
from edge.network.link import Delivery
from edge.network.tcp import data_time, small_round_trip, wire_bits
from edge.wire.messages import Decline

Flow = tuple[float, float, float, float, float | None]
"""Start s, bits, cap bit/s, weight, cancelled at s."""


def _filled(caps: dict[int, float], weights: dict[int, float], capacity: float) -> dict[int, float]:
    """Weighted max-min fair rates by progressive filling, the slow and obvious way."""
    rates: dict[int, float] = {}
    active, left = set(caps), capacity
    while active:
        level = left / sum(weights[i] for i in active)
        full = {i for i in active if caps[i] <= weights[i] * level}
        if not full:
            rates.update({i: weights[i] * level for i in active})
            break
        rates.update({i: caps[i] for i in full})
        left = max(0.0, left - sum(caps[i] for i in full))
        active -= full
    return rates


def _simulated(flows: list[Flow], capacity: float) -> tuple[dict[int, float], dict[int, float]]:
    """Finish times, and bits left of the cancelled, by recomputing every rate at every event."""
    left: dict[int, float] = {}
    finishes: dict[int, float] = {}
    cancelled: dict[int, float] = {}
    outside = [(flow[0], 1, i) for i, flow in enumerate(flows)]
    outside += [(flow[4], 0, i) for i, flow in enumerate(flows) if flow[4] is not None]
    outside.sort()
    now = outside[0][0]
    while outside or left:
        caps = {i: flows[i][2] for i in left}
        rates = _filled(caps, {i: flows[i][3] for i in left}, capacity)
        ends = {i: now + left[i] / rates[i] for i in left}
        end = min(ends.values(), default=math.inf)
        event = outside[0][0] if outside else math.inf
        until = min(end, event)
        left = {i: max(0.0, bits - rates[i] * (until - now)) for i, bits in left.items()}
        now = until
        if end <= event:
            for i in [i for i, at in ends.items() if at == end]:
                finishes[i] = now
                del left[i]
            continue
        _, starts, i = heapq.heappop(outside)
        if starts:
            left[i] = flows[i][1]
        elif i in left:
            cancelled[i] = left.pop(i)
    return finishes, cancelled


def _run(flows: list[Flow], capacity: float) -> tuple[dict[int, float], dict[int, float]]:
    link: SharedLink[int] = SharedLink(capacity)
    outside = [(flow[0], 1, i) for i, flow in enumerate(flows)]
    outside += [(flow[4], 0, i) for i, flow in enumerate(flows) if flow[4] is not None]
    finishes: dict[int, float] = {}
    cancelled: dict[int, float] = {}

    def complete_until(time: float) -> None:
        while (at := link.next_completion_s()) <= time and at < math.inf:
            keys = link.pop_completed(at)
            assert keys, "a completion that was announced is there when its time comes"
            for key in keys:
                finishes[key] = at

    for time, starts, i in sorted(outside):
        complete_until(time)
        if starts:
            link.start(i, flows[i][1], flows[i][2], flows[i][3], time)
        elif i not in finishes:
            cancelled[i] = link.cancel(i, time)
    complete_until(math.inf)
    assert len(link) == 0
    return finishes, cancelled


@st.composite
def _flows(draw: st.DrawFn) -> list[Flow]:
    flows: list[Flow] = []
    for _ in range(draw(st.integers(1, 14))):
        start = draw(st.floats(0, 20))
        cancel_after = draw(st.none() | st.floats(1e-3, 10))
        flows.append(
            (
                start,
                draw(st.sampled_from([0.0, 1.0, 1e6]) | st.floats(0, 1e7)),
                draw(st.sampled_from([1e6, 2e6]) | st.floats(1e4, 1e7)),
                draw(st.sampled_from([1.0, 10.0]) | st.floats(0.5, 200)),
                None if cancel_after is None else start + cancel_after,
            )
        )
    return flows


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(flows=_flows(), capacity=st.sampled_from([2e6, 1e7]) | st.floats(1e5, 1e8))
def test_it_agrees_with_progressive_filling(flows: list[Flow], capacity: float) -> None:
    finishes, cancelled = _run(flows, capacity)
    expected_finishes, expected_cancelled = _simulated(flows, capacity)
    settled = {i for i, flow in enumerate(flows) if flow[4] is None}
    assert settled <= finishes.keys()
    for i in finishes.keys() & expected_finishes.keys():
        assert finishes[i] == pytest.approx(expected_finishes[i], rel=1e-9, abs=1e-6)
    for i in cancelled.keys() & expected_cancelled.keys():
        assert cancelled[i] == pytest.approx(expected_cancelled[i], rel=1e-9, abs=flows[i][2] * 1e-6)
    # Where one says finished and the other cancelled, both happened at the same time but for a rounding.
    for i in finishes.keys() & expected_cancelled.keys():
        assert expected_cancelled[i] <= flows[i][2] * 1e-6
    for i in cancelled.keys() & expected_finishes.keys():
        assert cancelled[i] <= flows[i][2] * 1e-6


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(flows=_flows(), capacity=st.floats(1e5, 1e8))
def test_rates_are_feasible_and_leave_nothing_unused(flows: list[Flow], capacity: float) -> None:
    link: SharedLink[int] = SharedLink(capacity)
    for i, (_, _, cap, weight, _) in enumerate(flows):
        link.start(i, 1e12, cap, weight, 0.0)
        rates = [link.rate_bps(j) for j in range(i + 1)]
        caps = [flow[2] for flow in flows[: i + 1]]
        assert all(rate <= c for rate, c in zip(rates, caps, strict=True))
        assert sum(rates) == pytest.approx(min(sum(caps), capacity), rel=1e-9)
        # Max-min: whoever is below its cap has the highest rate per weight of all.
        levels = [rate / flow[3] for rate, flow in zip(rates, flows, strict=False)]
        for rate, c, level in zip(rates, caps, levels, strict=True):
            assert rate == c or level == pytest.approx(max(levels), rel=1e-9)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(flows=_flows(), capacity=st.sampled_from([math.inf, 14 * 1e7]))
def test_without_congestion_everyone_finishes_at_exactly_its_own_pace(
    flows: list[Flow], capacity: float
) -> None:
    finishes, _ = _run([(*flow[:4], None) for flow in flows], capacity)
    assert finishes == {i: start + bits / cap for i, (start, bits, cap, _, _) in enumerate(flows)}


def test_a_thousand_flows_that_come_and_go_under_congestion() -> None:
    chance = random.Random(4)
    flows: list[Flow] = []
    for _ in range(1_000):
        start = chance.uniform(0, 100)
        flows.append(
            (
                start,
                chance.expovariate(1e-6),
                10 ** chance.uniform(5, 7),
                1 / chance.uniform(0.005, 0.8),
                None,
            )
        )
    finishes, _ = _run(flows, 8e6)
    expected, _ = _simulated(flows, 8e6)
    assert finishes.keys() == expected.keys()
    for i, finish in finishes.items():
        assert finish == pytest.approx(expected[i], rel=1e-8)


def test_the_work_done_is_the_capacity_after_many_events() -> None:
    # The link is never idle nor below its capacity, so the last finish is known whatever the shares were.
    chance = random.Random(6)
    link: SharedLink[int] = SharedLink(1e6)
    total, now, done = 0.0, 0.0, 0
    for i in range(20_000):
        bits = chance.uniform(1e3, 1e5)
        total += bits
        link.start(i, bits, 2e6, chance.uniform(1, 100), now)
        if i >= 50:
            now = link.next_completion_s()
            done += len(link.pop_completed(now))
    while len(link):
        now = link.next_completion_s()
        done += len(link.pop_completed(now))
    assert done == 20_000
    assert now == pytest.approx(total / 1e6, rel=1e-9)


class _Key:
    pass


@pytest.mark.parametrize("capacity_bps", [math.inf, 1e9, 3e6])
def test_flows_that_ended_are_forgotten(capacity_bps: float) -> None:
    link: SharedLink[_Key] = SharedLink(capacity_bps)
    remembered: weakref.WeakSet[_Key] = weakref.WeakSet()
    for i in range(3_000):
        key = _Key()
        remembered.add(key)
        link.start(key, 1e6, 1e6, 1.0 + i % 7, i * 0.4)
        link.pop_completed(i * 0.4)
    del key
    assert len(link) <= 10
    # Each of the few places that note a flow sweeps when two thirds and some more of its notes are stale.
    assert len(remembered) <= 5 * (2 * len(link) + 65)


def test_completions_come_in_order_and_ties_in_order_of_start() -> None:
    link: SharedLink[str] = SharedLink(math.inf)
    link.start("late", 3e6, 1e6, 1.0, 0.0)
    link.start("first of two", 2e6, 1e6, 1.0, 0.0)
    link.start("second of two", 4e6, 2e6, 1.0, 0.0)
    link.start("early", 1e6, 1e6, 1.0, 0.0)
    assert link.next_completion_s() == 1.0
    assert link.pop_completed(10.0) == ["early", "first of two", "second of two", "late"]
    assert link.pop_completed(10.0) == []
    assert link.next_completion_s() == math.inf


def test_equal_flows_that_share_complete_together_in_order_of_start() -> None:
    link: SharedLink[int] = SharedLink(1e6)
    for i in range(7):
        link.start(i, 1e6, 1e6, 1.0, 0.0)
    at = link.next_completion_s()
    assert at == pytest.approx(7.0)
    assert link.pop_completed(at) == list(range(7))


def test_a_departure_speeds_up_those_who_stay() -> None:
    link: SharedLink[str] = SharedLink(10e6)
    link.start("near", 10e6, 50e6, 3.0, 0.0)
    link.start("far", 10e6, 50e6, 1.0, 0.0)
    assert link.rate_bps("near") == pytest.approx(7.5e6)
    assert link.cancel("near", 1.0) == pytest.approx(2.5e6)
    assert link.rate_bps("far") == pytest.approx(10e6)
    assert link.next_completion_s() == pytest.approx(1.75)


def test_a_completion_that_nobody_collected_yet_is_kept_and_can_be_cancelled() -> None:
    link: SharedLink[str] = SharedLink(10e6)
    link.start("a", 1e6, 1e6, 1.0, 0.0)
    link.start("b", 1e6, 1e6, 1.0, 0.0)
    link.start("c", 1e6, 1e6, 1.0, 2.0)
    assert link.next_completion_s() == 1.0
    assert len(link) == 1
    assert link.cancel("a", 2.0) == 0.0
    assert link.pop_completed(2.0) == ["b"]


def test_a_flow_of_nothing_completes_at_once() -> None:
    link: SharedLink[str] = SharedLink(1e6)
    link.start("big", 1e7, 2e6, 1.0, 0.0)
    link.start("nothing", 0.0, 2e6, 1.0, 3.0)
    assert link.next_completion_s() == 3.0
    assert link.pop_completed(3.0) == ["nothing"]
    assert link.next_completion_s() == pytest.approx(10.0)


def test_a_key_is_free_again_after_its_flow() -> None:
    link: SharedLink[str] = SharedLink(1e6)
    link.start("a", 1e6, 1e6, 1.0, 0.0)
    with pytest.raises(ValueError, match="already on the link"):
        link.start("a", 1e6, 1e6, 1.0, 0.5)
    link.start("a", 1e6, 1e6, 1.0, 1.0)
    assert link.pop_completed(1.0) == ["a"]
    assert link.next_completion_s() == 2.0


def test_misuse_is_refused() -> None:
    link: SharedLink[str] = SharedLink(1e6)
    link.start("a", 1e6, 1e6, 1.0, 5.0)
    with pytest.raises(ValueError, match="never goes back"):
        link.start("b", 1e6, 1e6, 1.0, 4.0)
    with pytest.raises(ValueError, match="never started"):
        link.cancel("b", 5.0)
    with pytest.raises(ValueError, match="no flow 'b'"):
        link.rate_bps("b")
    for bits, cap, weight in [
        (-1.0, 1e6, 1.0),
        (math.inf, 1e6, 1.0),
        (1.0, 0.0, 1.0),
        (1.0, math.inf, 1.0),
        (1.0, 1e6, 0.0),
        (1.0, 1e6, math.nan),
        (1.0, 1e-9, 1.0),
        (1.0, 1e6, 1e-15),
    ]:
        with pytest.raises(ValueError, match="wire_bits must be finite"):
            link.start("b", bits, cap, weight, 5.0)
    assert len(link) == 1
    for capacity in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="capacity is positive"):
            SharedLink[str](capacity)


def _makespan(
    capacity_mbps: float, devices: list[tuple[float, float, float]], payload: int, direction: str
) -> float:
    """Finish of the last of cold transfers that begin together: handshake, shared data, answer."""
    flows: list[Flow] = []
    for up_mbps, down_mbps, rtt_ms in devices:
        rate, rtt = (up_mbps if direction == "u" else down_mbps) * 1e6, rtt_ms * 1e-3
        bits = wire_bits(payload)
        cap = bits / data_time(payload, rate, rtt)[0]
        flows.append((small_round_trip(rate, rtt), bits, cap, 1 / rtt, None))
    finishes, _ = _run(flows, capacity_mbps * 1e6)
    # The first small round trip has connected, a second carries the request or the answer.
    return max(finish + flows[i][0] for i, finish in finishes.items())


# Shared link Mbit/s, devices (up, down Mbit/s, round trip ms), payload, direction, last finish s measured
# with cubic.
MEASURED_LAST = [
    (10, [(50, 50, 40)] * 4, 1_000_000, "u", 3.413898),
    (10, [(1, 1, 40), (2, 2, 40), (50, 50, 40), (50, 50, 40)], 1_000_000, "d", 8.413847),
    (10, [(50, 50, 20), (50, 50, 60), (50, 50, 120), (50, 50, 240)], 2_000_000, "u", 7.70807),
    (20, [(5, 5, 50)] * 16, 500_000, "u", 3.405587),
]


@pytest.mark.parametrize(("capacity_mbps", "devices", "payload", "direction", "last_s"), MEASURED_LAST)
def test_the_last_of_several_transfers_finishes_as_measured(
    capacity_mbps: float,
    devices: list[tuple[float, float, float]],
    payload: int,
    direction: str,
    last_s: float,
) -> None:
    assert _makespan(capacity_mbps, devices, payload, direction) == pytest.approx(last_s, rel=0.12)


def test_all_measured_shared_links(measured_folder: Path) -> None:
    runs = [ast.literal_eval(line) for line in (measured_folder / "multi.txt").read_text().splitlines()]
    assert len(runs) == 8
    for _, capacity_mbps, devices, payload, direction, finishes in runs:
        assert _makespan(capacity_mbps, devices, payload, direction) == pytest.approx(max(finishes), rel=0.12)


def test_a_frame_takes_its_headers_and_what_is_sent_again_from_a_shared_link() -> None:
    link: Any = None
    delivery = Delivery(link, Direction.UP, Decline("run", 1, 2, 3), 5000, 4000)
    assert delivery.wire_bits == 8 * (5000 + 4 * 52)
    delivery.retransmitted_bytes = 3000
    assert delivery.wire_bits == 8 * (5000 + 4 * 52 + 3000)
