"""Runs on the virtual clock: the fleet, the links and the coordinator in one process, as fast as it goes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import numpy as np

from coordinator.engine.actor import Coordinator
from coordinator.engine.assembly import Assembly
from coordinator.engine.invitations import Invitations
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.training import Training
from coordinator.engine.workload import Workload
from coordinator.run.conductor import Survival, new_run_id
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.registered_sections import method_name
from coordinator.scenario.rounds_section import Compute
from coordinator.scenario.schema import ScenarioSettings
from coordinator.simulation.backend import ProbedNetwork, Simulation, SimulationProbe
from coordinator.simulation.faults.striking import FaultsOfRun
from edge.clock import virtual as clock
from edge.clock.virtual import VirtualClockLoop
from edge.crypto.entropy import SecretSource
from edge.device.compute import ComputeQueue, Executor, InlineExecutor
from edge.network.link import SimulatedNetwork

T = TypeVar("T")
_COLLECTOR: Final = threading.Lock()
_quiet: Final[list[tuple[tuple[int, int, int], bool]]] = []
"""Of each run that goes on, the collector's thresholds when it began, and whether it froze what was there.

Those of the first are what the last one comes back to.
"""
_ran: Final[list[None]] = []
"""Not empty once a run has ended here, and left cycles for the collector."""


_BATCH_BYTES: Final = 1_800_000
"""What the updates of a batch take: more leave the cache before they are added up."""
_LEAST: Final = 8
"""Updates that are computed together in any case: so many share what a call of a kernel costs by itself."""


@dataclass(slots=True)
class VirtualTime:
    """Conducts simulated runs.

    Attributes
    ----------
    probe : sees what happens, beside the run; None for nobody.
    """

    probe: SimulationProbe | None = None
    clock: Literal["virtual", "real"] = "virtual"
    secrets: SecretSource = SecretSource.SEED
    survival: Survival | None = None

    def run_id(self, loaded: LoadedScenario) -> str:
        """Return the identity of the run."""
        return new_run_id(loaded, self.secrets)

    def unseen(self, assembly: Assembly) -> Collection[str]:
        """Return no metric: a simulation observes everything."""
        return ()

    def __call__(self, loaded: LoadedScenario, assembly: Assembly, training: Training) -> StopReason:
        """Train on the virtual clock until a reason to stop, and return it."""
        with quiet_collector(), _executor(loaded.scenario.compute.workers) as executor:
            return simulate(loaded, assembly, training, executor, self.probe)


def simulate(
    loaded: LoadedScenario,
    assembly: Assembly,
    training: Training,
    executor: Executor,
    probe: SimulationProbe | None = None,
) -> StopReason:
    """Train on the virtual clock, until a reason to stop, and return it.

    Parameters
    ----------
    loaded, assembly, training : what is run.
    executor : computes.
    probe : sees what happens, beside the run.
    """
    scenario = loaded.scenario
    network: Callable[..., SimulatedNetwork] = SimulatedNetwork
    if probe is not None:
        network = functools.partial(ProbedNetwork, probe=probe)
        for sums in assembly.all_sums():
            if sums is not None:
                sums.watch = probe.encoded

    async def main() -> StopReason:
        loop, crashed, crash = watched_loop()
        simulation = simulation_of(
            loaded,
            assembly,
            training.invitations,
            executor,
            network=network(loop, **link_facts(scenario)),
            faults=FaultsOfRun(scenario, assembly.fleet, assembly.target),
            crashed=crash,
            probe=probe,
        )
        if probe is not None:
            probe.begins(simulation)
        stop = await unless_crashed(training.run(simulation), crashed)
        if probe is not None:
            await probe.ends()
            if crashed.done():
                await crashed
        crashed.cancel()
        return stop

    return clock.run(main())


def watched_loop() -> tuple[VirtualClockLoop, asyncio.Future[None], Callable[[str, BaseException], None]]:
    """Return the running virtual clock, a future that fails with the first bug, and its reporter.

    The reporter takes the name of what failed and its exception; exceptions of callbacks go there too.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    crashed: asyncio.Future[None] = loop.create_future()

    def crash(who: str, error: BaseException) -> None:
        if not crashed.done():
            error.add_note(f"{who}, at {loop.now_s:.6f} s of simulated time")
            crashed.set_exception(error)

    def callback_failed(_: object, context: dict[str, Any]) -> None:
        crash(context["message"], context.get("exception") or RuntimeError(context["message"]))

    loop.set_exception_handler(callback_failed)
    return loop, crashed, crash


async def unless_crashed(story: Coroutine[Any, Any, T], crashed: asyncio.Future[None]) -> T:
    """Return what ``story`` returns, unless a bug is found first: then raise it."""
    task = asyncio.create_task(story, name="coordinator")
    await asyncio.wait((task, crashed), return_when=asyncio.FIRST_COMPLETED)
    if crashed.done():
        task.cancel()
        await crashed
    return await task


def link_facts(scenario: ScenarioSettings) -> dict[str, Any]:
    """Return what a network is made with beside its clock."""
    return {
        # Named from the coordinator's side in a scenario, from the devices' side here.
        "down_bps": scenario.coordinator.up_rate,
        "up_bps": scenario.coordinator.down_rate,
        "tls": scenario.connection.tls,
        "congestion": scenario.connection.congestion,
    }


def simulation_of(
    loaded: LoadedScenario,
    assembly: Assembly,
    invitations: Invitations,
    executor: Executor,
    *,
    network: SimulatedNetwork,
    faults: FaultsOfRun,
    crashed: Callable[[str, BaseException], None],
    probe: SimulationProbe | None = None,
) -> Simulation:
    """Return what the rounds of a run share on the virtual clock that goes on.

    Parameters
    ----------
    loaded, assembly, invitations : what is run, and who is invited.
    executor, network, faults : computes, carries frames, and goes wrong.
    crashed : called with the name of what failed and its exception.
    probe : sees what happens, beside the run.
    """
    scenario = loaded.scenario
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    run_id = new_run_id(loaded, SecretSource.SEED)
    return Simulation(
        seed=scenario.seed,
        run_id=run_id,
        loop=loop,
        network=network,
        fleet=assembly.fleet,
        workload=assembly.workload,
        compute=ComputeQueue(executor, batch_of(scenario.compute, assembly.workload)),
        coordinator=Coordinator(run_id, method_name(scenario.learning), assembly.ranges),
        retry=scenario.rounds.retry,
        keep_alive=scenario.connection.keep_alive,
        faults=faults,
        secure_sums=assembly.secure_sums,
        shields=assembly.shields,
        privacy=assembly.privacy,
        norm_bound=scenario.aggregation.norm_bound,
        partial_work=invitations.partial_work,
        asked=assembly.asked(),
        experience=invitations.experience,
        crashed=crashed,
        probe=probe,
    )


def batch_of(compute: Compute, workload: Workload) -> int:
    """Return how many updates are computed together; no result depends on it.

    As many as ``compute.batch`` says, in the main process only so many as stay in the cache.
    """
    if compute.workers:
        return compute.batch
    examples = workload.examples(np.arange(min(workload.n_clients, 256)))
    each = float(workload.algorithm.held_bytes(examples).mean())
    return min(compute.batch, max(int(_BATCH_BYTES / max(each, 1.0)), _LEAST))


@contextlib.contextmanager
def _executor(workers: int) -> Iterator[Executor]:
    if workers == 0:
        yield InlineExecutor()
        return
    from coordinator.cluster.kernels import ClusterExecutor  # noqa: PLC0415 - multiprocessing takes a while
    from coordinator.cluster.local import LocalCluster  # noqa: PLC0415

    with LocalCluster(workers) as cluster:
        yield ClusterExecutor(cluster)


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Let the cycle collector look rarely: a run makes many short-lived objects and hardly any cycles.

    What was there before is frozen meanwhile, unless something was frozen already: that stays so. Runs may be
    in several threads; the last that ends gives the collector its settings back.
    """
    with _COLLECTOR:
        first = not _quiet
        # Counting what is frozen takes as long as there is of it: it is counted once.
        nothing_frozen = first and gc.get_freeze_count() == 0
        _quiet.append((gc.get_threshold(), nothing_frozen))
        if first:
            if _ran:
                gc.collect()
            if nothing_frozen:
                gc.freeze()
            gc.set_threshold(500_000, 20, 100)
    try:
        yield
    finally:
        with _COLLECTOR:
            thresholds, froze = _quiet.pop()
            _ran[:] = [None]
            if not _quiet:
                gc.set_threshold(*thresholds)
                if froze:
                    gc.unfreeze()
