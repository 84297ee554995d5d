"""A link shared by many flows: weighted max-min fairness, each flow capped by its own device's link.

Flow i, of weight w and cap c, runs at ``min(c, w * level)``, where the *level* is such that the rates add up
to the capacity, or infinite if the caps do not reach it. That is the weighted max-min fair allocation
(Bertsekas & Gallager, "Data Networks", 2nd ed., section 6.5.2), filled progressively.

Nothing is recomputed per flow while the level moves. A flow at its cap has a fixed finish time. The others
run on a service clock V that advances at the level: one that joins at V with B bits left finishes at
``V + B/w``, however often the level changes (virtual time as in Demers, Keshav & Shenker 1989). Heaps hold
the finish times of both kinds and the levels ``c/w`` at which flows change kind. An event costs O(log n) for
itself and for each flow that it moves across the level.

Sums of caps and weights are kept as whole numbers of 2**-20 bit/s and 2**-40, so that they do not drift
however many flows come and go.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

CAP_UNIT, WEIGHT_UNIT = 2.0**20, 2.0**40
"""Caps and weights are summed as whole numbers of their inverses."""
LEVEL_UNIT = WEIGHT_UNIT / CAP_UNIT
_SWEEP_SLACK = 64


class _Flow(Generic[Key]):
    """A flow that has not finished."""

    __slots__ = ("at_cap", "cap", "cap_bps", "finish", "key", "order", "version", "weight")

    def __init__(self, key: Key, order: int, cap: int, cap_bps: float, weight: float) -> None:
        self.key = key
        self.order = order
        self.cap = cap
        """The cap in whole units."""
        self.cap_bps = cap_bps
        self.weight = weight
        self.at_cap = True
        self.finish = 0.0
        """Seconds if at its cap, else a reading of the service clock."""
        self.version = 0
        """Heap entries made under an older version are stale."""


_Entry = tuple[float, int, int, "_Flow[Key]"]


class _FlowHeap(Generic[Key]):
    """A heap of flows; stale entries are dropped when they surface or outnumber the others."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[_Entry[Key]] = []

    def push(self, value: float, flow: _Flow[Key], live: int) -> None:
        """Add a flow; ``live`` is how many entries are not stale, this one included."""
        entries = self._entries
        heapq.heappush(entries, (value, flow.order, flow.version, flow))
        if len(entries) > 2 * live + _SWEEP_SLACK:
            entries[:] = [entry for entry in entries if entry[3].version == entry[2]]
            heapq.heapify(entries)

    def top(self) -> _Entry[Key] | None:
        """Return the least entry that is not stale (ties: the flow that started first)."""
        entries = self._entries
        while entries:
            entry = entries[0]
            if entry[3].version == entry[2]:
                return entry
            heapq.heappop(entries)
        return None


class SharedLink(Generic[Key]):
    """A link of fixed capacity and the flows on it. Sans-I/O: time is passed in and never goes back.

    Parameters
    ----------
    capacity_bps : bits/s, > 0; ``math.inf`` for a link that never limits anyone.

    A flow that is never held back finishes at exactly ``start + wire_bits / cap_bps``.

    Raises
    ------
    ValueError : by any method, for a time before the last one, a key in use or unknown, a size that is
        negative or a rate or weight that is not positive and finite.
    """

    __slots__ = (
        "_cap_sum",
        "_capacity",
        "_capped_by_finish",
        "_capped_by_level",
        "_completed",
        "_due_flow",
        "_due_known",
        "_due_s",
        "_flows",
        "_level",
        "_now_s",
        "_order",
        "_service",
        "_shared",
        "_shared_by_finish",
        "_shared_by_level",
        "_unranked",
        "_weight_sum",
        "capacity_bps",
    )

    def __init__(self, capacity_bps: float) -> None:
        if not capacity_bps * CAP_UNIT >= 1.0:
            raise ValueError(f"a link's capacity is positive bits/s (2**-20 or more), not {capacity_bps!r}")
        self.capacity_bps = capacity_bps
        self._capacity: int | float = math.inf if capacity_bps == math.inf else int(capacity_bps * CAP_UNIT)
        self._flows: dict[Key, _Flow[Key]] = {}
        self._completed: deque[tuple[float, Key]] = deque()
        self._now_s = -math.inf
        self._order = 0
        self._level = math.inf
        self._service = 0.0
        self._shared = 0
        """How many flows run below their caps."""
        self._cap_sum = 0
        self._weight_sum = 0
        # Reckoned once after every change, not at every question: two answers must not differ by a rounding.
        self._due_known = True
        self._due_s = math.inf
        self._due_flow: _Flow[Key] | None = None
        self._unranked: list[tuple[int, _Flow[Key]]] = []
        """Flows at their caps that :attr:`_capped_by_level` will learn about once the link is full."""
        self._capped_by_finish: _FlowHeap[Key] = _FlowHeap()
        self._capped_by_level: _FlowHeap[Key] = _FlowHeap()
        self._shared_by_finish: _FlowHeap[Key] = _FlowHeap()
        self._shared_by_level: _FlowHeap[Key] = _FlowHeap()

    def __len__(self) -> int:
        """Return the number of flows that have not finished."""
        return len(self._flows)

    def start(self, key: Key, wire_bits: float, cap_bps: float, weight: float, now_s: float) -> None:
        """Begin a flow of ``wire_bits`` bits that its own link limits to ``cap_bps`` bits/s.

        ``weight`` is its share relative to others when the link is full, for TCP 1/RTT.
        """
        units = cap_bps * CAP_UNIT
        if not (
            0.0 <= wire_bits < math.inf and 1.0 <= units < math.inf and 1.0 <= weight * WEIGHT_UNIT < math.inf
        ):
            raise ValueError(
                f"flow {key!r}: wire_bits must be finite and >= 0, cap_bps finite and >= 2**-20, weight "
                f"finite and >= 2**-40; got {wire_bits!r}, {cap_bps!r}, {weight!r}"
            )
        cap = int(units)
        self._advance(now_s)
        flows = self._flows
        if key in flows:
            raise ValueError(f"flow {key!r} is already on the link; a key is free again when it completed")
        self._order += 1
        flow = _Flow(key, self._order, cap, cap_bps, weight)
        flows[key] = flow
        if not self._shared and self._cap_sum + cap <= self._capacity:
            # Nobody is held back, before or after: the level stays infinite.
            self._cap_sum += cap
            flow.finish = finish_s = now_s + wire_bits / cap_bps
            self._capped_by_finish.push(finish_s, flow, len(flows))
            self._rank_later(flow)
            if finish_s < self._due_s:
                self._due_s = finish_s
                self._due_flow = flow
            return
        self._due_known = False
        if cap_bps / weight <= self._level:
            self._cap(flow, now_s + wire_bits / cap_bps)
        else:
            self._share(flow, wire_bits)
        self._lower_level()

    def restore(
        self,
        now_s: float,
        level: float,
        service: float,
        flows: Iterable[tuple[Key, float, float, bool, float]],
        due: tuple[float, Key] | None,
    ) -> None:
        """Put flows under way on the empty link, in the order of their starts.

        Parameters
        ----------
        now_s : a time that is not before the last one.
        level, service : of the flows that run below their caps, and the reading of their service clock.
        flows : key, cap in bits/s, weight, whether it runs at its cap, and its finish: seconds if it does,
            else a reading of the service clock.
        due : when the next of them completes, as was reckoned after the last change, and which; None: none.
        """
        self._now_s, self._level, self._service = now_s, level, service
        for key, cap_bps, weight, at_cap, finish in flows:
            self._order += 1
            flow = self._flows[key] = _Flow(key, self._order, int(cap_bps * CAP_UNIT), cap_bps, weight)
            if at_cap:
                self._cap(flow, finish)
                continue
            flow.at_cap, flow.finish = False, finish
            self._enter_shared(flow)
        self._due_known = True
        self._due_s, self._due_flow = (math.inf, None) if due is None else (due[0], self._flows[due[1]])

    def cancel(self, key: Key, now_s: float) -> float:
        """Take a flow off the link; return the bits it had left.

        That is 0.0 for one that completed and was not collected; it will not be.
        """
        self._advance(now_s)
        flow = self._flows.pop(key, None)
        if flow is None:
            for entry in self._completed:
                if entry[1] == key:
                    self._completed.remove(entry)
                    return 0.0
            raise ValueError(f"no flow {key!r} on the link; it was collected, cancelled or never started")
        left_bits = self._bits_left(flow)
        self._remove(flow)
        self._due_known = False
        return left_bits

    def next_completion_s(self) -> float:
        """Return when the next flow completes if nothing else happens; ``inf`` if the link is empty."""
        if self._completed:
            return self._completed[0][0]
        if not self._due_known:
            self._find_due()
        return self._due_s

    def pop_completed(self, now_s: float) -> list[Key]:
        """Return the flows that completed by ``now_s``, in order; ties in the order of their starts."""
        self._advance(now_s)
        if not self._completed:
            return []
        keys = [key for _, key in self._completed]
        self._completed.clear()
        return keys

    def rate_bps(self, key: Key) -> float:
        """Return the present rate of a flow, in bits/s."""
        flow = self._flows.get(key)
        if flow is None:
            raise ValueError(f"no flow {key!r} on the link")
        return flow.cap_bps if flow.at_cap else flow.weight * self._level

    def _find_due(self) -> None:
        """Learn which flow completes next, and when."""
        self._due_known = True
        capped = self._capped_by_finish.top()
        if self._shared:
            shared = self._shared_by_finish.top()
            assert shared is not None
            shared_s = self._now_s + max(0.0, (shared[0] - self._service) / self._level)
            if capped is None or (shared_s, shared[1]) < (capped[0], capped[1]):
                self._due_s, self._due_flow = shared_s, shared[3]
                return
        if capped is None:
            self._due_s, self._due_flow = math.inf, None
        else:
            self._due_s, self._due_flow = capped[0], capped[3]

    def _advance(self, now_s: float) -> None:
        """Complete, one after the other, what finishes by ``now_s``."""
        if not self._now_s <= now_s < math.inf:
            raise ValueError(f"time is finite and never goes back: {now_s!r} after {self._now_s!r}")
        while True:
            if not self._due_known:
                self._find_due()
            flow = self._due_flow
            if flow is None or self._due_s > now_s:
                break
            at_s = self._due_s
            del self._flows[flow.key]
            self._due_known = False
            if self._shared:
                self._move_clock(at_s)
                if not flow.at_cap:
                    # Rounding must not leave the clock short of the reading that it has just reached.
                    self._service = max(self._service, flow.finish)
                self._remove(flow)
            else:
                self._now_s = at_s
                self._leave(flow)
            self._completed.append((at_s, flow.key))
        if self._shared:
            self._move_clock(now_s)
        else:
            self._now_s = now_s

    def _move_clock(self, to_s: float) -> None:
        """Let time and the service clock of the flows that share run."""
        if to_s != self._now_s:
            self._service += self._level * (to_s - self._now_s)
            self._now_s = to_s

    def _bits_left(self, flow: _Flow[Key]) -> float:
        if flow.at_cap:
            return max(0.0, (flow.finish - self._now_s) * flow.cap_bps)
        return max(0.0, (flow.finish - self._service) * flow.weight)

    def _cap(self, flow: _Flow[Key], finish_s: float) -> None:
        """Let a flow that no heap knows run at its cap."""
        flow.at_cap = True
        flow.finish = finish_s
        self._cap_sum += flow.cap
        capped = len(self._flows) - self._shared
        self._capped_by_finish.push(finish_s, flow, capped)
        self._rank_later(flow)

    def _rank_later(self, flow: _Flow[Key]) -> None:
        """Note a flow at its cap for :attr:`_capped_by_level`; most finish before the link is ever full."""
        unranked = self._unranked
        unranked.append((flow.version, flow))
        if len(unranked) > 2 * len(self._flows) + _SWEEP_SLACK:
            unranked[:] = [noted for noted in unranked if noted[1].version == noted[0]]

    def _share(self, flow: _Flow[Key], left_bits: float) -> None:
        """Let a flow that no heap knows run at the level."""
        if not self._shared:
            self._service = 0.0
        flow.at_cap = False
        flow.finish = self._service + left_bits / flow.weight
        self._enter_shared(flow)

    def _enter_shared(self, flow: _Flow[Key]) -> None:
        self._weight_sum += int(flow.weight * WEIGHT_UNIT)
        self._shared += 1
        self._shared_by_finish.push(flow.finish, flow, self._shared)
        self._shared_by_level.push(flow.cap_bps / flow.weight, flow, self._shared)

    def _leave(self, flow: _Flow[Key]) -> None:
        """Take a flow out of the sums and make its heap entries stale."""
        flow.version += 1
        if flow.at_cap:
            self._cap_sum -= flow.cap
        else:
            self._weight_sum -= int(flow.weight * WEIGHT_UNIT)
            self._shared -= 1

    def _remove(self, flow: _Flow[Key]) -> None:
        self._leave(flow)
        self._raise_level()

    def _set_level(self) -> None:
        if self._weight_sum:
            self._level = (self._capacity - self._cap_sum) / self._weight_sum * LEVEL_UNIT
        else:
            # Reached only while the caps ask for too much: every level is too high.
            self._level = -math.inf

    def _lower_level(self) -> None:
        """After an arrival: release the flows whose caps the falling level no longer reaches.

        Each step can only lower the level, so none is taken twice. As long as some cap lies above the level,
        the true level does too: at that cap the flows would ask for more than the capacity.
        """
        self._set_level()
        capped = len(self._flows) - self._shared
        for version, flow in self._unranked:
            if flow.version == version:
                self._capped_by_level.push(-flow.cap_bps / flow.weight, flow, capped)
        self._unranked.clear()
        while True:
            highest = self._capped_by_level.top()
            if highest is None or -highest[0] <= self._level:
                return
            flow = highest[3]
            left_bits = self._bits_left(flow)
            self._leave(flow)
            self._share(flow, left_bits)
            self._set_level()

    def _raise_level(self) -> None:
        """After a departure: put at their caps the flows that the rising level reaches."""
        while self._shared:
            self._set_level()
            lowest = self._shared_by_level.top()
            assert lowest is not None
            if lowest[0] > self._level:
                return
            flow = lowest[3]
            left_bits = self._bits_left(flow)
            self._leave(flow)
            self._cap(flow, self._now_s + left_bits / flow.cap_bps)
        # The last cap may exceed what was left by a rounding; nobody is held back by that.
        self._level = math.inf
