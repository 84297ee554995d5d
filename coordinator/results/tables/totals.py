"""Sums over the records of each device of a round or several, by one pass of numpy per figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import Floats
from edge.core.log import Column
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, Stage, Way

SPLIT_COLUMNS: Final = (
    Column.PAYLOAD_BYTES,
    Column.FRAMING_BYTES,
    Column.TCP_IP_BYTES,
    Column.RETRANSMITTED_BYTES,
)
"""The columns of a record that add up to what travelled, in the order of ``SPLITS``."""

_N_SPLITS: Final = len(SPLIT_COLUMNS)
_N_KINDS: Final = len(EventKind)
_N_STAGES: Final = len(Stage)
_N_DIRECTIONS: Final = len(Direction)  # NONE included
_N_FATES: Final = len(Fate)


_IS_REPORT: Final = np.isin(
    np.arange(_N_KINDS),
    (EventKind.REPORT, EventKind.LATE, EventKind.MASKED_INPUT, EventKind.ENCRYPTED_INPUT),
)
_IS_REPORT_STAGE: Final = np.isin(np.arange(_N_STAGES), (Stage.REPORT, Stage.MASKED_INPUT))
"""Of every kind and stage, whether a report arrives so: in the clear, masked, or encrypted."""


NO_WAY: Final = -1
"""Stands for the way of an update that never came."""
_WAY_OF_STAGE: Final = np.full(_N_STAGES, NO_WAY, dtype=np.int8)
_WAY_OF_STAGE[[Stage.REPORT, Stage.MASKED_INPUT]] = Way.CLEAR, Way.SECURE


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """Sums over the records of each of n participations, DOWN before UP."""

    stage_start_s: Floats  # [stages, n], NaN: not reached
    stage_end_s: Floats  # [stages, n]
    split_bytes: Floats  # [splits, directions, n]
    stage_bytes: Floats  # [stages, directions, n]
    fate_bytes: Floats  # [fates, n]
    arrival_s: Floats  # [n], NaN: no report arrived
    way: npt.NDArray[np.int8]  # [n], Way of what arrived; -1: nothing
    compute_s: Floats  # [n]
    transfer_s: Floats  # [n]
    retries: npt.NDArray[np.int64]  # [n]
    accepted: npt.NDArray[np.bool_]  # [n]


def _sums(cells: npt.NDArray[np.int64], values: Floats, shape: tuple[int, ...]) -> Floats:
    """Add up the values of each cell of an array of ``shape``; a cell is its position in the flat array."""
    return np.asarray(np.bincount(cells, values, minlength=math.prod(shape)), dtype=np.float64).reshape(shape)


def device_totals(columns: Floats, slot: npt.NDArray[np.int64], n: int) -> DeviceTotals:
    """Return the sums over the records of each of n participations, of one round or several.

    Parameters
    ----------
    columns : float64 [WIDTH, records], from :meth:`EventLog.columns`.
    slot : int64 [records], which of the n a record is of; those of none (-1) are left out.
    n : number of participations.

    Raises
    ------
    ValueError
        For bytes without a direction.
    """
    if slot.size and slot.min() < 0:
        columns, slot = columns[:, slot >= 0], slot[slot >= 0]
    # Adjacent columns become whole numbers in one call.
    kind, stage, direction = columns[Column.KIND : Column.DIRECTION + 1].astype(np.int64)
    start_s, end_s = columns[Column.START_S], columns[Column.END_S]
    sizes = columns[SPLIT_COLUMNS[0] : SPLIT_COLUMNS[-1] + 1]
    wire = sizes.sum(axis=0)

    # Records without a direction get sums of their own, dropped below: cheaper than leaving them out.
    way = direction * n + slot
    split = np.arange(_N_SPLITS)[:, None]
    split_way = (split * (_N_DIRECTIONS * n) + way).reshape(-1)
    split_bytes = _sums(split_way, sizes.reshape(-1), (_N_SPLITS, _N_DIRECTIONS, n))
    if split_bytes[:, Direction.NONE].any():
        raise ValueError("event log: a record with bytes and without a direction")
    stage_way = stage * (_N_DIRECTIONS * n) + way
    stage_bytes = _sums(stage_way, wire, (_N_STAGES, _N_DIRECTIONS, n))

    cell = stage * n + slot
    # Unlike minimum and maximum, fmin and fmax take the other of two values when one is NaN.
    stage_start_s = np.full(_N_STAGES * n, np.nan)
    stage_end_s = np.full(_N_STAGES * n, np.nan)
    np.fmin.at(stage_start_s, cell, start_s)
    np.fmax.at(stage_end_s, cell, end_s)

    fate = columns[Column.FATE].astype(np.int64)
    # Plain values: numpy takes a member of an enum for an array first, which costs more than to compare.
    arrived = _IS_REPORT_STAGE[stage] & (direction == Direction.UP.value) & (fate != Fate.LOST.value)
    # One that has chosen its way cannot report the other way, too.
    arrived &= _IS_REPORT[kind] & (columns[Column.REASON] != Reason.OTHER_WAY.value)
    arrival_s = np.full(n, np.nan)
    np.fmin.at(arrival_s, slot[arrived], end_s[arrived])
    way_of_update = np.full(n, NO_WAY, dtype=np.int8)
    # The first to arrive is the one that may count.
    way_of_update[slot[arrived][::-1]] = _WAY_OF_STAGE[stage[arrived][::-1]]

    span_s = end_s - start_s
    kinds = np.bincount(kind * n + slot, minlength=_N_KINDS * n).reshape(_N_KINDS, n)
    return DeviceTotals(
        stage_start_s=stage_start_s.reshape(_N_STAGES, n),
        stage_end_s=stage_end_s.reshape(_N_STAGES, n),
        split_bytes=split_bytes[:, Direction.DOWN :],
        stage_bytes=stage_bytes[:, Direction.DOWN :],
        fate_bytes=_sums(fate * n + slot, wire, (_N_FATES, n)),
        arrival_s=arrival_s,
        way=way_of_update,
        compute_s=_sums(slot, np.where(kind == EventKind.COMPUTED.value, span_s, 0.0), (n,)),
        transfer_s=_sums(slot, np.where(direction != Direction.NONE.value, span_s, 0.0), (n,)),
        retries=kinds[EventKind.RETRY],
        accepted=kinds[EventKind.ACCEPTED] > 0,
    )
