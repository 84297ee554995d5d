"""The log of one round: what happened, when, to whom, and what it cost in bytes.

The hot path of a run. A record is fourteen float64 packed into a byte buffer::

    extend = log.extend                     # bound once a round
    extend(pack_record(time_s, slot, device, EventKind.MODEL, Stage.DOWNLOAD, Direction.DOWN, start_s, end_s,
                       payload_bytes, framing_bytes, tcp_ip_bytes, retransmitted_bytes, Fate.DELIVERED,
                       Reason.NONE))

Packing refuses a wrong number of values and is faster than growing a list or an ``array.array``. Every whole
number in a record (a device id, a number of bytes) is exact up to 2**53.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

import numpy as np
import numpy.typing as npt


class Column(enum.IntEnum):
    """Position of a value in a record."""

    TIME_S = 0
    """When the record was made: simulated seconds since the start of the run."""
    SLOT = 1
    """Position of the device among the round's invited devices; -1 for a stranger to the round."""
    DEVICE = 2
    """The device's id in the fleet."""
    KIND = 3
    """An :class:`~edge.core.vocabulary.EventKind`."""
    STAGE = 4
    """The :class:`~edge.core.vocabulary.Stage` it belongs to."""
    DIRECTION = 5
    """A :class:`~edge.core.vocabulary.Direction`; NONE when nothing travelled."""
    START_S = 6
    """When the transfer or the computation began; the time itself for what takes no time."""
    END_S = 7
    """When it ended, whether it succeeded or broke off."""
    PAYLOAD_BYTES = 8
    """Bytes of model or update within the frame."""
    FRAMING_BYTES = 9
    """The rest of the frame: header, names, shapes."""
    TCP_IP_BYTES = 10
    """Headers, acknowledgements and handshakes below the frame."""
    RETRANSMITTED_BYTES = 11
    """Bytes sent again because a packet was lost."""
    FATE = 12
    """What became of all these bytes, a :class:`~edge.core.vocabulary.Fate`."""
    REASON = 13
    """A :class:`~edge.core.vocabulary.Reason`."""


WIDTH: Final = len(Column)
"""Number of float64 in a record."""

RECORD: Final = struct.Struct(f"={WIDTH}d")

pack_record: Final = RECORD.pack
"""Pack the values of one record, in the order of :class:`Column`; ``struct.error`` for a wrong number."""


class EventLog:
    """The records of one round, in the order in which they were made.

    ``extend`` takes the bytes of one or more packed records.

    Parameters
    ----------
    by_slot : whether records of the same moment after the mark are in the order of slots, strangers last, so
        that the order does not depend on how devices were simulated that have nothing to do with each other.
    """

    __slots__ = ("_buffer", "_by_slot", "_early", "_foreseen", "extend")

    def __init__(self, *, by_slot: bool = False) -> None:
        self._by_slot = by_slot
        self._buffer = bytearray()
        self._early = 0
        self._foreseen: npt.NDArray[np.float64] | None = None
        """Records by column that belong between those that come after the first :attr:`_early`."""
        self.extend = self._buffer.extend

    def __len__(self) -> int:
        return len(self._buffer) // RECORD.size

    def array(self) -> npt.NDArray[np.float64]:
        """Return the records as float64 [n, WIDTH], a view: the log takes no more records while it lives.

        Raises
        ------
        ValueError
            When the buffer does not hold a whole number of records.
        """
        if len(self._buffer) % RECORD.size:
            raise ValueError(
                f"the event log holds {len(self._buffer)} bytes, not a multiple of {RECORD.size}; "
                "extend it with the results of pack_record only"
            )
        return np.frombuffer(self._buffer, dtype=np.float64).reshape(-1, WIDTH)

    def mark(self) -> None:
        """Let the records that are inserted later come after those that are there now."""
        self._early = len(self)

    @property
    def early(self) -> int:
        """How many records come before the mark."""
        return self._early

    def insert(self, columns: npt.NDArray[np.float64]) -> None:
        """Add records by column, float64 [WIDTH, n], in order; they belong between those since the mark.

        Of the same moment the inserted ones come first, unless they began later.
        """
        self._foreseen = columns

    def columns(self) -> npt.NDArray[np.float64]:
        """Return the records by column, float64 [WIDTH, n], contiguous: a copy that leaves the log free."""
        made = np.ascontiguousarray(self.array().T)
        early, others = made[:, : self._early], made[:, self._early :]
        if self._foreseen is None:
            if not self._by_slot:
                return made
            later = others
        elif others.shape[1]:
            later = np.insert(others, self._places_among(others), self._foreseen, axis=1)
        else:
            later = self._foreseen
        return np.concatenate([early, _in_order(later) if self._by_slot else later], axis=1)

    def _places_among(self, others: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return before which of ``others`` each inserted record belongs, int64 [n]."""
        assert self._foreseen is not None
        times_s = others[Column.TIME_S]
        first = np.searchsorted(times_s, self._foreseen[Column.TIME_S], "left")
        last = np.searchsorted(times_s, self._foreseen[Column.TIME_S], "right")
        for place in np.flatnonzero(first < last).tolist():
            began = tuple(self._foreseen[[Column.START_S, Column.SLOT], place])
            while (
                first[place] < last[place]
                and tuple(others[[Column.START_S, Column.SLOT], first[place]]) < began
            ):
                first[place] += 1
        return np.asarray(np.maximum.accumulate(first))


def _in_order(columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return records, which are in the order of time, in that of slots where the time is the same."""
    times_s, slots = columns[Column.TIME_S], columns[Column.SLOT]
    turns = np.where(slots < 0, np.inf, slots)
    if not bool(((times_s[1:] == times_s[:-1]) & (turns[1:] < turns[:-1])).any()):
        return columns
    return columns.take(np.lexsort((turns, times_s)), axis=1)
