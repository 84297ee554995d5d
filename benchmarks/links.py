"""Ratios of the link models to the obvious ways of computing the same.

Run ``python benchmarks/links.py``. Comparisons, each of alternatives timed in turn in the same process,
best of several repeats:

* the time of one transfer: closed form, with a loss rate, and a loop over its packets;
* a shared link with n flows on it at a time: ``SharedLink`` and recomputing every rate at every event;
* the transfers of a cohort: one by one, and together as arrays, with the same results bit for bit.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits
from edge.core.vocabulary import Direction
from edge.network.bottleneck import SharedLink
from edge.network.conditions import LinkConditions
from edge.network.loss import LOSS, LossyResults, frame_draws, lossy_transfer, lossy_transfers
from edge.network.tcp import (
    INITIAL_WINDOW_SEGMENTS,
    SEGMENT_PAYLOAD_BYTES,
    ack_clock_period,
    data_time,
    goodput,
    segments,
)

Floats = npt.NDArray[np.float64]
PAYLOAD = 200_000
"""Bytes of each transfer of a cohort."""

Flow = tuple[float, float, float]
"""Bits, cap bit/s, weight."""


def packet_loop(payload_bytes: int, rate_bps: float, rtt_s: float) -> float:
    """Send packet by packet: a heap of acknowledgements, a window that grows with each."""
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
        begin = time.process_time()
        runs()
        best = min(best, time.process_time() - begin)
    return best


def compare_transfers() -> None:
    rate_bps, rtt_s, calls = 10e6, 0.06, 500
    uniform = random.Random(1).random
    print(
        f"one transfer at {rate_bps / 1e6:g} Mbit/s, round trip {rtt_s * 1e3:g} ms, microseconds to compute"
    )
    print("   payload  closed form  loss 0.1 %    loss 3 %  per packet     ratio  same time")
    for payload in (1_448, 28_960, 1_000_000, 10_000_000):
        closed_s = best_of(5, partial(repeat, calls, data_time, payload, rate_bps, rtt_s)) / calls
        few_s, many_s = (
            best_of(3, partial(repeat, calls, lossy_transfer, payload, rate_bps, rtt_s, loss, uniform))
            / calls
            for loss in (0.001, 0.03)
        )
        loop_s = best_of(3, partial(packet_loop, payload, rate_bps, rtt_s))
        same = data_time(payload, rate_bps, rtt_s)[0] / packet_loop(payload, rate_bps, rtt_s)
        print(
            f"{payload:>10} {closed_s * 1e6:>12.2f} {few_s * 1e6:>11.2f} {many_s * 1e6:>11.2f} "
            f"{loop_s * 1e6:>11.1f} {loop_s / closed_s:>8.0f}x {same:>10.3f}"
        )


def repeat(times: int, function: Callable[..., object], *arguments: object) -> None:
    for _ in range(times):
        function(*arguments)


def random_flow(chance: random.Random) -> Flow:
    cap_bps = 10 ** chance.uniform(6, 7)
    return cap_bps * chance.uniform(0.5, 1.5), cap_bps, 1 / chance.uniform(0.01, 0.3)


def shared_link(at_once: int, capacity_bps: float, completions: int) -> tuple[float, float]:
    """Keep ``at_once`` flows on the link; return the CPU time of the completions and when the last was."""
    chance = random.Random(at_once)
    link: SharedLink[int] = SharedLink(capacity_bps)
    for key in range(at_once):
        link.start(key, *random_flow(chance), 0.0)
    begin = time.process_time()
    now_s = 0.0
    for _ in range(completions):
        now_s = link.next_completion_s()
        for key in link.pop_completed(now_s):
            link.start(key, *random_flow(chance), now_s)
    return time.process_time() - begin, now_s


def recomputing(at_once: int, capacity_bps: float, completions: int) -> tuple[float, float]:
    """Do the same with every rate worked out anew at each completion."""
    chance = random.Random(at_once)
    flows = {key: random_flow(chance) for key in range(at_once)}
    left = {key: flow[0] for key, flow in flows.items()}
    begin = time.process_time()
    now_s = 0.0
    for _ in range(completions):
        rates: dict[int, float] = {}
        left_bps, weights = capacity_bps, sum(weight for _, _, weight in flows.values())
        for key, (_, cap_bps, weight) in sorted(flows.items(), key=lambda item: item[1][1] / item[1][2]):
            rates[key] = rate = min(cap_bps, weight * left_bps / weights)
            left_bps, weights = left_bps - rate, weights - weight
        first = min(left, key=lambda key: left[key] / rates[key])
        step_s = left[first] / rates[first]
        for key, rate in rates.items():
            left[key] -= rate * step_s
        now_s += step_s
        flows[first] = random_flow(chance)
        left[first] = flows[first][0]
    return time.process_time() - begin, now_s


def compare_sharing() -> None:
    print("\na shared link with n flows at a time, microseconds a flow (its end and the next one's start)")
    print("   flows  capacity  SharedLink  recomputing     ratio  same time")
    for at_once in (10, 100, 1_000, 10_000):
        for label, share in (("ample", 4.0), ("scarce", 0.5)):
            capacity_bps = share * at_once * 3.9e6
            some = max(20, 100_000 // at_once)
            ours_s = min(shared_link(at_once, capacity_bps, 20_000)[0] for _ in range(3)) / 20_000
            naive_s, naive_end_s = recomputing(at_once, capacity_bps, some)
            same = shared_link(at_once, capacity_bps, some)[1] / naive_end_s
            print(
                f"{at_once:>8} {label:>9} {ours_s * 1e6:>11.2f} {naive_s / some * 1e6:>12.1f} "
                f"{naive_s / some / ours_s:>8.1f}x {same:>10.6f}"
            )


def compare_cohorts() -> None:
    """Print a line for each kind of transfer and size of cohort; results that differ end the benchmark."""
    print(f"\nthe transfers of a cohort, {PAYLOAD / 1e3:g} kB each, microseconds a transfer")
    print("   cohort  transfers               one by one  together     ratio")
    for count in (100, 1_000, 10_000):
        generator = np.random.default_rng(count)
        slots = np.arange(count)
        payload = np.full(count, PAYLOAD)
        rate_bps, rtt_s = generator.uniform(3e6, 5e7, count), generator.uniform(0.02, 0.1, count)
        start_s = np.sort(generator.uniform(0.0, 2.0, count))
        for label, sigma, fraction in (
            ("steady", 0.0, 0.0),
            ("fading", 0.5, 0.0),
            ("fading, one in ten flaky", 0.5, 0.05),
        ):
            conditions = LinkConditions(
                1,
                slots,
                sigma_log=np.full(count, sigma),
                rho_1s=np.full(count, 0.9),
                outage_fraction=np.where(slots % 10 == 0, fraction, 0.0),
                outage_mean_s=np.full(count, 5.0),
            )
            columns = (payload.astype(np.float64), rate_bps, rtt_s, start_s)
            rows = list(zip(slots.tolist(), *(column.tolist() for column in columns), strict=True))
            _compare(
                count,
                label,
                partial(_alone_one_by_one, conditions, rows),
                partial(conditions.alone_times, slots, Direction.UP, *columns),
            )
        keys = hashed_bits(7, slots)
        for loss in (0.002, 0.02):
            lossy = partial(lossy_transfers, payload, rate_bps, rtt_s, np.full(count, loss), keys, 3)
            rows = list(zip(rate_bps.tolist(), rtt_s.tolist(), keys.tolist(), strict=True))
            _compare(
                count, f"loss {loss:.1%}", partial(_lossy_one_by_one, loss, rows), partial(_seconds_of, lossy)
            )


def _alone_one_by_one(conditions: LinkConditions, rows: list[Any]) -> list[float]:
    return [conditions.alone_time(row[0], Direction.UP, *row[1:])[0] for row in rows]


def _seconds_of(lossy: Callable[[], LossyResults]) -> Floats:
    return lossy().seconds


def _lossy_one_by_one(loss: float, rows: list[tuple[float, float, int]]) -> list[float]:
    return [
        lossy_transfer(PAYLOAD, bps, rtt, loss, frame_draws(key, 3, LOSS)).seconds for bps, rtt, key in rows
    ]


def _compare(
    count: int, label: str, one_by_one: Callable[[], list[float]], together: Callable[[], Floats]
) -> None:
    if one_by_one() != together().tolist():
        raise AssertionError(f"{label}, {count}: transfers together and one by one differ")
    repeats = max(3, 3_000 // count)
    scalar_s, array_s = best_of(3, one_by_one) / count, best_of(repeats, together) / count
    print(f"{count:>9}  {label:<24}{scalar_s * 1e6:>10.2f} {array_s * 1e6:>9.2f} {scalar_s / array_s:>8.1f}x")


if __name__ == "__main__":
    compare_transfers()
    compare_sharing()
    compare_cohorts()
