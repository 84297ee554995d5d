"""From the logs of rounds to their rows: one of ``rounds`` each, one of ``device_rounds`` per invited device.

Everything is a pass of numpy over all records of all rounds at once: a round costs no more than its own row.
Nothing loops over devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
from coordinator.results.tables.functions import array_of, rows_where
from coordinator.results.tables.schemas import DIRECTIONS, ENUM, EVALUATIONS, EVENTS, ROUNDS, SCHEMAS, SPLITS
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
_NAME: Final = pa.dictionary(pa.int32(), pa.string())

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

_SUM_STAGES: Final = {f"{label(stage)}_s": stage for stage in SUM_STAGES}
"""The columns of ``rounds`` with the times of the stages of a secure sum."""

_EVALUATION: Final = pa.struct(list(EVALUATIONS))


_COHORT_FIELDS: Final = tuple(field.name for field in fields(CohortFacts))


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A finished round as it was recorded: its facts, those of its devices, and its log.

    Attributes
    ----------
    facts, cohort, names : what the log does not hold.
    columns : float64 [WIDTH, records], from :meth:`EventLog.columns`: every record of the round, those of
        devices that ended after it included.

    Nothing may change the arrays: rows are made from them later.
    """

    facts: RoundFacts
    cohort: CohortFacts
    names: FleetNames
    columns: Floats


@dataclass(frozen=True, slots=True)
class RoundBatches:
    """The rows of one or more rounds, as ``pyarrow.RecordBatch`` of the schemas of the same names."""

    rounds: Any
    device_rounds: Any
    events: Any

    def kept_events(self, *, record_events: bool) -> Any:
        """Return the events to keep, None for none; without ``record_events`` those are suspensions."""
        if record_events:
            return self.events
        found = suspensions(self.events)
        return found if found.num_rows else None


class RecordedRow(Mapping[str, Any]):
    """The row of ``rounds`` of a recorded round, as plain values; computed as far as it is read.

    Sums over the log are computed at the first access to a value that needs them.
    """

    __slots__ = ("_record", "_values", "_whole")

    def __init__(self, record: RoundRecord) -> None:
        self._record = record
        self._values: dict[str, Any] | None = None
        self._whole = False

    def __getitem__(self, name: str) -> Any:
        if self._values is None:
            self._values = _facts_row(self._record.facts, self._record.cohort)
        if name not in self._values:
            return self._all()[name]
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, Any]:
        if not self._whole:
            self._values, self._whole = _Pack([self._record]).rows()[0], True
        assert self._values is not None
        return self._values


def suspensions(events: Any) -> Any:
    """Return the rows of ``events`` that are suspensions: a record batch or table, as given."""
    return rows_where(events, "kind", label(EventKind.SUSPENDED))


def _labelled(codes: npt.NDArray[Any], dictionary: Any, mask: npt.NDArray[np.bool_] | None = None) -> Any:
    return pa.DictionaryArray.from_arrays(array_of(codes, mask), dictionary)


@functools.lru_cache(maxsize=64)
def _dictionary(names: tuple[str, ...]) -> Any:
    return pa.array(names, pa.string())


def _names_of(names: Sequence[str], counts: npt.NDArray[np.int64], codes: type[np.integer] = np.int32) -> Any:
    """Return a column of ``names``, each as often as ``counts`` says."""
    known = dict.fromkeys(names)
    if len(known) == 1:
        return _labelled(np.zeros(int(counts.sum()), dtype=codes), _dictionary(tuple(known)))
    code_of = {name: code for code, name in enumerate(known)}
    return _labelled(
        np.repeat(np.array([code_of[name] for name in names], dtype=codes), counts), _dictionary(tuple(known))
    )


def _columns(block: npt.NDArray[Any], names: Sequence[str], *, nullable: bool = False) -> dict[str, Any]:
    """Return the rows of a contiguous block, [names, n], as Arrow arrays by name.

    They share the memory of the block: making one array and slicing it is cheaper than making many. In
    nullable columns NaN becomes null.
    """
    flat = block.reshape(-1)
    whole = array_of(flat, np.isnan(flat) if nullable else None)
    n = block.shape[1]
    return {name: whole.slice(i * n, n) for i, name in enumerate(names)}


def _without(column: Any, mask: npt.NDArray[np.bool_]) -> Any:
    """Return a column of numbers with null where ``mask`` is True."""
    return array_of(column.to_numpy(), mask)


def _batch(table: str, columns: dict[str, Any]) -> Any:
    return pa.RecordBatch.from_arrays([columns[name] for name in _NAMES[table]], schema=SCHEMAS[table])


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


def round_batches(facts: RoundFacts, cohort: CohortFacts, names: FleetNames, columns: Floats) -> RoundBatches:
    """Return the rows of one round; arguments as of :class:`RoundRecord`, else as :func:`packed_batches`."""
    return packed_batches([RoundRecord(facts, cohort, names, columns)])


def packed_batches(records: Sequence[RoundRecord], *, record_events: bool = True) -> RoundBatches:
    """Return the rows that finished rounds leave in ``rounds``, ``device_rounds`` and ``events``.

    They are those that each round by itself would leave, bit for bit, in the order of ``records``.

    Parameters
    ----------
    records : one or more rounds of one run.
    record_events : whether to make rows of all events; without it of suspensions alone.

    Raises
    ------
    ValueError
        For a slot outside the cohort, bytes without a direction, or a code outside its vocabulary.
    """
    pack = _Pack(records)
    return RoundBatches(
        rounds=_rounds_batch(pack.rows()),
        device_rounds=pack.device_rounds(),
        events=pack.events(record_events=record_events),
    )


def evaluation_round_batches(record: RoundRecord) -> dict[str, Any]:
    """Return the rows that a round in which devices measured the model leaves, by table.

    Events are those of devices that were suspended in it, where there are any.
    """
    made = packed_batches([record], record_events=False)
    of_tables = {"device_evaluations": made.device_rounds, "evaluation_rounds": made.rounds}
    rows = {
        table: pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMAS[table])
        for table, batch in of_tables.items()
    }
    if made.events.num_rows:
        # An event is of a round; whoever is suspended before the first one is not invited to it.
        number = np.full(made.events.num_rows, max(record.facts.round_number, 1), np.int32)
        rows["events"] = made.events.set_column(0, EVENTS.field("round"), array_of(number))
    return rows


class _Pack:
    """Rounds whose rows are made together: their devices one after the other, and the sums over each.

    ``records`` are one or more rounds.
    """

    def __init__(self, records: Sequence[RoundRecord]) -> None:
        self._records = records
        self._facts = [record.facts for record in records]
        self._names = records[0].names
        self._columns = np.concatenate([record.columns for record in records], axis=1)
        self._events = np.array([record.columns.shape[1] for record in records])
        self._devices = np.array([len(record.cohort.device) for record in records])
        self._ends = np.cumsum(self._devices)
        self._starts = self._ends - self._devices
        self._cohort = CohortFacts(
            **{
                name: np.concatenate([getattr(record.cohort, name) for record in records])
                for name in _COHORT_FIELDS
            }
        )
        self._applied = self._cohort.outcome == Outcome.COMPLETED.value
        n = int(self._ends[-1])
        self._totals = device_totals(self._columns, self._places(), n)
        self._bytes = _byte_block(self._totals, self._applied)
        self._wasted_compute_s = np.where(self._applied, 0.0, self._totals.compute_s)

    def _places(self) -> Wholes:
        """Return the place of each record's device among those of all rounds, int64; -1 for strangers."""
        slot = self._columns[Column.SLOT].astype(np.int64)
        outside = slot >= np.repeat(self._devices, self._events)
        if outside.any():
            first = int(np.argmax(outside))
            invited = int(np.repeat(self._devices, self._events)[first])
            raise ValueError(f"event log: slot {int(slot[first])} in a round of {invited} invited devices")
        return np.where(slot < 0, -1, slot + np.repeat(self._starts, self._events))

    # -- rows of ``rounds`` ----------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``rounds``."""
        totals, completed = self._totals, self._applied
        per_device = np.stack(
            (
                totals.accepted,
                completed & (totals.way == Way.CLEAR.value),
                completed & (totals.way == Way.SECURE.value),
                totals.retries,
            )
        )
        counts = self._of_rounds(per_device).T.tolist()
        sizes = (self._of_rounds(self._bytes) + self._stranger_bytes()).T.tolist()
        made = []
        for place, record in enumerate(self._records):
            row = _facts_row(record.facts, record.cohort)
            row["accepted"], row["clear_updates"], row["summed_updates"], row["retries"] = counts[place]
            mine = slice(self._starts[place], self._ends[place])
            kept_back = row["energy_j"] is None
            # One sum a round, over an array: its bits depend on how many are added in one go.
            row["compute_s"] = None if kept_back else float(totals.compute_s[mine].sum())
            row["wasted_compute_s"] = None if kept_back else float(self._wasted_compute_s[mine].sum())
            row.update(zip(_BYTES, sizes[place], strict=True))
            made.append(row)
        return made

    def _of_rounds(self, per_device: Wholes) -> Wholes:
        """Return the sums over the devices of each round, int64 [figures, rounds]."""
        sums = np.zeros((len(per_device), per_device.shape[1] + 1), dtype=np.int64)
        np.cumsum(per_device, axis=1, out=sums[:, 1:])
        return np.asarray(sums[:, self._ends] - sums[:, self._starts])

    def _stranger_bytes(self) -> Wholes | int:
        """Return what travelled to or from devices that were not invited, int64 [len(_BYTES), rounds].

        0 for nothing.
        """
        strange = self._columns[Column.SLOT] < 0
        if not strange.any():
            return 0
        rounds = len(self._records)
        round_of = np.repeat(np.arange(rounds), self._events)[strange]
        totals = device_totals(self._columns[:, strange], round_of, rounds)
        return _byte_block(totals, np.zeros(rounds, dtype=np.bool_))

    # -- rows of ``device_rounds`` -----------------------------------------------------------------------

    def device_rounds(self) -> Any:
        """Return the batch of ``device_rounds``."""
        cohort, totals, names = self._cohort, self._totals, self._names
        n = len(cohort.device)
        wholes = np.empty((len(_WHOLE_NAMES), n), dtype=np.int64)
        wholes[: len(_BYTES)] = self._bytes
        wholes[len(_BYTES) : -3].reshape(len(Stage), len(DIRECTIONS), n)[:] = totals.stage_bytes
        wholes[-3:] = cohort.device, cohort.memory_bytes, cohort.examples

        first_s = np.fmin.reduce(totals.stage_start_s, axis=0)
        last_s = np.fmax.reduce(totals.stage_end_s, axis=0)
        latency_s = totals.arrival_s - first_s
        idle_s = last_s - first_s - totals.compute_s - totals.transfer_s
        # Two frames of one device can overlap (a duplicate beside the original); then there was no wait.
        wait_s = np.fmax(idle_s, 0.0)
        floats = np.stack(
            (
                totals.compute_s,
                wait_s,
                self._wasted_compute_s,
                cohort.energy_compute_j,
                cohort.energy_radio_j,
            )
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
            "round": array_of(self._round_of(self._devices)),
            "phase": _names_of([facts.phase for facts in self._facts], self._devices),
            "class": _labelled(cohort.device_class.astype(np.int32), _dictionary(names.classes)),
            "network": _labelled(cohort.network.astype(np.int32), _dictionary(names.networks)),
            "region": _labelled(cohort.region.astype(np.int32), _dictionary(names.regions)),
            "outcome": _labelled(cohort.outcome.astype(np.int8), _OUTCOMES),
            "stage": _labelled(cohort.stage.astype(np.int8), _STAGES, cohort.stage == _NO_STAGE),
            "reason": _labelled(cohort.reason.astype(np.int8), _REASONS),
            "way": _labelled(totals.way, _WAYS, totals.way == NO_WAY),
            "retries": array_of(totals.retries.astype(np.int32)),
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

    def _round_of(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the number of each round as often as ``counts`` says, int32."""
        return np.repeat(np.array([facts.round_number for facts in self._facts], np.int32), counts)

    # -- rows of ``events`` ------------------------------------------------------------------------------

    def events(self, *, record_events: bool) -> Any:
        """Return the batch of ``events``; without ``record_events`` of suspensions alone."""
        columns, rounds = self._columns, self._round_of(self._events)
        if not record_events:
            kept = columns[Column.KIND] == EventKind.SUSPENDED.value
            columns, rounds = columns[:, kept], rounds[kept]
        sizes = columns[SPLIT_COLUMNS[0] : SPLIT_COLUMNS[-1] + 1]
        made: dict[str, Any] = {
            "round": array_of(rounds),
            "time_s": array_of(columns[Column.TIME_S]),
            "slot": array_of(columns[Column.SLOT].astype(np.int32)),
            "device": array_of(columns[Column.DEVICE].astype(np.int64)),
            "start_s": array_of(columns[Column.START_S]),
            "end_s": array_of(columns[Column.END_S]),
            **_columns(sizes.astype(np.int64), [f"{split}_bytes" for split in SPLITS]),
        }
        for name, (column, dictionary) in _EVENT_CODES.items():
            made[name] = _labelled(columns[column].astype(np.int8), dictionary)
        return _batch("events", made)


def _facts_row(facts: RoundFacts, cohort: CohortFacts) -> dict[str, Any]:
    """Return what the log is not needed for of a row of ``rounds``."""
    outcomes = np.bincount(cohort.outcome, minlength=len(Outcome)).tolist()
    kept_back = bool(cohort.kept_back.any())
    energy_j = None if kept_back else float(cohort.energy_compute_j.sum() + cohort.energy_radio_j.sum())
    summed = facts.summed
    return {
        "round": facts.round_number,
        "phase": facts.phase,
        "start_s": facts.start_s,
        "end_s": facts.end_s,
        "duration_s": facts.end_s - facts.start_s,
        "outcome": label(facts.outcome),
        "reason": label(facts.reason),
        "invited": len(cohort.device),
        **dict(zip(_OUTCOME_NAMES, outcomes, strict=True)),
        "energy_j": energy_j,
        "loss": None if math.isnan(facts.loss) else facts.loss,
        "weight": facts.weight,
        **{name: facts.stage_s.get(stage) for name, stage in _SUM_STAGES.items()},
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


def _rounds_batch(rows: Sequence[RoundRow]) -> Any:
    """Return the batch of rows of ``rounds``; slices of an array per type are cheaper than many arrays."""
    n = len(rows)
    once = np.ones(n, dtype=np.int64)
    made: dict[str, Any] = {
        name: _names_of([row[name] for row in rows], once, codes) for name, codes in _ROUND_LABELS.items()
    }
    for kind, names in _ROUND_NUMBERS.items():
        values = pa.array([row[name] for name in names for row in rows], kind)
        made.update((name, values.slice(i * n, n)) for i, name in enumerate(names))
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
        "round": array_of(np.full(n, round_number, dtype=np.int32)),
        "phase": _names_of([phase], np.array([n])),
        "time_s": array_of(np.full(n, time_s)),
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
            "round": array_of(np.full(n, round_number, dtype=np.int32)),
            "phase": _names_of([phase], np.array([n])),
            "fault": pa.array([one.fault for one in strikes], _NAME),
            "kind": pa.array([one.kind for one in strikes], _NAME),
            "device": pa.array([one.device for one in strikes], pa.int64()),
            "stage": _labelled(stages, _STAGES, stages == _NO_STAGE),
            "first_s": pa.array([one.first_s for one in strikes], pa.float64()),
            "last_s": pa.array([one.last_s for one in strikes], pa.float64()),
            "count": pa.array([one.count for one in strikes], pa.int32()),
        },
    )
