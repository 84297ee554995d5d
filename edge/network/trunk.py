"""The coordinator's own link in one direction, with its timers.

As long as it has room for every flow at its own pace, a flow needs no sharing: it ends when it would end
alone, and all that is kept is the sum of the paces. When a flow comes that no longer fits, all that are under
way move to a :class:`~edge.network.bottleneck.SharedLink` with what they have left, and the link is shared
until it is empty again. Either way every flow gets its weighted max-min fair share.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from edge.clock.virtual import VirtualClockLoop
from edge.network.bottleneck import SharedLink


class Flow(Protocol):
    """A transfer that occupies the link from its first to its last byte.

    ``first_byte_s`` and ``last_byte_s`` are when they leave if nobody is in the way, ``wire_bits`` what
    leaves, ``weight`` its share when the link is full. ``live`` is False once it was broken off. ``sharing``
    belongs to the link: whether its end depends on others.
    """

    first_byte_s: float
    last_byte_s: float
    live: bool
    sharing: bool

    def __hash__(self) -> int:
        """Return the hash of the flow's identity."""

    @property
    def wire_bits(self) -> float:
        """Bits that leave, headers and retransmissions included."""

    @property
    def weight(self) -> float:
        """Share of a full link relative to other flows."""


FlowT = TypeVar("FlowT", bound=Flow)


class Trunk(Generic[FlowT]):
    """One direction of the coordinator's link.

    Parameters
    ----------
    loop : the virtual clock.
    capacity_bps : bits/s; ``math.inf`` never limits anyone.
    finish : told of every flow whose last byte has left, or of which it is known when it will: the flow's
        ``last_byte_s`` says when. It may be told of a flow again, with a later time, if the link fills up.
    """

    __slots__ = ("_alone", "_armed_s", "_capacity", "_demand", "_finish", "_loop", "_order", "_shared")

    def __init__(self, loop: VirtualClockLoop, capacity_bps: float, finish: Callable[[FlowT], None]) -> None:
        self._loop = loop
        self._capacity = capacity_bps
        self._finish = finish
        self._armed_s = math.inf
        self._order = 0
        self._demand = 0
        """Sum of the paces of the flows that are alone, whole bits/s."""
        self._alone: list[tuple[float, int, int, FlowT]] = []
        """Heap of (last byte, order, pace, flow) while the link has room for all."""
        self._shared: SharedLink[FlowT] = SharedLink(capacity_bps)

    def start(self, flow: FlowT) -> None:
        """Let a flow occupy the link from now on."""
        if self._capacity == math.inf:
            self._finish(flow)
            return
        if not len(self._shared):
            pace_bps = math.ceil(flow.wire_bits / (flow.last_byte_s - flow.first_byte_s))
            if self._room_for(pace_bps):
                self._order += 1
                self._demand += pace_bps
                heapq.heappush(self._alone, (flow.last_byte_s, self._order, pace_bps, flow))
                self._finish(flow)
                return
            self._crowd()
        self._share(flow, flow.wire_bits)
        self._arm()

    def cancel(self, flow: FlowT) -> None:
        """Take a flow off that was broken off (its ``live`` is False)."""
        if flow.sharing:
            flow.sharing = False
            self._shared.cancel(flow, self._loop.now_s)
            self._arm()

    def _room_for(self, pace_bps: int) -> bool:
        alone, now_s = self._alone, self._loop.now_s
        while alone and alone[0][0] <= now_s:
            self._demand -= heapq.heappop(alone)[2]
        if self._demand + pace_bps <= self._capacity:
            return True
        # Before sharing begins, forget those that were broken off meanwhile.
        self._alone = alone = [entry for entry in alone if entry[3].live]
        heapq.heapify(alone)
        self._demand = sum(entry[2] for entry in alone)
        return self._demand + pace_bps <= self._capacity

    def _crowd(self) -> None:
        """Move the flows under way to the shared link, each with what it has left."""
        now_s = self._loop.now_s
        for last_byte_s, _, _, flow in sorted(self._alone, key=lambda entry: entry[1]):
            span_s = flow.last_byte_s - flow.first_byte_s
            self._share(flow, flow.wire_bits * (last_byte_s - now_s) / span_s)
        self._alone.clear()
        self._demand = 0

    def _share(self, flow: FlowT, bits: float) -> None:
        flow.sharing = True
        pace_bps = flow.wire_bits / (flow.last_byte_s - flow.first_byte_s)
        self._shared.start(flow, bits, pace_bps, flow.weight, self._loop.now_s)

    def _arm(self) -> None:
        next_s = self._shared.next_completion_s()
        if next_s < self._armed_s:
            self._armed_s = next_s
            self._loop.push_timer(next_s, self)

    def fire(self, when: float) -> None:
        """Let flows end whose last byte has left; called by the loop."""
        if when < self._armed_s:
            return  # an earlier timer has done the work
        self._armed_s = math.inf
        self._loop.now_s = when
        for flow in self._shared.pop_completed(when):
            flow.sharing = False
            flow.last_byte_s = when
            self._finish(flow)
        self._arm()
