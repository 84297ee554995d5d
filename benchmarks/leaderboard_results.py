"""The results of the leaderboard, read from its run directories."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
from leaderboard_lines import Line

import recfleet
from coordinator.engine.run_files import ENDED, MANIFEST

METRICS: Final = ("hr@10", "ndcg@10")
DECIDES: Final = "ndcg@10"
"""Chooses rates and rounds, on validation ratings."""
SEEDS: Final = (1, 2, 3)
CENTRALISED: Final = ("popularity", "item-knn", "ials", "ease")
"""Centralised lines, by the names of their files."""
NEAR_BEST: Final = 0.95
AUDIT: Final = "audit"
"""The run whose uploads are read."""
COSTS: Final = "cpu_seconds.json"
"""In the folder of a protocol: CPU seconds of what is in it."""


@dataclass(frozen=True)
class SeedResult:
    """A run with the settings that were chosen, until the round that it chose.

    Attributes
    ----------
    test : HR@10 and NDCG@10 of the test.
    round : after which it was scored.
    near_best_h : simulated hours until a validation figure of at least 95 % of its best.
    down_bytes, up_bytes, energy_j : a device of the fleet, until the chosen round.
    participation_down_bytes, participation_up_bytes : a device, each time that it was invited.
    sampler : of training negatives.
    counter_hr : HR@10 of a counter of negatives, None unless the protocol leaks.
    epsilon : zero-out, None without noise.
    allowed_rounds : how many there could have been.
    users : how many the test is of.
    """

    test: Mapping[str, float]
    round: int
    near_best_h: float
    down_bytes: float
    up_bytes: float
    energy_j: float
    participation_down_bytes: float
    participation_up_bytes: float
    sampler: str
    counter_hr: float | None
    epsilon: float | None
    allowed_rounds: int
    users: int

    @property
    def is_late(self) -> bool:
        """Whether the chosen round is in the last tenth of those allowed."""
        return self.round > 0.9 * self.allowed_rounds


@dataclass(frozen=True)
class Entry:
    """A line of the page: results on the test by seed, and what was searched.

    ``runs`` and ``line`` are those of a federated method; ``audit`` has what was read off its single uploads,
    by metric, and is empty where the method has no such audit.
    """

    title: str
    test: Mapping[int, Mapping[str, float]]
    searched: str
    search: Mapping[str, float]
    chosen: str
    line: Line | None = None
    runs: Mapping[int, SeedResult] = field(default_factory=dict)
    audit: Mapping[str, float] = field(default_factory=dict)

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the seeds."""
        return statistics.fmean(found[metric] for found in self.test.values())

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return a metric by seed."""
        return {seed: found[metric] for seed, found in self.test.items()}


def _validation_curve(run: recfleet.Run) -> list[tuple[float, float]]:
    """Return simulated seconds and NDCG@10 of each look at validation ratings that gave a number."""
    rows = run.evaluations
    wanted = pc.and_(
        pc.and_(pc.equal(rows["metric"], DECIDES), pc.equal(rows["split"], "validation")),
        pc.equal(rows["tag"], "all"),
    )
    kept = rows.filter(wanted)
    looks = zip(kept["time_s"].to_pylist(), kept["value"].to_pylist(), strict=True)
    return [look for look in looks if look[1] is not None and math.isfinite(look[1])]


def best_validation(run: recfleet.Run) -> float:
    """Return the best NDCG@10 on validation ratings; −∞ where the model diverged before any."""
    return max((value for _, value in _validation_curve(run)), default=-math.inf)


def ended_run(target: Path) -> recfleet.Run | None:
    """Return the run in a directory; None where there is none that has ended."""
    if not (target / MANIFEST).exists():
        return None
    run = recfleet.open_run(target)
    return run if run.status in ENDED else None


def read_seed(run: recfleet.Run) -> SeedResult:
    """Read a finished run that chose its round on validation and was scored on the test."""
    chosen: int = run.summary["selected"]["round"]
    rows = run.evaluations
    test_rows = rows.filter(pc.and_(pc.equal(rows["split"], "test"), pc.equal(rows["tag"], "all")))
    test = dict(zip(test_rows["metric"].to_pylist(), test_rows["value"].to_pylist(), strict=True))
    curve, best = _validation_curve(run), best_validation(run)
    near_s = next(time_s for time_s, value in curve if value >= NEAR_BEST * best)
    rounds = run.rounds
    until = rounds.filter(pc.less_equal(rounds["round"], chosen))
    totals = {
        name: float(pc.sum(until[name]).as_py() or 0.0)
        for name in ("down_bytes", "up_bytes", "energy_j", "invited")
    }
    allowed = run.scenario.loaded.scenario.rounds.count
    assert allowed is not None, "the runs of a leaderboard have a number of rounds"
    devices = int(run.manifest["data"]["clients"])
    negatives = run.manifest.get("negatives")
    return SeedResult(
        test={metric: float(test[metric]) for metric in METRICS},
        round=chosen,
        near_best_h=near_s / 3600,
        down_bytes=totals["down_bytes"] / devices,
        up_bytes=totals["up_bytes"] / devices,
        energy_j=totals["energy_j"] / devices,
        participation_down_bytes=totals["down_bytes"] / max(totals["invited"], 1),
        participation_up_bytes=totals["up_bytes"] / max(totals["invited"], 1),
        sampler=negatives["sampler"] if negatives else "draws none",
        counter_hr=negatives["counter"]["hr@10"] if negatives and negatives["leaky_protocol"] else None,
        epsilon=run.summary["epsilon"],
        allowed_rounds=allowed,
        users=int(test_rows["users"].to_pylist()[0]),
    )


def read_line(folder: Path, line: Line) -> Entry | None:
    """Read a method's folder; None unless all of its runs are there and have ended."""
    search = {}
    for value in line.tried:
        found = ended_run(folder / f"search-{value:g}")
        if found is None:
            return None
        search[f"{value:g}"] = best_validation(found)
    runs = {}
    for seed in SEEDS:
        found = ended_run(folder / f"seed-{seed}")
        if found is None:
            return None
        runs[seed] = read_seed(found)
    audit: Mapping[str, float] = {}
    if line.is_audited:
        found = ended_run(folder / AUDIT)
        if found is None:
            return None
        audit = found.summary["audit"]
    return Entry(
        line.title,
        {seed: result.test for seed, result in runs.items()},
        " and ".join(f"`{name}`" for name in line.searched),
        search,
        max(search, key=lambda value: search[value]),
        line,
        runs,
        audit,
    )


def read_centralised(file: Path) -> Entry:
    """Read the file of a centralised line."""
    found: dict[str, Any] = json.loads(file.read_text())
    return Entry(
        found["title"],
        {int(seed): values for seed, values in found["seeds"].items()},
        found["searched"],
        found["search"],
        found["chosen"],
    )
