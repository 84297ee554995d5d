"""The coordinator's link: flows that are known beforehand take the times that they take one by one."""

from __future__ import annotations

import heapq
import math
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.network import known_flows
from edge.network.known_flows import FlowColumns, KnownFlows, Load
from edge.network.trunk import Trunk

Floats = npt.NDArray[np.float64]
Flow = tuple[float, float, float, float, float]
"""First byte, duration, bits, weight, and seconds after the first byte at which it is broken off."""


class Timers:
    """As much of the virtual clock as a trunk uses. At equal times, timers are ahead of starts."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, int, Any]] = []
        self._set = 0

    def push_timer(self, when: float, entry: Any, rank: int = 0) -> None:
        self._set += 1
        if when < math.inf:
            heapq.heappush(self._heap, (when, rank, self._set, entry))

    def run_until(self, until_s: float) -> None:
        """Fire what is due before ``until_s``."""
        while self._heap and self._heap[0][0] < until_s:
            when, _, _, entry = heapq.heappop(self._heap)
            entry.fire(when)


class Sent:
    """A flow that notes when its last byte has left."""

    live = True
    sharing = False

    def __init__(
        self, first_byte_s: float, last_byte_s: float, wire_bits: float, weight: float, cut_s: float
    ) -> None:
        self.first_byte_s, self.last_byte_s = first_byte_s, last_byte_s
        self.wire_bits, self.weight, self.cut_s = wire_bits, weight, cut_s
        self.left_s = math.inf
        self.trunk: Trunk[Any] | None = None

    def left(self) -> None:
        self.left_s = self.last_byte_s

    def fire(self, when: float) -> None:
        """Start, and later be broken off."""
        assert self.trunk is not None
        clock: Any = self.trunk._loop
        clock.now_s = when
        if self.first_byte_s == when:
            self.trunk.start(self)
            clock.push_timer(self.cut_s, self, 2)
        elif self.live and (self.sharing or self.left_s > when):
            self.live = False
            if self.sharing:
                self.left_s = math.inf
            self.trunk.cancel(self)


class Link:
    """A trunk and its flows, one by one."""

    def __init__(self, capacity_bps: float) -> None:
        self.timers: Any = Timers()
        self.trunk: Trunk[Sent] = Trunk(self.timers, capacity_bps)

    def start(self, flows: list[Sent]) -> None:
        for flow in flows:
            flow.trunk = self.trunk
            self.timers.push_timer(flow.first_byte_s, flow, 1)


def columns_of(flows: list[Flow]) -> FlowColumns:
    first_s, lasting_s, bits, weight, broken_s = (
        np.array(column) for column in zip(*sorted(flows), strict=True)
    )
    return FlowColumns(first_s, first_s + lasting_s, bits, weight, first_s + broken_s)


def sent(flows: FlowColumns) -> list[Sent]:
    rows = zip(
        *(
            c.tolist()
            for c in (flows.first_byte_s, flows.last_byte_s, flows.wire_bits, flows.weight, flows.cut_s)
        ),
        strict=True,
    )
    return [Sent(*row) for row in rows]


def one_by_one(capacity_bps: float, columns: FlowColumns) -> list[float]:
    link, flows = Link(capacity_bps), sent(columns)
    link.start(flows)
    link.timers.run_until(math.inf)
    return [flow.left_s for flow in flows]


def known(capacity_bps: float, columns: FlowColumns) -> KnownFlows:
    flows = KnownFlows(capacity_bps)
    flows.expect(columns)
    return flows


def part_of(columns: FlowColumns, at: Any) -> FlowColumns:
    return FlowColumns(*(getattr(columns, name)[at] for name in FlowColumns.__slots__))


def many(seed: int) -> list[Flow]:
    """Return a hundred flows that start together, more or less."""
    generator = np.random.default_rng(seed)
    columns = (
        generator.uniform(0.0, 0.1, 100),
        generator.uniform(0.01, 0.1, 100),
        generator.choice([2e5, 3e5], 100),
        generator.choice([2.0, 50.0], 100),
        np.where(generator.uniform(size=100) < 0.2, generator.uniform(0.0, 3.0, 100), math.inf),
    )
    return [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


# Round numbers, so that flows start and end at the same times.
ROUND = st.tuples(
    st.integers(0, 40).map(lambda quarters: quarters / 4),
    st.integers(1, 20).map(lambda quarters: quarters / 4),
    st.sampled_from([1e6, 2e6, 1e7]),
    st.sampled_from([1.0, 2.0, 10.0]),
    st.just(math.inf),
)
ANY = st.tuples(
    st.floats(0.0, 30.0),
    st.floats(1e-3, 10.0),
    st.floats(1.0, 1e8),
    st.floats(1e-3, 1e3),
    st.one_of(st.just(math.inf), st.floats(1e-3, 20.0)),
)
FLOWS = st.one_of(
    st.lists(ROUND, min_size=1),
    st.lists(ANY, min_size=1),
    st.integers(0, 2**32 - 1).map(many),
)
WINDOW = st.sampled_from([2, 1024])
CAPACITY = st.sampled_from([1e3, 1e6, 3e6, 1e7, 1e8])


BROKEN_OFF_AS_THE_LINK_FILLS = [(0.5, 1.0, 1000.0, 1.0, math.inf), (0.0, 1.0, 1.0, 1.0, 0.5)]


@settings(max_examples=300)
@example(flows=BROKEN_OFF_AS_THE_LINK_FILLS, capacity_bps=1e3, window=1024)
@given(flows=FLOWS, capacity_bps=CAPACITY, window=WINDOW)
def test_flows_known_beforehand_take_the_times_of_the_trunk(
    flows: list[Flow], capacity_bps: float, window: int
) -> None:
    columns = columns_of(flows)
    ahead = known(capacity_bps, columns)
    with patch.object(known_flows, "_WINDOW", window):
        ahead.run()
    assert ahead.left_s.tolist() == one_by_one(capacity_bps, columns)


@settings(max_examples=200)
@given(
    flows=FLOWS,
    capacity_bps=CAPACITY,
    stops_s=st.lists(st.one_of(st.floats(0.0, 1.0), st.floats(0.0, 40.0)), max_size=4),
)
def test_the_link_may_be_stopped_and_flows_learnt_of_later(
    flows: list[Flow], capacity_bps: float, stops_s: list[float]
) -> None:
    columns = columns_of(flows)
    link = known(capacity_bps, columns)
    numbers = np.arange(len(columns))
    left_s = np.full(len(columns), math.nan)
    for stop_s in sorted(stops_s):
        ahead = link.ahead()
        assert ahead.left_s.tolist() == np.array(one_by_one(capacity_bps, columns))[numbers].tolist()
        link.run(stop_s)
        left_s[numbers] = link.left_s
        coming = np.flatnonzero(columns.first_byte_s >= stop_s)
        numbers = np.concatenate((numbers[link.forget_past(stop_s)], coming))
        # Flows that were to come are forgotten, and are expected anew.
        link.expect(part_of(columns, coming))
        link = link.copy()
    link.run()
    left_s[numbers] = link.left_s
    assert left_s.tolist() == one_by_one(capacity_bps, columns)


@settings(max_examples=200)
@given(flows=FLOWS, capacity_bps=CAPACITY, stop_s=st.one_of(st.floats(0.0, 1.0), st.floats(0.0, 40.0)))
def test_a_trunk_goes_on_where_known_flows_are(flows: list[Flow], capacity_bps: float, stop_s: float) -> None:
    columns = columns_of(flows)
    ahead = known(capacity_bps, columns)
    ahead.run(stop_s)
    left_s = ahead.left_s
    kept = ahead.forget_past(stop_s)
    link, flows_sent = Link(capacity_bps), sent(columns)
    link.timers.now_s = stop_s
    alone = set(ahead.alone)
    under_way = {number: flows_sent[at] for number, at in enumerate(kept)}
    for number, flow in under_way.items():
        flow.trunk, flow.sharing = link.trunk, number not in alone
        flow.left_s = math.inf if flow.sharing else flow.last_byte_s
        link.timers.push_timer(flow.cut_s, flow, 2)
    link.trunk.take_over(ahead, under_way)
    link.start([flow for flow in flows_sent if flow.first_byte_s >= stop_s])
    link.timers.run_until(math.inf)
    begun = np.flatnonzero(columns.first_byte_s < stop_s)
    over = np.setdiff1d(begun, kept)
    assert left_s[over].tolist() == np.array(one_by_one(capacity_bps, columns))[over].tolist()
    later = np.setdiff1d(np.arange(len(columns)), over)
    assert [flows_sent[at].left_s for at in later] == np.array(one_by_one(capacity_bps, columns))[
        later
    ].tolist()


@pytest.mark.parametrize(("capacity_bps", "held_back"), [(1e9, 0.0), (7e8, 0.05), (5e8, 0.5), (2e8, 0.95)])
def test_a_cohort_with_crowded_and_free_stretches(capacity_bps: float, held_back: float) -> None:
    generator = np.random.default_rng(2)
    n = 2_000
    first_s = np.sort(generator.uniform(0.0, 2.0, n) + 20.0 * generator.integers(0, 3, n))
    rate_bps, bits = generator.uniform(1e6, 5e7, n), generator.uniform(1e5, 3e6, n)
    broken_s = np.where(generator.uniform(size=n) < 0.1, first_s + generator.uniform(0.0, 1.0, n), math.inf)
    columns = FlowColumns(
        first_s, first_s + bits / rate_bps, bits, 1.0 / generator.uniform(0.01, 0.2, n), broken_s
    )
    ahead = known(capacity_bps, columns)
    ahead.run()
    assert ahead.left_s.tolist() == one_by_one(capacity_bps, columns)
    whole = np.isinf(broken_s)
    assert np.mean(ahead.left_s[whole] > columns.last_byte_s[whole]) >= held_back


@pytest.mark.parametrize(
    ("first_s", "last_s", "bits", "weight", "said"),
    [
        ([1.0, 0.0], [2.0, 2.0], [1.0, 1.0], [1.0, 1.0], "sort them"),
        ([1.0], [1.0], [1.0], [1.0], "takes time"),
        ([1.0], [2.0], [0.0], [1.0], "paces"),
        ([1.0], [2.0], [math.inf], [1.0], "paces"),
        ([1.0], [2.0], [1.0], [0.0], "weights"),
        ([1.0], [2.0], [1.0], [math.nan], "weights"),
    ],
)
def test_senseless_flows_are_refused(
    first_s: list[float], last_s: list[float], bits: list[float], weight: list[float], said: str
) -> None:
    columns = FlowColumns(*(np.array(c) for c in (first_s, last_s, bits, weight, [math.inf] * len(bits))))
    with pytest.raises(ValueError, match=said):
        KnownFlows(1e6).expect(columns)


@given(flows=st.one_of(st.lists(ROUND, min_size=1, max_size=20), st.lists(ANY, min_size=1, max_size=20)))
def test_peak_load_is_what_flows_ask_for_at_the_busiest_start(flows: list[Flow]) -> None:
    columns = columns_of(flows)
    first_s, last_s = columns.first_byte_s, columns.last_byte_s
    paces = columns.wire_bits / (last_s - first_s)
    loads = [
        sum(math.ceil(pace) for pace, a, b in zip(paces, first_s, last_s, strict=True) if a <= t_s < b)
        for t_s in first_s
    ]
    load = columns.take(np.random.default_rng(0).permutation(len(flows))).load()
    assert load.peak_bps() == max(loads)
    for start_s in first_s:
        left = [asked for asked, t_s in zip(loads, first_s, strict=True) if t_s >= start_s]
        assert load.peak_bps(start_s) == max(left)


def test_nothing_asks_for_nothing() -> None:
    none = np.empty(0)
    assert Load(none, none, none).peak_bps() == 0
