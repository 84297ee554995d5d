"""The fixed cost of a round: what remains of it with next to no devices, links, energy and tables on.

    python benchmarks/small_rounds.py [--rounds 400] [--repeats 5]

A method without numbers to speak of (linear regression of one weight on one sample). The same run with its
rows packed over rounds and, as somebody who watches makes it, with rows written every round; they take turns.
CPU time of a round, mean over all but the first twenty of a run, then the least of the repetitions: a busy
machine only ever adds.

Last, the fixed cost as the intercept of a line through cohorts of 100 and 1,000, and the cost a device.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from coordinator.engine.facts import RoundRow
from coordinator.engine.progress import RunObserver
from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.conductor import RunFeed
from coordinator.run.runner import run_assembled
from coordinator.scenario.load import load

SCENARIO = """
format: 2
title: small rounds
seed: 7
data: {{source: synthetic-regression, clients: {users}, samples_per_client: 1, features: 1}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {{algorithm: linear-regression, intercept: false, local: {{method: gradient}}}}
rounds: {{count: {rounds}, cohort: {cohort}, deadline: 10 min}}
coordinator: {{down_rate: 10 Gbit/s, up_rate: 10 Gbit/s}}
evaluation: {{every: 1000000, final: false}}
"""
WARMED_UP = 20


class Clock(RunObserver):
    """Takes the CPU time of ``rounds`` rounds, the first ones left out; reads nothing of their rows."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._seen = 0
        self._cpu_s: list[float] = []

    def on_round(self, row: RoundRow) -> None:
        """Count a round; the clock of a process is slow to read."""
        self._seen += 1
        if self._seen in (WARMED_UP, WARMED_UP + self._rounds):
            self._cpu_s.append(time.process_time())

    def round_ms(self) -> float:
        """Return the mean time of a round."""
        start_s, end_s = self._cpu_s
        return (end_s - start_s) / self._rounds * 1e3


class Watching(RunFeed):
    """Watches a run, and makes nothing of it: each of its rounds is written at once."""


def run(folder: Path, cohort: int, rounds: int, feeds: Sequence[RunFeed] = ()) -> tuple[float, str]:
    """Return the milliseconds of a round, and the digest of the run."""
    users = max(2000, 20 * cohort)
    file = folder / "small.yaml"
    file.write_text(SCENARIO.format(users=users, cohort=cohort, rounds=rounds + WARMED_UP))
    loaded, clock = load(file), Clock(rounds)
    outcome = run_assembled(loaded, assemble(loaded), target=folder / "out", observer=clock, feeds=feeds)
    assert outcome.status == "finished", outcome.reason
    return clock.round_ms(), str(open_run(outcome.directory).manifest["digest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for cohort in (1, 2):
            packed_ms, each_ms = [], []
            for _ in range(arguments.repeats):
                packed, digest = run(folder, cohort, arguments.rounds)
                each, other = run(folder, cohort, arguments.rounds, [Watching()])
                assert digest == other, "the digest depends on when rows are written"
                packed_ms.append(packed)
                each_ms.append(each)
            packed, each = min(packed_ms), min(each_ms)
            print(
                f"rounds of {cohort}: {packed:.2f} ms; written one by one {each:.2f} ms, "
                f"{each / packed:.2f} x as much",
                flush=True,
            )
        few = min(run(folder, 100, arguments.rounds // 4)[0] for _ in range(arguments.repeats))
        many = min(run(folder, 1000, arguments.rounds // 20)[0] for _ in range(arguments.repeats))
        device_us = (many - few) / 900 * 1e3
        print(
            f"cohorts of 100 and 1,000: {few:.2f} and {many:.2f} ms a round; {few - device_us / 10:.2f} ms "
            f"fixed, {device_us:.1f} us a device"
        )


if __name__ == "__main__":
    main()
