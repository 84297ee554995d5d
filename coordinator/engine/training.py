"""The training of one run: round after round, with everything that is written about it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import ActiveRound
from coordinator.engine.aggregation.audited import AuditedUpdates, RatedItemsAudit
from coordinator.engine.aggregation.held import aggregating
from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.assembly import Assembly
from coordinator.engine.backend import Backend, Clock, RunningCohort
from coordinator.engine.crashes import CHECKPOINT, Checkpoint, Crashes
from coordinator.engine.device_sums import DeviceSums
from coordinator.engine.facts import MetricValue, Recorder
from coordinator.engine.finished_round import FinishedRound
from coordinator.engine.invitations import SHORTEST_WAIT_S, Invitations
from coordinator.engine.mean_query import MeanQuery
from coordinator.engine.measurements import Measured, Measurements
from coordinator.engine.progress import RunObserver
from coordinator.engine.round_records import RoundRecords, facts_of, strikes_of, suspension
from coordinator.engine.rounds import RoundPlan
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.engine.secure_sums import aggregate_of, joined
from coordinator.engine.snapshots import CoordinatorMemory, Recalled, SnapshotStore, as_part
from coordinator.engine.stop_reason import StopReason, StopRule
from coordinator.engine.workload import RatingWorkload, RemoteWorkload, Workload
from coordinator.scenario.rounds_section import Rounds
from coordinator.scenario.schema import ScenarioSettings
from edge.core.log import EventLog
from edge.core.vocabulary import (
    FIRST_EVALUATION,
    FIRST_QUERY,
    MEAN_QUERIES,
    Reason,
    RoundKind,
    RoundOutcome,
    finished_rounds,
    label,
)
from edge.crypto.entropy import SecretSource, fresh_seed
from edge.learning.base import OptimizerState, Recommender, State
from edge.learning.registry import create
from edge.learning.updates import Accumulator, Aggregate, Array, ArraySpec

if TYPE_CHECKING:
    from coordinator.engine.privacy import RunPrivacy

Ids = npt.NDArray[np.int64]
_LOGGER = logging.getLogger(__name__)


class Training:
    """Runs the rounds of a scenario and writes what happens.

    Parameters
    ----------
    scenario, assembly : what is run.
    recorder : takes what happens.
    observer : receives rounds and evaluations.
    watch : has the thresholds that end a run; it is given what is written.
    directory : takes the checkpoint of a coordinator that may crash.
    """

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
        self._scenario = scenario
        self._watch = watch
        self._fleet = assembly.fleet
        self._workload = assembly.workload
        self._privacy = assembly.privacy
        self._ranges = assembly.ranges
        self._specs = assembly.workload.algorithm.summed_spec()
        self._evaluation = assembly.device_evaluation
        """How devices measure the model; None where they do not."""
        self._query = assembly.mean_query
        """How devices are asked for the mean rating; None where they are not."""
        self._recorder = recorder
        self._observer = observer
        self._audit: RatedItemsAudit | None = None
        """Reads rated items off what is seen of updates; None where that is not asked for."""
        if scenario.audit is not None and scenario.audit.rated_items:
            assert isinstance(assembly.workload, RatingWorkload), "the scenario was checked"
            self._audit = RatedItemsAudit(assembly.workload, drawn=scenario.draws_items)
        self._measurements = Measurements(scenario, assembly, recorder, observer)
        self._records = RoundRecords(assembly.fleet, recorder, observer)
        algorithm = assembly.workload.algorithm
        # Noise that the first model holds must follow from no scenario file.
        secret = algorithm.hides_values and secrets is SecretSource.SYSTEM
        crashing = any(fault.kind.crashes for fault in scenario.faults)
        self._checkpoint = Checkpoint(directory / CHECKPOINT) if crashing else None
        """What is left after a crash; kept only where there may be one."""
        self._applied = 0
        self.state: State
        """The global parameters."""
        self._optimizer_state: OptimizerState
        self._fixed: dict[str, Array]
        self._start_model(fresh_seed() if secret else scenario.seed)
        model_bytes = sum(array.nbytes for array in algorithm.broadcast(self.state).values())
        self.invitations = Invitations(scenario, assembly.fleet, assembly.workload, model_bytes, secrets)
        """Who is invited."""
        self._memory = CoordinatorMemory(
            assembly.fleet, self.invitations, assembly.privacy, assembly.mean_query
        )
        self._crashes = Crashes(scenario)
        self._cohorts: dict[int, RunningCohort] = {}
        """The cohorts of the rounds in :attr:`_open`."""
        self._pending: deque[FinishedRound] = deque()
        self._open: set[int] = set()
        """Rounds with devices that are still at work."""
        self._idle: asyncio.Event = asyncio.Event()
        self._rounds_run = 0
        self._looked_back: int | None = None
        """The last round that the model was looked at after; None: not even before the first."""
        self.diverged_on: str | None = None
        """Where devices could not run the model that diverged, with round and device; None: nowhere."""
        self._ended: StopReason | None = None
        """Why training has ended, as an earlier process found."""
        self._stopping = False
        self._snapshots: SnapshotStore | None = None
        """Keeps what must outlive this process; None: nothing need."""

    @property
    def model(self) -> State:
        """What the run leaves: the best model on validation ratings if it was looked for, else the last."""
        selected = self._measurements.selected
        return self.state if selected is None else selected

    def recall(self, recalled: Recalled) -> None:
        """Go on where an earlier process has come to; before :meth:`run`."""
        self._memory.recall(recalled.memory)
        if self._query is not None and self._query.answer is not None:
            self._centre(self._query)
        if self._query is None or recalled.applied:
            # Else the process may have ended before the mean was in the model that it kept.
            self.state, self._optimizer_state = recalled.state, recalled.optimizer_state
        self._applied = recalled.applied
        self._rounds_run = recalled.rounds_run
        self._looked_back = recalled.looked_back
        self._measurements.evaluated_at = recalled.evaluated_at
        self._ended = None if recalled.stop is None else StopReason(recalled.stop)
        if self._privacy is not None:
            for lost in recalled.lost:
                # How far its devices had come is not known. Of a sum that was made it is.
                if self._privacy.on_devices or not lost.over:
                    self._privacy.spend(lost.phase, lost.unknown, lost.kind)

    def keep_snapshots(self, snapshots: SnapshotStore) -> None:
        """Let ``snapshots`` keep what must outlive this process; before :meth:`run`."""
        self._snapshots = snapshots
        snapshots.started(self.state, self._optimizer_state, self._memory.arrays())

    def stop(self) -> None:
        """Begin no other round: training ends once the one under way, if there is one, is over."""
        self._stopping = True
        self.wake()

    async def run(self, backend: Backend) -> StopReason:
        """Train until a reason to stop; return it once the last device is done.

        Whoever is still at work when training was stopped by :meth:`stop` is not waited for.
        """
        if self._stopping:
            return StopReason.STOPPED
        self._backend = backend
        backend.begin(self._crash)
        stop = self._ended
        if stop is None:
            stop = await self._begin(backend)
        if stop is None:
            stop = await self._rounds(backend)
        unwanted = stop in (StopReason.DIVERGED, StopReason.STOPPED, StopReason.NO_MEAN)
        if (
            self._scenario.evaluation.final
            and not unwanted
            and self._measurements.evaluated_at != self._rounds_run
        ):
            await self._evaluate(self._rounds_run)
            self._keep_look(self._rounds_run, stop)
        if not unwanted:
            self._measurements.write_selected()
        while self._open and stop is not StopReason.STOPPED:
            await self._pause(None)
        if self._audit is not None:
            self._measurements.write_rated_items(self._rounds_run, backend.loop.now_s, self._audit)
        for number, strikes in self._crashes.untold():
            # After the last round: there was no other to tell of them.
            phase = self._scenario.phase_at(number - 1, backend.loop.now_s)
            self._recorder.faults(number, phase, strikes)
        return stop

    async def _rounds(self, backend: Backend) -> StopReason:
        scenario, rounds, loop = self._scenario, self._scenario.rounds, backend.loop
        count = scenario.round_count
        while count is None or self._rounds_run < count:
            if self._out_of_time(loop):
                return self._end_of_time
            number = self._rounds_run + 1
            ids = await self._select(loop, number)
            if self._stopping:
                return StopReason.STOPPED
            if ids is None:
                return StopReason.NOBODY_AVAILABLE
            stop = await self._round(backend, number, ids)
            stop = await self._look_back_aside(number, stop)
            if stop is not None:
                return stop
            if rounds.interval > 0:
                await self._rest(rounds.interval)
        return StopReason.LAST_ROUND

    async def _begin(self, backend: Backend) -> StopReason | None:
        """Ask for the mean, measure the model before the first round, and try the audits.

        Or go on where a process ended.

        Returns why training ends, if it does.
        """
        if self._looked_back is not None:
            if self._looked_back < self._rounds_run:
                return await self._look_back_aside(self._rounds_run, None)
            return None
        if self._query is not None and self._query.answer is None:
            stop = await self._ask_mean(self._query)
            if stop is not None:
                return stop
        now_s = backend.loop.now_s
        await self._evaluate(0)
        self._measurements.write_audits(now_s)
        self._keep_look(0, None)
        return None

    async def _look_back_aside(self, number: int, stop: StopReason | None) -> StopReason | None:
        """As :meth:`_look_back`, where the backend has a place to measure in."""
        now_s = self._backend.loop.now_s
        measured = await self._backend.aside(lambda: self._measured(number, stop))
        on_devices = self._evaluation is not None and self._measurements.due(number)
        if on_devices and stop is not StopReason.DIVERGED and measured.diverged is None:
            measured = replace(measured, values=await self._measured_on_devices(number))
            now_s = self._backend.loop.now_s
        return self._look_back(number, stop, now_s, measured)

    def _measured(self, number: int, stop: StopReason | None) -> Measured:
        """Return what is found out about the model after a round: nothing if it has diverged."""
        if stop is StopReason.DIVERGED:
            return Measured()
        return self._measurements.after(self.state, number)

    async def _evaluate(self, number: int) -> None:
        """Measure the model after ``number`` rounds beside what is due, and write what it is worth."""
        now_s = self._backend.loop.now_s
        values: list[MetricValue] | None
        if self._scenario.evaluation.on_devices:
            values = await self._measured_on_devices(number)
            now_s = self._backend.loop.now_s
        else:
            values = await self._backend.aside(lambda: self._measurements.evaluate(self.state))
        if values is not None:
            self._measurements.write_values(number, now_s, values, self.state)

    def _look_back(
        self, number: int, stop: StopReason | None, now_s: float, measured: Measured
    ) -> StopReason | None:
        """Write what was measured after a round; return why training ends, if it does."""
        self._rounds_run = number
        stop = self._measurements.write(number, now_s, measured, self.state) or stop
        if measured.diverged is not None:
            stop, self.diverged_on = StopReason.DIVERGED, measured.diverged
        if stop is None and self._watch.missed(number, now_s) is not None:
            stop = StopReason.THRESHOLD
        self._keep_look(number, stop)
        return stop

    def _keep_look(self, number: int, stop: StopReason | None) -> None:
        self._looked_back = number
        if self._snapshots is not None:
            self._snapshots.looked_back(number, stop)

    async def _rest(self, seconds: float) -> None:
        """Let time pass between two rounds."""
        if self._snapshots is None:
            await asyncio.sleep(seconds)
            return
        end_s = self._backend.loop.now_s + seconds
        while not self._stopping and (left_s := end_s - self._backend.loop.now_s) > 0.0:
            await self._pause(left_s)

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.save(self.state, self._optimizer_state, self._applied)

    def _crash(self, fault: int, down_s: float) -> None:
        """Let the coordinator crash: what is under way is lost, and what it knew but for its checkpoint."""
        self._crashes.note(fault, self._rounds_run + 1, self._backend.loop.now_s, down_s)
        self._backend.coordinator.crash()
        self._backend.fleet.connected[:] = False
        for _, cohort in sorted(self._cohorts.items()):
            cohort.crash()
        assert self._checkpoint is not None
        self.state, self._optimizer_state, self._applied = self._checkpoint.restore()

    @property
    def _end_of_time(self) -> StopReason:
        return StopReason.TIME_LIMIT if self._scenario.phase_time_s is None else StopReason.LAST_ROUND

    @property
    def _end_of_time_s(self) -> float:
        """When the run ends, whatever it has come to; ``inf`` where the scenario sets no limit."""
        limits = (self._scenario.rounds.simulated_time_limit, self._scenario.phase_time_s)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    def _out_of_time(self, loop: Clock) -> bool:
        return loop.now_s >= self._end_of_time_s

    async def _select(self, loop: Clock, number: int) -> Ids | None:
        """Return the devices to invite, waiting for enough of them; None when the wait was too long."""
        rounds = self._scenario.rounds
        give_up_s = loop.now_s + rounds.max_wait
        attempt = 0
        while True:
            await self._crashes.until_up(loop)
            if self._stopping:
                return None
            self._backend.catch_up()
            ids = self.invitations.of_round(number, attempt, loop.now_s)
            if ids is not None:
                return ids
            # Too few stay available for a while: look less and less often.
            wait_s = self.invitations.wait_s(loop.now_s, number, attempt)
            attempt += 1
            if self._open:
                # Devices of earlier rounds are still at work; the last one of a round to be done says so.
                wait_s = min(wait_s, SHORTEST_WAIT_S)
            if loop.now_s + wait_s > give_up_s:
                return None
            await self._pause(wait_s)

    def wake(self) -> None:
        """Look again at once, if training waits: something has changed."""
        self._idle.set()

    async def _pause(self, seconds: float | None) -> None:
        """Wait until something is done, ``seconds`` at most."""
        self._idle.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    async def _exchange(
        self,
        number: int,
        ids: Ids,
        phase: str,
        rounds: Rounds,
        workload: Workload,
        accumulator: Accumulator,
        *,
        ranges: ReportRanges | None = None,
        mixed: bool = False,
        sends_model: bool = True,
    ) -> tuple[RunningCohort, ActiveRound]:
        """Invite devices to do what ``workload`` says, and return them and the round once it is over.

        ``ranges`` are those of the numbers in reports, None: the run's; ``sends_model`` says whether they
        need the model for it; other parameters as those of :class:`~coordinator.engine.rounds.RoundPlan` and
        :meth:`Coordinator.run_round`.
        """
        backend = self._backend
        plan = RoundPlan(
            backend.run_id,
            number,
            target=min(rounds.cohort, len(ids)),
            quorum=rounds.quorum_reports,
            deadline_s=self._scenario.deadline_in(phase),
            grace_s=rounds.grace_s,
            mixed=mixed,
        )
        cohort = backend.cohort(ids, number, phase, workload.training(self.state, number), self._cohort_done)
        self._open.add(number)
        self._cohorts[number] = cohort
        if self._snapshots is not None and number < FIRST_QUERY:
            self._snapshots.began(cohort, phase, backend.loop.now_s, self._memory.arrays())
        active = await backend.coordinator.run_round(
            plan,
            cohort,
            workload.algorithm.broadcast(self.state) if sends_model else {},
            accumulator,
            cohort.secure_sum,
            self._fixed if sends_model else {},
            workload.own_parts(self.state),
            ranges,
        )
        backend.catch_up()
        return cohort, active

    async def _measured_on_devices(self, number: int) -> list[MetricValue] | None:
        """Let a cohort measure the model after ``number`` rounds; None where that came to no sum."""
        evaluation = self._evaluation
        if evaluation is None:
            return None
        aggregate = await self._summed(FIRST_EVALUATION + number, evaluation)
        return None if aggregate is None else evaluation.values(aggregate)

    async def _ask_mean(self, query: MeanQuery) -> StopReason | None:
        """Ask devices for the mean rating, again if need be; return why training ends, if it does."""
        while query.tries < MEAN_QUERIES:
            number = FIRST_QUERY + query.tries
            query.tries += 1  # a number is not used twice, whatever happens
            aggregate = await self._summed(number, query)
            if self._stopping:
                return StopReason.STOPPED
            if aggregate is not None and query.settle(aggregate):
                self._centre(query)
                if self._snapshots is not None:
                    self._snapshots.measuring(self._memory.arrays())
                return None
        return StopReason.NO_MEAN

    def _centre(self, query: MeanQuery) -> None:
        """Begin anew with the mean that devices have said."""
        workload = self._workload
        assert isinstance(workload, RatingWorkload | RemoteWorkload), "the scenario was checked"
        assert query.answer is not None, "devices have answered"
        assert query.answer.value is not None, "with a number"
        problem = replace(workload.algorithm.problem, rating_mean=query.answer.value)
        workload.algorithm = cast(Recommender, create(self._scenario.learning, problem))
        self._start_model(self._scenario.seed)

    def _start_model(self, seed: int) -> None:
        algorithm = self._workload.algorithm
        self._fixed = algorithm.fixed()
        if self._fixed:
            self._fleet.bare[:] = True
        self.state = algorithm.initial_state(seed)
        self._optimizer_state = algorithm.initial_optimizer_state(self.state)
        self._save()

    async def _summed(self, number: int, asked: DeviceSums) -> Aggregate | None:
        """Let a cohort report sums, in the round of a number; return them, None where there are none."""
        wall_s = time.perf_counter()
        ids = await self._select(self._backend.loop, number)
        if ids is None:
            return None
        phase = self._scenario.phase_at(max(finished_rounds(number) - 1, 0), self._backend.loop.now_s)
        if self._snapshots is not None:
            memory = dict(self._memory.arrays())
            if self._privacy is not None:
                # Of a round that the end of the process cuts short nobody knows who was heard.
                at_most = self._privacy.memory_at_most(phase, ids, RoundKind.of(number))
                memory |= as_part("privacy", at_most)
            self._snapshots.measuring(memory)
        cohort, active = await self._exchange(
            number,
            ids,
            phase,
            asked.rounds,
            asked.workload,
            asked.accumulator(self._scenario),
            ranges=asked.ranges,
            sends_model=asked.sends_model,
        )
        aggregate: Aggregate | None = None
        if active.machine.outcome is RoundOutcome.COMPLETED:
            specs = asked.workload.upload_spec(np.ones(1, np.int64))
            aggregate = self._aggregate(active, number, specs, asked.ranges)
            if aggregate is None:
                active.machine.undo(Reason.WRONG_SUM)
        self._strike([active], number, active.machine.reports, cohort.log)
        wall_s = time.perf_counter() - wall_s
        over = FinishedRound(cohort, active, aggregate, phase, None, frozenset(), wall_s, False)
        if self._privacy is not None:
            self._spend(self._privacy, over)
        if self._snapshots is not None:
            self._snapshots.measured(over, self._memory.arrays())
        self._pending.append(over)
        self._write_finished()
        return aggregate

    def _accumulator(self) -> Accumulator:
        """Return what the updates of a round that are seen one by one go into, empty."""
        accumulator = aggregating(self._workload.algorithm.accumulator(self.state), self._scenario)
        return accumulator if self._audit is None else AuditedUpdates(accumulator, self._audit)

    async def _round(self, backend: Backend, number: int, ids: Ids) -> StopReason | None:
        wall_s = time.perf_counter()
        phase = self._scenario.phase_at(number - 1, backend.loop.now_s)
        accumulator = self._accumulator()
        mixed = phase in backend.shields
        cohort, active = await self._exchange(
            number, ids, phase, self._scenario.rounds, self._workload, accumulator, mixed=mixed
        )
        aggregate: Aggregate | None = None
        stop: StopReason | None = None
        if active.machine.outcome is RoundOutcome.COMPLETED:
            aggregate = self._aggregate(active, number, self._specs, self._ranges)
            if aggregate is None:
                active.machine.undo(Reason.WRONG_SUM)
            else:
                stop = self._apply(aggregate, number)
        wall_s = time.perf_counter() - wall_s
        clips = self._privacy is not None or self._scenario.aggregation.norm_bound is not None
        self._strike([active], number, active.machine.reports, cohort.log)
        over = FinishedRound(cohort, active, aggregate, phase, None, frozenset(), wall_s, clips)
        if self._privacy is not None:
            self._spend(self._privacy, over)
        if self._snapshots is not None:
            self._snapshots.over(
                over, self.state, self._optimizer_state, self._applied, self._memory.arrays()
            )
        self._pending.append(over)
        self._write_finished()
        return stop

    def _apply(self, aggregate: Aggregate, number: int) -> StopReason | None:
        """Let the method change the model after round ``number``; return why training ends, if it does."""
        algorithm = self._workload.algorithm
        before = self.state
        with np.errstate(over="ignore", invalid="ignore"):  # a model that diverges ends the run, by name
            self.state, self._optimizer_state = algorithm.server_update(
                self.state, self._optimizer_state, aggregate, self._applied
            )
        self._applied += 1
        if self._backend.probe is not None:
            self._backend.probe.applied(number, before, self.state)
        self._save()
        if not algorithm.finite(before, self.state, aggregate):
            return StopReason.DIVERGED
        return StopReason.CONVERGED if algorithm.converged(aggregate) is not None else None

    def _aggregate(
        self, active: ActiveRound, number: int, specs: Sequence[ArraySpec], ranges: ReportRanges
    ) -> Aggregate | None:
        """Return the sum of a completed round; None if it cannot be right.

        ``specs`` are the arrays of one client's report, ``ranges`` those of its numbers.
        """
        machine = active.machine
        if isinstance(machine, SecureRoundMachine) and machine.summed:
            aggregate = aggregate_of(machine.aggregation.sums(), specs)
            if self._audit is not None and number < FIRST_QUERY:
                self._audit.look(aggregate.sums, machine.summed)
            if machine.clear:
                aggregate = joined(active.accumulator.result(), aggregate)
        else:
            aggregate = active.accumulator.result()
        if self._backend.probe is not None:
            self._backend.probe.summed(number, machine, aggregate)
        if self._refuses(aggregate, number, ranges):
            return None
        if self._privacy is None:
            return aggregate
        return self._privacy.noised(aggregate, number, machine.applied)

    def _spend(self, privacy: RunPrivacy, over: FinishedRound) -> None:
        """Count what devices have spent in a round since it was last looked at."""
        spent = privacy.spent_in(over.active)
        privacy.spend(over.phase, spent - over.spent, over.kind)
        over.spent = spent
        over.epsilon = privacy.epsilon()

    def _refuses(self, aggregate: Aggregate, number: int, ranges: ReportRanges) -> bool:
        """Return whether a sum cannot be right, and say why in the log."""
        objection = ranges.objection(aggregate)
        if objection is not None:
            _LOGGER.warning("%s is abandoned: %s", _named(number), objection)
        return objection is not None

    def _strike(self, rounds: Sequence[ActiveRound], number: int, reports: int, log: EventLog) -> None:
        """Count a strike for each device that has spoilt one of ``rounds``; suspend those with too many.

        Parameters
        ----------
        rounds : those that end now, or have ended.
        number : the round, or server step, to which suspensions belong.
        reports : how many reports counted in it.
        log : of the round; a suspension is recorded in it.

        A round in which more reports were out of range than counted gives no strikes for that: honest devices
        report so when the model diverges; see :mod:`coordinator.results.learnt`.
        """
        found: dict[int, Reason] = {}
        out_of_range = 0
        for active in rounds:
            if isinstance(active.machine, SecureRoundMachine):
                for device in active.machine.culprits:
                    active.spoilers.setdefault(device, Reason.PROTOCOL)
            spoilers = active.spoilers
            out_of_range += sum(reason is Reason.OUT_OF_RANGE for reason in spoilers.values())
            found |= {device: spoilers[device] for device in spoilers.keys() - active.struck}
            active.struck |= spoilers.keys()
        if not found:
            return
        if out_of_range > reports:
            found = {device: reason for device, reason in found.items() if reason is not Reason.OUT_OF_RANGE}
        allowed = self._scenario.admission.strikes
        for device in self._fleet.strike(np.array(sorted(found), np.int64), allowed).tolist():
            now_s = self._backend.loop.now_s
            log.extend(suspension(device, found[device], now_s))
            _LOGGER.warning(
                "%s: device %d is suspended after %d strikes, the last for %s; admission.strikes is %d",
                _named(number),
                device,
                self._fleet.strikes[device],
                label(found[device]),
                allowed,
            )

    def _cohort_done(self, cohort: RunningCohort) -> None:
        self._open.discard(cohort.round_number)
        del self._cohorts[cohort.round_number]
        cohort.close()
        self._backend.coordinator.forget(cohort.round_number)
        self._backend.forget(cohort.kernel)
        self._write_finished()
        self._idle.set()

    def _write_finished(self) -> None:
        """Write the rounds whose devices are all done, in the order of the rounds."""
        while self._pending and self._pending[0].cohort.round_number not in self._open:
            self._write(self._pending.popleft())

    def _write(self, over: FinishedRound) -> None:
        cohort, active = over.cohort, over.active
        # For what came after the end of the round, too.
        self._strike([active], cohort.round_number, active.machine.reports, cohort.log)
        if self._privacy is not None and self._privacy.spent_in(active) != over.spent:
            self._spend(self._privacy, over)
            for later in self._pending:
                later.epsilon = over.epsilon
        columns = cohort.log.columns()
        devices = facts_of(self._fleet, cohort, columns)
        strikes = self._crashes.of_round(cohort.round_number)
        if cohort.faults is not None:
            strikes += strikes_of(self._scenario.faults, cohort.faults, cohort.ids)
        of_sums = over.kind is not RoundKind.TRAINING
        self._records.write(over.facts(devices), devices, columns, strikes, of_sums=of_sums)
        if self._snapshots is not None:
            self._snapshots.written(cohort.round_number, self._memory.arrays())


def _named(number: int) -> str:
    """Return what messages call a round, by its number."""
    after = finished_rounds(number)
    return {
        RoundKind.TRAINING: f"round {number}",
        RoundKind.MEAN_QUERY: "the query of the mean rating",
        RoundKind.EVALUATION: f"the evaluation after round {after}",
    }[RoundKind.of(number)]
