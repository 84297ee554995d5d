"""From the log of a round to its rows: one of ``rounds``, one of ``device_rounds`` per invited device.

Everything is a pass of numpy over all records of the round at once; nothing loops over devices.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coordinator.engine.facts import (
    NO_FAILURE,
    CohortFacts,
    FaultStrike,
    FleetNames,
    Floats,
    Inferences,
    MetricValue,
    RoundFacts,
    RoundRow,
)
from coordinator.results.tables.schemas import DIRECTIONS, ENUM, EVALUATIONS, ROUNDS, SCHEMAS, SPLITS
from coordinator.results.tables.totals import NO_WAY, SPLIT_COLUMNS, DeviceTotals, device_totals
from edge.core.log import Column
from edge.core.vocabulary import (
    SUM_STAGES,
    Direction,
    EventKind,
    Fate,
    Outcome,
    Reason,
    Stage,
    Way,
    label,
    labels,
)

Wholes = npt.NDArray[np.int64]

_STAGES: Final = pa.array(labels(Stage))
_REASONS: Final = pa.array(labels(Reason))
_OUTCOMES: Final = pa.array(labels(Outcome))
_WAYS: Final = pa.array(labels(Way))

_EVENT_CODES: Final = {
    "kind": (Column.KIND, pa.array(labels(EventKind))),
    "stage": (Column.STAGE, _STAGES),
    "direction": (Column.DIRECTION, pa.array(labels(Direction))),
    "fate": (Column.FATE, pa.array(labels(Fate))),
    "reason": (Column.REASON, _REASONS),
}
"""The columns of ``events`` that hold labels: where their codes are in a record, and their dictionaries."""

_NAMES: Final = {table: tuple(schema.names) for table, schema in SCHEMAS.items()}

_NO_STAGE: Final = -1


def _byte_names() -> Iterator[str]:
    for direction in DIRECTIONS:
        yield f"{direction}_bytes"
        yield from (f"{direction}_{split}_bytes" for split in SPLITS)
    yield from (f"{label(fate)}_bytes" for fate in Fate)
    yield "wasted_bytes"


_BYTES: Final = tuple(_byte_names())
"""The columns of bytes that ``rounds`` and ``device_rounds`` share, in the order of :func:`_byte_block`."""

_STAGE_BYTES: Final = tuple(
    f"{label(stage)}_{direction}_bytes" for stage in Stage for direction in DIRECTIONS
)

_WHOLE_NAMES: Final = (*_BYTES, *_STAGE_BYTES, "device", "memory_bytes", "examples")
_FLOAT_NAMES: Final = ("compute_s", "wait_s", "wasted_compute_s", "energy_compute_j", "energy_radio_j")
_NULLABLE_NAMES: Final = (
    *(f"{label(stage)}_start_s" for stage in Stage),
    *(f"{label(stage)}_end_s" for stage in Stage),
    "latency_s",
    "loss",
    "work_share",
    "staleness",
)
_KEPT_BACK: Final = (
    "memory_bytes",
    "energy_compute_j",
    "energy_radio_j",
    "compute_s",
    "wait_s",
    "wasted_compute_s",
)
"""The columns of ``device_rounds`` that follow from how much data a device has, beside ``examples``."""
_OUTCOME_NAMES: Final = labels(Outcome)

_ROUND_LABELS: Final = {
    f.name: np.int8 if f.type == ENUM else np.int32 for f in ROUNDS if pa.types.is_dictionary(f.type)
}
"""The columns of ``rounds`` that hold labels, with the types of their codes."""

_ROUND_NUMBERS: Final = {
    kind: tuple(f.name for f in ROUNDS if f.type == kind) for kind in (pa.int32(), pa.int64(), pa.float64())
}
"""The other columns of ``rounds`` by type."""

_EVALUATION: Final = pa.struct(list(EVALUATIONS))


@dataclass(frozen=True, slots=True)
class RoundBatches:
    """The rows of one round, as ``pyarrow.RecordBatch`` of the schemas of the same names.

    ``row`` is the one row of ``rounds`` as plain values.
    """

    rounds: Any
    device_rounds: Any
    events: Any
    row: RoundRow

    def kept_events(self, *, record_events: bool) -> Any:
        """Return the events to keep, None for none; without ``record_events`` those are suspensions."""
        if record_events:
            return self.events
        found = suspensions(self.events)
        return found if found.num_rows else None


def suspensions(events: Any) -> Any:
    """Return the rows of ``events`` that are suspensions: a record batch or table, as given."""
    return events.filter(pc.equal(events.column("kind"), label(EventKind.SUSPENDED)))


def _labelled(codes: npt.NDArray[Any], dictionary: Any, mask: npt.NDArray[np.bool_] | None = None) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=mask), dictionary)


@functools.lru_cache(maxsize=64)
def _dictionary(names: tuple[str, ...]) -> Any:
    return pa.array(names, pa.string())


@functools.lru_cache(maxsize=64)
def _constant(name: str, n: int, codes: type[np.integer]) -> Any:
    return _labelled(np.zeros(n, dtype=codes), _dictionary((name,)))


def _columns(block: npt.NDArray[Any], names: Sequence[str], *, nullable: bool = False) -> dict[str, Any]:
    """Return the rows of a contiguous block, [names, n], as Arrow arrays by name.

    They share the memory of the block: making one array and slicing it is cheaper than making many. In
    nullable columns NaN becomes null.
    """
    whole = pa.array(block.reshape(-1), from_pandas=nullable)
    n = block.shape[1]
    return {name: whole.slice(i * n, n) for i, name in enumerate(names)}


def _without(column: Any, mask: npt.NDArray[np.bool_]) -> Any:
    """Return a column of numbers with null where ``mask`` is True."""
    return pa.array(column.to_numpy(), mask=mask)


def _batch(table: str, columns: dict[str, Any]) -> Any:
    return pa.RecordBatch.from_arrays([columns[name] for name in _NAMES[table]], schema=SCHEMAS[table])


def events_batch(round_number: int, columns: Floats) -> Any:
    """Return the rows of ``events`` of one round.

    Parameters
    ----------
    round_number : number of the round.
    columns : float64 [WIDTH, n], from :meth:`EventLog.columns`; the rows share its memory.
    """
    n = columns.shape[1]
    sizes = columns[SPLIT_COLUMNS[0] : SPLIT_COLUMNS[-1] + 1]
    made: dict[str, Any] = {
        "round": pa.array(np.full(n, round_number, dtype=np.int32)),
        "time_s": pa.array(columns[Column.TIME_S]),
        "slot": pa.array(columns[Column.SLOT].astype(np.int32)),
        "device": pa.array(columns[Column.DEVICE].astype(np.int64)),
        "start_s": pa.array(columns[Column.START_S]),
        "end_s": pa.array(columns[Column.END_S]),
        **_columns(sizes.astype(np.int64), [f"{split}_bytes" for split in SPLITS]),
    }
    for name, (column, dictionary) in _EVENT_CODES.items():
        made[name] = _labelled(columns[column].astype(np.int8), dictionary)
    return _batch("events", made)


def _byte_block(totals: DeviceTotals, applied: npt.NDArray[np.bool_]) -> Wholes:
    """Return the columns ``_BYTES`` of every slot, int64 [len(_BYTES), n]."""
    n = len(applied)
    block = np.empty((len(_BYTES), n), dtype=np.int64)
    ways = block[: len(DIRECTIONS) * (1 + len(SPLITS))].reshape(len(DIRECTIONS), 1 + len(SPLITS), n)
    ways[:, 1:] = totals.split_bytes.transpose(1, 0, 2)
    ways[:, 1:].sum(axis=1, out=ways[:, 0])
    block[-1 - len(Fate) : -1] = totals.fate_bytes
    sent_bytes = ways[:, 0].sum(axis=0)
    block[-1] = sent_bytes - np.where(applied, block[-1 - len(Fate) + Fate.DELIVERED], 0)
    return block


def _stranger_bytes(columns: Floats) -> Wholes | int:
    """Return what travelled to or from devices that were not invited, int64 [len(_BYTES)]; 0 for nothing."""
    strange = columns[Column.SLOT] < 0
    if not strange.any():
        return 0
    strangers = columns[:, strange]
    strangers[Column.SLOT] = 0
    return np.asarray(_byte_block(device_totals(strangers, 1), np.zeros(1, dtype=np.bool_))[:, 0])


def round_batches(facts: RoundFacts, cohort: CohortFacts, names: FleetNames, columns: Floats) -> RoundBatches:
    """Return the rows that a finished round leaves in ``rounds``, ``device_rounds`` and ``events``.

    Parameters
    ----------
    facts, cohort, names : what the log does not tell.
    columns : float64 [WIDTH, records], from :meth:`EventLog.columns`: every record of the round, those of
        devices that ended after it included. The rows of ``events`` share its memory: do not change it.

    Raises
    ------
    ValueError
        For a slot outside the cohort, bytes without a direction, or a code outside its vocabulary.
    """
    totals = device_totals(columns, len(cohort.device))
    applied = cohort.outcome == Outcome.COMPLETED.value
    byte_block = _byte_block(totals, applied)
    wasted_compute_s = np.where(applied, 0.0, totals.compute_s)
    row = _round_row(facts, cohort, totals, float(wasted_compute_s.sum()))
    row.update(zip(_BYTES, (byte_block.sum(axis=1) + _stranger_bytes(columns)).tolist(), strict=True))
    return RoundBatches(
        rounds=_one_row(row),
        device_rounds=_device_rows(facts, cohort, names, totals, byte_block, wasted_compute_s),
        events=events_batch(facts.round_number, columns),
        row=row,
    )


def _device_rows(
    facts: RoundFacts,
    cohort: CohortFacts,
    names: FleetNames,
    totals: DeviceTotals,
    byte_block: Wholes,
    wasted_compute_s: Floats,
) -> Any:
    # The cohort's arrays are copied: Arrow would share their memory, and the caller may reuse them.
    n = len(cohort.device)
    wholes = np.empty((len(_WHOLE_NAMES), n), dtype=np.int64)
    wholes[: len(_BYTES)] = byte_block
    wholes[len(_BYTES) : -3].reshape(len(Stage), len(DIRECTIONS), n)[:] = totals.stage_bytes
    wholes[-3:] = cohort.device, cohort.memory_bytes, cohort.examples

    first_s = np.fmin.reduce(totals.stage_start_s, axis=0)
    last_s = np.fmax.reduce(totals.stage_end_s, axis=0)
    latency_s = totals.arrival_s - first_s
    idle_s = last_s - first_s - totals.compute_s - totals.transfer_s
    # Two frames of one device can overlap (a duplicate beside the original); then there was no wait.
    wait_s = np.fmax(idle_s, 0.0)
    floats = np.stack(
        (totals.compute_s, wait_s, wasted_compute_s, cohort.energy_compute_j, cohort.energy_radio_j)
    )
    nullable = np.concatenate(
        (
            totals.stage_start_s,
            totals.stage_end_s,
            latency_s[None],
            cohort.loss[None],
            cohort.work_share[None],
            cohort.staleness[None],
        ),
        dtype=np.float64,
    )
    made: dict[str, Any] = {
        "round": pa.array(np.full(n, facts.round_number, dtype=np.int32)),
        "phase": _constant(facts.phase, n, np.int32),
        "class": _labelled(cohort.device_class.astype(np.int32), _dictionary(names.classes)),
        "network": _labelled(cohort.network.astype(np.int32), _dictionary(names.networks)),
        "region": _labelled(cohort.region.astype(np.int32), _dictionary(names.regions)),
        "outcome": _labelled(cohort.outcome.astype(np.int8), _OUTCOMES),
        "stage": _labelled(cohort.stage.astype(np.int8), _STAGES, cohort.stage == _NO_STAGE),
        "reason": _labelled(cohort.reason.astype(np.int8), _REASONS),
        "way": _labelled(totals.way, _WAYS, totals.way == NO_WAY),
        "retries": pa.array(totals.retries.astype(np.int32)),
        **_columns(wholes, _WHOLE_NAMES),
        **_columns(floats, _FLOAT_NAMES),
        **_columns(nullable, _NULLABLE_NAMES, nullable=True),
    }
    if cohort.kept_back.any():
        for name in _KEPT_BACK:
            made[name] = _without(made[name], cohort.kept_back)
        # A device that has reported a loss in the clear has reported its examples beside it.
        made["examples"] = _without(made["examples"], cohort.kept_back & np.isnan(cohort.loss))
    return _batch("device_rounds", made)


def _round_row(
    facts: RoundFacts, cohort: CohortFacts, totals: DeviceTotals, wasted_compute_s: float
) -> dict[str, Any]:
    """Return the row of ``rounds`` without its bytes."""
    outcomes = np.bincount(cohort.outcome, minlength=len(Outcome)).tolist()
    energy_j = float(cohort.energy_compute_j.sum() + cohort.energy_radio_j.sum())
    kept_back = bool(cohort.kept_back.any())
    summed = facts.summed
    ways = totals.way[cohort.outcome == Outcome.COMPLETED.value]
    return {
        "round": facts.round_number,
        "phase": facts.phase,
        "start_s": facts.start_s,
        "end_s": facts.end_s,
        "duration_s": facts.end_s - facts.start_s,
        "outcome": label(facts.outcome),
        "reason": label(facts.reason),
        "invited": len(cohort.device),
        "accepted": totals.accepted,
        **dict(zip(_OUTCOME_NAMES, outcomes, strict=True)),
        "clear_updates": int(np.count_nonzero(ways == Way.CLEAR.value)),
        "summed_updates": int(np.count_nonzero(ways == Way.SECURE.value)),
        "retries": int(totals.retries.sum()),
        "compute_s": None if kept_back else float(totals.compute_s.sum()),
        "wasted_compute_s": None if kept_back else wasted_compute_s,
        "energy_j": None if kept_back else energy_j,
        "loss": None if np.isnan(facts.loss) else facts.loss,
        "weight": facts.weight,
        **{f"{label(stage)}_s": facts.stage_s.get(stage) for stage in SUM_STAGES},
        "secagg_neighbours": summed and summed.neighbours,
        "secagg_threshold": summed and summed.threshold,
        "secagg_failure": (summed and summed.failure) or NO_FAILURE,
        "secagg_sum_error": summed and summed.sum_error,
        "secagg_double_reveals": summed and summed.double_reveals,
        "clipped_fraction": summed and summed.clipped_fraction,
        "clipped_updates_fraction": facts.clipped_updates_fraction,
        "epsilon": facts.epsilon,
        "epsilon_replace_one": facts.epsilon_replace_one,
        "wall_s": facts.wall_s,
        "host_rss_bytes": facts.host_rss_bytes,
    }


def _one_row(row: RoundRow) -> Any:
    """Return the batch of a row of ``rounds``; slices of an array per type are cheaper than many arrays."""
    made: dict[str, Any] = {name: _constant(row[name], 1, codes) for name, codes in _ROUND_LABELS.items()}
    for kind, names in _ROUND_NUMBERS.items():
        values = pa.array([row[name] for name in names], kind)
        made.update((name, values.slice(i, 1)) for i, name in enumerate(names))
    return _batch("rounds", made)


def _evaluation_rows(rows: list[dict[str, Any]]) -> Any:
    # One conversion of whole rows: a call per column costs more than the column.
    flat = pa.RecordBatch.from_struct_array(pa.array(rows, type=_EVALUATION))
    return pa.RecordBatch.from_arrays(flat.columns, schema=EVALUATIONS)


def evaluation_batch(round_number: int, phase: str, time_s: float, values: Iterable[MetricValue]) -> Any:
    """Return the rows of ``evaluations`` of one evaluation of the model.

    Parameters
    ----------
    round_number : rounds finished before it; 0 for the initial model.
    phase : name of the scenario's phase.
    time_s : simulated time.
    values : what was computed, in the order in which it shall be written.
    """
    rows = [
        {
            "round": round_number,
            "phase": phase,
            "time_s": time_s,
            "metric": value.metric,
            "split": value.split,
            "population": value.population,
            "tag": value.tag,
            "group": value.group,
            "value": None if np.isnan(value.value) else value.value,
            "users": value.users,
        }
        for value in values
    ]
    return _evaluation_rows(rows)


def inference_batch(
    round_number: int, phase: str, time_s: float, inferences: Inferences, names: FleetNames
) -> Any:
    """Return the rows of ``inferences`` of one inference; arguments as for :func:`evaluation_batch`."""
    n = len(inferences.device)
    made: dict[str, Any] = {
        "round": pa.array(np.full(n, round_number, dtype=np.int32)),
        "phase": _constant(phase, n, np.int32),
        "time_s": pa.array(np.full(n, time_s)),
        "class": _labelled(inferences.device_class.astype(np.int32), _dictionary(names.classes)),
        "network": _labelled(inferences.network.astype(np.int32), _dictionary(names.networks)),
    }
    for field in SCHEMAS["inferences"]:
        if field.name not in made:
            values = np.broadcast_to(getattr(inferences, field.name), n)
            made[field.name] = pa.array(np.array(values), field.type)
    return _batch("inferences", made)


def fault_batch(round_number: int, phase: str, strikes: Sequence[FaultStrike]) -> Any:
    """Return the rows of ``faults`` of one round, in the order of ``strikes``."""
    n = len(strikes)
    stages = np.array([_NO_STAGE if one.stage is None else one.stage for one in strikes], np.int8)
    return _batch(
        "faults",
        {
            "round": pa.array(np.full(n, round_number, dtype=np.int32)),
            "phase": _constant(phase, n, np.int32),
            "fault": pa.array([one.fault for one in strikes], pa.string()).dictionary_encode(),
            "kind": pa.array([one.kind for one in strikes], pa.string()).dictionary_encode(),
            "device": pa.array([one.device for one in strikes], pa.int64()),
            "stage": _labelled(stages, _STAGES, stages == _NO_STAGE),
            "first_s": pa.array([one.first_s for one in strikes], pa.float64()),
            "last_s": pa.array([one.last_s for one in strikes], pa.float64()),
            "count": pa.array([one.count for one in strikes], pa.int32()),
        },
    )
