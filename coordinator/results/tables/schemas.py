"""The tables of a run: their columns, types, units and meanings.

The documentation of the columns (docs/metrics.md) is generated from here. A field's metadata holds its
``unit``, its ``meaning`` and whether it is ``measured``: taken from this host's clock or memory, hence noisy,
and left out of digests and comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from edge.core.vocabulary import SUM_STAGES, Outcome, Stage, label

SCHEMA_VERSION: Final = 4
"""Raised whenever a column is added, removed or changes its meaning."""

OLDEST_VERSION: Final = 3
"""The oldest that is read: none of its columns is kept back, and it lacks :data:`NEW_COLUMNS`."""

NEW_COLUMNS: Final = {4: frozenset({("rounds", "epsilon"), ("rounds", "epsilon_replace_one")})}
"""By version, the tables and columns that are new in it, or changed their meaning: null in older tables."""

VERSION_KEY: Final = b"recfleet.schema_version"
TABLE_KEY: Final = b"recfleet.table"

SPLITS: Final = ("payload", "framing", "tcp_ip", "retransmitted")
"""The parts of what travels; they add up to the bytes sent."""

DIRECTIONS: Final = ("down", "up")
"""The directions of a transfer, in the order of :class:`~edge.core.vocabulary.Direction` without NONE."""

ENUM: Final = pa.dictionary(pa.int8(), pa.string())
"""Type of a column of labels of a vocabulary."""

NAME: Final = pa.dictionary(pa.int32(), pa.string())
"""Type of a column of names of the scenario or catalogue: phases, device classes, networks …"""

_KEPT_BACK: Final = "; null: [kept back](#what-is-kept-back)"
"""Ends the meaning of a column that would give away how much data a device has."""

_SPLIT_MEANINGS: Final = {
    "payload": "model or update within the frames",
    "framing": "the rest of the frames: headers, names, shapes",
    "tcp_ip": "headers, acknowledgements and handshakes below the frames",
    "retransmitted": "sent again because a packet was lost",
}


def _field(
    name: str, kind: pa.DataType, unit: str, meaning: str, *, nullable: bool = False, measured: bool = False
) -> pa.Field:
    metadata = {"unit": unit, "meaning": meaning}
    if measured:
        metadata["measured"] = "true"
    return pa.field(name, kind, nullable=nullable, metadata=metadata)


def _schema(table: str, fields: list[pa.Field]) -> pa.Schema:
    return pa.schema(fields, metadata={TABLE_KEY: table.encode(), VERSION_KEY: str(SCHEMA_VERSION).encode()})


def _byte_fields() -> Iterator[pa.Field]:
    for direction in DIRECTIONS:
        yield _field(
            f"{direction}_bytes", pa.int64(), "bytes", f"everything sent {direction}; sum of the four below"
        )
        for split in SPLITS:
            yield _field(
                f"{direction}_{split}_bytes",
                pa.int64(),
                "bytes",
                f"sent {direction}: {_SPLIT_MEANINGS[split]}",
            )
    yield _field("delivered_bytes", pa.int64(), "bytes", "sent either way, arrived and used")
    yield _field("lost_bytes", pa.int64(), "bytes", "sent either way, never arrived")
    yield _field(
        "discarded_bytes",
        pa.int64(),
        "bytes",
        "sent either way, arrived and thrown away (late, duplicate, stale, garbage, surplus); "
        "delivered + lost + discarded = down + up",
    )
    yield _field(
        "wasted_bytes",
        pa.int64(),
        "bytes",
        "bytes that did not serve the model: everything sent to or by a device whose report was not applied, "
        "and what was lost or discarded for the others",
    )


EVENTS: Final = _schema(
    "events",
    [
        _field("round", pa.int32(), "", "round the event belongs to"),
        _field("time_s", pa.float64(), "s", "simulated time of the event"),
        _field(
            "slot",
            pa.int32(),
            "",
            "position among the round's invited devices; -1: a stranger to the round, or a suspension",
        ),
        _field("device", pa.int64(), "", "the device's id in the fleet"),
        _field("kind", ENUM, "", "what happened (`EventKind`)"),
        _field("stage", ENUM, "", "stage of the protocol it belongs to (`Stage`)"),
        _field("direction", ENUM, "", "which way bytes travelled (`Direction`)"),
        _field("start_s", pa.float64(), "s", "start of the transfer or computation"),
        _field("end_s", pa.float64(), "s", "its end, whether it succeeded or broke off"),
        *(
            _field(f"{split}_bytes", pa.int64(), "bytes", f"sent: {_SPLIT_MEANINGS[split]}")
            for split in SPLITS
        ),
        _field("fate", ENUM, "", "what became of the bytes (`Fate`)"),
        _field("reason", ENUM, "", "why it went wrong, `none` if it did not (`Reason`)"),
    ],
)


def _device_round_fields() -> Iterator[pa.Field]:
    yield _field("round", pa.int32(), "", "number of the round")
    yield _field("phase", NAME, "", "phase of the scenario")
    yield _field("device", pa.int64(), "", "the device's id in the fleet")
    yield _field("class", NAME, "", "device class: the name of its device profile")
    yield _field("network", NAME, "", "the name of its network profile")
    yield _field("region", NAME, "", "the region it lives in")
    yield _field("outcome", ENUM, "", "how its participation ended (`Outcome`)")
    yield _field("stage", ENUM, "", "stage at which it ended; null: it was completed", nullable=True)
    yield _field("reason", ENUM, "", "why it was not completed, `none` if it was (`Reason`)")
    yield _field(
        "way", ENUM, "", "how its update came, applied or not (`Way`); null: none arrived", nullable=True
    )
    for stage in Stage:
        name = label(stage)
        yield _field(
            f"{name}_start_s", pa.float64(), "s", f"start of {name}; null: not reached", nullable=True
        )
        yield _field(
            f"{name}_end_s", pa.float64(), "s", f"end of {name}, or when it broke off", nullable=True
        )
    yield _field(
        "latency_s",
        pa.float64(),
        "s",
        "from the invitation to the first arrival of its report, applied or not; null: none arrived",
        nullable=True,
    )
    yield _field(
        "compute_s", pa.float64(), "s", f"simulated computing time on the device{_KEPT_BACK}", nullable=True
    )
    yield _field(
        "wait_s",
        pa.float64(),
        "s",
        f"its time in the round without transfer or computation (at least 0){_KEPT_BACK}",
        nullable=True,
    )
    yield _field("retries", pa.int32(), "", "transfers tried again")
    yield from _byte_fields()
    for stage in Stage:
        name = label(stage)
        for direction in DIRECTIONS:
            yield _field(
                f"{name}_{direction}_bytes", pa.int64(), "bytes", f"everything sent {direction} in {name}"
            )
    yield _field(
        "energy_compute_j", pa.float64(), "J", f"simulated energy of computing{_KEPT_BACK}", nullable=True
    )
    yield _field(
        "energy_radio_j", pa.float64(), "J", f"simulated energy of the radio{_KEPT_BACK}", nullable=True
    )
    yield _field(
        "memory_bytes",
        pa.int64(),
        "bytes",
        f"memory that the task needs on the device{_KEPT_BACK}",
        nullable=True,
    )
    yield _field(
        "examples",
        pa.int64(),
        "",
        f"local examples of the update; 0: none was made{_KEPT_BACK}",
        nullable=True,
    )
    yield _field("loss", pa.float64(), "", "local training loss; null: none", nullable=True)
    yield _field(
        "wasted_compute_s",
        pa.float64(),
        "s",
        f"computing time whose result was not applied{_KEPT_BACK}",
        nullable=True,
    )
    yield _field(
        "work_share",
        pa.float64(),
        "",
        "part of its local steps that the update is of, with partial work; null: no update, or all steps",
        nullable=True,
    )
    yield _field(
        "staleness",
        pa.float64(),
        "server steps",
        "server steps from its model to its report, with buffered pacing; null: not applied, or none",
        nullable=True,
    )


DEVICE_ROUNDS: Final = _schema("device_rounds", list(_device_round_fields()))

_OUTCOME_MEANINGS: Final = {
    Outcome.COMPLETED: "devices whose report was applied",
    Outcome.LATE: "devices whose report arrived after the deadline",
    Outcome.DROPPED: "devices that went away",
    Outcome.DECLINED: "devices that refused the invitation",
    Outcome.FAILED: "devices that could not do the work or sent something invalid",
    Outcome.UNREACHABLE: "devices that never answered the invitation",
    Outcome.SURPLUS: "devices whose report came after the round had all it wanted",
    Outcome.ABANDONED: "devices at work, or done, when the round, or its secure sum, was given up",
}


def _round_fields() -> Iterator[pa.Field]:
    yield _field("round", pa.int32(), "", "number of the round")
    yield _field("phase", NAME, "", "phase of the scenario")
    yield _field("start_s", pa.float64(), "s", "simulated time of the first invitation")
    yield _field("end_s", pa.float64(), "s", "simulated time of the server update, or of giving up")
    yield _field("duration_s", pa.float64(), "s", "end_s - start_s")
    yield _field("outcome", ENUM, "", "`completed` or `abandoned` (`RoundOutcome`)")
    yield _field("reason", ENUM, "", "why it was abandoned, `none` if it was not (`Reason`)")
    yield _field("invited", pa.int32(), "devices", "devices invited; the sum of the eight outcomes below")
    yield _field("accepted", pa.int32(), "devices", "devices that said they would take part")
    for outcome in Outcome:
        yield _field(label(outcome), pa.int32(), "devices", _OUTCOME_MEANINGS[outcome])
    yield _field("clear_updates", pa.int32(), "devices", "of the completed: updates reported in the clear")
    yield _field("summed_updates", pa.int32(), "devices", "of the completed: updates in the secure sum")
    yield _field("retries", pa.int32(), "", "transfers tried again")
    yield from _byte_fields()
    yield _field(
        "compute_s",
        pa.float64(),
        "s",
        f"simulated computing time of all devices together{_KEPT_BACK}",
        nullable=True,
    )
    yield _field(
        "wasted_compute_s",
        pa.float64(),
        "s",
        f"the part of it whose result was not applied{_KEPT_BACK}",
        nullable=True,
    )
    yield _field(
        "energy_j",
        pa.float64(),
        "J",
        f"simulated energy of all devices, computing and radio{_KEPT_BACK}",
        nullable=True,
    )
    yield _field(
        "loss", pa.float64(), "", "training loss over the applied reports; null: none", nullable=True
    )
    yield _field("weight", pa.float64(), "", "sum of the weights of the applied reports")
    for stage in SUM_STAGES:
        name = label(stage)
        yield _field(
            f"{name}_s",
            pa.float64(),
            "s",
            f"coordinator's time in {name}, the first stage from the round's start; null: not reached",
            nullable=True,
        )
    yield _field(
        "secagg_neighbours", pa.int32(), "devices", "degree of the graph; null: no graph", nullable=True
    )
    yield _field(
        "secagg_threshold",
        pa.int32(),
        "shares",
        "shares that rebuild a secret; null: no graph",
        nullable=True,
    )
    yield _field(
        "secagg_failure", NAME, "", "the error that ended secure aggregation without a sum; `none`: no such"
    )
    yield _field(
        "secagg_sum_error",
        pa.int64(),
        "ring units",
        "largest difference of the secure sum from the sum in the clear; null: no such sum",
        nullable=True,
    )
    yield _field(
        "secagg_double_reveals",
        pa.int32(),
        "devices",
        "devices of which both secrets could be rebuilt; null: no secure aggregation",
        nullable=True,
    )
    yield _field(
        "clipped_fraction",
        pa.float64(),
        "",
        "share of the applied values other than zero that were clipped; null: values are not clipped",
        nullable=True,
    )
    yield _field(
        "clipped_updates_fraction",
        pa.float64(),
        "",
        "share of the applied updates whose norm was clipped; null: norms are not clipped",
        nullable=True,
    )
    yield _field(
        "epsilon",
        pa.float64(),
        "",
        "differential privacy spent so far by the device that reported most, zero-out: its updates against "
        "zeros; at the scenario's delta; null: not accounted for",
        nullable=True,
    )
    yield _field(
        "epsilon_replace_one",
        pa.float64(),
        "",
        "the same, replace-one: its updates against any others",
        nullable=True,
    )
    yield _field("wall_s", pa.float64(), "s", "time this round took on this host", measured=True)
    yield _field("host_rss_bytes", pa.int64(), "bytes", "resident memory of the simulator", measured=True)


ROUNDS: Final = _schema("rounds", list(_round_fields()))

EVALUATIONS: Final = _schema(
    "evaluations",
    [
        _field("round", pa.int32(), "", "rounds finished when the model was evaluated; 0: the initial model"),
        _field("phase", NAME, "", "phase of the scenario"),
        _field("time_s", pa.float64(), "s", "simulated time of the evaluation"),
        _field("metric", NAME, "", "what was computed: `rmse`, `ndcg@10` …"),
        _field("split", NAME, "", "ratings it was computed on: `train`, `validation` or `test`"),
        _field(
            "population", NAME, "", "whose ratings: `seen` users take part in training, `unseen` never do"
        ),
        _field(
            "tag",
            NAME,
            "",
            "what users are grouped by: `all`, `class`, `network`, `region` or `activity`; or scored"
            " items by: `popularity`; or, of an audit, the values of users by: `bucket`",
        ),
        _field("group", NAME, "", "the group's name; `all` for all of them"),
        _field("value", pa.float64(), "", "value of the metric; null: not defined, no users", nullable=True),
        _field("users", pa.int64(), "users", "number of users it was computed over"),
    ],
)

INFERENCES: Final = _schema(
    "inferences",
    [
        _field("round", pa.int32(), "", "rounds finished when the device ran its model"),
        _field("phase", NAME, "", "phase of the scenario"),
        _field("time_s", pa.float64(), "s", "simulated time at which it did"),
        _field("device", pa.int64(), "", "the device's id in the fleet"),
        _field("class", NAME, "", "device class: the name of its device profile"),
        _field("network", NAME, "", "the name of its network profile"),
        _field("items", pa.int64(), "items", "items scored: the catalogue"),
        _field("rated", pa.int64(), "items", "items of the device's own, left out of its list"),
        _field(
            "model_bytes",
            pa.int64(),
            "bytes",
            "size of the device's own model file, with the id of the run in place of the scenario's name",
        ),
        _field("latency_s", pa.float64(), "s", "simulated time of one call of the model on the device"),
        _field("energy_j", pa.float64(), "J", "simulated energy of that call"),
        _field(
            "memory_bytes", pa.int64(), "bytes", "memory that the call needs on the device, model included"
        ),
        _field(
            "host_latency_s", pa.float64(), "s", "time of the call in onnxruntime on this host", measured=True
        ),
        _field(
            "host_opening_s",
            pa.float64(),
            "s",
            "time it took to open its session; with shared sessions that of the one session",
            measured=True,
        ),
        _field(
            "host_session_bytes",
            pa.int64(),
            "bytes",
            "growth of the simulator's memory when that was opened; the first one starts the runtime, too",
            measured=True,
        ),
        _field(
            "max_absolute_error",
            pa.float64(),
            "",
            "largest difference of its scores from numpy's in float64",
            measured=True,
        ),
        _field(
            "max_relative_error",
            pa.float64(),
            "",
            "the largest difference relative to the larger of two magnitudes, or to 1 if both are smaller",
            measured=True,
        ),
    ],
)

FAULTS: Final = _schema(
    "faults",
    [
        _field("round", pa.int32(), "", "number of the round"),
        _field("phase", NAME, "", "phase of the scenario"),
        _field("fault", NAME, "", "name of the fault in the scenario"),
        _field(
            "kind", NAME, "", "the key that says what it does, `vanish`, `slowdown` …; several joined by `+`"
        ),
        _field("device", pa.int64(), "", "the device's id; null: the coordinator was struck", nullable=True),
        _field("stage", ENUM, "", "stage at which it was struck; null: at none", nullable=True),
        _field("first_s", pa.float64(), "s", "simulated time at which it was struck first"),
        _field("last_s", pa.float64(), "s", "and last"),
        _field("count", pa.int32(), "", "how often: frames, computations, or once"),
    ],
)


def _of_evaluations(table: str, schema: pa.Schema) -> pa.Schema:
    """Return the schema of a table about evaluations on devices: its columns are those of ``schema``."""
    number = _field(
        "round",
        pa.int32(),
        "",
        "rounds finished when devices measured the model; −3, −2, −1: queries of the mean rating, in order",
    )
    return _schema(table, [number, *list(schema)[1:]])


EVALUATION_ROUNDS: Final = _of_evaluations("evaluation_rounds", ROUNDS)
DEVICE_EVALUATIONS: Final = _of_evaluations("device_evaluations", DEVICE_ROUNDS)

SCHEMAS: Final = {
    "rounds": ROUNDS,
    "device_rounds": DEVICE_ROUNDS,
    "events": EVENTS,
    "evaluations": EVALUATIONS,
    "inferences": INFERENCES,
    "faults": FAULTS,
    "evaluation_rounds": EVALUATION_ROUNDS,
    "device_evaluations": DEVICE_EVALUATIONS,
}
"""The tables of a run, by name."""

ADDED: Final = frozenset({"evaluation_rounds", "device_evaluations"})
"""Tables that older runs of this version lack; without rows they are no part of a digest."""


def is_measured(field: pa.Field) -> bool:
    """Return whether a column was measured on this host, and so differs between identical runs."""
    return bool(field.metadata and field.metadata.get(b"measured") == b"true")


def deterministic_fields(table: str) -> tuple[pa.Field, ...]:
    """Return the columns of a table that depend on scenario, seed and version alone, in their order."""
    return tuple(field for field in SCHEMAS[table] if not is_measured(field))
