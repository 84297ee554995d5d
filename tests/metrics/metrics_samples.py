"""Small known logs, and runs made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.engine.facts import CohortFacts, FaultStrike, FleetNames, Inferences, MetricValue, RoundFacts
from coordinator.results.tables.batches import (
    RoundBatches,
    RoundRecord,
    evaluation_batch,
    fault_batch,
    inference_batch,
    packed_batches,
)
from coordinator.results.tables.writer import RunWriter
from edge.core.log import EventLog, pack_record
from edge.core.vocabulary import Direction, EventKind, Fate, Outcome, Reason, RoundOutcome, Stage

NAMES = FleetNames(classes=("budget", "flagship"), networks=("3g", "wifi"), regions=("north",))


def record(
    log: EventLog,
    slot: int,
    kind: EventKind,
    stage: Stage,
    direction: Direction = Direction.NONE,
    *,
    device: int | None = None,
    span_s: tuple[float, float] = (0.0, 0.0),
    sizes: tuple[int, int, int, int] = (0, 0, 0, 0),
    fate: Fate = Fate.DELIVERED,
    reason: Reason = Reason.NONE,
) -> None:
    who = 100 + slot if device is None else device
    log.extend(pack_record(span_s[1], slot, who, kind, stage, direction, *span_s, *sizes, fate, reason))


def three_device_log(start_s: float = 0.0) -> EventLog:
    """Slot 0 completes, 1 drops while it computes, 2 is late after a retry; a stranger sends garbage."""
    log = EventLog()

    def at(first: float, last: float) -> tuple[float, float]:
        return (start_s + first, start_s + last)

    invited, accepted, model = EventKind.INVITED, EventKind.ACCEPTED, EventKind.MODEL
    for slot in range(3):
        record(log, slot, invited, Stage.INVITE, Direction.DOWN, span_s=at(0, 1), sizes=(0, 40, 80, 0))
        record(log, slot, accepted, Stage.INVITE, Direction.UP, span_s=at(1, 2), sizes=(0, 30, 80, 0))
        record(log, slot, model, Stage.DOWNLOAD, Direction.DOWN, span_s=at(2, 4), sizes=(1000, 50, 120, 7))
    record(log, 0, EventKind.COMPUTED, Stage.COMPUTE, span_s=at(4, 7))
    record(log, 0, EventKind.REPORT, Stage.REPORT, Direction.UP, span_s=at(8, 9), sizes=(500, 20, 60, 0))
    record(log, 0, EventKind.DUPLICATE, Stage.REPORT, Direction.UP, span_s=at(9, 9.5), sizes=(500, 20, 60, 0),
           fate=Fate.DISCARDED, reason=Reason.DUPLICATE)  # fmt: skip
    record(log, 0, EventKind.ACKNOWLEDGED, Stage.ACKNOWLEDGE, Direction.DOWN, span_s=at(9, 10),
           sizes=(0, 10, 40, 0))  # fmt: skip
    record(log, 1, EventKind.COMPUTED, Stage.COMPUTE, span_s=at(4, 5), reason=Reason.VANISHED)
    record(log, 1, EventKind.DROPPED, Stage.COMPUTE, span_s=at(5, 5), reason=Reason.VANISHED)
    record(log, 2, EventKind.COMPUTED, Stage.COMPUTE, span_s=at(4, 14))
    record(log, 2, EventKind.REPORT, Stage.REPORT, Direction.UP, span_s=at(14, 15), sizes=(200, 20, 30, 0),
           fate=Fate.LOST, reason=Reason.CONNECTION_LOST)  # fmt: skip
    record(log, 2, EventKind.RETRY, Stage.REPORT, span_s=at(15, 15))
    record(log, 2, EventKind.LATE, Stage.REPORT, Direction.UP, span_s=at(16, 21), sizes=(500, 20, 60, 3),
           fate=Fate.DISCARDED, reason=Reason.DEADLINE)  # fmt: skip
    record(log, -1, EventKind.GARBAGE, Stage.REPORT, Direction.UP, device=7, span_s=at(3, 3.5),
           sizes=(0, 99, 40, 0), fate=Fate.DISCARDED, reason=Reason.GARBAGE)  # fmt: skip
    return log


def three_devices(**changes: Any) -> CohortFacts:
    values: dict[str, Any] = {
        "device": np.array([100, 101, 102]),
        "device_class": np.array([1, 0, 0]),
        "network": np.array([1, 0, 1]),
        "region": np.array([0, 0, 0]),
        "outcome": np.array([Outcome.COMPLETED, Outcome.DROPPED, Outcome.LATE], dtype=np.int8),
        "stage": np.array([-1, Stage.COMPUTE, Stage.REPORT], dtype=np.int8),
        "reason": np.array([Reason.NONE, Reason.VANISHED, Reason.DEADLINE], dtype=np.int8),
        "energy_compute_j": np.array([3.0, 1.0, 10.0]),
        "energy_radio_j": np.array([0.5, 0.25, 2.0]),
        "memory_bytes": np.array([4096, 4096, 8192]),
        "examples": np.array([10, 0, 30]),
        "loss": np.array([0.5, math.nan, 0.75]),
        "work_share": np.array([math.nan, math.nan, 0.5]),
        "staleness": np.array([2.0, math.nan, math.nan]),
        "kept_back": np.zeros(3, dtype=np.bool_),
    }
    return CohortFacts(**(values | changes))


def facts(number: int, start_s: float = 0.0, **changes: Any) -> RoundFacts:
    values: dict[str, Any] = {
        "round_number": number,
        "phase": "calm",
        "start_s": start_s,
        "end_s": start_s + 20.0,
        "outcome": RoundOutcome.COMPLETED,
        "reason": Reason.NONE,
        "loss": 0.5 / number,
        "weight": 10.0,
        "wall_s": 0.25,
        "host_rss_bytes": 1000 * number,
    }
    if changes.get("epsilon") is not None:
        values["epsilon_replace_one"] = 2.5 * changes["epsilon"]
    return RoundFacts(**(values | changes))


def sample_record(number: int, start_s: float | None = None, **changes: Any) -> RoundRecord:
    at_s = 100.0 * number if start_s is None else start_s
    return RoundRecord(
        facts(number, at_s, **changes), three_devices(), NAMES, three_device_log(at_s).columns()
    )


def sample_round(number: int, start_s: float | None = None, **changes: Any) -> RoundBatches:
    return packed_batches([sample_record(number, start_s, **changes)])


def sample_evaluation(number: int, values: Sequence[MetricValue] | None = None, phase: str = "calm") -> Any:
    default = [MetricValue("rmse", 1.0 / (1 + number), 3), MetricValue("ndcg@10", 0.1 * number, 3)]
    return evaluation_batch(number, phase, 100.0 * number, default if values is None else values)


def sample_inference(number: int, phase: str = "calm") -> Any:
    """Devices 100 (a flagship on wifi) and 101 (a budget phone on 3g) run their models."""
    found = Inferences(
        device=np.array([100, 101]),
        device_class=np.array([1, 0]),
        network=np.array([1, 0]),
        items=50,
        rated=np.array([10, 0]),
        model_bytes=2000,
        latency_s=np.array([0.001, 0.004]) * number,
        energy_j=np.array([0.002, 0.006]) * number,
        memory_bytes=np.array([3000, 3100]),
        host_latency_s=np.array([1e-5, 3e-5]),
        host_opening_s=np.array([0.001, 0.002]),
        host_session_bytes=np.array([4096, 8192]),
        max_absolute_error=np.array([1e-6, 2e-6]),
        max_relative_error=np.array([1e-7, 3e-7]) / number,
    )
    return inference_batch(number, phase, 100.0 * number, found, NAMES)


def sample_faults(number: int, phase: str = "calm") -> Any:
    """A blackout strikes two frames of device 101, a crash the coordinator."""
    at_s = 100.0 * number
    strikes = [
        FaultStrike("tunnel", "blackout", 101, Stage.REPORT, at_s + 1.0, at_s + 2.0, 2),
        FaultStrike("crash", "coordinator_crash", None, None, at_s + 3.0, at_s + 3.0, 1),
    ]
    return fault_batch(number, phase, strikes)


def write_run(directory: Path, rounds: int = 3, *, finish: bool = True, events: bool = True) -> str | None:
    """Write a run of ``rounds`` equal rounds; without ``finish`` it is left as a killed process leaves it."""
    directory.mkdir(parents=True, exist_ok=True)
    with RunWriter(directory, record_events=events) as writer:
        writer.write("evaluations", sample_evaluation(0))
        for number in range(1, rounds + 1):
            writer.write("faults", sample_faults(number))
            writer.write_round(sample_round(number))
            writer.write("evaluations", sample_evaluation(number))
            writer.write("inferences", sample_inference(number))
        return writer.finish() if finish else None
