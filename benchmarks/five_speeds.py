"""Fleets in five parts of different speed, and the figures of runs on them, for the studies of pacing."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from secure_training import Quiet

from coordinator.results.tables.reader import open_run
from coordinator.run.assembling import assemble
from coordinator.run.runner import RunOutcome, run_scenario
from coordinator.scenario.load import load

FLEET = """
fleet:
  devices: {tier_1: 20%, tier_2: 20%, tier_3: 20%, tier_4: 20%, tier_5: 20%}
  networks: {wifi_home: 100%}
  availability: always_on
  profiles: [tiers.yaml]
"""
"""The section of a scenario; the file of profiles is written beside it."""
_TIER = """
  tier_{number}:
    example: a phone of tier {number}
    flops_1_thread: 10 GFLOP/s
    flops_all_threads: 30 GFLOP/s
    memory_rate: 5 GB/s
    ram: 4 GiB
    op_overhead: {overhead_us:.3f} us
    active_power: 3 W
    compute_sigma: {spread}
    thermal: none
    crypto: phone_fast
    sources: assumption
"""


def prepare(folder: Path, text: str, seconds: Sequence[float], spread: float) -> Path:
    """Write a scenario whose five tiers take ``seconds`` for a mean computation; return its file.

    Tiers differ in what an operator costs beyond its arithmetic. ``spread`` is the standard deviation of the
    logarithm of a computation's time.
    """
    scenario = folder / "study.yaml"
    scenario.write_text(text)
    _write_tiers(folder, [1.0] * len(seconds), spread)
    assembly = assemble(load(scenario))
    work = assembly.workload.work(np.arange(assembly.fleet.n))
    ops = float((work.ops.sum(axis=1) * work.steps).mean())
    _write_tiers(folder, [each_s / ops * 1e6 for each_s in seconds], spread)
    return scenario


def _write_tiers(folder: Path, overheads_us: Sequence[float], spread: float) -> None:
    tiers = [
        _TIER.format(number=number, overhead_us=overhead_us, spread=spread)
        for number, overhead_us in enumerate(overheads_us, start=1)
    ]
    (folder / "tiers.yaml").write_text("\n".join(["devices:", *tiers]))


def study(scenario: Path, settings: Sequence[str], seed: int) -> tuple[RunOutcome, dict[str, float]]:
    """Run one way of training; return its outcome and figures."""
    started_s = time.perf_counter()
    target = scenario.parent / f"run-{time.monotonic_ns()}"
    outcome = run_scenario(load(scenario, [*settings, f"seed={seed}"]), target=target, observer=Quiet())
    tables = open_run(outcome.directory)
    rounds = tables.read("rounds").to_pylist()
    devices = tables.read("device_rounds").to_pylist()
    ages = [row["staleness"] for row in devices if row["staleness"] is not None]
    heard = [row for row in devices if row["outcome"] == "completed"]
    errors = [row["value"] for row in tables.read("evaluations").to_pylist() if row["metric"] == "rmse"]
    return outcome, {
        "hours": rounds[-1]["end_s"] / 3600,
        "steps": len(rounds),
        "reports": len(heard),
        "slowest": sum(row["class"] == "tier_5" for row in heard) / max(len(heard), 1),
        "wasted": sum(row["wasted_compute_s"] for row in rounds) / sum(row["compute_s"] for row in rounds),
        "age": statistics.fmean(ages) if ages else 0.0,
        "rmse": errors[-1],
        "wall_s": time.perf_counter() - started_s,
    }


def show(title: str, rows: dict[str, dict[str, float]], wall_s: float) -> None:
    """Print the figures of every way, the first of which the others are compared with."""
    table = Table(title=title)
    for name in (
        "way",
        "simulated",
        "ratio",
        "steps",
        "reports",
        "of the slowest",
        "mean age",
        "wasted",
        "rmse",
        "wall",
    ):
        table.add_column(name, justify="left" if name == "way" else "right")
    first_h = next(iter(rows.values()))["hours"]
    for way, row in rows.items():
        table.add_row(
            way,
            f"{row['hours']:.2f} h",
            f"{first_h / row['hours']:.1f} x",
            f"{row['steps']:.0f}",
            f"{row['reports']:.0f}",
            f"{row['slowest']:.0%}",
            f"{row['age']:.1f}",
            f"{row['wasted']:.0%}",
            f"{row['rmse']:.3f}",
            f"{row['wall_s']:.1f} s",
        )
    console = Console(width=120)
    console.print(table)
    hours = sum(row["hours"] for row in rows.values())
    console.print(
        f"{hours:.1f} simulated hours in {wall_s:.1f} s of this machine: {hours * 3600 / wall_s:,.0f} x"
    )
