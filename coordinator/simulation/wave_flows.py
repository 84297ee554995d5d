"""The frames of waves on the coordinator's own link.

As long as that link has room for all, whatever others do, none of them is put on it: it would not be held
up. When waves alone ask for more than there is, they share it as flows that are known beforehand: when each
has left is worked out at once, and anew when a wave begins or its devices do something else. When a device
that acts alone may be in the way, all join the link, those under way and the later ones as they begin, and
the link says when each has left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from coordinator.simulation.timelines import MODEL, REPORT, Timelines
from edge.clock.virtual import VirtualClockLoop
from edge.network.known_flows import FlowColumns, KnownFlows
from edge.network.link import SimulatedNetwork
from edge.network.trunk import Flow, Trunk

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class _WaveFrame:
    """A frame of a device on the coordinator's link; fires when its first byte leaves."""

    __slots__ = ("_owner", "_sharing", "first_byte_s", "last_byte_s", "live", "number", "place")

    def __init__(self, owner: WaveFlows, number: int, place: int) -> None:
        flights = owner.lines.frames(number)
        self._owner, self.number, self.place = owner, number, place
        self.first_byte_s = flights.first_byte_s.item(place)
        self.last_byte_s = flights.last_byte_s.item(place)
        self.live = True
        self._sharing = False

    @property
    def wire_bits(self) -> float:
        """Bits that leave, headers and retransmissions included."""
        return float(self._owner.lines.frames(self.number).wire_bits[self.place])

    @property
    def weight(self) -> float:
        """Share of a full link relative to other frames."""
        return float(self._owner.weights(np.array([self.place]))[0])

    @property
    def sharing(self) -> bool:
        """Whether its end depends on others."""
        return self._sharing

    @sharing.setter
    def sharing(self, value: bool) -> None:
        self._sharing = value
        if value:
            self._owner.held_up(self)

    def fire(self, when: float) -> None:
        """Begin to leave; called by the loop."""
        if self.live:
            self._owner.start(self, when)

    def left(self) -> None:
        """Respond when the last byte has left, or when it is known that it will."""
        self._owner.left(self)


class WaveFlows:
    """The models and reports of a wave, as far as they occupy the coordinator's link.

    Parameters
    ----------
    traffic : the frames of all waves.
    lines : what the devices do.
    before : called before anything changes.
    changed : called when frames come at another time.
    """

    def __init__(
        self, traffic: WaveTraffic, lines: Timelines, before: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._traffic = traffic
        self.lines = lines
        self._before, self._changed = before, changed
        self._loads = {number: lines.frames(number).load() for number in (MODEL, REPORT)}
        self._flows: dict[tuple[int, int], _WaveFrame] = {}
        self.settled = True
        """Whether frames come when they are foreseen to, whatever others do."""

    def load_bps(self, number: int, from_s: float) -> float:
        """Return a bound on the sum of the paces of models or reports from ``from_s`` on, bits/s."""
        return self._loads[number].peak_bps(from_s)

    def weights(self, places: Ints) -> Floats:
        """Return the shares of a full link of the frames at ``places``, float64 [k]."""
        lines = self.lines
        return np.asarray(1.0 / lines.shared.links.specs.rtt_s[lines.slots[places]])

    def coming(self, number: int, from_s: float, *, begun: bool) -> Ints:
        """Return the places of the models or reports that will be on the link, int64 [k].

        Parameters
        ----------
        number : of the frames.
        from_s : those that begin at this moment or later; ``begun``: those that are under way then, too.
        """
        flights, broken_s = self.lines.frames(number), self.lines.broken_s[number]
        first_s = flights.first_byte_s
        later = flights.last_byte_s > from_s if begun else first_s >= from_s
        return np.flatnonzero(flights.occupies & later & (broken_s >= np.maximum(first_s, from_s)))

    def leave(self, number: int, places: Ints, last_byte_s: Floats) -> None:
        """Let the last bytes of models or reports leave when it is known that they will, float64 [k]."""
        changed = last_byte_s != self.lines.left_s(number)[places]
        if changed.any():
            self._before()
            self.settled = False
            self.lines.hold_up(number, places[changed], last_byte_s[changed])
            self._changed()

    def revise(self, places: Ints) -> None:
        """Respond when the devices at ``places`` are to send or be sent other frames than before."""
        self._traffic.revise()
        if not self._flows:
            return
        now_s = self._traffic.loop.now_s
        for number in (MODEL, REPORT):
            coming = set(self.coming(number, now_s, begun=False).tolist())
            for place in places.tolist():
                frame = self._flows.get((number, place))
                if frame is not None and frame.first_byte_s > now_s:
                    self._flows.pop((number, place)).live = False
                    if place in coming:
                        self._expect(number, place)

    # -- on the link, one by one -------------------------------------------------------------------------

    def join(self, under_way: Mapping[int, Mapping[int, _WaveFrame]], from_s: float) -> None:
        """Let all frames begin on the link itself, in due time.

        Parameters
        ----------
        under_way : the frames that are on it, by number and place.
        from_s : frames begin at this moment or later.
        """
        self._before()
        self.settled = False
        for number, frames in under_way.items():
            held = np.array([place for place, frame in frames.items() if frame.sharing], np.int64)
            if len(held):
                self.lines.hold_up(number, held, np.full(len(held), math.inf))
            for place, frame in frames.items():
                self._flows[number, place] = frame
                self._await_cut(frame, self.lines.cut_s.item(place))
        for number in (MODEL, REPORT):
            flights = self.lines.frames(number)
            places = self.coming(number, from_s, begun=False).tolist()
            for place in sorted(places, key=flights.first_byte_s.item):
                if (number, place) not in self._flows:
                    self._expect(number, place)
        self._changed()

    def frame(self, number: int, place: int, *, sharing: bool) -> _WaveFrame:
        """Return a frame that is under way."""
        frame = _WaveFrame(self, number, place)
        frame._sharing = sharing
        return frame

    def _expect(self, number: int, place: int) -> None:
        """Let a frame occupy the link from its first byte on."""
        flow = self._flows[number, place] = _WaveFrame(self, number, place)
        self._traffic.loop.push_timer(flow.first_byte_s, flow)

    def _await_cut(self, flow: _WaveFrame, cut_s: float) -> None:
        if math.isfinite(cut_s):
            self._traffic.loop.call_at(cut_s, self._cut, flow, cut_s)

    def _cut(self, flow: _WaveFrame, cut_s: float) -> None:
        """Take a frame off the link whose connection is cut."""
        if flow.live and self.lines.cut_s[flow.place] == cut_s:
            flow.live = False
            self._traffic.trunks[flow.number].cancel(flow)

    def start(self, flow: _WaveFrame, when: float) -> None:
        """Let a frame begin to leave."""
        cut_s = self.lines.cut_s.item(flow.place)
        if cut_s < when:
            flow.live = False
            return
        self._traffic.loop.now_s = when
        self._traffic.trunks[flow.number].start(flow)
        self._await_cut(flow, cut_s)

    def held_up(self, flow: _WaveFrame) -> None:
        """Respond when it is no longer known when a frame arrives."""
        self._come(flow, math.inf)

    def left(self, flow: _WaveFrame) -> None:
        """Respond when it is known when a frame has left."""
        if flow.last_byte_s != self.lines.left_s(flow.number)[flow.place]:
            self._come(flow, flow.last_byte_s)

    def _come(self, flow: _WaveFrame, last_byte_s: float) -> None:
        self._before()
        lines, place = self.lines, flow.place
        lines.hold_up(flow.number, np.array([place]), np.array([last_byte_s]))
        if flow.number == MODEL:
            expected = self._flows.pop((REPORT, place), None)
            if expected is not None:
                expected.live = False
            if lines.report.occupies[place] and lines.report.start_s[place] <= lines.cut_s[place]:
                self._expect(REPORT, place)
        self._await_cut(flow, lines.cut_s.item(place))
        self._changed()


class _KnownTraffic:
    """The frames of all waves on one direction of the link, which they share among themselves."""

    def __init__(self, number: int, capacity_bps: float) -> None:
        self._number, self._capacity_bps = number, capacity_bps
        self._known: KnownFlows | None = None
        self._over_s = -math.inf
        """When everything is over that is known."""
        self._owners: list[WaveFlows | None] = []
        self._owner, self._place = np.empty(0, np.int64), np.empty(0, np.int64)
        """Whose flow each is, by its number: the place in ``_owners``, and in the wave."""

    @property
    def crowded(self) -> bool:
        """Whether frames that are under way may have been held up."""
        return self._known is not None

    def solve(self, waves: list[WaveFlows], now_s: float) -> None:
        """Work out when the last byte of each frame leaves, and let the waves have it so."""
        number = self._number
        self._advance(now_s)
        coming = [wave.coming(number, now_s, begun=not self.crowded) for wave in waves]
        flights = [wave.lines.frames(number).take(at) for wave, at in zip(waves, coming, strict=True)]
        parts = [
            [flight.first_byte_s for flight in flights],
            [flight.last_byte_s for flight in flights],
            [flight.wire_bits for flight in flights],
            [wave.weights(at) for wave, at in zip(waves, coming, strict=True)],
            [wave.lines.broken_s[number][at] for wave, at in zip(waves, coming, strict=True)],
        ]
        flows = FlowColumns(*(np.concatenate([*part, np.empty(0)]) for part in parts))
        if not self.crowded and flows.load().peak_bps() <= self._capacity_bps:
            for wave, at in zip(waves, coming, strict=True):
                wave.leave(number, at, wave.lines.frames(number).last_byte_s[at])
            return
        known = self._known = self._known or KnownFlows(self._capacity_bps)
        # What is under way belongs to waves of before, each of which has a place in both lists.
        turned = {wave: index for index, wave in enumerate(waves)}
        kept = np.array([-1 if wave is None else turned[wave] for wave in self._owners], np.int64)
        order = np.lexsort((np.concatenate([flight.start_s for flight in flights]), flows.first_byte_s))
        owner = np.repeat(np.arange(len(waves)), [len(places) for places in coming])
        known.expect(flows.take(order))
        self._owner = np.concatenate((kept[self._owner], owner[order]))
        self._place = np.concatenate((self._place, np.concatenate(coming)[order]))
        self._owners = [*waves]
        ahead = known.ahead()
        self._over_s, left_s = ahead.over_s, ahead.left_s
        for index, wave in enumerate(waves):
            at = np.flatnonzero(self._owner == index)
            wave.leave(number, self._place[at], left_s[at])

    def forget(self, wave: WaveFlows) -> None:
        """Forget a wave that is over."""
        if wave in self._owners:
            self._owners[self._owners.index(wave)] = None

    def _advance(self, now_s: float) -> None:
        """Let happen what comes before ``now_s``; leave what is under way."""
        if self._known is None or self._over_s < now_s:
            self._known, self._owners = None, []
            self._owner = self._place = np.empty(0, np.int64)
            return
        self._known.run(now_s)
        kept = self._known.forget_past(now_s)
        self._owner, self._place = self._owner[kept], self._place[kept]

    def put_on(self, trunk: Trunk[Flow], now_s: float) -> dict[WaveFlows, dict[int, _WaveFrame]]:
        """Put what is under way on the link itself; return the frames, by wave and place."""
        self._advance(now_s)
        known, frames, found = self._known, dict[int, _WaveFrame](), dict[WaveFlows, dict[int, _WaveFrame]]()
        if known is None:
            return found
        alone = set(known.alone)
        for number, (owner, place) in enumerate(zip(self._owner.tolist(), self._place.tolist(), strict=True)):
            wave = self._owners[owner]
            assert wave is not None, "a wave with a frame under way is not over"
            frames[number] = wave.frame(self._number, place, sharing=number not in alone)
            found.setdefault(wave, {})[place] = frames[number]
        trunk.take_over(known, frames)
        return found


class WaveTraffic:
    """The models and reports of all waves that are at work, as far as they occupy the coordinator's link.

    Parameters
    ----------
    loop, network : the clock and the network.
    """

    def __init__(self, loop: VirtualClockLoop, network: SimulatedNetwork) -> None:
        self.loop = loop
        self.trunks: dict[int, Trunk[Flow]] = {MODEL: network.down, REPORT: network.up}
        self._waves: list[WaveFlows] = []
        self._known: dict[int, _KnownTraffic] = {}
        """By number of the frame; empty while there is room for all."""
        self._stale = False
        """Whether frames may leave at other times than are known."""
        for number, trunk in self.trunks.items():
            trunk.foreseen = _Foreseen(self, number)

    def add(self, flows: WaveFlows, *, others: bool) -> bool:
        """Let the frames of a wave be on the link; False: others are on it, or may be in the way.

        ``others`` says that devices of the same round act alone.
        """
        crowded = any(
            not trunk.has_room_for(self.load_bps(number) + flows.load_bps(number, -math.inf))
            for number, trunk in self.trunks.items()
        )
        if crowded and (others or any(trunk.in_use for trunk in self.trunks.values())):
            return False
        self._waves.append(flows)
        if crowded:
            self._known = self._known or {
                number: _KnownTraffic(number, trunk.capacity_bps)
                for number, trunk in self.trunks.items()
                if trunk.capacity_bps < math.inf
            }
            self._solve()
        return True

    def remove(self, flows: WaveFlows) -> None:
        """Forget a wave that is over."""
        if flows in self._waves:
            self._waves.remove(flows)
        for known in self._known.values():
            known.forget(flows)
        if not self._waves:
            self._known = {}

    def revise(self) -> None:
        """Work out anew when frames leave, at this moment: devices of a wave do something else."""
        if self._known and not self._stale:
            self._stale = True
            self.loop.push_timer(self.loop.now_s, self)

    def fire(self, when: float) -> None:
        """Work out anew when frames leave, unless that has been done meanwhile; called by the loop."""
        if self._stale:
            self.loop.now_s = when
            self._solve()

    def _solve(self) -> None:
        self._stale = False
        for known in self._known.values():
            known.solve(self._waves, self.loop.now_s)

    def load_bps(self, number: int) -> float:
        """Return a bound on the sum of the paces of models or reports from now on, bits/s."""
        if self._known:
            return math.inf
        now_s = self.loop.now_s
        return sum(flows.load_bps(number, now_s) for flows in self._waves)

    def join(self) -> None:
        """Put all frames on the link itself: somebody else may be in the way."""
        waves, self._waves = self._waves, []
        known, self._known = self._known, {}
        now_s = self.loop.now_s
        frames: dict[int, dict[WaveFlows, dict[int, _WaveFrame]]] = {}
        for number, trunk in self.trunks.items():
            if number in known and known[number].crowded:
                frames[number] = known[number].put_on(trunk, now_s)
            else:
                frames[number] = self._adopted(number, waves)
        for flows in waves:
            flows.join({number: found.get(flows, {}) for number, found in frames.items()}, now_s)

    def _adopted(self, number: int, waves: list[WaveFlows]) -> dict[WaveFlows, dict[int, _WaveFrame]]:
        """Put the frames under way on the link, which has room for all of them; return them."""
        now_s, found = self.loop.now_s, {}
        for flows in waves:
            flights = flows.lines.frames(number)
            places = flows.coming(number, now_s, begun=True)
            places = places[flights.first_byte_s[places] < now_s]
            in_turn = sorted(places.tolist(), key=flights.first_byte_s.item)
            found[flows] = {place: flows.frame(number, place, sharing=False) for place in in_turn}
            for frame in found[flows].values():
                self.trunks[number].adopt(frame)
        return found


class _Foreseen:
    """What waves will ask of one direction of the link."""

    def __init__(self, traffic: WaveTraffic, number: int) -> None:
        self._traffic, self._number = traffic, number

    def load_bps(self) -> float:
        """Return a bound on the sum of their paces at any time from now on, bits/s."""
        return self._traffic.load_bps(self._number)

    def join(self) -> None:
        """Put them on the link: it may fill up."""
        self._traffic.join()
