"""What of the simulator's speed is seen only from inside one process.

    python benchmarks/simulator.py            both cases, a minute
    python benchmarks/simulator.py engine     one of them

batch     FedRecon by ridge, 1,000 of 100,000 a round, k = 16, about 100 ratings each: what it gives to
          compute many devices together. Full accounting: frames, stages, energy, tables written to disk
engine    the engine alone: clock, actors, both protocol machines, exact frame sizes, ideal links; no numbers,
          no link model, no tables

The time of a round is that between two finished rounds; the median is printed. Whole commands, and this
checkout beside earlier revisions: benchmarks/against.py.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.engine.actor import Coordinator
from coordinator.engine.assembly import Assembly
from coordinator.engine.rounds import RoundPlan
from coordinator.engine.selection.pool import Pool
from coordinator.run.assembling import assemble
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import LoadedScenario, load
from coordinator.simulation.backend import SimulatedCohort, Simulation
from coordinator.simulation.faults.striking import FaultsOfRun
from edge.clock.virtual import VirtualClockLoop
from edge.clock.virtual import run as run_on_virtual_clock
from edge.core.rng import stream
from edge.core.vocabulary import Direction
from edge.device.compute import ComputeQueue, InlineExecutor
from edge.learning.base import Algorithm, State, Work
from edge.learning.updates import UpdateBatch
from edge.network.link import Delivery, DeviceLink, SimulatedNetwork
from edge.network.pace import Conditions
from edge.wire.messages import AnyMessage

RECONSTRUCTION = """
format: 2
title: benchmark
seed: 7
data:
  source: synthetic-ratings
  users: {users}
  items: 1682
  ratings_per_user: {ratings}
  split: {{kind: none}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {{algorithm: fedrecon, factors: 16, learning_rate: 0.02}}
rounds: {{count: {rounds}, cohort: {cohort}, deadline: 10 min, selection: availability-aware}}
coordinator: {{down_rate: 10 Gbit/s, up_rate: 10 Gbit/s}}
evaluation: {{every: 100000, users: 10, final: false}}
"""


class Clock:
    """Notes when rounds are finished."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.cpu: list[float] = []

    def on_start(self, name: str, rounds: int | None) -> None:
        """Note the start."""
        self._note()

    def on_round(self, summary: object) -> None:
        """Note a round."""
        self._note()

    def on_evaluation(self, round_number: int, values: object) -> None:
        """Ignore evaluations."""

    def on_end(self, status: str) -> None:
        """Ignore the end."""

    def _note(self) -> None:
        self.at.append(time.perf_counter())
        self.cpu.append(time.process_time())

    def round_s(self) -> float:
        """Return the median time of a round, the first left out (it warms caches)."""
        return statistics.median(np.diff(self.at)[1:])

    def round_cpu_s(self) -> float:
        """Return the median processor time of a round."""
        return statistics.median(np.diff(self.cpu)[1:])


class Nothing(Algorithm[Any]):
    """A method without state, numbers or uploads."""

    uploads = False

    def initial_state(self, seed: int) -> State:
        """Return nothing."""
        return {}

    def work(self, examples: np.ndarray, steps: np.ndarray | None = None) -> Work:
        """Return a little dense work."""
        n = len(examples)
        ones = np.ones((n, 3))
        return Work(1e6 * ones, 1e5 * ones, ones, np.ones(n), np.full(n, 1 << 20))

    def client_update(
        self,
        state: State,
        batch: Any,
        client_keys: np.ndarray,
        clients: np.ndarray | None = None,
        steps: np.ndarray | None = None,
    ) -> UpdateBatch:
        """Return updates without arrays."""
        n = len(client_keys)
        return UpdateBatch({}, {}, np.zeros(n + 1, np.int64), np.ones(n), np.ones(n, np.int64), np.zeros(n))

    def predict(self, state: State, support: Any, query: Any, client_keys: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros(len(query.items))


def scenario(folder: Path, text: str, name: str) -> LoadedScenario:
    """Load a scenario from text."""
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load(path)


def timed(loaded: LoadedScenario, folder: Path) -> Clock:
    """Run a scenario and return when its rounds were finished."""
    clock = Clock()
    outcome = run_assembled(loaded, assemble(loaded), target=folder / "out", observer=clock)
    assert outcome.status == "finished", outcome.reason
    return clock


def report(case: str, clock: Clock, cohort: int) -> float:
    """Print a case and return its device-rounds a second."""
    rate = cohort / clock.round_s()
    cpu_us = clock.round_cpu_s() / cohort * 1e6
    print(
        f"{case}: {rate:,.0f} device-rounds/s ({1e6 / rate:.1f} us each, {cpu_us:.1f} us of CPU)", flush=True
    )
    return rate


def batch(folder: Path) -> None:
    """Run FedRecon with and without batches."""
    text = RECONSTRUCTION.format(users=100_000, ratings=100, rounds=12, cohort=1000)
    batched = report("batches of 256", timed(scenario(folder, text, "batched"), folder), 1000)
    single = scenario(folder, text + "compute: {batch: 1}\n", "single")
    alone = report("one device a kernel call", timed(single, folder), 1000)
    print(f"batching the numbers: {batched / alone:.2f} x", flush=True)


def engine(folder: Path) -> None:
    """Run the engine without numbers."""
    rounds, cohort = 20, 1000
    text = RECONSTRUCTION.format(users=100_000, ratings=10, rounds=rounds, cohort=cohort)
    loaded = scenario(folder, text, "engine")
    assembly = assemble(loaded)
    workload: Any = assembly.workload
    workload.algorithm = Nothing(None, workload.algorithm.problem)
    report("engine only, no numbers", run_engine(loaded, assembly, rounds, cohort), cohort)


class IdealNetwork(SimulatedNetwork):
    """Carries every frame in ten milliseconds: no TCP, no loss, no shared link."""

    def transmit(
        self,
        link: DeviceLink,
        conditions: Conditions,
        direction: Direction,
        message: AnyMessage,
        frame_bytes: int,
        payload_bytes: int,
    ) -> Delivery:
        """Start sending ``message``."""
        delivery = Delivery(link, direction, message, frame_bytes, payload_bytes)
        now_s = self._loop.now_s
        delivery.start_s = delivery.first_byte_s = now_s
        delivery.last_byte_s = delivery.end_s = end_s = now_s + 0.01
        delivery.latency_s = 0.0
        delivery.tcp_ip_bytes = 0
        link.in_flight.append(delivery)
        self._loop.push_timer(end_s, delivery)
        return delivery


def run_engine(loaded: LoadedScenario, assembly: Assembly, rounds: int, cohort_size: int) -> Clock:
    """Run rounds with clock, actors, both protocol machines and exact frame sizes, and nothing else."""
    clock = Clock()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        seed = loaded.scenario.seed
        coordinator = Coordinator("engine", "task", assembly.ranges)
        simulation = Simulation(
            seed=seed,
            run_id="engine",
            loop=loop,
            network=IdealNetwork(loop, np.inf, np.inf, tls=False, congestion="cubic"),
            fleet=assembly.fleet,
            workload=assembly.workload,
            compute=ComputeQueue(InlineExecutor()),
            coordinator=coordinator,
            retry=loaded.scenario.rounds.retry,
            keep_alive=True,
            faults=FaultsOfRun(loaded.scenario, assembly.fleet),
            shields={},
            secure_sums={"": None},
            privacy=None,
            norm_bound=None,
            partial_work=None,
            asked={},
            experience=None,
            crashed=lambda where, error: sys.exit(f"{where}: {error}"),
        )
        pool = Pool(assembly.fleet, seed, available_only=False)
        algorithm = assembly.workload.algorithm
        clock.on_start("engine", rounds)
        for number in range(1, rounds + 1):
            done = loop.create_future()
            ids = pool.sample(cohort_size, stream(seed, "selection", number, 0), loop.now_s)
            kernel = assembly.workload.training({}, number)
            cohort = SimulatedCohort(simulation, ids, number, "", kernel, done.set_result)
            plan = RoundPlan("engine", number, target=cohort_size, quorum=1, deadline_s=600.0)
            await coordinator.run_round(plan, cohort, {}, algorithm.accumulator({}))
            await done
            cohort.close()
            coordinator.forget(number)
            simulation.compute.forget(cohort.kernel)
            clock.on_round(None)

    gc.collect()
    gc.disable()
    run_on_virtual_clock(main())
    gc.enable()
    return clock


CASES = {"batch": batch, "engine": engine}


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"which of {', '.join(CASES)}; all by default"
    )
    chosen = parser.parse_args().cases or list(CASES)
    unknown = sorted(set(chosen) - set(CASES))
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; choose from {', '.join(CASES)}")
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            CASES[name](Path(folder))


if __name__ == "__main__":
    main()
