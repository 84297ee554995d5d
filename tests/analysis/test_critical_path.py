"""Blame, on runs whose answer is known by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_samples import NAMES, facts, record, sample_round, three_device_log, three_devices

from coordinator.results.analysis.critical_path import (
    ARRIVAL,
    DEADLINE,
    NOBODY,
    STEPS,
    WAITING,
    CriticalPath,
    critical_path,
    held_up,
)
from coordinator.results.summary import summarise
from coordinator.results.tables.batches import RoundBatches, round_batches
from coordinator.results.tables.reader import open_run
from coordinator.results.tables.writer import RunWriter
from edge.core.log import EventLog
from edge.core.vocabulary import Direction, EventKind, Outcome, Stage


def path_of(directory: Path, *rounds: RoundBatches) -> CriticalPath:
    directory.mkdir(exist_ok=True)
    with RunWriter(directory) as writer:
        for batches in rounds:
            writer.write_round(batches)
        writer.finish()
    return critical_path(open_run(directory))


def spent(path: CriticalPath, position: int = 0) -> dict[str, float]:
    seconds = path.round_seconds()[position]
    return {name: value for name, value in zip(STEPS, seconds.tolist(), strict=True) if value}


def blamed(path: CriticalPath) -> dict[tuple[str, str, str], float]:
    return {(row.device_class, row.step, row.ended_by): row.seconds for row in held_up(path)}


def test_a_report_that_ends_its_round_is_blamed_stage_by_stage(tmp_path: Path) -> None:
    # Slot 0: invited 0–2, download 2–4, compute 4–7, silent for a second, report 8–9 and once more at 9.5.
    path = path_of(tmp_path, sample_round(1, 50.0, end_s=59.0))
    assert spent(path) == {"invite": 2.0, "download": 2.0, "compute": 3.0, "report": 1.0, WAITING: 1.0}
    assert path.device.tolist() == [100]
    assert path.by_deadline.tolist() == [False]
    assert blamed(path)["flagship", "compute", ARRIVAL] == 3.0
    assert {name for name, _, _ in blamed(path)} == {"flagship"}
    assert held_up(path)[0].share == pytest.approx(1 / 3)


def test_a_deadline_is_shared_by_the_missing_where_they_were_stuck(tmp_path: Path) -> None:
    # At 20 s, device 101 has vanished while it computed, and 102 is still sending.
    path = path_of(tmp_path, sample_round(1, 100.0))
    assert path.by_deadline.tolist() == [True]
    assert (path.device.tolist(), path.missing.tolist()) == ([-1], [2])
    assert blamed(path) == {("budget", "compute", DEADLINE): 10.0, ("budget", "report", DEADLINE): 10.0}
    assert spent(path) == {"compute": 10.0, "report": 10.0}


def test_whoever_declined_is_not_waited_for(tmp_path: Path) -> None:
    cohort = three_devices(outcome=np.array([Outcome.COMPLETED, Outcome.DECLINED, Outcome.LATE]))
    batches = round_batches(facts(1, 0.0), cohort, NAMES, three_device_log(0.0).columns())
    assert blamed(path_of(tmp_path, batches)) == {("budget", "report", DEADLINE): 20.0}


def test_a_device_that_never_answered_is_stuck_at_the_invitation(tmp_path: Path) -> None:
    cohort = three_devices(
        outcome=np.array([Outcome.COMPLETED, Outcome.UNREACHABLE, Outcome.SURPLUS]),
        stage=np.array([-1, Stage.INVITE, Stage.REPORT]),
    )
    batches = round_batches(facts(1, 0.0), cohort, NAMES, three_device_log(0.0).columns())
    assert blamed(path_of(tmp_path, batches)) == {("budget", "invite", DEADLINE): 20.0}


def test_a_deadline_that_waited_for_nobody_blames_nobody(tmp_path: Path) -> None:
    cohort = three_devices(outcome=np.array([Outcome.COMPLETED, Outcome.DECLINED, Outcome.SURPLUS]))
    batches = round_batches(facts(1, 0.0), cohort, NAMES, three_device_log(0.0).columns())
    assert blamed(path_of(tmp_path, batches)) == {(NOBODY, WAITING, DEADLINE): 20.0}


def secure_log() -> EventLog:
    """Slot 0 is last with its keys, slot 1 with its shares; slot 2 vanishes before it sends its input."""
    log = EventLog()
    up = Direction.UP
    for slot, keys_s in enumerate((5.0, 3.0, 4.0)):
        record(log, slot, EventKind.INVITED, Stage.INVITE, Direction.DOWN, span_s=(0, 1))
        record(log, slot, EventKind.MODEL, Stage.DOWNLOAD, Direction.DOWN, span_s=(1, 2))
        record(log, slot, EventKind.COMPUTED, Stage.COMPUTE, span_s=(2, keys_s - 1))
        record(log, slot, EventKind.KEYS, Stage.ADVERTISE_KEYS, up, span_s=(keys_s - 1, keys_s))
    for slot, shares_s in enumerate((6.0, 8.0, 7.0)):
        record(log, slot, EventKind.KEY_LIST, Stage.SHARE_KEYS, Direction.DOWN, span_s=(5, 5.5))
        record(log, slot, EventKind.SEALED_SHARES, Stage.SHARE_KEYS, up, span_s=(5.5, shares_s))
    for slot in (0, 1):
        record(log, slot, EventKind.MASKED_INPUT, Stage.MASKED_INPUT, up, span_s=(8, 9))
        record(log, slot, EventKind.UNMASK_SHARES, Stage.UNMASK, up, span_s=(18, 19 + slot))
    record(log, 2, EventKind.DROPPED, Stage.MASKED_INPUT, span_s=(8.5, 8.5))
    return log


def secure_round(**changes: Any) -> RoundBatches:
    cohort = three_devices(
        outcome=np.array([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.DROPPED]),
        stage=np.array([-1, -1, Stage.MASKED_INPUT]),
    )
    stages_s = {
        Stage.ADVERTISE_KEYS: 5.0,
        Stage.SHARE_KEYS: 3.0,
        Stage.MASKED_INPUT: 10.0,
        Stage.UNMASK: 2.0,
    }
    return round_batches(facts(1, 0.0, stage_s=stages_s, **changes), cohort, NAMES, secure_log().columns())


def test_each_stage_of_a_secure_sum_is_a_barrier_of_its_own(tmp_path: Path) -> None:
    path = path_of(tmp_path, secure_round())
    assert path.device.tolist() == [100, 101, -1, 101]
    assert path.by_deadline.tolist() == [False, False, True, False]
    assert blamed(path) == {
        ("flagship", "invite", ARRIVAL): 1.0,
        ("flagship", "download", ARRIVAL): 1.0,
        ("flagship", "compute", ARRIVAL): 2.0,
        ("flagship", "advertise-keys", ARRIVAL): 1.0,
        ("budget", "share-keys", ARRIVAL): 3.0,
        ("budget", "masked-input", DEADLINE): 10.0,
        ("budget", "unmask", ARRIVAL): 2.0,
    }


def test_what_follows_the_last_stage_of_a_sum_is_a_segment_too(tmp_path: Path) -> None:
    path = path_of(tmp_path, secure_round(end_s=25.0))
    assert len(path.segment_round) == 5
    assert blamed(path)[NOBODY, WAITING, DEADLINE] == 5.0


def test_what_rounding_leaves_is_no_waiting(tmp_path: Path) -> None:
    # One stage follows the other without a pause, at times that binary fractions only come close to.
    times_s = [0.3, 0.4, 0.6, 0.7, 2.7]
    log = EventLog()
    stages = (Stage.INVITE, Stage.DOWNLOAD, Stage.COMPUTE, Stage.REPORT)
    kinds = (EventKind.ACCEPTED, EventKind.MODEL, EventKind.COMPUTED, EventKind.REPORT)
    for slot in range(3):
        for stage, kind, span_s in zip(stages, kinds, pairwise(times_s), strict=True):
            record(log, slot, kind, stage, Direction.UP, span_s=span_s)
    cohort = three_devices(outcome=np.full(3, Outcome.COMPLETED), stage=np.full(3, -1))
    path = path_of(tmp_path, round_batches(facts(1, 0.3, end_s=2.7), cohort, NAMES, log.columns()))
    found = spent(path)
    assert 0 < (2.7 - 0.3) - sum(found.values()) < 1e-15  # there is something left
    assert list(found) == ["invite", "download", "compute", "report"]


def test_the_seconds_of_rounds_add_up_to_their_durations(tmp_path: Path) -> None:
    rounds = [sample_round(1, 0.1, end_s=9.1), sample_round(2, 1e6, end_s=1e6 + 9), sample_round(3, 2e6)]
    path = path_of(tmp_path, *rounds)
    assert path.by_deadline.tolist() == [False, False, True]
    np.testing.assert_allclose(path.round_seconds().sum(axis=1), path.durations_s, rtol=0, atol=1e-9)
    assert sum(row.seconds for row in held_up(path)) == pytest.approx(path.durations_s.sum())
    assert sum(row.share for row in held_up(path)) == pytest.approx(1.0)
    assert path.rounds[path.segment_round[path.last_segments()]].tolist() == [1, 2, 3]


def test_the_summary_says_of_every_round_who_held_it_up(tmp_path: Path) -> None:
    path_of(tmp_path, sample_round(1, 50.0, end_s=59.0), sample_round(2, 100.0), secure_round())
    found = summarise(open_run(tmp_path))["held_up"]["by_round"]
    assert found[0] == {
        "round": 1, "duration_s": 9.0, "seconds": 3.0, "missing": 0,
        "device": 100, "stage": "compute", "ended_by": "arrival",
    }  # fmt: skip
    # Both that are missing at the deadline take half of it, each at its own stage.
    assert found[1] == {
        "round": 2, "duration_s": 20.0, "seconds": 10.0, "missing": 2,
        "device": None, "stage": "compute", "ended_by": "deadline",
    }  # fmt: skip


def test_a_run_without_rounds_blames_nobody(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    assert (len(path.rounds), held_up(path)) == (0, [])


def test_a_stage_that_never_ended_is_blamed_on_whoever_was_missing_in_it(tmp_path: Path) -> None:
    cohort = three_devices(
        outcome=np.array([Outcome.ABANDONED, Outcome.ABANDONED, Outcome.DROPPED]),
        stage=np.array([Stage.MASKED_INPUT, Stage.MASKED_INPUT, Stage.MASKED_INPUT]),
    )
    stages_s = {Stage.ADVERTISE_KEYS: 5.0, Stage.SHARE_KEYS: 3.0}
    given_up = facts(1, 0.0, stage_s=stages_s, end_s=12.0)
    path = path_of(tmp_path, round_batches(given_up, cohort, NAMES, secure_log().columns()))
    assert blamed(path)["budget", "masked-input", DEADLINE] == 4.0
