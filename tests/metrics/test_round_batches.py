from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from metrics_samples import (
    NAMES,
    facts,
    record,
    sample_evaluation,
    sample_faults,
    sample_inference,
    sample_record,
    sample_round,
    three_device_log,
    three_devices,
)

from coordinator.engine.facts import MetricValue
from coordinator.results.tables.batches import evaluation_batch, evaluation_round_batches, round_batches
from coordinator.results.tables.schemas import EVALUATIONS, SCHEMAS, SPLITS
from edge.core.log import WIDTH, Column, EventLog, pack_record
from edge.core.vocabulary import (
    Direction,
    EventKind,
    Fate,
    Outcome,
    Reason,
    RoundOutcome,
    Stage,
    label,
    labels,
)


def _made() -> tuple[dict[str, list[object]], dict[str, object], list[dict[str, object]]]:
    batches = round_batches(facts(4, loss=math.nan), three_devices(), NAMES, three_device_log().columns())
    return (
        batches.device_rounds.to_pydict(),
        batches.rounds.to_pylist()[0],
        batches.events.to_pylist(),
    )


def test_device_rounds_of_a_known_log() -> None:
    devices, _, _ = _made()
    assert devices["round"] == [4, 4, 4]
    assert devices["device"] == [100, 101, 102]
    assert devices["class"] == ["flagship", "budget", "budget"]
    assert devices["network"] == ["wifi", "3g", "wifi"]
    assert devices["outcome"] == ["completed", "dropped", "late"]
    assert devices["stage"] == [None, "compute", "report"]
    assert devices["reason"] == ["none", "vanished", "deadline"]
    assert devices["invite_start_s"] == [0.0, 0.0, 0.0]
    assert devices["invite_end_s"] == [2.0, 2.0, 2.0]
    assert devices["compute_end_s"] == [7.0, 5.0, 14.0]
    assert devices["report_start_s"] == [8.0, None, 14.0]
    assert devices["report_end_s"] == [9.5, None, 21.0]
    assert devices["acknowledge_start_s"] == [9.0, None, None]
    # The lost first attempt of the third device is no arrival; its duplicate is none of the first device's.
    assert devices["latency_s"] == [9.0, None, 21.0]
    assert devices["way"] == ["clear", None, "clear"]
    assert devices["compute_s"] == [3.0, 1.0, 10.0]
    # Slot 0: 10 s from first to last, of which 3 s computed, 1+1+2+1+0.5+1 s transferred.
    assert devices["wait_s"] == [0.5, 0.0, 1.0]
    assert devices["retries"] == [0, 0, 1]
    assert devices["loss"] == [0.5, None, 0.75]
    assert devices["wasted_compute_s"] == [0.0, 1.0, 10.0]


def test_bytes_of_a_known_log() -> None:
    devices, row, _ = _made()
    assert devices["down_payload_bytes"] == [1000, 1000, 1000]
    assert devices["down_framing_bytes"] == [100, 90, 90]
    assert devices["down_retransmitted_bytes"] == [7, 7, 7]
    assert devices["up_payload_bytes"] == [1000, 0, 700]
    assert devices["up_tcp_ip_bytes"] == [200, 80, 170]
    assert devices["up_bytes"] == [1270, 110, 943]
    assert devices["report_up_bytes"] == [1160, 0, 833]
    assert devices["invite_down_bytes"] == [120, 120, 120]
    assert devices["discarded_bytes"] == [580, 0, 583]
    assert devices["lost_bytes"] == [0, 0, 250]
    assert devices["wasted_bytes"] == [580, 1407, 2240]
    # The stranger's 139 bytes are in the round's sums and in no device's.
    assert row["up_bytes"] == 1270 + 110 + 943 + 139
    assert row["discarded_bytes"] == 580 + 583 + 139
    assert row["wasted_bytes"] == 580 + 1407 + 2240 + 139


def test_round_of_a_known_log() -> None:
    _, row, _ = _made()
    assert (row["invited"], row["accepted"], row["completed"], row["dropped"], row["late"]) == (3, 3, 1, 1, 1)
    assert (row["declined"], row["failed"], row["unreachable"], row["surplus"], row["abandoned"]) == (0,) * 5
    assert (row["outcome"], row["reason"], row["phase"]) == ("completed", "none", "calm")
    assert (row["duration_s"], row["energy_j"], row["compute_s"], row["wasted_compute_s"]) == (
        20,
        16.75,
        14,
        11,
    )
    assert (row["clear_updates"], row["summed_updates"]) == (1, 0)
    assert row["loss"] is None
    assert row["retries"] == 1


def test_the_way_is_that_of_the_first_update_to_arrive() -> None:
    log = EventLog()
    up, other = Direction.UP, Reason.OTHER_WAY
    masked, report = EventKind.MASKED_INPUT, EventKind.REPORT
    record(log, 0, masked, Stage.MASKED_INPUT, up, span_s=(1, 2))
    record(log, 0, report, Stage.REPORT, up, span_s=(2, 3), fate=Fate.DISCARDED, reason=Reason.WRONG_STAGE)
    record(log, 1, report, Stage.REPORT, up, span_s=(1, 2), fate=Fate.DISCARDED, reason=other)
    record(log, 1, masked, Stage.MASKED_INPUT, up, span_s=(2, 3))
    record(log, 2, report, Stage.REPORT, up, span_s=(1, 2), fate=Fate.LOST)
    cohort = three_devices(outcome=np.zeros(3, np.int8))
    batches = round_batches(facts(1), cohort, NAMES, log.columns())
    assert batches.device_rounds["way"].to_pylist() == ["secure", "secure", None]
    assert batches.device_rounds["latency_s"].to_pylist() == [1.0, 2.0, None]
    (row,) = batches.rounds.to_pylist()
    assert (row["clear_updates"], row["summed_updates"]) == (0, 2)


def test_events_keep_every_record_in_order() -> None:
    _, _, events = _made()
    assert len(events) == len(three_device_log())
    assert [event["kind"] for event in events[:3]] == ["invited", "accepted", "model"]
    assert events[-1] == {
        "round": 4,
        "time_s": 3.5,
        "slot": -1,
        "device": 7,
        "kind": "garbage",
        "stage": "report",
        "direction": "up",
        "start_s": 3.0,
        "end_s": 3.5,
        "payload_bytes": 0,
        "framing_bytes": 99,
        "tcp_ip_bytes": 40,
        "retransmitted_bytes": 0,
        "fate": "discarded",
        "reason": "garbage",
    }


def test_every_batch_matches_its_schema_and_has_nulls_only_where_allowed() -> None:
    batches = sample_round(1)
    made = {
        "rounds": batches.rounds,
        "device_rounds": batches.device_rounds,
        "events": batches.events,
        "evaluations": sample_evaluation(1),
        "inferences": sample_inference(1),
        "faults": sample_faults(1),
        **evaluation_round_batches(sample_record(1)),
    }
    assert made.keys() == SCHEMAS.keys()
    for table, batch in made.items():
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMAS[table], check_metadata=True)
        for field, column in zip(batch.schema, batch.columns, strict=True):
            assert field.nullable or column.null_count == 0, f"{table}.{field.name}"
            assert field.metadata[b"meaning"]


def _random_log(seed: int, n: int) -> EventLog:
    rng = np.random.default_rng(seed)
    log = EventLog()
    for _ in range(400):
        direction = Direction(int(rng.integers(0, 3)))
        sizes = (0, 0, 0, 0) if direction is Direction.NONE else tuple(rng.integers(0, 10**6, 4).tolist())
        start_s = float(rng.random())
        record(
            log,
            int(rng.integers(-1, n)),
            EventKind(int(rng.integers(0, len(EventKind)))),
            Stage(int(rng.integers(0, len(Stage)))),
            direction,
            span_s=(start_s, start_s + float(rng.random())),
            sizes=sizes,
            fate=Fate(int(rng.integers(0, len(Fate)))),
        )
    return log


@pytest.mark.parametrize("seed", range(5))
def test_bytes_add_up_in_every_way_on_random_logs(seed: int) -> None:
    log = _random_log(seed, 3)
    batches = round_batches(facts(1), three_devices(), NAMES, log.columns())
    records = log.array()
    for batch in (batches.rounds, batches.device_rounds):
        column = {
            name: batch.column(name).to_numpy() for name in batch.schema.names if name.endswith("_bytes")
        }
        for way in ("down", "up"):
            parts = sum(column[f"{way}_{split}_bytes"] for split in SPLITS)
            np.testing.assert_array_equal(column[f"{way}_bytes"], parts)
        sent = column["down_bytes"] + column["up_bytes"]
        fates = sum(column[f"{label(fate)}_bytes"] for fate in Fate)
        np.testing.assert_array_equal(sent, fates)
    devices = {name: batches.device_rounds.column(name).to_numpy() for name in ("down_bytes", "up_bytes")}
    for slot in range(3):
        for way, name in ((Direction.DOWN, "down_bytes"), (Direction.UP, "up_bytes")):
            chosen = records[(records[:, Column.SLOT] == slot) & (records[:, Column.DIRECTION] == way)]
            assert devices[name][slot] == chosen[:, Column.PAYLOAD_BYTES : Column.FATE].sum()
    by_stage = sum(batches.device_rounds.column(f"{label(stage)}_up_bytes").to_numpy() for stage in Stage)
    np.testing.assert_array_equal(by_stage, devices["up_bytes"])
    everything = records[:, Column.PAYLOAD_BYTES : Column.FATE].sum()
    row = batches.rounds.to_pylist()[0]
    assert row["down_bytes"] + row["up_bytes"] == everything


def test_a_round_without_devices_or_records() -> None:
    nobody = np.empty(0, dtype=np.int64)
    nothing = np.empty(0)
    cohort = three_devices(
        **dict.fromkeys(
            ("device", "device_class", "network", "region", "outcome", "stage", "reason", "memory_bytes",
             "examples"), nobody,
        ),
        **dict.fromkeys(
            ("energy_compute_j", "energy_radio_j", "loss", "work_share", "staleness"), nothing
        ),
        kept_back=np.zeros(0, dtype=np.bool_),
    )  # fmt: skip
    ended = facts(1, outcome=RoundOutcome.ABANDONED, reason=Reason.QUORUM, loss=math.nan)
    batches = round_batches(ended, cohort, NAMES, EventLog().columns())
    assert batches.device_rounds.num_rows == 0
    assert batches.events.num_rows == 0
    row = batches.rounds.to_pylist()[0]
    assert (row["invited"], row["down_bytes"], row["reason"]) == (0, 0, "quorum")


def test_a_device_without_records_has_an_empty_row() -> None:
    log = EventLog()
    batches = round_batches(facts(1), three_devices(), NAMES, log.columns())
    row = batches.device_rounds.to_pylist()[1]
    assert row["invite_start_s"] is None
    assert row["latency_s"] is None
    assert (row["wait_s"], row["up_bytes"], row["compute_s"]) == (0.0, 0, 0.0)


def test_the_caller_may_reuse_its_arrays() -> None:
    cohort = three_devices()
    batches = round_batches(facts(1), cohort, NAMES, three_device_log().columns())
    before = batches.device_rounds.to_pylist()
    for name in cohort.__slots__:
        getattr(cohort, name)[:] = 0
    assert batches.device_rounds.to_pylist() == before


def test_a_slot_outside_the_cohort_is_refused() -> None:
    log = EventLog()
    record(log, 3, EventKind.REPORT, Stage.REPORT, Direction.UP)
    with pytest.raises(ValueError, match="slot 3 in a round of 3 invited"):
        round_batches(facts(1), three_devices(), NAMES, log.columns())


def test_bytes_without_a_direction_are_refused() -> None:
    log = EventLog()
    record(log, 0, EventKind.COMPUTED, Stage.COMPUTE, sizes=(1, 0, 0, 0))
    with pytest.raises(ValueError, match="without a direction"):
        round_batches(facts(1), three_devices(), NAMES, log.columns())


def test_bytes_of_a_stranger_without_a_direction_are_refused() -> None:
    log = EventLog()
    record(log, -1, EventKind.GARBAGE, Stage.REPORT, device=7, sizes=(0, 9, 0, 0))
    with pytest.raises(ValueError, match="without a direction"):
        round_batches(facts(1), three_devices(), NAMES, log.columns())


def test_a_code_outside_its_vocabulary_is_refused() -> None:
    cohort = three_devices(outcome=np.array([0, 1, 1]), device_class=np.array([0, 1, 2]))
    with pytest.raises(pa.ArrowException):
        round_batches(facts(1), cohort, NAMES, three_device_log().columns())


def test_cohort_arrays_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="loss has shape"):
        three_devices(loss=np.zeros(2))


def test_evaluations() -> None:
    values = [
        MetricValue("rmse", 0.9, 12),
        MetricValue(
            "rmse", math.nan, 0, split="validation", population="unseen", tag="class", group="budget"
        ),
    ]
    batch = evaluation_batch(3, "calm", 60.0, values)
    assert batch.schema.equals(EVALUATIONS)
    first, second = batch.to_pylist()
    assert (first["round"], first["value"], first["group"], first["split"]) == (3, 0.9, "all", "test")
    assert (second["value"], second["population"], second["tag"], second["users"]) == (
        None,
        "unseen",
        "class",
        0,
    )
    assert evaluation_batch(3, "calm", 60.0, []).num_rows == 0


def test_log_view_and_columns() -> None:
    log = three_device_log()
    assert len(log) == 20
    view = log.array()
    assert view.shape == (20, WIDTH)
    np.testing.assert_array_equal(log.columns(), view.T)
    assert view[2, Column.PAYLOAD_BYTES] == 1000
    assert EventLog().array().shape == (0, WIDTH)


def test_log_refuses_bytes_that_are_no_record() -> None:
    log = EventLog()
    log.extend(pack_record(*range(WIDTH))[:-1])
    with pytest.raises(ValueError, match="not a multiple"):
        log.array()


def test_numbers_of_the_vocabulary_are_positions() -> None:
    for vocabulary in (Stage, Outcome, RoundOutcome, Reason, EventKind, Direction, Fate):
        assert [int(code) for code in vocabulary] == list(range(len(vocabulary)))
        assert len(set(labels(vocabulary))) == len(vocabulary)
    assert label(Reason.CONNECTION_LOST) == "connection-lost"


def test_what_is_kept_back_of_a_device_is_null_and_so_are_sums_with_it() -> None:
    cohort = three_devices(kept_back=np.array([False, True, True]))
    batches = round_batches(facts(1), cohort, NAMES, three_device_log().columns())
    devices = batches.device_rounds.to_pydict()
    assert devices["memory_bytes"] == [4096, None, None]
    assert devices["compute_s"] == [3.0, None, None]
    assert devices["wait_s"] == [0.5, None, None]
    assert devices["energy_compute_j"] == [3.0, None, None]
    assert devices["energy_radio_j"] == [0.5, None, None]
    assert devices["wasted_compute_s"] == [0.0, None, None]
    # The third has reported its loss, and so its examples, in the clear.
    assert devices["examples"] == [10, None, 30]
    assert devices["up_bytes"] == [1270, 110, 943]
    (row,) = batches.rounds.to_pylist()
    assert (row["compute_s"], row["wasted_compute_s"], row["energy_j"]) == (None, None, None)
