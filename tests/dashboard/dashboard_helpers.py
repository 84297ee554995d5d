"""Runs that are watched, and what a page would make of what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from run_helpers import Silent

from coordinator.results.tables.reader import open_run
from coordinator.run.runner import RunOutcome
from coordinator.scenario.load import load
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.local_run import run_watched

STORMY = """
format: 2
title: '<b>stormy</b> & "quoted"'
seed: 5
data: {source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 12}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {cohort: 20, over_select: 120%, quorum: 40%, deadline: 10 s}
phases:
  - {name: calm, rounds: 3}
  - {name: storm, rounds: 3}
faults:
  - {name: gone, during: storm, at_stage: compute, on: {fraction: 30%}, vanish: {}}
evaluation: {every: 2}
thresholds:
  round.completed: [rate == 100%]
  round.duration: [max < 2 s, p95 < 100 s]
  device.latency: [p95 < 60 s, count > 10]
  model.rmse: [last < first]
"""
SECURE = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 40, items: 60, ratings_per_user: 8}
fleet: {mix: global_android_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05, upload: dense}
rounds: {count: 2, cohort: 12, deadline: 600 s}
secure_aggregation: {mode: secagg-plus, clip: 1}
"""


def watched(folder: Path, text: str, live: LiveState, name: str = "watched") -> RunOutcome:
    """Run the scenario in ``text`` below ``folder``, watched."""
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return run_watched(load(file), target=folder / f"{name}-out", observer=Silent(), live=live)


def merged(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return what a reader knows that has been told ``found`` after what it knew."""
    after = {**before, **found}
    for name in ("log", "rounds"):
        after[name] = [*before[name], *found[name]][-found["kept"][name] :]
    return after


def figures_of_tables(directory: Path) -> dict[str, float]:
    """Return the figures of a finished run as the page names them."""
    run = open_run(directory)
    rounds = run.read("rounds").to_pylist()
    devices = run.read("device_rounds").to_pylist()
    found: dict[str, float] = {"now.round": rounds[-1]["round"]}
    found["rounds.completed"] = sum(row["outcome"] == "completed" for row in rounds)
    for outcome in {row["outcome"] for row in devices}:
        found[f"device_rounds.{outcome}"] = sum(row["outcome"] == outcome for row in devices)
    for way in ("down", "up"):
        found[f"{way}.all"] = sum(row[f"{way}_bytes"] for row in devices)
        for split in ("payload", "framing", "tcp_ip", "retransmitted"):
            found[f"{way}.{split}"] = sum(row[f"{way}_{split}_bytes"] for row in devices)
    for fate in ("delivered", "lost", "discarded", "wasted"):
        found[f"fate.{fate}"] = sum(row[f"{fate}_bytes"] for row in devices)
    for row in rounds:
        found |= {f"round.{row['round']}.{name}": row[name] for name in ("down_bytes", "up_bytes")}
    found |= dict(_models(run.read("evaluations").to_pylist()))
    return found


def _models(rows: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    for row in rows:
        if row["tag"] == "all" and row["value"] is not None:
            yield f"model.{row['metric']}.{row['split']}.{row['population']}", row["value"]
