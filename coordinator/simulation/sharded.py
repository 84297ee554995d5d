"""Rounds whose devices are simulated elsewhere, in parts; a backend of the virtual clock.

What a device does in a round depends on no other device, but for two things: the close of the round, and the
coordinator's own link where that is too narrow. So each round is simulated in parts, to the end of its last
device and at once; what the parts tell the coordinator is put in order and replayed to it on its clock. A
close by the number of reports is found from parts simulated without it; parts in which something comes after
it are simulated once more with it. A round in which frames hold each other up is simulated as one part.

A device belongs to the part of its sum group, so that no bit of a sum depends on the number of parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import ActiveRound, Broadcast
from coordinator.engine.actor import Coordinator
from coordinator.engine.assembly import Assembly
from coordinator.engine.backend import CrashHandler, Probe, RunningCohort
from coordinator.engine.fleet import Fleet
from coordinator.engine.predictions import PartialWork
from coordinator.engine.rounds import RoundMachine, RoundPlan
from coordinator.engine.secure_sums import RoundOfSums, SecureSums
from coordinator.engine.selection.experience import Experience
from coordinator.engine.shielding import Shield
from coordinator.engine.workload import RatingWorkload, TrainingKernel, Workload
from coordinator.scenario.schema import ScenarioSettings
from coordinator.simulation.faults.base import Setting
from coordinator.simulation.faults.striking import Drawn, FaultsOfRun
from coordinator.simulation.parts import (
    ACCEPTS,
    DOWN,
    LEAVES,
    REPORTS,
    UP,
    Part,
    PartResult,
    Told,
)
from edge.clock.virtual import VirtualClockLoop
from edge.core.errors import RecfleetError
from edge.core.log import Column, EventLog
from edge.core.vocabulary import EventKind, Reason, RoundKind
from edge.device.compute import Kernel
from edge.device.round_faults import RoundFaults
from edge.learning.base import Work
from edge.learning.updates import Array, ClientUpdate
from edge.network.known_flows import Load

T = TypeVar("T")
Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int8]
_NO_FLOWS: Final[Floats] = np.empty((3, 0))


class CoupledRoundsError(RecfleetError):
    """Devices of different rounds are in each other's way, which parts of a round cannot know."""


class Shards(Protocol):
    """Those who simulate parts of rounds; each part belongs to one of them."""

    @property
    def count(self) -> int:
        """How many there are."""

    def simulate(self, parts: Mapping[int, Part]) -> Mapping[int, PartResult]:
        """Simulate parts, side by side; return what became of them. Keys are numbers of shards."""


@dataclass(slots=True)
class ShardedSimulation:
    """What all rounds of a run share whose devices are simulated by shards.

    Attributes
    ----------
    run_id, loop, coordinator, scenario, assembly : of the run.
    experience : receives what arrives from each device; None where no policy uses it.
    partial_work : how many local steps devices take; None: all of them.
    faults : draws whom they strike.
    shards : simulate the parts of rounds.
    """

    run_id: str
    loop: VirtualClockLoop
    coordinator: Coordinator
    scenario: ScenarioSettings
    assembly: Assembly
    experience: Experience | None
    partial_work: PartialWork | None
    faults: FaultsOfRun
    shards: Shards
    shields: Mapping[str, Shield | None] = field(default_factory=dict)
    probe: Probe | None = None
    fleet: Fleet = field(init=False)
    cohorts: dict[int, ShardedCohort] = field(default_factory=dict)
    """Those with devices that are still at work, by round."""
    _flows: dict[int, Floats] = field(default_factory=lambda: {DOWN: _NO_FLOWS, UP: _NO_FLOWS})
    """What earlier rounds have on the coordinator's link, by direction, as in a :class:`PartResult`."""
    _held_until_s: float = -math.inf
    """Until when devices are at work that held each other up on it."""

    def __post_init__(self) -> None:
        """Name the fleet of the run."""
        self.fleet = self.assembly.fleet

    def begin(self, crash: CrashHandler) -> None:
        """Begin the run; its coordinator never crashes."""

    def cohort(
        self,
        ids: Ids,
        round_number: int,
        phase: str,
        kernel: TrainingKernel,
        done: Callable[[RunningCohort], None],
    ) -> ShardedCohort:
        """Return the cohort of a round; ``done`` is called once, when its last device has ended."""
        cohort = self.cohorts[round_number] = ShardedCohort(self, ids, round_number, phase, kernel, done)
        return cohort

    async def aside(self, measure: Callable[[], T]) -> T:
        """Return what ``measure`` does; no time passes meanwhile."""
        return measure()

    def catch_up(self) -> None:
        """Let everything that devices do before this moment have happened."""
        for cohort in list(self.cohorts.values()):
            cohort.catch_up()

    def forget(self, kernel: Kernel[ClientUpdate]) -> None:
        """Do nothing: no kernel is computed here."""

    # -- the parts of a round --------------------------------------------------------------------------

    def simulate(self, cohort: ShardedCohort, plan: RoundPlan) -> Sequence[tuple[Ids, PartResult]]:
        """Simulate a round that begins now; return the slots of each part, and what became of it."""
        shards = min(self.shards.count, self.scenario.compute.sum_groups)
        shard_of = cohort.ids % self.scenario.compute.sum_groups % shards
        slots = {number: np.flatnonzero(shard_of == number) for number in range(shards)}
        slots = {number: at for number, at in slots.items() if len(at)}
        parts = {number: cohort.part(at, plan) for number, at in slots.items()}
        apart = self.shards.simulate(parts)
        found = None if self._crowded(apart.values()) else self._closed(cohort, plan, slots, parts, apart)
        if found is None:
            # What couples devices is for one to find out who has all of them.
            slots = {0: np.arange(len(cohort.ids))}
            found = self.shards.simulate({0: cohort.part(slots[0], plan, alone=True)})
        self._occupy(found.values())
        return [(slots[number], result) for number, result in found.items()]

    def _closed(
        self,
        cohort: ShardedCohort,
        plan: RoundPlan,
        slots: Mapping[int, Ids],
        parts: Mapping[int, Part],
        found: Mapping[int, PartResult],
    ) -> Mapping[int, PartResult] | None:
        """Return the parts as they are with the close of the round; None: they cannot say when that is."""
        if plan.target >= len(cohort.ids) and plan.grace_s is None:
            return found
        arrivals = in_order([(slots[number], result.arrivals) for number, result in found.items()])
        close = close_of(arrivals, plan, len(cohort.ids))
        if close is None:
            return found
        if not is_sharp(arrivals, close):
            return None
        place, end_s, reason = close
        again: dict[int, Part] = {}
        for number, result in found.items():
            told = result.arrivals
            if result.heard_until_s <= end_s:
                continue
            if reason is Reason.COHORT_FULL and bool(np.isin(arrivals.slot[place], slots[number])):
                # The report that fills the cohort is among these: it closes the part at its very moment.
                target = int(np.count_nonzero((told.what == REPORTS) & (told.time_s <= end_s)))
                changed = replace(parts[number].plan, target=target)
            else:
                changed = replace(parts[number].plan, close=(end_s, reason))
            again[number] = replace(parts[number], plan=changed)
        return {**found, **(self.shards.simulate(again) if again else {})}

    def _capacities_bps(self) -> dict[int, float]:
        # Named from the coordinator's side in a scenario, from the devices' side here.
        return {DOWN: self.scenario.coordinator.up_rate, UP: self.scenario.coordinator.down_rate}

    def _crowded(self, results: Collection[PartResult]) -> bool:
        """Return whether the coordinator's link is too narrow for a round, beside those before."""
        now_s = self.loop.now_s
        if any(result.crowded for result in results):
            return True
        for direction, capacity_bps in self._capacities_bps().items():
            earlier = self._flows[direction]
            here = [result.flows[direction] for result in results]
            flows = np.concatenate([earlier[:, earlier[1] > now_s], *here], axis=1)
            if Load(*flows).peak_bps() > capacity_bps:
                return True
        return False

    def _occupy(self, results: Collection[PartResult]) -> None:
        """Keep what a round has on the coordinator's link; refuse one in the way of another.

        Raises
        ------
        CoupledRoundsError : devices of an earlier round may be held up by those of this one, or hold them up.
        """
        now_s = self.loop.now_s
        under_way = any(bool((flows[1] > now_s).any()) for flows in self._flows.values())
        crowded = self._crowded(results)
        if (crowded and under_way) or self._held_until_s > now_s:
            raise CoupledRoundsError(
                f"at {now_s:.3f} s of simulated time the devices of two rounds ask for more than the"
                " coordinator's link has, which shards cannot share: write more in coordinator.up_rate and"
                " coordinator.down_rate, or run with --shards 1"
            )
        if crowded:
            self._held_until_s = max(result.done_s for result in results)
        for direction, earlier in self._flows.items():
            flows = [earlier[:, earlier[1] > now_s], *(result.flows[direction] for result in results)]
            self._flows[direction] = np.concatenate(flows, axis=1)


def in_order(parts: Sequence[tuple[Ids, Told]]) -> Told:
    """Put what the parts of a round tell the coordinator in order; of the same moment by slot.

    ``parts`` have the slots of their devices in the round, int64 [m].
    """
    time_s = np.concatenate([told.time_s for _, told in parts])
    slot = np.concatenate([slots[told.slot] for slots, told in parts])
    what = np.concatenate([told.what for _, told in parts])
    order = np.argsort(time_s, kind="stable")
    if bool((time_s[order][1:] == time_s[order][:-1]).any()):
        order = np.lexsort((slot, time_s))
    return Told(time_s, slot, what).take(order)


def close_of(arrivals: Told, plan: RoundPlan, invited: int) -> tuple[int, float, Reason] | None:
    """Return when and why a round is over before its deadline while devices may still report.

    The first is the place of the report that decides it. None: it goes on to its deadline, or until nobody is
    left who could report.
    """
    reports = np.flatnonzero(arrivals.what == REPORTS)
    left = np.cumsum(arrivals.what != ACCEPTS)
    nobody_left = np.flatnonzero(left == invited)
    end_s = float(arrivals.time_s[nobody_left[0]]) if len(nobody_left) else math.inf
    found: list[tuple[float, int, Reason]] = []
    if plan.target < invited and len(reports) >= plan.target:
        place = int(reports[plan.target - 1])
        found.append((float(arrivals.time_s[place]), place, Reason.COHORT_FULL))
    if plan.grace_s is not None and len(reports) >= plan.quorum:
        place = int(reports[plan.quorum - 1])
        found.append((float(arrivals.time_s[place]) + plan.grace_s, place, Reason.DEADLINE))
    found = [one for one in found if one[0] < end_s]
    if not found:
        return None
    close_s, place, reason = min(found, key=lambda one: one[0])
    return place, close_s, reason


def is_sharp(arrivals: Told, close: tuple[int, float, Reason]) -> bool:
    """Return whether nothing else arrives at the moment at which a round is over; see :func:`close_of`."""
    _, end_s, reason = close
    return int(np.count_nonzero(arrivals.time_s == end_s)) == (reason is Reason.COHORT_FULL)


class ShardedCohort:
    """The invited devices of one round, simulated elsewhere; what they do is replayed to the coordinator.

    Parameters
    ----------
    simulation : what all rounds share.
    ids : int64 [n], the invited devices.
    round_number, phase : the round, and the phase of the scenario that it belongs to.
    kernel : what they compute; only its state is used.
    done : called once, when the last device has ended its participation.
    """

    counts_kept_back = False
    secure_sum: RoundOfSums | None = None
    sums: SecureSums | None = None

    def __init__(
        self,
        simulation: ShardedSimulation,
        ids: Ids,
        round_number: int,
        phase: str,
        kernel: TrainingKernel,
        done: Callable[[RunningCohort], None],
    ) -> None:
        n = len(ids)
        asked = simulation.assembly.asked().get(RoundKind.of(round_number))
        self._trains = asked is None
        self._workload: Workload = simulation.assembly.workload if asked is None else asked.workload
        self._simulation = simulation
        self._state = kernel.state
        self._done = done
        self.ids = ids
        self.devices: list[int] = ids.tolist()
        self.round_number = round_number
        self.phase = phase
        self.kernel: Kernel[ClientUpdate] = kernel
        self.faults: RoundFaults | None = None
        self.log = EventLog(by_slot=True)
        self.outcome, self.stage, self.reason = np.zeros((3, n), np.int8)
        self.loss = np.full(n, np.nan)
        self.clipped: Bools | None = np.zeros(n, np.bool_)
        self.examples, self._memory_bytes = np.zeros((2, n), np.int64)
        self.work_share: Floats | None = None
        self._drawn = self._draw()
        self._rows = simulation.fleet.device_rows(ids)
        simulation.fleet.busy[ids] = True

    @property
    def work(self) -> Work:
        """What the round costs each device."""
        return replace(self._workload.work(self.ids), memory_bytes=self._memory_bytes)

    def _draw(self) -> Drawn:
        """Draw whom faults strike: an exact share of the round is a matter of all of it."""
        simulation, ids, number = self._simulation, self.ids, self.round_number
        if not simulation.faults.faults:
            return []
        steps = None
        if simulation.partial_work is not None and self._trains:
            steps = simulation.partial_work.steps(ids, number, self.phase)
        fleet, work = simulation.fleet, self._workload.work(ids, steps)
        now_s = simulation.loop.now_s
        plan = fleet.plan(ids, now_s, number, work, self._workload.examples(ids))
        seed = simulation.scenario.seed
        setting = Setting(seed, fleet, ids, number, now_s, plan, work.memory_bytes)
        return [(fault, ids[slots]) for fault, slots in simulation.faults.draw(self.phase, setting)]

    def part(self, slots: Ids, plan: RoundPlan, *, alone: bool = False) -> Part:
        """Return what is asked of whoever simulates the devices at ``slots``; ``alone``: there are no others.

        Among others they do not close the round: their target is more than they are.
        """
        ids = self.ids[slots]
        trained, kept, rating_mean = self._simulation.assembly.workload, None, None
        if isinstance(trained, RatingWorkload):
            kept = trained.kept_of(trained.users_of(ids))
            rating_mean = trained.algorithm.problem.rating_mean
        own = plan if alone else replace(plan, target=len(ids) + 1, quorum=1, grace_s=None)
        rows = {name: array[slots] for name, array in self._rows.items()}
        now_s = self._simulation.loop.now_s
        return Part(own, self.phase, now_s, ids, self._state, rows, kept, self._drawn, rating_mean)

    def invite(self, round_: ActiveRound, invitation: Broadcast) -> None:
        """Simulate the round, and put what the coordinator is told of it on the clock."""
        simulation, fleet = self._simulation, self._simulation.fleet
        assert isinstance(round_.machine, RoundMachine)
        self._round, self._machine = round_, round_.machine
        found = simulation.simulate(self, round_.machine.plan)
        n = len(self.ids)
        self._finish_s, self._arrived_s = np.zeros(n), np.full(n, np.inf)
        self._spoilt = np.zeros(n, np.int8)
        experience: list[tuple[float, int, int, float]] = []
        kept: list[tuple[float, int, Array]] = []
        for slots, result in found:
            for name in ("outcome", "stage", "reason", "loss", "examples"):
                getattr(self, name)[slots] = getattr(result, name)
            assert self.clipped is not None
            self.clipped[slots], self._memory_bytes[slots] = result.clipped, result.memory_bytes
            self._finish_s[slots], self._arrived_s[slots] = result.finish_s, result.arrived_s
            self._spoilt[slots] = result.spoilt
            if result.work_share is not None:
                if self.work_share is None:
                    self.work_share = np.zeros(n)
                self.work_share[slots] = result.work_share
            for (fault, slot, stage), strikes in result.strikes.items():
                self.faults = self.faults or RoundFaults()
                self.faults.struck[fault, int(slots[slot]), stage] = strikes
            experience += [
                (after_s, int(slots[at]), examples, loss) for at, after_s, examples, loss in result.experience
            ]
            kept += [(at_s, int(slots[at]), row) for at_s, at, row in result.kept]
            fleet.put_device_rows(self.ids[slots], result.rows)
            round_.accumulator.join(result.sums)
        self._write_log(found)
        self._experience = sorted(experience, key=lambda one: one[:2], reverse=True)
        self._kept = sorted(kept, key=lambda one: one[:2], reverse=True)
        self._done_s = max(result.done_s for _, result in found)
        self._start_s = simulation.loop.now_s
        self._arrivals = in_order([(slots, result.arrivals) for slots, result in found])
        self._next = 0
        self._updates = np.argsort(self._arrived_s, kind="stable")
        self._arrived_s = self._arrived_s[self._updates]
        self._ends = np.argsort(self._finish_s, kind="stable")
        self._finish_s = self._finish_s[self._ends]
        self._seen = self._gone = 0
        round_.wave = self
        self._milestones = self._places_of_milestones()
        for place in self._milestones:
            simulation.loop.push_timer(float(self._arrivals.time_s[place]), self)
        simulation.loop.push_timer(self._done_s, self)

    def _write_log(self, found: Sequence[tuple[Ids, PartResult]]) -> None:
        """Put the records of all parts in one log: of the invitations by kind and slot, others by time."""
        early, later = [], []
        for slots, result in found:
            columns = result.columns
            columns[Column.SLOT] = slots[columns[Column.SLOT].astype(np.int64)]
            early.append(columns[:, : result.early])
            later.append(columns[:, result.early :])
        of_invitations = np.concatenate(early, axis=1)
        turns = np.zeros(len(EventKind), np.int64)
        turns[EventKind.HANDSHAKE], turns[EventKind.INVITED] = 1, 2
        turn = turns[of_invitations[Column.KIND].astype(np.int64)]
        self.log.extend(of_invitations[:, np.lexsort((of_invitations[Column.SLOT], turn))].T.tobytes())
        self.log.mark()
        rest = np.concatenate(later, axis=1)
        # Each part is in order: what a stable sort makes of runs is linear. The log sees to equal times.
        self.log.insert(rest.take(np.argsort(rest[Column.TIME_S], kind="stable"), axis=1))

    def _places_of_milestones(self) -> list[int]:
        """Return the places of the arrivals at which something may change for the others."""
        told, plan = self._arrivals, self._machine.plan
        reports = np.flatnonzero(told.what == REPORTS)
        over = np.flatnonzero(np.cumsum(told.what != ACCEPTS) == len(self.ids))[:1].tolist()
        wanted = [plan.target] if plan.grace_s is None else [plan.target, plan.quorum]
        return sorted({*over, *(int(reports[count - 1]) for count in wanted if count <= len(reports))})

    # -- on the clock ----------------------------------------------------------------------------------

    def fire(self, when: float) -> None:
        """Let happen what is due; called by the loop."""
        self._simulation.loop.now_s = when
        self._advance(when, inclusive=True)
        if when >= self._done_s and self._simulation.cohorts.pop(self.round_number, None) is not None:
            self._round.wave = None
            self._done(self)

    def catch_up(self) -> None:
        """Let everything happen that comes before this moment."""
        self._advance(self._simulation.loop.now_s, inclusive=False)

    def rearm(self) -> None:
        """Do nothing: what is to come does not change."""

    def _advance(self, until_s: float, *, inclusive: bool) -> None:
        side: Literal["left", "right"] = "right" if inclusive else "left"
        self._learn(until_s, inclusive=inclusive)
        end = int(np.searchsorted(self._arrived_s, until_s, side))
        arrived = self._updates[self._seen : end]
        self._round.arrived.update(self.ids[arrived].tolist())
        for slot in arrived[self._spoilt[arrived] != Reason.NONE].tolist():
            self._round.spoilers.setdefault(self.devices[slot], Reason(int(self._spoilt[slot])))
        self._seen = max(self._seen, end)
        end = int(np.searchsorted(self._arrivals.time_s, until_s, side))
        while self._next < end and not self._machine.over:
            stop = min([place + 1 for place in self._milestones if place >= self._next] + [end])
            self._count(min(stop, end))
        end = int(np.searchsorted(self._finish_s, until_s, side))
        self._simulation.fleet.busy[self.ids[self._ends[self._gone : end]]] = False
        self._gone = max(self._gone, end)

    def _learn(self, until_s: float, *, inclusive: bool) -> None:
        """Let the coordinator learn from updates, and devices keep what is theirs, up to a moment."""
        experience, waited_s = self._simulation.experience, until_s - self._start_s
        while self._experience and _is_due(self._experience[-1][0], waited_s, inclusive=inclusive):
            after_s, slot, examples, loss = self._experience.pop()
            if experience is not None and self._trains:
                experience.answered(self.devices[slot], self.round_number, after_s)
                experience.reported(self.devices[slot], self.round_number, examples, loss)
        while self._kept and _is_due(self._kept[-1][0], until_s, inclusive=inclusive):
            _, slot, local = self._kept.pop()
            assert self._workload.keep is not None
            self._workload.keep(self.devices[slot], local)

    def _count(self, end: int) -> None:
        """Let the coordinator take what arrives before the place ``end``; the round is not over."""
        start, self._next = self._next, end
        what, slots = self._arrivals.what[start:end], self._arrivals.slot[start:end]
        reported = self.ids[slots[what == REPORTS]].tolist()
        accepted, left = int(np.count_nonzero(what == ACCEPTS)), int(np.count_nonzero(what == LEAVES))
        self._machine.count(accepted, left, reported)
        self._simulation.coordinator.counted(self._round, self._machine, reports=len(reported) > 0)

    def close(self) -> None:
        """Do nothing: how the devices have ended is known."""

    def crash(self) -> None:
        """Do nothing: the coordinator never crashes."""


def _is_due(at_s: float, until_s: float, *, inclusive: bool) -> bool:
    return at_s <= until_s if inclusive else at_s < until_s
