"""The coordinator's own link in one direction, with its timers.

As long as it has room for every flow at its own pace, a flow needs no sharing: it ends when it would end
alone, and all that is kept is the sum of the paces. When a flow comes that no longer fits, all that are under
way move to a :class:`~edge.network.bottleneck.SharedLink` with what they have left, and the link is shared
until it is empty again. Either way every flow gets its weighted max-min fair share.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from edge.clock.virtual import VirtualClockLoop
from edge.network.bottleneck import SharedLink
from edge.network.known_flows import KnownFlows


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

    def left(self) -> None:
        """Respond when the last byte has left, or when it is known that it will, at ``last_byte_s``.

        Called again with a later time if the link fills up.
        """


class ForeseenFlows(Protocol):
    """Flows that are known in advance and not on the link, as long as nobody else can be in their way."""

    def load_bps(self) -> float:
        """Return a bound on the sum of their paces at any time from now on, bits/s; ``inf``: all there is."""

    def join(self) -> None:
        """Put them on the link, those under way with :meth:`Trunk.adopt` or :meth:`Trunk.take_over`."""


FlowT = TypeVar("FlowT", bound=Flow)


class Trunk(Generic[FlowT]):
    """One direction of the coordinator's link.

    Parameters
    ----------
    loop : the virtual clock.
    capacity_bps : bits/s; ``math.inf`` never limits anyone.
    """

    __slots__ = ("_alone", "_armed_s", "_demand", "_loop", "_order", "_shared", "capacity_bps", "foreseen")

    def __init__(self, loop: VirtualClockLoop, capacity_bps: float) -> None:
        self._loop = loop
        self.capacity_bps = capacity_bps
        self._armed_s = math.inf
        self._order = 0
        self._demand = 0
        """Sum of the paces of the flows that are alone, whole bits/s."""
        self._alone: list[tuple[float, int, int, FlowT]] = []
        """Heap of (last byte, order, pace, flow) while the link has room for all."""
        self._shared: SharedLink[FlowT] = SharedLink(capacity_bps)
        self.foreseen: ForeseenFlows | None = None
        """Flows that are not on the link yet; None: there are none."""

    def has_room_for(self, load_bps: float) -> bool:
        """Return whether flows whose paces sum to ``load_bps`` at most are not held up now."""
        return not len(self._shared) and self._room_for(load_bps)

    @property
    def in_use(self) -> bool:
        """Whether flows are on the link, foreseen ones apart."""
        self._room_for(0)
        return len(self._shared) > 0 or self._demand > 0

    def take_over(self, known: KnownFlows, flows: Mapping[int, FlowT]) -> None:
        """Go on, with the link empty so far, where ``known`` is; ``flows`` are those under way, by number."""
        for number in known.alone:
            self.adopt(flows[number])
        self._armed_s = known.restore(self._shared, flows)
        if self._armed_s < math.inf:
            self._loop.push_timer(self._armed_s, self)

    def adopt(self, flow: FlowT) -> None:
        """Take on a flow that is under way and was not held up so far."""
        self._push(flow, self._pace_of(flow))

    def start(self, flow: FlowT) -> None:
        """Let a flow occupy the link from now on."""
        if self.capacity_bps == math.inf:
            flow.left()
            return
        pace_bps = self._pace_of(flow)
        if self.foreseen is not None:
            load_bps = self.foreseen.load_bps()
            if load_bps and not self._room_for(pace_bps + load_bps):
                self.foreseen.join()
        if not len(self._shared):
            if self._room_for(pace_bps):
                self._push(flow, pace_bps)
                flow.left()
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

    def _pace_of(self, flow: FlowT) -> int:
        return math.ceil(flow.wire_bits / (flow.last_byte_s - flow.first_byte_s))

    def _push(self, flow: FlowT, pace_bps: int) -> None:
        self._order += 1
        self._demand += pace_bps
        heapq.heappush(self._alone, (flow.last_byte_s, self._order, pace_bps, flow))

    def _room_for(self, pace_bps: float) -> bool:
        alone, now_s = self._alone, self._loop.now_s
        while alone and alone[0][0] <= now_s:
            self._demand -= heapq.heappop(alone)[2]
        if self._demand + pace_bps <= self.capacity_bps:
            return True
        # Before sharing begins, forget those that were broken off meanwhile.
        self._alone = alone = [entry for entry in alone if entry[3].live]
        heapq.heapify(alone)
        self._demand = sum(entry[2] for entry in alone)
        return self._demand + pace_bps <= self.capacity_bps

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
            flow.left()
        self._arm()
