"""How fast the simulator is: device-rounds a second, with ratios measured in the same process.

    python benchmarks/simulator.py            all cases, a few minutes
    python benchmarks/simulator.py a e        some of them
    python benchmarks/simulator.py --peers    also flwr and pfl on the workload of (e), in environments of
                                              their own (see benchmarks/peers/)

(a) FedRecon by ridge, fleet of 100,000, 1,000 a round, k = 16, about 100 ratings each, sparse updates
(b) the same, fleet of 1,000,000, 10,000 a round
(c) cost per device-round against the size of the fleet, 500 a round
(d) a million dormant devices with their ratings, 200 a round
(e) dense float32 [1682, 16] down and up, trivial computation, 1,000 clients, 100 a round
(f) the engine alone: clock, actors, both protocol machines, exact frame sizes, ideal links; no numbers,
    no link model, no tables. Then the same with everything but the numbers

All other figures include full accounting: frames to the byte, stages, energy, tables written to disk.
The time of a round is that between two finished rounds; the median is printed.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
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
from edge.learning.accumulators import DenseAccumulator
from edge.learning.base import State, Work
from edge.learning.updates import Accumulator, Aggregate, ArraySpec, UpdateBatch
from edge.network.link import Delivery, DeviceLink, SimulatedNetwork
from edge.network.pace import Conditions
from edge.wire.messages import AnyMessage

HERE = Path(__file__).parent

RECONSTRUCTION = """
format: 2
title: benchmark
seed: 7
data:
  source: synthetic-ratings
  users: {users}
  items: {items}
  ratings_per_user: 100
  split: {{kind: none}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {{algorithm: fedrecon, factors: 16, learning_rate: 0.02}}
rounds: {{count: {rounds}, cohort: {cohort}, deadline: 10 min, selection: availability-aware}}
coordinator: {{down_rate: {coordinator}, up_rate: {coordinator}}}
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


class Constant:
    """A method that computes nothing: it uploads a given array, dense, and adds up what it gets.

    ``shape`` None uploads nothing at all.
    """

    def __init__(self, shape: tuple[int, int] | None) -> None:
        self._shapes = {} if shape is None else {"w": (np.dtype(np.float32), shape)}

    def initial_state(self, seed: int) -> State:
        """Return zeros."""
        return {name: np.zeros(shape, dtype) for name, (dtype, shape) in self._shapes.items()}

    def initial_optimizer_state(self, state: State) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def broadcast(self, state: State) -> dict[str, Any]:
        """Return the state."""
        return dict(state)

    def local_steps(self, examples: np.ndarray) -> None:
        """Return nothing: there are no steps."""

    def work(self, examples: np.ndarray, steps: np.ndarray | None = None) -> Work:
        """Return a little dense work."""
        n = len(examples)
        ones = np.ones((n, 3))
        return Work(1e6 * ones, 1e5 * ones, ones, np.ones(n), np.full(n, 1 << 20))

    def fixed(self) -> dict[str, np.ndarray]:
        """Return nothing."""
        return {}

    def upload_spec(self, examples: np.ndarray) -> Sequence[ArraySpec]:
        """Return the one array."""
        return [
            ArraySpec(name, dtype, shape[1:], np.full(len(examples), shape[0]))
            for name, (dtype, shape) in self._shapes.items()
        ]

    def client_update(
        self,
        state: State,
        batch: Any,
        client_keys: np.ndarray,
        clients: np.ndarray | None = None,
        steps: np.ndarray | None = None,
    ) -> UpdateBatch:
        """Add a client's own number to every entry, as the peers' clients do."""
        n = len(client_keys)
        own = (np.arange(n) % 7).astype(np.float32) * np.float32(0.001)
        stacked = {name: array[None] + own[:, None, None] for name, array in state.items()}
        return UpdateBatch(
            stacked, {}, np.zeros(n + 1, np.int64), np.ones(n), np.ones(n, np.int64), np.zeros(n)
        )

    def accumulator(self, state: State) -> Accumulator:
        """Return a dense accumulator."""
        return DenseAccumulator(self._shapes)

    def server_update(
        self, state: State, optimizer_state: Mapping[str, Any], aggregate: Aggregate, round_number: int
    ) -> tuple[State, Mapping[str, Any]]:
        """Take the mean."""
        return aggregate.mean(), optimizer_state

    def converged(self, aggregate: Aggregate) -> str | None:
        """Never."""
        return None


def scenario(folder: Path, text: str, name: str) -> LoadedScenario:
    """Load a scenario from text."""
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load(path)


def timed(loaded: LoadedScenario, folder: Path, assembly: Assembly | None = None) -> Clock:
    """Run a scenario and return when its rounds were finished."""
    clock = Clock()
    outcome = run_assembled(loaded, assembly or assemble(loaded), target=folder / "out", observer=clock)
    assert outcome.status == "finished", outcome.reason
    return clock


def report(case: str, clock: Clock, cohort: int, target: str = "") -> float:
    """Print a case and return its device-rounds a second."""
    rate = cohort / clock.round_s()
    cpu_us = clock.round_cpu_s() / cohort * 1e6
    print(
        f"{case}: {rate:,.0f} device-rounds/s ({1e6 / rate:.1f} us each, {cpu_us:.1f} us of CPU){target}",
        flush=True,
    )
    return rate


def case_a(folder: Path) -> None:
    """FedRecon end to end, and what batching gives."""
    text = RECONSTRUCTION.format(coordinator="10 Gbit/s", users=100_000, items=1682, rounds=12, cohort=1000)
    loaded = scenario(folder, text, "a")
    assembly = assemble(loaded)
    batched = report("(a) fleet 100k, cohort 1k", timed(loaded, folder, assembly), 1000, "; wanted 10,000")
    single = scenario(folder, text + "compute: {batch: 1}\n", "a1")
    alone = report("(a) the same, one device a kernel call", timed(single, folder, assemble(single)), 1000)
    print(f"(a) batching the numbers: {batched / alone:.2f} x", flush=True)


def case_b(folder: Path) -> None:
    """Run a fleet of a million."""
    for rate, note in (("1000 Gbit/s", "; wanted 8,000"), ("10 Gbit/s", ": the coordinator's link is full")):
        text = RECONSTRUCTION.format(coordinator=rate, users=1_000_000, items=5000, rounds=6, cohort=10_000)
        loaded = scenario(folder, text, "b")
        report(f"(b) fleet 1M, cohort 10k, coordinator at {rate}", timed(loaded, folder), 10_000, note)


def case_c(folder: Path) -> None:
    """Cost against the size of the fleet."""
    rates = {}
    for users in (1_000, 10_000, 100_000, 1_000_000):
        text = RECONSTRUCTION.format(coordinator="10 Gbit/s", users=users, items=1682, rounds=12, cohort=500)
        rates[users] = report(
            f"(c) fleet {users:,}, cohort 500", timed(scenario(folder, text, "c"), folder), 500
        )
    low, high = min(rates.values()), max(rates.values())
    middle = (low + high) / 2
    print(f"(c) spread around the middle: +-{(high - low) / 2 / middle:.0%}; wanted +-20%", flush=True)


def case_d(folder: Path) -> None:
    """Make ready a million dormant devices, in a process of its own."""
    code = (
        "import sys, time; start = time.perf_counter();"
        "import os; os.environ.setdefault('OPENBLAS_NUM_THREADS', '1');"
        "from coordinator.engine.assembly import assemble; from coordinator.scenario.load import load;"
        "assembly = assemble(load(sys.argv[1]));"
        "from coordinator.engine.host import peak_rss_bytes; import numpy as np; fleet = assembly.fleet;"
        "of_devices = {id(value): value for value in (*vars(fleet).values(), *vars(fleet.answered).values())"
        " if isinstance(value, np.ndarray) and value.shape == (fleet.n,)};"
        "row_bytes = sum(array.nbytes for array in of_devices.values()) / fleet.n;"
        "print(time.perf_counter() - start, peak_rss_bytes() / 1e6,"
        " row_bytes, assembly.workload.split.train.nbytes / assembly.fleet.n)"
    )
    path = HERE.parent / "scenarios" / "million_dormant.yaml"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    ready_s, rss_mb, row_bytes, data_bytes = map(float, done.stdout.split())
    print(
        f"(d) million_dormant: ready in {ready_s:.2f} s (wanted 3), peak {rss_mb:.0f} MB (wanted 700), "
        f"{row_bytes:.0f} B a device beside {data_bytes:.0f} B of its data (wanted 100)",
        flush=True,
    )


def case_e(folder: Path) -> float:
    """Run the peers' dense workload."""
    clock = constant(folder, (1682, 16), users=1000, cohort=100, rounds=30)
    report("(e) dense [1682, 16] both ways, 1,000 clients, 100 a round", clock, 100)
    milliseconds = clock.round_s() / 100 * 1e3
    print(f"(e) {milliseconds:.3f} ms a client-round; wanted 0.10", flush=True)
    return milliseconds


def case_f(folder: Path) -> None:
    """Run the engine without numbers."""
    rounds, cohort = 20, 1000
    text = RECONSTRUCTION.format(
        coordinator="10 Gbit/s", users=100_000, items=1682, rounds=rounds, cohort=cohort
    )
    loaded = scenario(folder, text.replace("ratings_per_user: 100", "ratings_per_user: 10"), "engine")
    assembly = assemble(loaded)
    workload: Any = assembly.workload
    workload.algorithm = Constant(None)
    report(
        "(f) engine only, no numbers", run_engine(loaded, assembly, rounds, cohort), cohort, "; wanted 30,000"
    )
    clock = constant(folder, None, users=100_000, cohort=1000, rounds=12)
    report("(f) the same with the link model, energy and tables", clock, 1000)


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


def constant(folder: Path, shape: tuple[int, int] | None, *, users: int, cohort: int, rounds: int) -> Clock:
    """Run the method that computes nothing."""
    text = RECONSTRUCTION.format(
        coordinator="10 Gbit/s", users=users, items=1682, rounds=rounds, cohort=cohort
    )
    loaded = scenario(folder, text.replace("ratings_per_user: 100", "ratings_per_user: 10"), "constant")
    assembly = assemble(loaded)
    workload: Any = assembly.workload
    workload.algorithm = Constant(shape)
    assembly.evaluator = Nothing()
    return timed(loaded, folder, assembly)


class Nothing:
    """Evaluates nothing."""

    def evaluate(self, state: State) -> list[Any]:
        """Return no metrics."""
        return []


def peers(ours_ms: float) -> None:
    """Run the peers on the workload of (e) and print their times beside ours."""
    for name in ("pfl", "flwr"):
        script = HERE / "peers" / f"{name}_dense.py"
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        theirs = figures["ms_per_client_round"]
        print(f"(e) {name}: {theirs:.3f} ms a client-round, {theirs / ours_ms:.1f} x ours", flush=True)


CASES = {"a": case_a, "b": case_b, "c": case_c, "d": case_d, "e": case_e, "f": case_f}


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"which of {', '.join(CASES)}; all by default"
    )
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; choose from {', '.join(CASES)}")
    ours_ms = 0.0
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            result = CASES[name](Path(folder))
        ours_ms = result if name == "e" and result is not None else ours_ms
    if arguments.peers:
        peers(ours_ms or case_e(Path(tempfile.mkdtemp())))


if __name__ == "__main__":
    main()
