"""Runs whose devices are simulated by shards, and the shard itself: it lives in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import ActiveRound
from coordinator.engine.actor import Coordinator
from coordinator.engine.aggregation.audited import AuditedUpdates, RatedItemsAudit
from coordinator.engine.aggregation.held import aggregating
from coordinator.engine.assembly import Assembly
from coordinator.engine.backend import RunningCohort
from coordinator.engine.invitations import Invitations
from coordinator.engine.rounds import RoundMachine
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.training import Training
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.run.conductor import new_run_id
from coordinator.run.virtual_time import (
    VirtualTime,
    link_facts,
    quiet_collector,
    simulation_of,
    unless_crashed,
    watched_loop,
)
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.registered_sections import method_name
from coordinator.simulation.faults.striking import FaultsOfRun
from coordinator.simulation.parts import (
    DOWN,
    REPORTS,
    UP,
    NotedExperience,
    NotedTrunk,
    Part,
    PartCohort,
    PartResult,
    Told,
)
from coordinator.simulation.sharded import ShardedSimulation, Shards
from device_profiles.errors import DocumentError
from edge.clock import virtual as clock
from edge.core.errors import LocalProtocolError
from edge.core.log import Column
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, RoundKind, Stage
from edge.crypto.entropy import SecretSource
from edge.device.compute import InlineExecutor
from edge.learning.base import Recommender
from edge.learning.registry import create
from edge.learning.updates import Accumulator
from edge.network.link import SimulatedNetwork


@dataclass(slots=True)
class ShardedTime(VirtualTime):
    """Conducts simulated runs whose devices are simulated by shards.

    Attributes
    ----------
    shards : simulate the parts of rounds.
    """

    shards: Shards | None = None

    def __call__(self, loaded: LoadedScenario, assembly: Assembly, training: Training) -> StopReason:
        """Train on the virtual clock until a reason to stop, and return it."""
        assert self.shards is not None
        shards, scenario = self.shards, loaded.scenario
        check_accumulator(loaded, assembly)

        async def main() -> StopReason:
            loop, crashed, _ = watched_loop()
            run_id = new_run_id(loaded, SecretSource.SEED)
            simulation = ShardedSimulation(
                run_id=run_id,
                loop=loop,
                coordinator=Coordinator(run_id, method_name(scenario.learning), assembly.ranges),
                scenario=scenario,
                assembly=assembly,
                experience=training.invitations.experience,
                partial_work=training.invitations.partial_work,
                faults=FaultsOfRun(scenario, assembly.fleet, assembly.target),
                shards=shards,
            )
            stop = await unless_crashed(training.run(simulation), crashed)
            crashed.cancel()
            return stop

        with quiet_collector():
            return clock.run(main())


def check_accumulator(loaded: LoadedScenario, assembly: Assembly) -> None:
    """Refuse a method that does not keep its sums by group.

    Raises
    ------
    ScenarioError : naming the method.
    """
    algorithm = assembly.workload.algorithm
    kind = type(algorithm.accumulator(algorithm.initial_state(loaded.scenario.seed)))
    if kind.partial is not Accumulator.partial:
        return
    path = ("learning", "algorithm")
    message = f"cannot be run in shards: {kind.__name__} defines no 'partial' and 'join' of its sums by group"
    position = loaded.document.position(path)
    raise ScenarioError([DocumentError(position, path, message, "define them, or run with --shards 1")])


class Shard:
    """Simulates parts of the rounds of one run, one at a time.

    Parameters
    ----------
    loaded : the run's scenario.
    """

    def __init__(self, loaded: LoadedScenario) -> None:
        self._loaded = loaded
        self._assembly = assembly = assemble(loaded)
        if assembly.privacy is not None:
            assembly.privacy.draw_from(SecretSource.SEED)
        algorithm = assembly.workload.algorithm
        model = algorithm.broadcast(algorithm.initial_state(loaded.scenario.seed))
        model_bytes = sum(array.nbytes for array in model.values())
        self._invitations = Invitations(
            loaded.scenario, assembly.fleet, assembly.workload, model_bytes, SecretSource.SEED
        )
        self._faults = FaultsOfRun(loaded.scenario, assembly.fleet, assembly.target)

    def simulate(self, part: Part) -> PartResult:
        """Simulate a part of a round; return what became of it."""
        with quiet_collector():
            return clock.run(self._simulate(part))

    async def _simulate(self, part: Part) -> PartResult:
        loop, crashed, crash = watched_loop()
        loop.now_s = part.start_s
        loaded, assembly, fleet = self._loaded, self._assembly, self._assembly.fleet
        fleet.put_device_rows(part.ids, part.rows)
        trained = assembly.workload
        if part.kept is not None:
            assert isinstance(trained, RatingWorkload), "what is kept is of ratings"
            assert trained.kept is not None, "devices keep rows"
            trained.kept.put(trained.users_of(part.ids), part.kept)
        if isinstance(trained, RatingWorkload) and part.rating_mean is not None:
            problem = trained.algorithm.problem
            if problem.rating_mean != part.rating_mean:
                # Devices have been asked for it.
                problem = replace(problem, rating_mean=part.rating_mean)
                trained.algorithm = cast(Recommender, create(loaded.scenario.learning, problem))

        self._faults.drawn = part.drawn
        network = SimulatedNetwork(loop, **link_facts(loaded.scenario))
        trunks = {
            DOWN: NotedTrunk(loop, network.down.capacity_bps),
            UP: NotedTrunk(loop, network.up.capacity_bps),
        }
        network.down, network.up = trunks[DOWN], trunks[UP]
        simulation = simulation_of(
            loaded,
            assembly,
            self._invitations,
            InlineExecutor(),
            network=network,
            faults=self._faults,
            crashed=crash,
        )
        simulation.experience = experience = None if simulation.experience is None else NotedExperience()
        asked = assembly.asked().get(RoundKind.of(part.plan.round_number))
        workload = trained if asked is None else asked.workload
        sends_model = asked is None or asked.sends_model
        over: asyncio.Future[float] = loop.create_future()

        def done(_: RunningCohort) -> None:
            over.set_result(loop.now_s)

        kernel = workload.training(part.state, part.plan.round_number)
        cohort = PartCohort(simulation, part.ids, part.plan.round_number, part.phase, kernel, done)
        simulation.cohorts[part.plan.round_number] = cohort
        accumulator = self._accumulator(part) if asked is None else asked.accumulator(loaded.scenario)

        async def to_its_end() -> tuple[ActiveRound, float]:
            active = await simulation.coordinator.run_round(
                part.plan,
                cohort,
                workload.algorithm.broadcast(part.state) if sends_model else {},
                accumulator,
                None,
                trained.algorithm.fixed() if sends_model else {},
                workload.own_parts(part.state),
                None if asked is None else asked.ranges,
            )
            return active, await over

        active, done_s = await unless_crashed(to_its_end(), crashed)
        crashed.cancel()
        cohort.close()
        flows = {
            number: np.concatenate([cohort.flows[number], np.array(trunk.flows).reshape(-1, 3).T], axis=1)
            for number, trunk in trunks.items()
        }
        crowded = cohort.crowded or any(trunk.crowded for trunk in trunks.values())
        return _result(fleet.device_rows(part.ids), cohort, active, done_s, experience, flows, crowded)

    def _accumulator(self, part: Part) -> Accumulator:
        scenario, workload = self._loaded.scenario, self._assembly.workload
        accumulator = aggregating(workload.algorithm.accumulator(part.state), scenario)
        if scenario.audit is None or not scenario.audit.rated_items:
            return accumulator
        assert isinstance(workload, RatingWorkload), "the scenario was checked"
        return AuditedUpdates(accumulator, RatedItemsAudit(workload, drawn=scenario.draws_items))


def _result(
    rows: Mapping[str, npt.NDArray[Any]],
    cohort: PartCohort,
    active: ActiveRound,
    done_s: float,
    experience: NotedExperience | None,
    flows: Mapping[int, npt.NDArray[np.float64]],
    crowded: bool,
) -> PartResult:
    columns = cohort.log.columns()
    arrivals = Told.of_log(columns)
    assert isinstance(active.machine, RoundMachine)
    counted = cohort.ids[arrivals.slot[arrivals.what == REPORTS]]
    if set(counted.tolist()) != set(active.machine.reported):
        raise LocalProtocolError("the log of a part of a round disagrees with the reports that counted")
    slot_of = {device: slot for slot, device in enumerate(cohort.devices)}
    assert cohort.clipped is not None, "a simulation sees who clips"
    if len(columns[0]) and columns[Column.SLOT].min() < 0:
        raise LocalProtocolError("the log of a part of a round has a record of a device that is not in it")
    spoilt = np.zeros(len(cohort.ids), np.int8)
    for device, reason in active.spoilers.items():
        spoilt[slot_of[device]] = reason
    heard = [] if experience is None else experience.heard
    computed_s = _first_of(columns, columns[Column.KIND] == EventKind.COMPUTED, len(cohort.ids))
    kept = [(slot_of[device], local) for device, local in cohort.kept]
    return PartResult(
        columns=columns,
        early=cohort.log.early,
        outcome=cohort.outcome,
        stage=cohort.stage,
        reason=cohort.reason,
        loss=cohort.loss,
        clipped=cohort.clipped,
        examples=cohort.examples,
        memory_bytes=cohort.work.memory_bytes,
        work_share=cohort.work_share,
        finish_s=cohort.finish_s,
        done_s=done_s,
        arrivals=arrivals,
        heard_until_s=float(columns[Column.TIME_S, _came(columns)].max(initial=-np.inf)),
        sums=active.accumulator.partial(),
        arrived_s=_arrived_s(columns, [slot_of[device] for device in active.arrived], len(cohort.ids)),
        spoilt=spoilt,
        experience=[(slot_of[device], after_s, examples, loss) for device, after_s, examples, loss in heard],
        kept=[(float(computed_s[slot]), slot, local) for slot, local in kept],
        rows=rows,
        strikes={} if cohort.faults is None else cohort.faults.struck,
        flows=flows,
        crowded=crowded,
    )


def _arrived_s(columns: npt.NDArray[np.float64], arrived: list[int], n: int) -> npt.NDArray[np.float64]:
    """Return when an update of each device first arrived, float64 [n]; ``inf`` of any not in ``arrived``."""
    of_update = (columns[Column.STAGE] == Stage.REPORT) | (columns[Column.REASON] == Reason.GARBAGE)
    found_s = _first_of(columns, _came(columns) & of_update, n)
    times_s = np.full(n, np.inf)
    times_s[arrived] = found_s[arrived]
    return times_s


def _came(columns: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which records are of frames that came to the coordinator, bool [records]."""
    return np.asarray((columns[Column.DIRECTION] == Direction.UP) & (columns[Column.FATE] != Fate.LOST))


def _first_of(
    columns: npt.NDArray[np.float64], which: npt.NDArray[np.bool_], n: int
) -> npt.NDArray[np.float64]:
    """Return the time of the first of some records of each slot, float64 [n]; ``inf`` where there is none."""
    times_s = np.full(n, np.inf)
    np.minimum.at(times_s, columns[Column.SLOT, which].astype(np.int64), columns[Column.TIME_S, which])
    return times_s
