"""Runs of any size, made up without simulating one: as many rows as a benchmark or a test asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import CohortFacts, FleetNames, MetricValue, RoundFacts
from coordinator.results.tables.batches import evaluation_batch, round_batches
from coordinator.results.tables.writer import RunWriter
from edge.core.log import WIDTH, Column
from edge.core.vocabulary import Direction, EventKind, Fate, Outcome, Reason, RoundOutcome, Stage

NAMES = FleetNames(
    classes=tuple(f"class_{number:02}" for number in range(12)),
    networks=("wifi", "4g", "5g", "3g", "satellite"),
    regions=("north", "south"),
)
_STORY = (
    (EventKind.INVITED, Stage.INVITE, Direction.DOWN, 0.1, 200),
    (EventKind.ACCEPTED, Stage.INVITE, Direction.UP, 0.1, 100),
    (EventKind.MODEL, Stage.DOWNLOAD, Direction.DOWN, 1.0, 100_000),
    (EventKind.COMPUTED, Stage.COMPUTE, Direction.NONE, 2.0, 0),
    (EventKind.REPORT, Stage.REPORT, Direction.UP, 0.5, 50_000),
)
"""What a device does, with the median seconds and the bytes of each step."""


def _log_of(
    round_start_s: float, device: npt.NDArray[np.int64], rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], float]:
    """Return records of a round, float64 [WIDTH, records], and when its last report arrived."""
    n = len(device)
    records = np.zeros((len(_STORY), WIDTH, n))
    at_s = np.full(n, round_start_s)
    for block, (kind, stage, direction, median_s, size) in zip(records, _STORY, strict=True):
        block[Column.SLOT], block[Column.DEVICE] = np.arange(n), device
        block[Column.KIND], block[Column.STAGE], block[Column.DIRECTION] = kind, stage, direction
        block[Column.START_S] = at_s
        at_s = at_s + median_s * rng.lognormal(0.0, 0.6, n) * (1 + device % len(NAMES.classes) / 4)
        block[Column.END_S] = block[Column.TIME_S] = at_s
        block[Column.PAYLOAD_BYTES] = size
        block[Column.TCP_IP_BYTES] = 60 if size else 0
        block[Column.FATE], block[Column.REASON] = Fate.DELIVERED, Reason.NONE
    return records.transpose(1, 0, 2).reshape(WIDTH, -1), float(at_s.max())


def _cohort_of(device: npt.NDArray[np.int64], rng: np.random.Generator) -> CohortFacts:
    n = len(device)
    gone = rng.random(n) < 0.1
    return CohortFacts(
        device=device,
        device_class=device % len(NAMES.classes),
        network=device // len(NAMES.classes) % len(NAMES.networks),
        region=device % len(NAMES.regions),
        outcome=np.where(gone, Outcome.DROPPED, Outcome.COMPLETED),
        stage=np.where(gone, rng.integers(0, 4, n), -1),
        reason=np.where(
            gone, rng.choice([Reason.VANISHED, Reason.BATTERY, Reason.UNAVAILABLE], n), Reason.NONE
        ),
        energy_compute_j=rng.random(n),
        energy_radio_j=rng.random(n),
        memory_bytes=np.full(n, 1 << 20),
        examples=np.full(n, 20),
        loss=rng.random(n),
        work_share=rng.integers(1, 6, n) / 5,
        staleness=rng.integers(0, 10, n).astype(np.float64),
        kept_back=np.zeros(n, dtype=np.bool_),
    )


def write_large_run(directory: Path, rounds: int, devices: int) -> None:
    """Write a run of ``rounds`` rounds with ``devices`` invited devices each into an empty directory."""
    rng = np.random.default_rng(1)
    fleet = devices * 20
    at_s = 0.0
    with RunWriter(directory, record_events=False) as writer:
        for number in range(1, rounds + 1):
            device = rng.choice(fleet, devices, replace=False)
            columns, end_s = _log_of(at_s, device, rng)
            deadline = number % 7 == 0
            facts = RoundFacts(
                number,
                f"phase {number * 4 // (rounds + 1)}",
                at_s,
                end_s + 5.0 if deadline else end_s,
                RoundOutcome.COMPLETED,
                Reason.NONE,
                loss=1.0 / number**0.3,
                weight=float(devices),
                wall_s=0.01,
                host_rss_bytes=200 << 20,
            )
            writer.write_round(round_batches(facts, _cohort_of(device, rng), NAMES, columns))
            at_s = facts.end_s
            if number % 10 == 0:
                value = 0.9 + 0.2 / number**0.5
                by_class = [MetricValue("rmse", value, 9, tag="class", group=name) for name in NAMES.classes]
                whole = [MetricValue("rmse", value, 99), *by_class]
                writer.write("evaluations", evaluation_batch(number, facts.phase, at_s, whole))
        writer.finish()
