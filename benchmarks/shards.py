"""Runs in shards beside runs in one process, on this host: ``python benchmarks/shards.py WHAT [options]``.

Results are ratios and never pass or fail on seconds; where results of runs are compared, another digest ends
it with exit code 1. WHAT is one of:

wall        whole runs of FedRecon and FedNCF, 10,000 of 10⁶ devices a round, unsharded and in --shards N:
            seconds a round once shards are there, of the whole run, and their ratios; on a quiet host alone
one         CPU time of a round in one shard beside that of an unsharded run, fixed costs taken out by a
            second, shorter run; medians of --repeat pairs that alternate
kill        runs in three shards of which a random one is killed at random moments, --repeat times
swarm       --scenarios random scenarios, from number --first on, unsharded and in --shards N; all that
            differ are named
fleet       one round of --devices devices with 10 ratings each, 10⁵ invited: the coordinator's half first,
            then shard after shard, each in a process that ends before the next; wall time and peak memory
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.cluster.base import Cluster, Worker
from coordinator.cluster.local import LocalCluster
from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.invitations import Invitations
from coordinator.engine.progress import RunObserver
from coordinator.engine.rounds import RoundPlan
from coordinator.engine.workload import RatingWorkload
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.on_cluster import sharded
from coordinator.run.runner import run_scenario
from coordinator.run.shards import Shard, ShardedTime
from coordinator.scenario.load import LoadedScenario, load_text
from coordinator.scenario.sharding import can_be_sharded
from coordinator.simulation.parts import Part, PartResult
from coordinator.simulation.sharded import CoupledRoundsError
from coordinator.swarm.generator import document, text_of
from edge.crypto.entropy import SecretSource

COMMON = """
format: 2
title: benchmark
seed: 7
coordinator: {{down_rate: {link}, up_rate: {link}}}
evaluation: {{every: 100000, users: 10, final: false, ranking: {{}}}}
data: {{source: synthetic-ratings, users: {users}, items: {items}, ratings_per_user: {ratings},
  min_ratings_per_user: 5, split: {{kind: none}}}}
fleet: {{mix: global_android_2024, availability: always_on}}
rounds: {{count: {rounds}, cohort: {cohort}, quorum: 10%, deadline: 10 min, selection: random}}
"""
LEARNING = {
    "fedrecon": "learning: {algorithm: fedrecon, factors: 16, learning_rate: 0.02}\n",
    "fedncf": "learning: {algorithm: fedncf}\n",
}


def scenario(method: str, rounds: int, devices: int = 10**6, ratings: int = 100, cohort: int = 10_000) -> str:
    """Return the text of a scenario whose coordinator has room for everybody."""
    filled = COMMON.format(
        link="10 Tbit/s", users=devices, items=1000, ratings=ratings, rounds=rounds, cohort=cohort
    )
    return filled + LEARNING[method]


class Moments(RunObserver):
    """Notes when each round was written."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def on_round(self, row: Any) -> None:
        """Note a round."""
        self.at_s.append(time.perf_counter())


def run(loaded: LoadedScenario, shards: int, target: Path, observer: RunObserver) -> Path:
    """Run a scenario in shards, with 0 without; return its directory."""
    with ExitStack() as stack:
        conductor = stack.enter_context(sharded(loaded, ClusterChoice(workers=shards))) if shards else None
        outcome = run_scenario(loaded, target=target, observer=observer, conductor=conductor)
    return outcome.directory


def measured(text: str, shards: int) -> dict[str, Any]:
    """Run a scenario in a process of its own; return seconds of all and a round, CPU seconds, and digest."""
    command = [sys.executable, __file__, "child", "--shards", str(shards)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.perf_counter()
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    whole_s = time.perf_counter() - start_s
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(done.stdout.splitlines()[-1]), "whole_s": whole_s, "cpu_s": cpu_s}


def child(shards: int) -> None:
    """Run the scenario on standard input; print what was measured."""
    loaded, moments = load_text(sys.stdin.read(), "benchmark"), Moments()
    with tempfile.TemporaryDirectory() as folder:
        directory = run(loaded, shards, Path(folder) / "run", moments)
        digest = open_run(directory).manifest["digest"]
    steps = np.diff(moments.at_s)
    print(json.dumps({"digest": digest, "round_s": float(np.median(steps)) if len(steps) else None}))


def require_same(*found: dict[str, Any]) -> None:
    """End with exit code 1 where digests differ."""
    if len({one["digest"] for one in found}) > 1:
        raise SystemExit(f"the runs differ: {[one['digest'] for one in found]}")


def wall(shards: int, rounds: int) -> None:
    """Compare wall times."""
    for method in LEARNING:
        text = scenario(method, rounds)
        whole, parts = measured(text, 0), measured(text, shards)
        require_same(whole, parts)
        print(
            f"{method}: a round {whole['round_s']:.3f} s, in {shards} shards {parts['round_s']:.3f} s:"
            f" {whole['round_s'] / parts['round_s']:.2f} ×; the command {whole['whole_s']:.1f} s and"
            f" {parts['whole_s']:.1f} s: {whole['whole_s'] / parts['whole_s']:.2f} ×",
            flush=True,
        )


def one(repeat: int, rounds: int) -> None:
    """Compare CPU times of one shard and none."""
    for method in LEARNING:
        ratios = []
        for _ in range(repeat):
            costs = []
            for shards in (0, 1):
                short, long = (measured(scenario(method, count), shards) for count in (2, 2 + rounds))
                costs.append((long["cpu_s"] - short["cpu_s"]) / rounds)
            ratios.append(costs[1] / costs[0])
            print(f"{method}: CPU a round {costs[0]:.3f} s, in one shard {costs[1]:.3f} s", flush=True)
        print(f"{method}: {statistics.median(ratios):.3f} × (median of {repeat})", flush=True)


@contextmanager
def killing(draws: random.Random, kills: int, within_s: float) -> Iterator[list[int]]:
    """Kill children of this process at random moments meanwhile; give the list of those that were."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        for _ in range(kills):
            if over.wait(draws.uniform(0.0, within_s)):
                return
            there = [process for process in multiprocessing.active_children() if process.pid is not None]
            if there:
                victim = draws.choice(there).pid
                assert victim is not None
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def kill(repeat: int, seed: int) -> None:
    """Kill shards at random."""
    loaded = load_text(scenario("fedrecon", 12, 20_000, 30, 1_000), "benchmark")
    draws, total = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        expected = open_run(run(loaded, 0, Path(folder) / "whole", RunObserver())).manifest["digest"]
        for number in range(repeat):
            with killing(draws, 2, 3.0) as killed:
                directory = run(loaded, 3, Path(folder) / str(number), RunObserver())
            total += len(killed)
            require_same({"digest": expected}, {"digest": open_run(directory).manifest["digest"]})
            print(f"run {number + 1}: {len(killed)} killed, the same digest", flush=True)
    print(f"{repeat} runs, {total} shards killed, the same digests")


class LastingShard:
    """The shard of one run after the other: to start a process takes longer than a small run."""

    def begin(self, loaded: LoadedScenario) -> None:
        """Become the shard of a run."""
        self._shard = Shard(loaded)

    def simulate(self, part: Part) -> PartResult:
        """Simulate a part."""
        return self._shard.simulate(part)


class LastingShards:
    """Workers that are the shards of a run for now."""

    def __init__(self, cluster: Cluster, workers: Sequence[Worker], loaded: LoadedScenario) -> None:
        self._cluster = cluster
        self._workers = workers
        cluster.gather(cluster.call_all(workers, "begin", loaded))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._workers)

    def simulate(self, parts: Mapping[int, Part]) -> Mapping[int, PartResult]:
        """Simulate parts, each on its shard."""
        calls = [
            self._cluster.call(self._workers[number], "simulate", part) for number, part in parts.items()
        ]
        return dict(zip(parts, self._cluster.gather(calls), strict=True))


def swarm(scenarios: int, shards: int, seed: int, first: int) -> None:
    """Compare random scenarios."""
    same = refused = coupled = 0
    different: list[int] = []
    with LocalCluster(shards) as cluster, tempfile.TemporaryDirectory() as folder:
        workers = [cluster.start(f"shard-{number}", LastingShard) for number in range(shards)]
        for number in range(first, first + scenarios):
            loaded = load_text(text_of(document(seed, number)), f"swarm-{number}")
            if not can_be_sharded(loaded):
                refused += 1
                continue
            whole = run(loaded, 0, Path(folder) / f"{number}-whole", RunObserver())
            conductor = ShardedTime(shards=LastingShards(cluster, workers, loaded))
            try:
                parts = run_scenario(
                    loaded,
                    target=Path(folder) / f"{number}-parts",
                    observer=RunObserver(),
                    conductor=conductor,
                ).directory
            except CoupledRoundsError:
                coupled += 1
                continue
            if open_run(whole).manifest["digest"] == open_run(parts).manifest["digest"]:
                same += 1
            else:
                different.append(number)
                print(f"scenario {number} of seed {seed} differs in {shards} shards", flush=True)
    print(
        f"{same} scenarios are the same in {shards} shards, {len(different)} differ; {coupled} ended because"
        f" rounds met on the coordinator's link; {refused} cannot be run in shards"
    )
    if different:
        raise SystemExit(1)


def apart(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Do some work in a process of its own; return what it returns, its wall time and its peak memory."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_answer, args=(results, work, arguments))
    process.start()
    found: dict[str, Any] = results.get()
    process.join()
    return found


def _answer(results: Any, work: Callable[..., dict[str, Any]], arguments: Sequence[Any]) -> None:
    start_s = time.perf_counter()
    found = work(*arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    results.put({**found, "wall_s": time.perf_counter() - start_s, "peak_bytes": peak})


def invite(text: str, shards: int, folder: Path) -> dict[str, Any]:
    """Draw the devices of the first round and write what each shard is asked for."""
    loaded = load_text(text, "benchmark")
    assembly, scenario_ = assemble(loaded), loaded.scenario
    workload, fleet = assembly.workload, assembly.fleet
    assert isinstance(workload, RatingWorkload)
    state = workload.algorithm.initial_state(scenario_.seed)
    invitations = Invitations(scenario_, fleet, workload, 0, SecretSource.SEED)
    ids = invitations.of_round(1, 0, 0.0)
    assert ids is not None, "all devices are there"
    start_s = time.perf_counter()
    for number in range(shards):
        mine = ids[ids % scenario_.compute.sum_groups % shards == number]
        plan = RoundPlan("benchmark", 1, len(mine) + 1, 1, scenario_.rounds.deadline)
        rows, mean = fleet.device_rows(mine), workload.algorithm.problem.rating_mean
        part = Part(plan, "", 0.0, mine, state, rows, workload.kept_of(mine), [], mean)
        (folder / f"{number}.part").write_bytes(pickle.dumps(part))
    return {"parts_s": time.perf_counter() - start_s}


def simulate(text: str, path: Path) -> dict[str, Any]:
    """Simulate a part of a round."""
    shard = Shard(load_text(text, "benchmark"))
    part = pickle.loads(path.read_bytes())
    start_s = time.perf_counter()
    result = shard.simulate(part)
    found = {"devices": len(part.ids), "round_s": time.perf_counter() - start_s}
    return {**found, "answer_bytes": len(pickle.dumps(result))}


def fleet(devices: int, shards: int) -> None:
    """Simulate one round of a large fleet, shard after shard."""
    text = scenario("fedrecon", 1, devices, 10, min(100_000, devices // 10))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = apart(invite, text, shards, folder)
        print(f"coordinator: {first['wall_s']:.1f} s, peak {first['peak_bytes'] / 1e9:.2f} GB", flush=True)
        rounds = []
        for number in range(shards):
            found = apart(simulate, text, folder / f"{number}.part")
            rounds.append(found["round_s"])
            besides_s = found["wall_s"] - found["round_s"]
            print(
                f"shard {number}: {found['devices']} devices in {found['round_s']:.2f} s,"
                f" {besides_s:.1f} s besides, peak {found['peak_bytes'] / 1e9:.2f} GB"
                f" ({found['peak_bytes'] / devices:.0f} B a device of the fleet),"
                f" answers {found['answer_bytes'] / 1e6:.1f} MB",
                flush=True,
            )
    print(
        f"one after the other {sum(rounds):.2f} s; side by side as long as the slowest, {max(rounds):.2f} s"
    )


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("wall", "one", "kill", "swarm", "fleet", "child"))
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scenarios", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--devices", type=int, default=10**8)
    parser.add_argument("--seed", type=int, default=5)
    asked = parser.parse_args()
    match asked.what:
        case "wall":
            wall(asked.shards, asked.rounds)
        case "one":
            one(asked.repeat, asked.rounds)
        case "kill":
            kill(asked.repeat, asked.seed)
        case "swarm":
            swarm(asked.scenarios, asked.shards, asked.seed, asked.first)
        case "fleet":
            fleet(asked.devices, asked.shards)
        case _:
            child(asked.shards)


if __name__ == "__main__":
    main()
