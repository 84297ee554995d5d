"""Flows on the coordinator's link that are known before they start, computed in one loop.

The link is that of :mod:`edge.network.trunk`: flows run at their own pace as long as there is room for all;
when one comes for which there is none, those under way move to a :class:`~edge.network.bottleneck.SharedLink`
with what they have left, and the link is shared until it is empty again. :class:`KnownFlows` does that with
the same operations in the same order, so to the same bits, without an object or a timer for each flow; while
all flows of a shared link run at their caps, with array operations.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edge.network.bottleneck import CAP_UNIT, LEVEL_UNIT, WEIGHT_UNIT, SharedLink

Key = TypeVar("Key", bound=Hashable)
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_COMING, _ALONE, _CAPPED, _SHARED, _OFF = range(5)
"""A flow has not started, is not held up, runs at its cap on the shared link, or at the level; it is over."""
_COLUMNS = (
    *("_first_s", "_last_s", "_bits", "_weight", "_cut_s"),
    *("_cap_bps", "_cap", "_share", "_ratio", "_state", "_finish", "_left_s"),
)
"""What is kept of each flow."""
_WINDOW = 1024
"""Flows that are looked at together while none is held up."""
_SURELY = 1.0 - 1e-9
"""Share of the capacity up to which there is room, whatever sums of float64 are rounded to."""
_MOST_BPS = 2.0**62
"""What the paces of all flows may add up to: they are summed as whole numbers."""


class Load:
    """What flows ask of a link over time if nothing holds them up.

    Parameters
    ----------
    first_byte_s, last_byte_s : float64 [n], when each begins and ends.
    pace_bps : float64 [n]; every pace counts as the next whole number, as in :class:`Trunk`.

    A flow that ends makes room before one that starts at the same time.
    """

    __slots__ = ("_peaks", "_starts_s")

    def __init__(self, first_byte_s: Floats, last_byte_s: Floats, pace_bps: Floats) -> None:
        order = np.argsort(first_byte_s, kind="stable")
        self._starts_s = first_byte_s[order]
        paces = np.ceil(pace_bps).astype(np.int64)
        loads = _loads(self._starts_s, last_byte_s[order], paces[order])
        self._peaks = np.maximum.accumulate(loads[::-1])[::-1]

    def peak_bps(self, from_s: float = -math.inf) -> int:
        """Return a bound on the sum of the paces from ``from_s`` on; of all time, it is the largest sum.

        Flows whose peak is no more than a trunk's capacity are never held back by each other.
        """
        if not len(self._starts_s):
            return 0
        # What goes on at that moment is no more than there was when the last flow before it began.
        place = max(int(np.searchsorted(self._starts_s, from_s, "right")) - 1, 0)
        return int(self._peaks[place])


def _loads(first_byte_s: Floats, last_byte_s: Floats, pace_bps: Ints) -> Ints:
    """Return the sum of the paces of all flows under way at each start, its own included, int64 [n].

    ``first_byte_s`` is sorted.
    """
    ends = np.argsort(last_byte_s, kind="stable")
    gone = np.searchsorted(last_byte_s[ends], first_byte_s, side="right")
    freed = np.concatenate(([0], np.cumsum(pace_bps[ends])))
    return np.asarray(np.cumsum(pace_bps) - freed[gone])


@dataclass(frozen=True, slots=True)
class FlowColumns:
    """Flows in the order of their starts, arrays [n].

    Attributes
    ----------
    first_byte_s, last_byte_s : float64, when they leave if nobody is in the way; the first is sorted.
    wire_bits, weight : float64, as for :class:`~edge.network.trunk.Flow`.
    cut_s : float64, when a flow is broken off unless it is over; ``inf`` for never.
    """

    first_byte_s: Floats
    last_byte_s: Floats
    wire_bits: Floats
    weight: Floats
    cut_s: Floats

    def __len__(self) -> int:
        """Return the number of flows."""
        return len(self.first_byte_s)

    def take(self, places: Ints) -> FlowColumns:
        """Return the flows at ``places``."""
        return FlowColumns(*(getattr(self, name)[places] for name in FlowColumns.__slots__))

    def load(self) -> Load:
        """Return what the flows ask of a link over time if nothing holds them up."""
        pace_bps = self.wire_bits / (self.last_byte_s - self.first_byte_s)
        return Load(self.first_byte_s, self.last_byte_s, pace_bps)

    def check(self) -> None:
        """Raise ValueError for flows out of order, without length, or beyond what a link can carry."""
        first_s, last_s = self.first_byte_s, self.last_byte_s
        if not bool((np.diff(first_s) >= 0.0).all()):
            raise ValueError("flows are known in the order of their starts; sort them by first_byte_s")
        if not bool((last_s > first_s).all()):
            raise ValueError("a flow takes time: its last byte leaves after the first")
        pace_bps, weight = self.wire_bits / (last_s - first_s), self.weight
        least_bps, least = 1.0 / CAP_UNIT, 1.0 / WEIGHT_UNIT
        if not bool(((pace_bps >= least_bps) & (weight >= least) & (weight < math.inf)).all()):
            raise ValueError("flows have paces of 2**-20 bits/s or more and finite weights of 2**-40 or more")
        if not pace_bps.sum() < _MOST_BPS:
            raise ValueError(
                f"the paces of flows add up to {pace_bps.sum():g} bits/s; no more than 2**62 fit"
            )


class KnownFlows:
    """One direction of the coordinator's link at a moment, with the flows on it and those to come.

    Parameters
    ----------
    capacity_bps : bits/s, finite.

    Flows have numbers, in the order of their starts. When flows complete at the time at which others start
    or are broken off, they complete first.
    """

    def __init__(self, capacity_bps: float) -> None:
        self._capacity_bps = capacity_bps
        self._capacity = int(capacity_bps * CAP_UNIT)
        self._first_s: list[float] = []
        self._last_s: list[float] = []
        self._bits: list[float] = []
        self._weight: list[float] = []
        self._cut_s: list[float] = []
        self._cap_bps: list[float] = []
        self._cap: list[int] = []
        self._share: list[int] = []
        """Caps and weights in whole units."""
        self._ratio: list[float] = []
        """The level at which a flow on the shared link changes kind."""
        self._state: list[int] = []
        self._finish: list[float] = []
        """Of flows on the shared link: seconds at the cap, else a reading of the service clock.

        Of those to come: seconds at the cap.
        """
        self._left_s: list[float] = []
        """When the last byte has left, ``inf`` where that is not known or does not come to pass."""
        self._following = 0
        """The next flow to start."""
        self._alone: list[tuple[float, int]] = []
        """Heap of (last byte, flow) while the link has room for all."""
        self._demand = 0
        self._cuts: list[tuple[float, int]] = []
        self._on_link = self._shared = 0
        self._cap_sum = self._weight_sum = 0
        self._level, self._service, self._now_s = math.inf, 0.0, -math.inf
        self._armed_s = math.inf
        """When the trunk looks next whether a flow has completed."""
        self._due_s, self._due = math.inf, -1
        self._capped_by_finish: list[tuple[float, int]] = []
        self._capped_by_level: list[tuple[float, int]] = []
        self._shared_by_finish: list[tuple[float, int]] = []
        self._shared_by_level: list[tuple[float, int]] = []
        self._unranked: list[int] = []
        self._relaxed: KnownFlows | None = None
        """The same link when the last flow has been held up, as far as is known; None where it is not."""

    def __len__(self) -> int:
        """Return the number of flows."""
        return len(self._first_s)

    @property
    def left_s(self) -> Floats:
        """When the last byte of each flow has left, float64 [n]; ``inf``: not known, or never."""
        return np.array(self._left_s)

    @property
    def over_s(self) -> float:
        """When everything is over that was run so far: the last end, or the last time that was looked at."""
        ends_s = (left_s for left_s in self._left_s if left_s < math.inf)
        return max(self._now_s, max(ends_s, default=-math.inf))

    @property
    def alone(self) -> list[int]:
        """The flows that have room at their own pace, in the order of their starts."""
        return sorted(number for _, number in self._alone)

    def restore(self, link: SharedLink[Key], keys: Mapping[int, Key]) -> float:
        """Put the flows that share the link on ``link``, which is empty, as ``keys``.

        Returns when :meth:`~edge.network.bottleneck.SharedLink.pop_completed` is to be called next.
        """
        shared = [n for n in range(self._following) if self._state[n] in (_CAPPED, _SHARED)]
        link.restore(
            self._now_s,
            self._level,
            self._service,
            (
                (keys[n], self._cap_bps[n], self._weight[n], self._state[n] == _CAPPED, self._finish[n])
                for n in shared
            ),
            (self._due_s, keys[self._due]) if self._due >= 0 else None,
        )
        return self._armed_s

    def expect(self, flows: FlowColumns) -> None:
        """Add flows that have not started, in place of those that were to come.

        Raises
        ------
        ValueError : see :meth:`FlowColumns.check`.
        """
        flows.check()
        self._keep(range(self._following))
        pace_bps = flows.wire_bits / (flows.last_byte_s - flows.first_byte_s)
        self._first_s += flows.first_byte_s.tolist()
        self._last_s += flows.last_byte_s.tolist()
        self._bits += flows.wire_bits.tolist()
        self._weight += flows.weight.tolist()
        self._cut_s += flows.cut_s.tolist()
        self._cap_bps += pace_bps.tolist()
        self._cap += [int(units) for units in (pace_bps * CAP_UNIT).tolist()]
        self._share += [int(units) for units in (flows.weight * WEIGHT_UNIT).tolist()]
        self._ratio += (pace_bps / flows.weight).tolist()
        self._state += [_COMING] * len(flows)
        self._finish += (flows.first_byte_s + flows.wire_bits / pace_bps).tolist()
        self._left_s += [math.inf] * len(flows)

    def _keep(self, numbers: Sequence[int]) -> None:
        """Leave the flows of these numbers, in this order; others are not on the link."""
        self._relaxed = None
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, [column[number] for number in numbers])

    def forget_past(self, now_s: float) -> list[int]:
        """Forget the flows that are over by ``now_s``, up to which the link was run, and those to come.

        Returns the numbers of those that stay; they are renumbered in that order.
        """
        state = self._state
        self._alone = [entry for entry in self._alone if entry[0] > now_s <= self._cut_s[entry[1]]]
        heapq.heapify(self._alone)
        self._demand = sum(math.ceil(self._cap_bps[number]) for _, number in self._alone)
        alone = sorted(number for _, number in self._alone)
        kept = alone or [number for number in range(self._following) if state[number] in (_CAPPED, _SHARED)]
        renumbered = dict(zip(kept, range(len(kept)), strict=True))
        self._keep(kept)
        self._following = len(kept)
        self._alone = [(last_s, renumbered[number]) for last_s, number in self._alone]
        self._rank([] if alone else range(len(kept)))
        self._due = renumbered.get(self._due, -1)
        return kept

    def _rank(self, numbers: Sequence[int]) -> None:
        """Rank the flows on the shared link, which are ``numbers``, by their finishes and levels."""
        state, finish, ratio, cut_s = self._state, self._finish, self._ratio, self._cut_s
        capped = [number for number in numbers if state[number] == _CAPPED]
        shared = [number for number in numbers if state[number] == _SHARED]
        self._unranked, self._capped_by_level = capped, []
        self._capped_by_finish = [(finish[number], number) for number in capped]
        self._shared_by_finish = [(finish[number], number) for number in shared]
        self._shared_by_level = [(ratio[number], number) for number in shared]
        self._cuts = [(cut_s[number], number) for number in numbers if cut_s[number] < math.inf]
        for heap in (self._capped_by_finish, self._shared_by_finish, self._shared_by_level, self._cuts):
            heapq.heapify(heap)

    def copy(self) -> KnownFlows:
        """Return the same link at the same moment."""
        other = KnownFlows(self._capacity_bps)
        for name, value in vars(self).items():
            setattr(other, name, value[:] if isinstance(value, list) else value)
        return other

    def ahead(self) -> KnownFlows:
        """Return the same link when all flows that are known are over.

        The link as it is when the last of them has been held up is kept: :meth:`run` goes on from there.
        """
        self._relaxed = None
        link = self.copy()
        while link._run_on(math.inf):
            self._relaxed = link.copy()
        return link

    def run(self, until_s: float = math.inf) -> None:
        """Let happen what comes before ``until_s``."""
        if self._relaxed is not None and self._relaxed._now_s < until_s:
            vars(self).update(vars(self._relaxed))
        while self._run_on(until_s):
            pass

    def _run_on(self, until_s: float) -> bool:
        """Run until flows were held up and none is any more; return whether that is before ``until_s``."""
        while self._run_at_caps(until_s):
            pass
        return self._run_events(until_s)

    def _run_at_caps(self, until_s: float) -> bool:
        """Let flows begin and end, all of them at their caps; return whether more of that may follow.

        Stops before ``until_s``, before a flow begins for which there may be no room, and before one begins
        when the link may be empty.
        """
        if not self._on_link or self._shared:
            return False
        state, left_s, begin = self._state, self._left_s, self._following
        end = min(begin + _WINDOW, len(state))
        riding = sorted({number for _, number in self._capped_by_finish if state[number] == _CAPPED})
        numbers, on_link = [*riding, *range(begin, end)], len(riding)
        cap_bps, cut_s, finish_s = (
            np.array([*[column[number] for number in riding], *column[begin:end]])
            for column in (self._cap_bps, self._cut_s, self._finish)
        )
        start_s = np.array(self._first_s[begin:end])
        completes = finish_s <= cut_s
        # One that is broken off goes after one that starts at the same time.
        off_s = np.where(completes, finish_s, np.nextafter(cut_s, math.inf))
        order = np.argsort(off_s)
        gone = np.searchsorted(off_s[order], start_s, side="right")
        freed_bps = np.concatenate(([0.0], np.cumsum(cap_bps[order])))[gone]
        full = np.cumsum(cap_bps)[on_link:] - freed_bps > self._capacity_bps * _SURELY
        empty = gone == np.arange(on_link, len(numbers))
        stops_s = start_s[full | empty]
        if len(stops_s):
            until_s = min(until_s, stops_s[0])
        elif end < len(state):
            until_s = min(until_s, self._first_s[end])

        started = int(np.searchsorted(start_s, until_s))
        known = on_link + started
        off = np.where(completes, finish_s < until_s, off_s <= until_s)[:known]
        if not started and not off.any():
            return False
        self._following += started
        state[begin : self._following] = [_CAPPED] * started
        for place in np.flatnonzero(off).tolist():
            number = numbers[place]
            state[number] = _OFF
            if completes[place]:
                left_s[number] = self._finish[number]
        riding = [number for number in numbers[:known] if state[number] == _CAPPED]
        self._rank(riding)
        self._on_link = len(riding)
        self._cap_sum = sum(self._cap[number] for number in riding)
        self._due_s, self._due = min(self._capped_by_finish, default=(math.inf, -1))
        finish_s, off_s, over = finish_s[:known], off_s[:known], completes[:known] & off
        # The timer goes off whenever a flow completes, and where it was set for one that was broken off; then
        # it is set for the next completion.
        armed_s, fired_s = (math.inf, finish_s[over].max()) if over.any() else (self._armed_s, -math.inf)
        while (next_s := finish_s[off_s > fired_s].min(initial=armed_s)) < until_s:
            armed_s, fired_s = math.inf, next_s
        self._armed_s = float(next_s)
        cut = off & ~over
        last_s = (
            fired_s,
            start_s[:started].max(initial=-math.inf),
            cut_s[:known][cut].max(initial=-math.inf),
        )
        self._now_s = float(max(self._now_s, *last_s))
        return not len(stops_s) and end < len(state)

    def _run_events(self, until_s: float) -> bool:
        """Let happen what comes before ``until_s``, or until flows were held up and none is any more.

        The service clock rounds when it is moved, so it is moved when a :class:`~edge.network.trunk.Trunk`
        moves it: at starts, ends, and when a timer goes off. Returns whether none is held up any more.
        """
        first_s, last_s, bits, weight = self._first_s, self._last_s, self._bits, self._weight
        cut_s, cap_bps, ratio, capacity = self._cut_s, self._cap_bps, self._ratio, self._capacity
        cap, share = self._cap, self._share
        state, finish, left_s, alone = self._state, self._finish, self._left_s, self._alone
        capped_by_finish, capped_by_level = self._capped_by_finish, self._capped_by_level
        shared_by_finish, shared_by_level = self._shared_by_finish, self._shared_by_level
        unranked, cuts = self._unranked, self._cuts
        following, count, on_link, shared = self._following, len(first_s), self._on_link, self._shared
        cap_sum, weight_sum, demand = self._cap_sum, self._weight_sum, self._demand
        level, service, now_s = self._level, self._service, self._now_s
        armed_s, due_s, due = self._armed_s, self._due_s, self._due
        push, pop = heapq.heappush, heapq.heappop
        beginning: list[int] = []
        """Flows that start now, the next of them last."""
        completed: list[int] = []
        """Flows that have completed since the clock was looked at."""
        relaxed = False
        """Whether flows were held up and none is any more."""
        while not (relaxed and on_link and not beginning and not completed):
            start_s = first_s[following] if following < count else math.inf
            if not on_link and not beginning and not completed:
                if armed_s <= start_s and armed_s < until_s:
                    now_s, armed_s = armed_s, math.inf  # a timer for what is over by now
                    continue
                if start_s >= until_s:
                    break
                now_s, flow = start_s, following
                following += 1
                while alone and alone[0][0] <= now_s:
                    over = pop(alone)[1]
                    demand -= math.ceil(cap_bps[over])
                    state[over] = _OFF
                pace_bps = math.ceil(cap_bps[flow])
                if demand + pace_bps > self._capacity_bps:
                    # Before sharing begins, forget those that were broken off meanwhile.
                    alone[:] = [entry for entry in alone if cut_s[entry[1]] >= now_s]
                    heapq.heapify(alone)
                    demand = sum(math.ceil(cap_bps[entry[1]]) for entry in alone)
                if demand + pace_bps <= self._capacity_bps:
                    state[flow], left_s[flow] = _ALONE, last_s[flow]
                    demand += pace_bps
                    push(alone, (last_s[flow], flow))
                    continue
                beginning = sorted((entry[1] for entry in alone), reverse=True)
                for early in beginning:
                    bits[early] = bits[early] * (last_s[early] - now_s) / (last_s[early] - first_s[early])
                beginning.insert(0, flow)
                alone.clear()
                demand = 0
            if beginning:
                start_s = now_s
            broken_s = cuts[0][0] if cuts else math.inf
            if armed_s <= start_s and armed_s <= broken_s:
                if armed_s >= until_s:
                    break
                if due_s > armed_s:
                    if shared and armed_s != now_s:
                        service += level * (armed_s - now_s)
                    now_s = armed_s
                    for flow in completed:
                        left_s[flow] = now_s
                    completed.clear()
                    armed_s = due_s
                    continue
                at_s, over = due_s, due
                completed.append(over)
            elif start_s <= broken_s:
                if start_s >= until_s:
                    break
                if shared and start_s != now_s:
                    service += level * (start_s - now_s)
                now_s, over = start_s, -1
                if beginning:
                    flow = beginning.pop()
                else:
                    flow = following
                    following += 1
                on_link += 1
                left_s[flow] = math.inf
                if cut_s[flow] < math.inf:
                    push(cuts, (cut_s[flow], flow))
                crowded = shared > 0 or cap_sum + cap[flow] > capacity
                if ratio[flow] <= level:
                    cap_sum += cap[flow]
                    state[flow], finish[flow] = _CAPPED, now_s + bits[flow] / cap_bps[flow]
                    push(capped_by_finish, (finish[flow], flow))
                    unranked.append(flow)
                else:
                    weight_sum += share[flow]
                    shared += 1
                    state[flow], finish[flow] = _SHARED, service + bits[flow] / weight[flow]
                    push(shared_by_finish, (finish[flow], flow))
                    push(shared_by_level, (ratio[flow], flow))
                if crowded:
                    relaxed = False
                    # The level falls: flows whose caps it no longer reaches run at it.
                    for flow in unranked:
                        if state[flow] == _CAPPED:
                            push(capped_by_level, (-ratio[flow], flow))
                    unranked.clear()
                    level = (capacity - cap_sum) / weight_sum * LEVEL_UNIT if weight_sum else -math.inf
                    while capped_by_level and -capped_by_level[0][0] > level:
                        flow = pop(capped_by_level)[1]
                        if state[flow] != _CAPPED:
                            continue
                        left_bits = max(0.0, (finish[flow] - now_s) * cap_bps[flow])
                        cap_sum -= cap[flow]
                        if not shared:
                            service = 0.0
                        weight_sum += share[flow]
                        shared += 1
                        state[flow], finish[flow] = _SHARED, service + left_bits / weight[flow]
                        push(shared_by_finish, (finish[flow], flow))
                        push(shared_by_level, (ratio[flow], flow))
                        level = (capacity - cap_sum) / weight_sum * LEVEL_UNIT
            else:
                if broken_s >= until_s:
                    break
                at_s, over = pop(cuts)
                if state[over] not in (_CAPPED, _SHARED):
                    continue
            if over >= 0:
                # A flow leaves the link; those whose caps the rising level reaches run at them.
                if shared and at_s != now_s:
                    service += level * (at_s - now_s)
                now_s = at_s
                if state[over] == _SHARED:
                    if over == due and completed:
                        service = max(service, finish[over])
                    weight_sum -= share[over]
                    shared -= 1
                else:
                    cap_sum -= cap[over]
                state[over] = _OFF
                on_link -= 1
                while shared:
                    level = (capacity - cap_sum) / weight_sum * LEVEL_UNIT
                    while state[shared_by_level[0][1]] != _SHARED:
                        pop(shared_by_level)
                    if shared_by_level[0][0] > level:
                        break
                    flow = pop(shared_by_level)[1]
                    left_bits = max(0.0, (finish[flow] - service) * weight[flow])
                    weight_sum -= share[flow]
                    shared -= 1
                    cap_sum += cap[flow]
                    state[flow], finish[flow] = _CAPPED, now_s + left_bits / cap_bps[flow]
                    push(capped_by_finish, (finish[flow], flow))
                    unranked.append(flow)
                else:
                    relaxed = relaxed or level != math.inf
                    level = math.inf
            # Which flow completes next, and when: reckoned once after every change.
            due_s, due = math.inf, -1
            while capped_by_finish:
                due_s, due = capped_by_finish[0]
                if state[due] == _CAPPED and finish[due] == due_s:
                    break
                pop(capped_by_finish)
                due_s, due = math.inf, -1
            if shared:
                reading, flow = shared_by_finish[0]
                while state[flow] != _SHARED or finish[flow] != reading:
                    pop(shared_by_finish)
                    reading, flow = shared_by_finish[0]
                at_s = now_s + max(0.0, (reading - service) / level)
                if at_s < due_s or (at_s == due_s and flow < due):
                    due_s, due = at_s, flow
            if not completed and not beginning:
                armed_s = min(armed_s, due_s)
        self._following, self._on_link, self._shared = following, on_link, shared
        self._cap_sum, self._weight_sum, self._demand = cap_sum, weight_sum, demand
        self._level, self._service, self._now_s = level, service, now_s
        self._armed_s, self._due_s, self._due = armed_s, due_s, due
        return relaxed
