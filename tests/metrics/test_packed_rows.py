"""Rows that are written together are those that each round by itself would leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_samples import NAMES, facts, record, sample_record, three_device_log, three_devices

from coordinator.engine.facts import FaultStrike, MetricValue
from coordinator.results.tables.batches import RecordedRow, RoundRecord, packed_batches
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.results.tables.writer import TableRecorder, TablesInMemory
from edge.core.log import EventLog
from edge.core.vocabulary import Direction, EventKind, Fate, Outcome, Reason, RoundOutcome, Stage

OF_ROUNDS = ("rounds", "device_rounds", "events")


def random_record(rng: np.random.Generator, number: int) -> RoundRecord:
    """A round of any size, even of nobody, with strangers, suspensions, and sizes that do not round well."""
    n = int(rng.choice([0, 1, 2, 7, 9, 40]))
    log = EventLog()
    for _ in range(int(rng.integers(0, 6 * n + 3))):
        slot = int(rng.integers(-1, n))
        start_s = float(rng.random())
        record(
            log,
            slot,
            EventKind(int(rng.integers(0, len(EventKind)))),
            Stage(int(rng.integers(0, len(Stage)))),
            Direction(int(rng.integers(1, len(Direction)))),
            span_s=(start_s, start_s + float(rng.random())),
            sizes=tuple(int(size) for size in rng.integers(0, 10**6, 4)),  # type: ignore[arg-type]
            fate=Fate(int(rng.integers(0, len(Fate)))),
            reason=Reason(int(rng.integers(0, len(Reason)))),
        )
    outcome = rng.integers(0, len(Outcome), n).astype(np.int8)
    cohort = three_devices()
    values: dict[str, Any] = {
        name: rng.random(n) if getattr(cohort, name).dtype == np.float64 else rng.integers(0, 2, n)
        for name in cohort.__slots__
    }
    values |= {
        "outcome": outcome,
        "stage": rng.integers(-1, len(Stage), n).astype(np.int8),
        "region": np.zeros(n, np.int64),
        "loss": np.where(rng.random(n) < 0.3, np.nan, rng.random(n)),
        "kept_back": (rng.random(n) < 0.5) & (number % 3 == 0),
    }
    ended = facts(
        number,
        float(number),
        phase=str(rng.choice(["calm", "storm", ""])),
        outcome=RoundOutcome(int(rng.integers(0, 2))),
        loss=float(rng.choice([np.nan, 0.1 * number])),
    )
    return RoundRecord(ended, replace(cohort, **values), NAMES, log.columns())


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.booleans())
def test_a_pack_is_its_rounds_one_after_the_other(seed: int, count: int, record_events: bool) -> None:
    rng = np.random.default_rng(seed)
    records = [random_record(rng, number) for number in range(1, count + 1)]
    packed = packed_batches(records, record_events=record_events)
    single = [packed_batches([one], record_events=record_events) for one in records]
    for table in OF_ROUNDS:
        batch = getattr(packed, table)
        batch.validate(full=True)
        expected = [row for one in single for row in getattr(one, table).to_pylist()]
        # As text: a NaN is one, and 0.0 is not -0.0.
        assert [repr(row) for row in batch.to_pylist()] == [repr(row) for row in expected]


@given(st.integers(0, 2**32 - 1))
def test_the_row_that_is_computed_as_it_is_read_is_that_of_the_table(seed: int) -> None:
    whole = random_record(np.random.default_rng(seed), 3)
    (expected,) = packed_batches([whole]).rounds.to_pylist()
    for first in ("round", "down_bytes"):
        row = RecordedRow(whole)
        assert row[first] == expected[first]
        assert repr({name: row[name] for name in expected}) == repr(expected)
        assert row.keys() == expected.keys()
        assert len(row) == len(expected)
    with pytest.raises(KeyError):
        row["no such column"]


def recorded(recorder: TableRecorder, rounds: int) -> None:
    """Record rounds with faults and evaluations, in the order of a run."""
    rng = np.random.default_rng(5)
    recorder.evaluation(0, "calm", 0.0, [])
    recorder.evaluation(0, "calm", 0.0, [])
    for number in range(1, rounds + 1):
        if number % 4 == 0:
            strike = FaultStrike("cut", "blackout", number, Stage.REPORT, 1.0, 2.0, number)
            recorder.faults(number, "calm", [strike])
        one = random_record(rng, number)
        recorder.round(one.facts, one.cohort, one.columns)
        if number % 3 == 0:
            recorder.evaluation(number, "calm", 1.0 * number, [])  # nobody to score
        if number % 5 == 0:
            recorder.evaluation(number, f"phase {number}", 1.0 * number, [MetricValue("rmse", 0.5, number)])


@pytest.mark.parametrize("rounds", [0, 3, 40])
@pytest.mark.parametrize("record_events", [True, False])
def test_neither_digest_nor_tables_depend_on_when_rows_are_written(record_events: bool, rounds: int) -> None:
    found = []
    for at_once in (1, 7, 10**6):
        tables = TablesInMemory(record_events=record_events)
        with TableRecorder(tables, NAMES, rounds_at_once=at_once, clock=lambda: 0.0) as recorder:
            recorded(recorder, rounds)
        assert tables.rows("rounds") == rounds
        found.append((tables.digest(), [repr(tables.read(table).to_pylist()) for table in SCHEMAS]))
    assert found[0] == found[1] == found[2]


def rows_after_each(recorder: TableRecorder, tables: TablesInMemory, rounds: int) -> list[int]:
    counts = []
    for number in range(1, rounds + 1):
        one = sample_record(number)
        recorder.round(one.facts, one.cohort, one.columns)
        counts.append(tables.rows("rounds"))
    return counts


def test_rounds_wait_for_a_number_of_rounds() -> None:
    tables = TablesInMemory()
    recorder = TableRecorder(tables, NAMES, rounds_at_once=3, clock=lambda: 0.0)
    assert rows_after_each(recorder, tables, 5) == [0, 0, 3, 3, 3]


def test_rounds_wait_for_a_number_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.results.tables.writer._EVENTS_AT_ONCE", 3 * len(three_device_log()))
    tables = TablesInMemory()
    recorder = TableRecorder(tables, NAMES, clock=lambda: 0.0)
    assert rows_after_each(recorder, tables, 5) == [0, 0, 3, 3, 3]


def test_rounds_wait_for_a_second() -> None:

    times_s = iter([0.0, 0.4, 0.8, 1.2, 1.2, 1.6, 2.3, 2.3, 2.3])
    tables = TablesInMemory()
    recorder = TableRecorder(tables, NAMES, clock=lambda: next(times_s))
    # Written at 1.2 and 2.3 s, each time asked once more for when that was.
    assert rows_after_each(recorder, tables, 5) == [0, 0, 3, 3, 5]


def test_with_somebody_watching_every_batch_comes_at_once() -> None:
    tables = TablesInMemory()
    seen: list[tuple[str, int]] = []

    def take(table: str, batch: Any) -> None:
        seen.append((table, batch.num_rows))

    tables.watch = take
    recorder = TableRecorder(tables, NAMES, clock=lambda: 0.0)
    one = sample_record(1)
    recorder.evaluation(0, "calm", 0.0, [MetricValue("rmse", 1.0, 3)])
    assert seen == [("evaluations", 1)]
    recorder.round(one.facts, one.cohort, one.columns)
    assert seen[1:] == [("events", 20), ("device_rounds", 3), ("rounds", 1)]


def test_rows_of_other_tables_wait_beside_the_rounds_and_faults_go_first() -> None:
    order: list[str] = []

    class Ordered(TablesInMemory):
        def _keep(self, table: str, batch: Any) -> None:
            order.append(table)
            super()._keep(table, batch)

    with TableRecorder(Ordered(), NAMES, clock=lambda: 0.0) as recorder:
        recorded(recorder, 20)
        assert order == []
    assert order == ["faults", "events", "device_rounds", "rounds", "evaluations"]


class _Full(TablesInMemory):
    def _keep(self, table: str, batch: Any) -> None:
        raise OSError("full")


def test_what_cannot_be_written_is_said_once_and_hides_no_other_error() -> None:
    one, full = sample_record(1), _Full()
    recorder = TableRecorder(full, NAMES, clock=lambda: 0.0)
    recorder.round(one.facts, one.cohort, one.columns)
    with pytest.raises(OSError, match="full"):
        recorder.__exit__(None, None, None)
    recorder.flush()  # what could not be written does not wait any more
    recorder.round(one.facts, one.cohort, one.columns)
    recorder.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
