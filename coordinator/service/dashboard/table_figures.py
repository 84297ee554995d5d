"""The figures of the rounds that are over, added up from the rows that the run writes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.results.tables.batches import suspensions
from coordinator.results.tables.schemas import DIRECTIONS, SPLITS
from coordinator.results.verdicts import json_number
from coordinator.scenario.threshold_evaluation import percentile
from coordinator.service.dashboard.happenings import KEPT
from coordinator.service.dashboard.histogram import Histogram
from edge.core.vocabulary import Fate, Outcome, RoundOutcome, label, labels

KEPT_ROUNDS: Final = 240
"""Rounds of which there are figures one by one."""
DURATION_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_FATES: Final = (*labels(Fate), "wasted")
_QUIET: Final = pa.array([label(Outcome.COMPLETED), label(Outcome.SURPLUS)])
"""Outcomes that are no news: over-selection makes a surplus."""
_ROUND_COLUMNS: Final = (
    "round",
    "phase",
    "outcome",
    "reason",
    "end_s",
    "duration_s",
    "invited",
    *labels(Outcome),
    "up_bytes",
    "down_bytes",
    "loss",
)
_OVERALL: Final = "all"


class TableFigures:
    """Totals, the last rounds one by one, and what the model is worth.

    Attributes
    ----------
    rounds : rounds by outcome. device_rounds : device rounds by outcome.
    sent_bytes : by direction and split. fate_bytes : by fate, and those wasted.
    suspended : devices that were suspended, by reason.
    duration_s : of rounds.
    phase, end_s : of the last round.
    """

    def __init__(self) -> None:
        self.rounds = dict.fromkeys(labels(RoundOutcome), 0)
        self.device_rounds = dict.fromkeys(labels(Outcome), 0)
        self.sent_bytes = {way: dict.fromkeys(SPLITS, 0) for way in DIRECTIONS}
        self.fate_bytes = dict.fromkeys(_FATES, 0)
        self.suspended: Counter[str] = Counter()
        self.duration_s = Histogram(DURATION_BOUNDS_S)
        self.phase = ""
        self.end_s = 0.0
        self._series: deque[tuple[int, dict[str, Any]]] = deque(maxlen=KEPT_ROUNDS)
        self._latency: dict[str, Any] = {}
        """Of the round whose devices have been written, and which has not."""
        self._evaluations: dict[tuple[str, str, str], dict[str, Any]] = {}

    def take_events(self, batch: Any) -> list[dict[str, Any]]:
        """Take rows of ``events``; return those of suspensions."""
        rows: list[dict[str, Any]] = suspensions(batch).select(["round", "device", "reason"]).to_pylist()
        self.suspended.update(row["reason"] for row in rows)
        return rows

    def take_rounds(self, version: int, batch: Any) -> Iterator[dict[str, Any]]:
        """Take rows of ``rounds``; yield each as a record."""
        for row in batch.to_pylist():
            self.rounds[row["outcome"]] += 1
            for outcome in self.device_rounds:
                self.device_rounds[outcome] += row[outcome]
            for way, sizes in self.sent_bytes.items():
                for split in sizes:
                    sizes[split] += row[f"{way}_{split}_bytes"]
            for fate in self.fate_bytes:
                self.fate_bytes[fate] += row[f"{fate}_bytes"]
            self.duration_s.observe(row["duration_s"])
            self.phase, self.end_s = row["phase"], row["end_s"]
            record = {name: row[name] for name in _ROUND_COLUMNS}
            record["loss"] = json_number(row["loss"])
            record |= self._latency
            self._series.append((version, record))
            yield record

    def take_device_rounds(self, batch: Any) -> tuple[list[dict[str, Any]], int]:
        """Take the rows of a round in ``device_rounds``.

        Returns the last of its devices that were not completed, as many as a log keeps, and how many more
        there were.
        """
        latency_s = batch.column("latency_s").drop_null().to_numpy(zero_copy_only=False)
        self._latency = {
            "latency_p50_s": percentile(latency_s, 50) if latency_s.size else None,
            "latency_p95_s": percentile(latency_s, 95) if latency_s.size else None,
            "reports": int(latency_s.size),
        }
        outcomes = batch.column("outcome").cast(pa.string())
        dropped = np.flatnonzero(pc.invert(pc.is_in(outcomes, _QUIET)).to_numpy(zero_copy_only=False))
        rows = batch.take(pa.array(dropped[-KEPT:]))
        names = ["round", "device", "class", "outcome", "stage", "reason"]
        return rows.select(names).to_pylist(), max(dropped.size - KEPT, 0)

    def take_evaluations(self, batch: Any) -> None:
        """Take rows of ``evaluations``: those over all users."""
        for row in batch.to_pylist():
            if row["tag"] != _OVERALL:
                continue
            value = math.nan if row["value"] is None else row["value"]
            key = (row["metric"], row["split"], row["population"])
            found = self._evaluations.setdefault(
                key, {"metric": key[0], "split": key[1], "population": key[2], "first": json_number(value)}
            )
            found["last"], found["round"] = json_number(value), row["round"]

    def totals(self) -> dict[str, Any]:
        """Return the totals as a mapping of JSON types."""
        return {
            "rounds": dict(self.rounds),
            "device_rounds": dict(self.device_rounds),
            "sent_bytes": {
                way: {**sizes, "all": sum(sizes.values())} for way, sizes in self.sent_bytes.items()
            },
            "fate_bytes": dict(self.fate_bytes),
            "suspended": dict(self.suspended),
            "phase": self.phase,
            "end_s": self.end_s,
        }

    def rounds_since(self, version: int) -> list[dict[str, Any]]:
        """Return the rounds that came after a version, of the last :data:`KEPT_ROUNDS`."""
        return [record for came, record in self._series if came > version]

    def evaluations(self) -> list[dict[str, Any]]:
        """Return the first and the last value of every metric."""
        return [dict(one) for one in self._evaluations.values()]
