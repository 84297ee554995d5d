"""Training without rounds: a server step whenever the buffer is full; see ``buffer``.

A server step takes the place of a round everywhere: it has a number, a row in the tables, evaluations and
stop rules. Its row is about the devices whose reports it applied and those whose participation ended without
one while it was under way, whenever they had been invited. A device's frames carry the number of the step
that was under way when it was invited.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import ActiveRound
from coordinator.engine.assembly import Assembly
from coordinator.engine.backend import Backend
from coordinator.engine.facts import CohortFacts, FaultStrike, Recorder, RoundFacts
from coordinator.engine.fleet import Fleet
from coordinator.engine.host import rss_bytes
from coordinator.engine.pacing.buffer import Buffer, Doorway, VersionMachine, staleness_weight
from coordinator.engine.progress import RunObserver
from coordinator.engine.round_records import device_facts, strikes_of
from coordinator.engine.rounds import RoundPlan
from coordinator.engine.stop_reason import StopReason, StopRule
from coordinator.engine.training import Training
from coordinator.engine.workload import TrainingKernel
from coordinator.scenario.faults_section import Fault
from coordinator.scenario.rounds_section import Buffered
from coordinator.scenario.schema import ScenarioSettings
from coordinator.simulation.backend import SimulatedCohort, Simulation
from edge.core.log import Column, EventLog
from edge.core.vocabulary import Outcome, Reason, RoundOutcome
from edge.crypto.entropy import SecretSource
from edge.device.simulated import SimulatedDevice
from edge.learning.updates import Aggregate
from edge.network.link import Delivery

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]


class CohortListener(Protocol):
    """Hooks on the devices of a cohort."""

    def applied(self, cohort: BufferedCohort, slot: int) -> None:
        """Respond when the report of a device has gone into the buffer."""

    def ended(self, cohort: BufferedCohort, slot: int) -> None:
        """Respond when a device has ended its participation."""

    def cohort_done(self, cohort: SimulatedCohort) -> None:
        """Respond when all devices of a cohort have."""


class BufferedCohort(SimulatedCohort):
    """A cohort whose devices are reported one by one; see :class:`SimulatedCohort`."""

    foreseeable = False

    def __init__(
        self,
        simulation: Simulation,
        ids: npt.NDArray[np.int64],
        version: int,
        phase: str,
        kernel: TrainingKernel,
        listener: CohortListener,
    ) -> None:
        super().__init__(simulation, ids, version, phase, kernel, listener.cohort_done)
        self._listener = listener
        self._unjudged: Counter[int] = Counter()
        """Frames of each slot that have arrived and that the coordinator has not judged yet."""
        self._ended: set[int] = set()
        """Slots of devices that have ended while a frame of theirs was not judged yet."""

    def deliver(self, delivery: Delivery) -> None:
        """Hand a frame to the coordinator, which may take its time to judge it."""
        self._unjudged[delivery.link.slot] += 1
        super().deliver(delivery)

    def _handle(self, device: SimulatedDevice, delivery: Delivery) -> None:
        """Let the coordinator judge a frame, and report one that was taken.

        A device can end before that is known, for example because its receipt cannot be sent: of its end is
        told after that, and after its last record.
        """
        self._open += 1
        slot = device.slot
        before = len(self._applied)
        super()._handle(device, delivery)
        if len(self._applied) > before:
            self._listener.applied(self, slot)
        self._unjudged[slot] -= 1
        if slot in self._ended and not self._unjudged[slot]:
            self._ended.discard(slot)
            self._tell_of_end(slot)
        self._closed_one()

    def finished(self, device: SimulatedDevice) -> None:
        """Respond when ``device`` has ended its participation, and pass that on."""
        self._open += 1
        super().finished(device)
        if self._unjudged[device.slot]:
            self._ended.add(device.slot)
        else:
            self._tell_of_end(device.slot)
        self._closed_one()

    def _tell_of_end(self, slot: int) -> None:
        if slot in self._applied:
            # Whoever went away before its receipt does not know it, but its report counts.
            self.outcome[slot], self.stage[slot], self.reason[slot] = Outcome.COMPLETED, -1, Reason.NONE
        self._listener.ended(self, slot)

    def _foresee(self, clients: list[int]) -> None:
        """Announce nobody: who starts to compute joins the others that have the same model."""


@dataclass(slots=True)
class ServerStep:
    """A server step, and the devices that belong to it."""

    number: int
    phase: str
    start_s: float
    wall_s: float
    end_s: float = math.nan
    outcome: RoundOutcome | None = None
    """None while it is under way."""
    reason: Reason = Reason.NONE
    """Why it was abandoned."""
    aggregate: Aggregate | None = None
    members: list[tuple[BufferedCohort, int, float]] = field(default_factory=list)
    """Cohort, slot, and staleness (NaN where no report was applied)."""
    log: EventLog = field(default_factory=EventLog)
    """Records of no member: of suspensions."""
    unfinished: int = 0
    """Devices whose reports were applied and that are not done yet."""

    def facts(self, devices: CohortFacts) -> RoundFacts:
        """Return the facts of the step; in ``devices``, outcomes are overridden where it was abandoned."""
        outcome = self.outcome
        assert outcome is not None, "a step that is over has an outcome"
        if outcome is RoundOutcome.ABANDONED:
            given_up = devices.outcome == Outcome.COMPLETED
            devices.outcome[given_up] = Outcome.ABANDONED
            devices.reason[given_up] = self.reason
            devices.staleness[given_up] = math.nan
        aggregate = self.aggregate
        return RoundFacts(
            round_number=self.number,
            phase=self.phase,
            start_s=self.start_s,
            end_s=self.end_s,
            outcome=outcome,
            reason=self.reason,
            loss=aggregate.loss if aggregate is not None else math.nan,
            weight=aggregate.weight if aggregate is not None else 0.0,
            wall_s=self.wall_s,
            host_rss_bytes=rss_bytes(),
        )

    def columns(self) -> Floats:
        """Return the log of the step by column; the slot of a member is its place among them."""
        places: dict[BufferedCohort, dict[int, int]] = {}
        for place, (cohort, slot, _) in enumerate(self.members):
            places.setdefault(cohort, {})[slot] = place
        logs = []
        for cohort, mine in places.items():
            log = cohort.log.columns()
            place_of = np.full(len(cohort.ids) + 1, -1.0)
            place_of[list(mine)] = list(mine.values())
            place = place_of[log[Column.SLOT].astype(np.int64)]
            log = log[:, place >= 0]
            log[Column.SLOT] = place[place >= 0]
            logs.append(log)
        columns = np.concatenate(logs, axis=1)
        columns = columns[:, np.argsort(columns[Column.TIME_S], kind="stable")]
        return np.ascontiguousarray(np.concatenate([columns, self.log.columns()], axis=1))

    def devices(self, fleet: Fleet, columns: Floats) -> CohortFacts:
        """Return the facts of its devices, in the order in which they came to it."""
        members = [(cohort, slot) for cohort, slot, _ in self.members]
        return device_facts(
            fleet,
            np.array([cohort.ids[slot] for cohort, slot in members]),
            columns,
            outcome=np.array([cohort.outcome[slot] for cohort, slot in members], np.int8),
            stage=np.array([cohort.stage[slot] for cohort, slot in members], np.int8),
            reason=np.array([cohort.reason[slot] for cohort, slot in members], np.int8),
            loss=np.array([cohort.loss[slot] for cohort, slot in members]),
            examples=np.array([cohort.examples[slot] for cohort, slot in members]),
            memory_bytes=np.array([cohort.work.memory_bytes[slot] for cohort, slot in members]),
            work_share=np.array(
                [
                    math.nan if cohort.work_share is None else cohort.work_share[slot]
                    for cohort, slot in members
                ]
            ),
            staleness=np.array([staleness for _, _, staleness in self.members]),
            kept_back=np.array([cohort.counts_kept_back for cohort, _ in members]),
        )

    def strikes(self, faults: tuple[Fault, ...]) -> list[FaultStrike]:
        """Return what was done on purpose to its devices; ``faults`` are those of the scenario."""
        slots: dict[BufferedCohort, set[int]] = {}
        for cohort, slot, _ in self.members:
            slots.setdefault(cohort, set()).add(slot)
        strikes: list[FaultStrike] = []
        for cohort, mine in slots.items():
            if cohort.faults is not None:
                strikes += strikes_of(faults, cohort.faults, cohort.ids, mine)
        return strikes


@dataclass(slots=True)
class _Version:
    """A model that devices are at work on."""

    number: int
    """The step that was under way when it was the latest."""
    born: int
    """Steps that were applied before it."""
    machine: VersionMachine
    active: ActiveRound
    doorway: Doorway
    kernel: TrainingKernel
    cohorts: int = 0
    """Cohorts that are not done."""


@dataclass(slots=True)
class _Search:
    """How the search for devices goes while a step is under way."""

    step: int
    look_s: float
    """When to look next."""
    attempt: int = 0
    vain: int = 0
    """Looks since the last one that found anybody."""


class BufferedTraining(Training):
    """Keeps a number of devices at work and applies their reports as the buffer fills."""

    def __init__(
        self,
        scenario: ScenarioSettings,
        assembly: Assembly,
        recorder: Recorder,
        observer: RunObserver,
        watch: StopRule,
        directory: Path,
        secrets: SecretSource,
    ) -> None:
        super().__init__(scenario, assembly, recorder, observer, watch, directory, secrets)
        pacing = scenario.rounds.pacing
        assert isinstance(pacing, Buffered)
        self._pacing = pacing
        self._versions: dict[int, _Version] = {}
        self._asked = np.zeros(assembly.fleet.n, dtype=np.bool_)
        """Who was invited since the last step: the same model would give the same update."""
        self._steps: deque[ServerStep] = deque()
        """Those that are not written yet, the one under way last."""
        self._buffer: Buffer
        self._in_flight: dict[tuple[BufferedCohort, int], ServerStep | None] = {}
        """Devices at work, and the step that their report was applied in."""
        self._stop: StopReason | None = None
        self._search = _Search(0, 0.0)
        self._busy_until_s = 0.0
        """When a device was last known to be at work."""

    # -- the story ---------------------------------------------------------------------------------------

    async def run(self, backend: Backend) -> StopReason:
        """Train until a reason to stop; return it once the last device is done."""
        assert isinstance(backend, Simulation), "on the real clock there is no buffered pacing yet"
        self._simulation = backend
        return await super().run(backend)

    async def _rounds(self, backend: Backend) -> StopReason:
        loop, max_wait_s = backend.loop, self._scenario.rounds.max_wait
        self._begin_step(loop.now_s)
        while self._stop is None:
            now_s, step = loop.now_s, self._steps[-1].number
            if self._out_of_time(loop):
                self._end(self._end_of_time)
                break
            search = self._search
            if search.step != step:
                search = self._search = _Search(step, now_s)
            everybody_asked = self._everybody_asked
            if not everybody_asked and now_s >= search.look_s:
                self._look_for_devices(search, now_s)
                everybody_asked = self._everybody_asked
            waits = search.look_s > now_s and not everybody_asked
            if not self._at_work:
                if everybody_asked and not self._in_flight:
                    self._close(now_s)  # nobody is left who could add to it
                    continue
                if waits and search.look_s > self._busy_until_s + max_wait_s:
                    self._end(StopReason.NOBODY_AVAILABLE)
                    break
            until_s = min(search.look_s if waits else math.inf, self._end_of_time_s)
            await self._pause(until_s - now_s if math.isfinite(until_s) else None)
        assert self._stop is not None
        return self._stop

    def _look_for_devices(self, search: _Search, now_s: float) -> None:
        """Invite as many devices as may be at work besides those that are, if there are so many."""
        free = self._pacing.concurrency - self._at_work
        if free <= 0:
            return
        drawn = self.invitations.of_step(free, search.step, search.attempt, now_s, self._not_asked)
        search.attempt += 1
        if len(drawn):
            search.vain = 0
            self._invite(drawn)
        if len(drawn) < free:
            # Too few for now.
            search.look_s = now_s + self.invitations.wait_s(now_s, search.step, search.vain)
            search.vain += 1

    @property
    def _everybody_asked(self) -> bool:
        """Whether no device is left to be invited in this step; those that are suspended never are."""
        return bool((self._asked | self._fleet.suspended).all())

    @property
    def _at_work(self) -> int:
        return sum(version.machine.at_work for version in self._versions.values())

    def _not_asked(self, ids: Ids) -> Bools:
        return np.asarray(~self._asked[ids])

    def _invite(self, ids: Ids) -> None:
        """Invite devices to train on the latest model."""
        simulation, step = self._simulation, self._steps[-1]
        self._busy_until_s = simulation.loop.now_s
        self._asked[ids] = True
        version = self._versions.get(step.number)
        if version is None:
            version = self._versions[step.number] = self._open_version(ids, step)
        else:
            version.machine.invite(ids.tolist())
        cohort = BufferedCohort(simulation, ids, step.number, step.phase, version.kernel, self)
        version.cohorts += 1
        self._open.add(step.number)
        simulation.coordinator.invite(version.active, cohort)
        for slot, arrives in enumerate(cohort.arrives.tolist()):
            if arrives:
                self._in_flight[cohort, slot] = None
            else:
                step.members.append((cohort, slot, math.nan))

    def _open_version(self, ids: Ids, step: ServerStep) -> _Version:
        algorithm, number, born = self._workload.algorithm, step.number, self._applied
        deadline_s = self._scenario.deadline_in(step.phase)
        plan = RoundPlan(self._simulation.run_id, number, target=1, quorum=1, deadline_s=deadline_s)
        machine = VersionMachine(plan, ids.tolist())
        kind = self._pacing.staleness_weight
        doorway = Doorway(
            lambda: self._buffer, lambda: self._applied - born, lambda age: staleness_weight(kind, age)
        )
        active = self._simulation.coordinator.open_version(
            machine, algorithm.broadcast(self.state), doorway, self._fixed, self._changed
        )
        kernel = self._workload.training(self.state, number)
        return _Version(number, born, machine, active, doorway, kernel)

    # -- steps -------------------------------------------------------------------------------------------

    def _begin_step(self, now_s: float) -> None:
        number = self._rounds_run + 1
        self._asked[:] = False
        self._buffer = Buffer(number, self._accumulator())
        phase = self._scenario.phase_at(number - 1, now_s)
        self._steps.append(ServerStep(number, phase, now_s, time.perf_counter()))

    def _changed(self) -> None:
        """Take the step as soon as the buffer is full; called whenever a device is no longer at work."""
        self._busy_until_s = self._simulation.loop.now_s
        if self._stop is None and self._buffer.reports >= self._scenario.rounds.cohort:
            self._close(self._simulation.loop.now_s)
        self._idle.set()

    def _close(self, now_s: float) -> None:
        """End the step under way, and begin the next one or end training."""
        number = self._steps[-1].number
        stop = self._ended_step(number, now_s)
        self._retire_old()
        if stop is None and number == self._scenario.round_count:
            stop = StopReason.LAST_ROUND
        if stop is not None:
            self._finish(stop)
        else:
            self._begin_step(now_s)
        self._write_finished()

    def _ended_step(self, number: int, now_s: float) -> StopReason | None:
        """End the step under way and evaluate it; return why training ends, if it does."""
        open_rounds = [version.active for version in self._versions.values()]
        self._strike(open_rounds, number, self._buffer.reports, self._steps[-1].log)
        for active in open_rounds:
            active.spoilers.clear()
        stop = self._end_step(now_s)
        return self._look_back(number, stop, now_s, self._measured(number, stop))

    def _end_step(self, now_s: float) -> StopReason | None:
        """Apply what is in the buffer, if it is enough; return why training ends, if it does."""
        step = self._steps[-1]
        step.end_s = now_s
        # The device whose report filled the buffer is told of only after this.
        step.unfinished += self._buffer.reports
        stop: StopReason | None = None
        aggregate = self._buffer.result()
        if self._buffer.reports < self._scenario.rounds.quorum_reports:
            step.outcome, step.reason = RoundOutcome.ABANDONED, Reason.QUORUM
        elif self._refuses(aggregate, step.number, self._ranges):
            step.outcome, step.reason = RoundOutcome.ABANDONED, Reason.WRONG_SUM
        else:
            step.outcome, step.aggregate = RoundOutcome.COMPLETED, aggregate
            stop = self._apply(aggregate, step.number)
        step.wall_s = time.perf_counter() - step.wall_s
        return stop

    def _retire_old(self) -> None:
        """Refuse reports on models that are too old, and forget those that nobody is at work on."""
        for version in list(self._versions.values()):
            if self._applied - version.born > self._pacing.staleness_limit:
                version.machine.retire(Reason.STALE)
            self._forget_if_done(version)

    def _end(self, stop: StopReason) -> None:
        """End training in the middle of a step, which has its rows all the same."""
        step = self._steps[-1]
        if self._buffer.reports or self._in_flight or step.members:
            now_s = self._simulation.loop.now_s
            stop = self._ended_step(step.number, now_s) or stop
        else:
            self._steps.pop()
        self._finish(stop)
        self._write_finished()

    def _finish(self, stop: StopReason) -> None:
        self._stop = stop
        for version in list(self._versions.values()):
            version.machine.retire(Reason.COHORT_FULL)
            self._forget_if_done(version)

    # -- what cohorts tell -------------------------------------------------------------------------------

    def applied(self, cohort: BufferedCohort, slot: int) -> None:
        """Respond when the report of a device has gone into the buffer."""
        number, staleness = self._versions[cohort.round_number].doorway.last
        step = self._steps[number - self._steps[0].number]
        step.members.append((cohort, slot, float(staleness)))
        self._in_flight[cohort, slot] = step

    def ended(self, cohort: BufferedCohort, slot: int) -> None:
        """Respond when a device has ended its participation."""
        step = self._in_flight.pop((cohort, slot))
        if step is None:
            self._steps[-1].members.append((cohort, slot, math.nan))
        else:
            step.unfinished -= 1
        if not self._asked[cohort.ids[slot]]:
            # It trained on an earlier model: here is somebody who can be asked.
            self._search.look_s = self._simulation.loop.now_s
        self._write_finished()
        self._idle.set()

    def cohort_done(self, cohort: SimulatedCohort) -> None:
        """Respond when all devices of a cohort have."""
        version = self._versions[cohort.round_number]
        version.cohorts -= 1
        self._forget_if_done(version)
        self._idle.set()

    def _forget_if_done(self, version: _Version) -> None:
        """Drop a version without devices at work, to which no device will be invited."""
        going_on = self._stop is None
        # Who spoilt it is struck at the end of the step.
        wanted = going_on and (version.number > self._rounds_run or bool(version.active.spoilers))
        if version.cohorts or wanted or version.number not in self._versions:
            return
        self._simulation.coordinator.forget(version.number)
        self._simulation.compute.forget(version.kernel)
        del self._versions[version.number]
        self._open.discard(version.number)

    # -- tables ------------------------------------------------------------------------------------------

    def _write_finished(self) -> None:
        """Write the steps whose devices are all done, in order; the last one waits for all stragglers."""
        while self._steps:
            step = self._steps[0]
            last = len(self._steps) == 1
            if step.outcome is None or step.unfinished or (last and (self._stop is None or self._in_flight)):
                return
            self._steps.popleft()
            columns = step.columns()
            devices = step.devices(self._fleet, columns)
            strikes = step.strikes(self._scenario.faults)
            self._records.write(step.facts(devices), devices, columns, strikes)
