"""Sums over the records of each device of a round, by one pass of numpy per figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.metrics.facts import Floats
from coordinator.metrics.schemas import SPLITS
from edge.log import Column
from edge.vocabulary import Direction, EventKind, Fate, Stage

SPLIT_COLUMNS: Final = (
    Column.PAYLOAD_BYTES,
    Column.FRAMING_BYTES,
    Column.TCP_IP_BYTES,
    Column.RETRANSMITTED_BYTES,
)
"""The columns of a record that add up to what travelled, in the order of ``SPLITS``."""

_N_STAGES: Final = len(Stage)
_N_FATES: Final = len(Fate)


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """Sums over the records of each slot; n invited devices."""

    stage_start_s: Floats  # [n, stages], NaN: not reached
    stage_end_s: Floats  # [n, stages]
    split_bytes: Floats  # [splits, n, directions]
    stage_bytes: Floats  # [n, stages, directions]
    fate_bytes: Floats  # [n, fates]
    arrival_s: Floats  # [n], NaN: no report arrived
    compute_s: Floats  # [n]
    transfer_s: Floats  # [n]
    retries: npt.NDArray[np.int64]  # [n]
    accepted: int


def _sums(keys: npt.NDArray[np.int64], values: Floats, n: int) -> Floats:
    return np.asarray(np.bincount(keys, values, minlength=n), dtype=np.float64)


def device_totals(columns: Floats, n: int) -> DeviceTotals:
    """Return the sums over the records of each of a round's n invited devices.

    Parameters
    ----------
    columns : float64 [WIDTH, records], from :meth:`EventLog.columns`; strangers (slot -1) are left out.
    n : number of invited devices.

    Raises
    ------
    ValueError
        For a slot outside the cohort, or bytes without a direction.
    """
    slot_values = columns[Column.SLOT]
    if (slot_values < 0).any():
        columns = columns[:, slot_values >= 0]
        slot_values = columns[Column.SLOT]
    slot = slot_values.astype(np.int64)
    if slot.size and int(slot.max()) >= n:
        raise ValueError(f"event log: slot {int(slot.max())} in a round of {n} invited devices")
    kind = columns[Column.KIND]
    direction = columns[Column.DIRECTION].astype(np.int64)
    stage = columns[Column.STAGE].astype(np.int64)
    start_s, end_s = columns[Column.START_S], columns[Column.END_S]
    sizes = columns[list(SPLIT_COLUMNS)]
    wire = sizes.sum(axis=0)

    sent = direction != Direction.NONE
    if wire[~sent].any():
        raise ValueError("event log: a record with bytes and without a direction")
    way = slot * 2 + direction - 1
    split_bytes = np.stack([_sums(way[sent], size[sent], 2 * n) for size in sizes])

    cell = slot * _N_STAGES + stage
    stage_bytes = _sums((cell * 2 + direction - 1)[sent], wire[sent], 2 * n * _N_STAGES)
    stage_start_s = np.full(n * _N_STAGES, np.inf)
    stage_end_s = np.full(n * _N_STAGES, -np.inf)
    np.minimum.at(stage_start_s, cell, start_s)
    np.maximum.at(stage_end_s, cell, end_s)
    unreached = np.isinf(stage_start_s)
    stage_start_s[unreached] = np.nan
    stage_end_s[unreached] = np.nan

    fate = columns[Column.FATE]
    fate_bytes = _sums(slot * _N_FATES + fate.astype(np.int64), wire, n * _N_FATES)
    arrived = (stage == Stage.REPORT) & (direction == Direction.UP) & (fate != Fate.LOST)
    arrived &= (kind == EventKind.REPORT) | (kind == EventKind.LATE)
    arrival_s = np.full(n, np.inf)
    np.minimum.at(arrival_s, slot[arrived], end_s[arrived])
    arrival_s[np.isinf(arrival_s)] = np.nan

    span_s = end_s - start_s
    computed = kind == EventKind.COMPUTED
    return DeviceTotals(
        stage_start_s=stage_start_s.reshape(n, _N_STAGES),
        stage_end_s=stage_end_s.reshape(n, _N_STAGES),
        split_bytes=split_bytes.reshape(len(SPLITS), n, 2),
        stage_bytes=stage_bytes.reshape(n, _N_STAGES, 2),
        fate_bytes=fate_bytes.reshape(n, _N_FATES),
        arrival_s=arrival_s,
        compute_s=_sums(slot[computed], span_s[computed], n),
        transfer_s=_sums(slot[sent], span_s[sent], n),
        retries=np.bincount(slot[kind == EventKind.RETRY], minlength=n),
        accepted=len(np.unique(slot[kind == EventKind.ACCEPTED])),
    )
