"""Ratios of the link models to the obvious ways of computing the same.

Run ``python benchmarks/links.py``. Two comparisons, each of alternatives timed in turn in the same process,
best of several repeats:

* the time of one transfer: closed form, with a loss rate, and a loop over its packets;
* a shared link with n flows on it at a time: ``SharedLink`` and recomputing every rate at every event.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable

from edge.transport.loss import lossy_transfer
from edge.transport.sharing import SharedLink
from edge.transport.tcp_model import (
    INITIAL_WINDOW_SEGMENTS,
    SEGMENT_PAYLOAD_BYTES,
    ack_clock_period,
    data_time,
    goodput,
    segments,
)

Flow = tuple[float, float, float, float]
"""Start s, bits, cap bit/s, weight."""


def packet_loop(payload_bytes: int, rate_bps: float, rtt_s: float) -> float:
    """The same transfer packet by packet: a heap of acknowledgements, a window that grows with each."""
    packet_s, echo_s = SEGMENT_PAYLOAD_BYTES / goodput(rate_bps), ack_clock_period(rate_bps, rtt_s)
    left, window, in_flight, free_s = segments(payload_bytes), INITIAL_WINDOW_SEGMENTS, 0, 0.0
    acknowledgements: list[float] = []
    now_s = 0.0
    while left:
        while left and in_flight < window:
            start_s = max(now_s, free_s)
            free_s = start_s + packet_s
            heapq.heappush(acknowledgements, start_s + echo_s)
            in_flight += 1
            left -= 1
        if left:
            now_s = heapq.heappop(acknowledgements)
            in_flight -= 1
            window += 1
    return free_s


def best_of(repeats: int, runs: Callable[[], object]) -> float:
    best = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        runs()
        best = min(best, time.perf_counter() - begin)
    return best


def compare_transfers() -> None:
    rate_bps, rtt_s = 10e6, 0.06
    uniform = random.Random(1).random
    print(f"one transfer at {rate_bps / 1e6:g} Mbit/s, round trip {rtt_s * 1e3:g} ms")
    print(
        f"{'payload':>10} {'closed form':>12} {'loss 0.1 %':>12} {'loss 3 %':>12} {'per packet':>12} {'ratio':>9} {'times agree':>12}"
    )
    for payload in (1_000, 30_000, 1_000_000, 10_000_000):
        many = range(2_000)
        closed_s = best_of(5, lambda p=payload: [data_time(p, rate_bps, rtt_s) for _ in many]) / 2_000
        lossy_s = [
            best_of(
                3,
                lambda p=payload, q=loss: [
                    lossy_transfer(p, rate_bps, rtt_s, q, uniform) for _ in range(200)
                ],
            )
            / 200
            for loss in (0.001, 0.03)
        ]
        loop_s = best_of(3, lambda p=payload: packet_loop(p, rate_bps, rtt_s))
        agree = data_time(payload, rate_bps, rtt_s)[0] / packet_loop(payload, rate_bps, rtt_s)
        print(
            f"{payload:>10} {closed_s * 1e6:>9.2f} us {lossy_s[0] * 1e6:>9.2f} us {lossy_s[1] * 1e6:>9.2f} us "
            f"{loop_s * 1e6:>9.1f} us {loop_s / closed_s:>8.0f}x {agree:>12.3f}"
        )


def workload(at_once: int, flows: int, seed: int) -> list[Flow]:
    """``flows`` flows of which about ``at_once`` are on the link together if nobody is held back."""
    chance = random.Random(seed)
    cases: list[Flow] = []
    for i in range(flows):
        cap_bps = 10 ** chance.uniform(6, 7)
        start_s = chance.random() if i < at_once else (i - at_once + chance.random()) / at_once
        cases.append((start_s, cap_bps * chance.uniform(0.5, 1.5), cap_bps, 1 / chance.uniform(0.01, 0.3)))
    return sorted(cases)


def shared_link(cases: list[Flow], capacity_bps: float) -> float:
    link: SharedLink[int] = SharedLink(capacity_bps)
    last_s = 0.0
    for key, (start_s, bits, cap_bps, weight) in enumerate(cases):
        while (at_s := link.next_completion_s()) <= start_s:
            link.pop_completed(at_s)
        link.start(key, bits, cap_bps, weight, start_s)
    while (at_s := link.next_completion_s()) < math.inf:
        link.pop_completed(at_s)
        last_s = at_s
    return last_s


def recomputing(cases: list[Flow], capacity_bps: float, events: int) -> tuple[int, float]:
    """Process up to ``events`` events, with every rate worked out anew at each; return how many, and the last."""
    flows: dict[int, list[float]] = {}
    now_s, done, following = 0.0, 0, 0
    while done < events and (following < len(cases) or flows):
        rates: dict[int, float] = {}
        left_bps, weights = capacity_bps, sum(flow[2] for flow in flows.values())
        for key, (_, cap_bps, weight) in sorted(flows.items(), key=lambda item: item[1][1] / item[1][2]):
            rate = min(cap_bps, weight * left_bps / weights)
            rates[key] = rate
            left_bps, weights = left_bps - rate, weights - weight
        end_s, first = min(
            ((now_s + flow[0] / rates[key], key) for key, flow in flows.items()), default=(math.inf, -1)
        )
        start_s = cases[following][0] if following < len(cases) else math.inf
        until_s = min(end_s, start_s)
        for key, flow in flows.items():
            flow[0] -= rates[key] * (until_s - now_s)
        now_s = until_s
        if end_s <= start_s:
            del flows[first]
        else:
            flows[following] = list(cases[following][1:])
            following += 1
        done += 1
    return done, now_s


def compare_sharing() -> None:
    print("\na shared link, microseconds an event (a flow that starts or ends)")
    print(f"{'flows':>8} {'capacity':>12} {'SharedLink':>12} {'recomputing':>12} {'ratio':>9}")
    for at_once in (10, 100, 1_000, 10_000):
        for label, share in (("ample", 4.0), ("scarce", 0.5)):
            cases = workload(at_once, max(2_000, 3 * at_once), seed=at_once)
            capacity_bps = share * at_once * 3.9e6
            ours_s = best_of(3, lambda c=cases, b=capacity_bps: shared_link(c, b)) / (2 * len(cases))
            # Past the starts of a full link, some events are enough to know the price of one.
            warm, _ = 2 * at_once, None
            some = min(2 * len(cases), warm + max(50, 200_000 // at_once))
            begin = time.perf_counter()
            count, _ = recomputing(cases, capacity_bps, some)
            naive_s = (time.perf_counter() - begin) / count
            print(
                f"{at_once:>8} {label:>12} {ours_s * 1e6:>9.2f} us {naive_s * 1e6:>9.1f} us {naive_s / ours_s:>8.1f}x"
            )


if __name__ == "__main__":
    compare_transfers()
    compare_sharing()
