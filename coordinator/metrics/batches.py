"""From the log of a round to its rows: one of ``rounds``, one of ``device_rounds`` per invited device.

Everything is a pass of numpy over all records of the round at once; nothing loops over devices.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coordinator.metrics.facts import Cohort, Evaluation, FleetNames, Floats, RoundFacts
from coordinator.metrics.schemas import (
    DEVICE_ROUNDS,
    DIRECTIONS,
    EVALUATIONS,
    EVENTS,
    ROUNDS,
    SPLITS,
)
from coordinator.metrics.totals import SPLIT_COLUMNS, device_totals
from edge.log import Column, EventLog
from edge.vocabulary import (
    Direction,
    EventKind,
    Fate,
    Outcome,
    Reason,
    Stage,
    label,
    labels,
)

_KINDS: Final = pa.array(labels(EventKind))
_STAGES: Final = pa.array(labels(Stage))
_DIRECTIONS: Final = pa.array(labels(Direction))
_FATES: Final = pa.array(labels(Fate))
_REASONS: Final = pa.array(labels(Reason))
_OUTCOMES: Final = pa.array(labels(Outcome))

_NO_STAGE: Final = -1


@dataclass(frozen=True, slots=True)
class RoundBatches:
    """The rows of one round, as ``pyarrow.RecordBatch`` of the schemas of the same names."""

    rounds: Any
    device_rounds: Any
    events: Any


def _labelled(codes: npt.NDArray[Any], dictionary: Any, mask: npt.NDArray[np.bool_] | None = None) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=mask), dictionary)


@functools.lru_cache(maxsize=64)
def _dictionary(names: tuple[str, ...]) -> Any:
    return pa.array(names, pa.string())


def _constant(name: str, n: int) -> Any:
    return _labelled(np.zeros(n, dtype=np.int32), _dictionary((name,)))


def _whole(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return values.astype(np.int64)


def _nullable(values: Floats) -> Any:
    return pa.array(values, from_pandas=True)  # NaN becomes null


def _batch(schema: Any, columns: dict[str, Any]) -> Any:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def events_batch(round_number: int, columns: Floats) -> Any:
    """Return the rows of ``events`` of one round.

    Parameters
    ----------
    round_number : number of the round.
    columns : float64 [WIDTH, n], from :meth:`EventLog.columns`.
    """
    n = columns.shape[1]
    made: dict[str, Any] = {
        "round": np.full(n, round_number, dtype=np.int32),
        "time_s": columns[Column.TIME_S],
        "slot": columns[Column.SLOT].astype(np.int32),
        "device": _whole(columns[Column.DEVICE]),
        "start_s": columns[Column.START_S],
        "end_s": columns[Column.END_S],
    }
    for split, column in zip(SPLITS, SPLIT_COLUMNS, strict=True):
        made[f"{split}_bytes"] = _whole(columns[column])
    for name, column, dictionary in (
        ("kind", Column.KIND, _KINDS),
        ("stage", Column.STAGE, _STAGES),
        ("direction", Column.DIRECTION, _DIRECTIONS),
        ("fate", Column.FATE, _FATES),
        ("reason", Column.REASON, _REASONS),
    ):
        made[name] = _labelled(columns[column].astype(np.int8), dictionary)
    return _batch(EVENTS, {name: pa.array(value) if isinstance(value, np.ndarray) else value
                           for name, value in made.items()})  # fmt: skip


def _byte_columns(split_bytes: npt.NDArray[np.int64], fate_bytes: npt.NDArray[np.int64],
                  wasted_bytes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:  # fmt: skip
    """Name the byte columns both tables share; [splits, n, directions], [n, fates], [n]."""
    made: dict[str, npt.NDArray[np.int64]] = {}
    for d, direction in enumerate(DIRECTIONS):
        made[f"{direction}_bytes"] = split_bytes[:, :, d].sum(axis=0)
        for s, split in enumerate(SPLITS):
            made[f"{direction}_{split}_bytes"] = np.ascontiguousarray(split_bytes[s, :, d])
    for fate in Fate:
        made[f"{label(fate)}_bytes"] = np.ascontiguousarray(fate_bytes[:, fate])
    made["wasted_bytes"] = wasted_bytes
    return made


def _stranger_bytes(columns: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sum what travelled to or from devices that were not invited: [splits, directions] and [fates]."""
    columns = columns[:, columns[Column.SLOT] < 0]
    sizes = columns[list(SPLIT_COLUMNS)]
    by_direction = [
        sizes[:, columns[Column.DIRECTION] == d].sum(axis=1) for d in (Direction.DOWN, Direction.UP)
    ]
    by_fate = [sizes[:, columns[Column.FATE] == fate].sum() for fate in Fate]
    return _whole(np.stack(by_direction, axis=1)), _whole(np.array(by_fate))


def round_batches(facts: RoundFacts, cohort: Cohort, names: FleetNames, log: EventLog) -> RoundBatches:
    """Return the rows that a finished round leaves in ``rounds``, ``device_rounds`` and ``events``.

    Parameters
    ----------
    facts, cohort, names : what the log does not tell.
    log : every record of the round, those of devices that ended after it included.

    Raises
    ------
    ValueError
        For a slot outside the cohort, bytes without a direction, or a code outside its vocabulary.
    """
    n = len(cohort.device)
    columns = log.columns()
    totals = device_totals(columns, n)
    applied = cohort.outcome == Outcome.COMPLETED

    split_bytes, fate_bytes = _whole(totals.split_bytes), _whole(totals.fate_bytes)
    sent_bytes = split_bytes.sum(axis=(0, 2))
    wasted_bytes = np.where(applied, sent_bytes - fate_bytes[:, Fate.DELIVERED], sent_bytes)
    wasted_compute_s = np.where(applied, 0.0, totals.compute_s)
    stage_bytes = _whole(totals.stage_bytes)

    # The cohort's arrays are copied: Arrow would share their memory, and the caller may reuse them.
    made: dict[str, Any] = {
        "round": pa.array(np.full(n, facts.round_number, dtype=np.int32)),
        "phase": _constant(facts.phase, n),
        "device": pa.array(cohort.device.astype(np.int64)),
        "class": _labelled(cohort.device_class.astype(np.int32), _dictionary(names.classes)),
        "network": _labelled(cohort.network.astype(np.int32), _dictionary(names.networks)),
        "region": _labelled(cohort.region.astype(np.int32), _dictionary(names.regions)),
        "outcome": _labelled(cohort.outcome.astype(np.int8), _OUTCOMES),
        "stage": _labelled(cohort.stage.astype(np.int8), _STAGES, cohort.stage == _NO_STAGE),
        "reason": _labelled(cohort.reason.astype(np.int8), _REASONS),
        "compute_s": pa.array(totals.compute_s),
        "retries": pa.array(totals.retries.astype(np.int32)),
        "energy_compute_j": pa.array(cohort.energy_compute_j.astype(np.float64)),
        "energy_radio_j": pa.array(cohort.energy_radio_j.astype(np.float64)),
        "memory_bytes": pa.array(cohort.memory_bytes.astype(np.int64)),
        "examples": pa.array(cohort.examples.astype(np.int64)),
        "loss": _nullable(cohort.loss.astype(np.float64)),
        "wasted_compute_s": pa.array(wasted_compute_s),
    }
    for stage in Stage:
        made[f"{label(stage)}_start_s"] = _nullable(np.ascontiguousarray(totals.stage_start_s[:, stage]))
        made[f"{label(stage)}_end_s"] = _nullable(np.ascontiguousarray(totals.stage_end_s[:, stage]))
        for d, direction in enumerate(DIRECTIONS):
            made[f"{label(stage)}_{direction}_bytes"] = pa.array(
                np.ascontiguousarray(stage_bytes[:, stage, d])
            )
    first_s = np.fmin.reduce(totals.stage_start_s, axis=1)
    last_s = np.fmax.reduce(totals.stage_end_s, axis=1)
    made["latency_s"] = _nullable(totals.arrival_s - first_s)
    idle_s = last_s - first_s - totals.compute_s - totals.transfer_s
    # Two frames of one device can overlap (a duplicate beside the original); then there was no wait.
    made["wait_s"] = pa.array(np.fmax(idle_s, 0.0))
    for name, values in _byte_columns(split_bytes, fate_bytes, wasted_bytes).items():
        made[name] = pa.array(values)

    outcomes = np.bincount(cohort.outcome, minlength=len(Outcome))
    stranger_splits, stranger_fates = _stranger_bytes(columns)
    total_splits = split_bytes.sum(axis=1) + stranger_splits
    total_fates = fate_bytes.sum(axis=0) + stranger_fates
    row: dict[str, Any] = {
        "round": facts.round_number,
        "phase": facts.phase,
        "start_s": facts.start_s,
        "end_s": facts.end_s,
        "duration_s": facts.end_s - facts.start_s,
        "outcome": label(facts.outcome),
        "reason": label(facts.reason),
        "invited": n,
        "accepted": totals.accepted,
        **{label(outcome): int(outcomes[outcome]) for outcome in Outcome},
        "retries": int(totals.retries.sum()),
        "compute_s": float(totals.compute_s.sum()),
        "wasted_compute_s": float(wasted_compute_s.sum()),
        "energy_j": float(cohort.energy_compute_j.sum() + cohort.energy_radio_j.sum()),
        "loss": None if np.isnan(facts.loss) else facts.loss,
        "weight": facts.weight,
        "wall_s": facts.wall_s,
        "host_rss_bytes": facts.host_rss_bytes,
    }
    total_wasted = np.array([wasted_bytes.sum() + stranger_splits.sum()])
    shared = _byte_columns(total_splits[:, None, :], total_fates[None, :], total_wasted)
    row.update((name, int(values[0])) for name, values in shared.items())
    return RoundBatches(
        rounds=_rows(ROUNDS, [row]),
        device_rounds=_batch(DEVICE_ROUNDS, made),
        events=events_batch(facts.round_number, columns),
    )


@functools.lru_cache(maxsize=8)
def _struct(schema: Any) -> Any:
    return pa.struct(list(schema))


def _rows(schema: Any, rows: Sequence[dict[str, Any]]) -> Any:
    # One conversion of whole rows: a call per column costs more than the column.
    flat = pa.RecordBatch.from_struct_array(pa.array(rows, type=_struct(schema)))
    return pa.RecordBatch.from_arrays(flat.columns, schema=schema)


def evaluation_batch(round_number: int, phase: str, time_s: float, values: Iterable[Evaluation]) -> Any:
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
    return _rows(EVALUATIONS, rows)
