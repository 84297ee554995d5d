"""A digest of a run's tables that depends on their values alone.

One blake2b per deterministic column, over its values in row order as little-endian bytes; the digest of a
table is over its column names, types and column digests. So it does not matter in which batches rows came,
how a dictionary numbers its names, or whether the rows were read back from a file.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coordinator.results.tables.functions import call_function, filled
from coordinator.results.tables.schemas import ADDED, SCHEMA_VERSION, SCHEMAS, deterministic_fields

_ROWS_AT_ONCE: Final = 1024
"""Hashing waits for this many rows: a call costs more than the bytes of a small round."""

_BATCHES_AT_ONCE: Final = 64
"""Or for this many batches: one of a single row takes kilobytes."""

_SIZE: Final = 16


def canonical(column: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the values of a column as an array whose bytes are equal exactly when the values are.

    Parameters
    ----------
    column : ``pyarrow.Array`` of integers, float64, or dictionary-encoded strings.

    Returns
    -------
    values : int64 or float64 [n], or uint64 [n] hashes of names; 0 (a NaN for floats) where null. Every NaN
        has the same bits, and -0.0 differs from 0.0.
    valid : bool [n], False where null.
    """
    whole = column.null_count == 0
    valid = (
        np.ones(len(column), dtype=np.bool_)
        if whole
        else np.asarray(call_function("is_valid", [column]).to_numpy(zero_copy_only=False), dtype=np.bool_)
    )
    if pa.types.is_dictionary(column.type):
        hashes = _name_hashes(tuple(column.dictionary.to_pylist()))
        if not len(hashes):
            return np.zeros(len(column), dtype="<u8"), valid
        codes = column.indices if whole else filled(column.indices, 0)
        values = hashes.take(codes.to_numpy(zero_copy_only=False))
        return values if whole else np.where(valid, values, np.uint64(0)), valid
    if pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False)  # null becomes NaN
        unset = np.isnan(values)
        if unset.any():
            values = np.where(unset, np.nan, values)
        return values.astype("<f8", copy=False), valid
    values = column if whole else filled(column, 0)
    return values.to_numpy(zero_copy_only=False).astype("<i8", copy=False), valid


def whole_columns(table: Any) -> dict[str, Any]:
    """Return the columns of a ``pyarrow.Table`` by name, each as one ``pyarrow.Array``."""
    joined = table.unify_dictionaries().combine_chunks()
    return {
        name: column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for name, column in zip(joined.column_names, joined.columns, strict=True)
    }


@functools.lru_cache(maxsize=64)
def _name_hashes(names: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    # The same few dictionaries come with every batch.
    return np.array(
        [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") for name in names],
        dtype="<u8",
    )


class TableDigest:
    """The running digest of one table."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._fields = deterministic_fields(table)
        # Values and validity apart: in one hash their order would depend on where batches end.
        self._values = [hashlib.blake2b(digest_size=_SIZE) for _ in self._fields]
        self._valid = [hashlib.blake2b(digest_size=_SIZE) for _ in self._fields]
        self._waiting: list[Any] = []
        self._rows = 0
        self.filled = False
        """Whether there are any rows."""

    def update(self, batch: Any) -> None:
        """Add the rows of a ``RecordBatch`` or ``Table`` with at least the table's deterministic columns."""
        self._waiting.extend(batch.to_batches() if isinstance(batch, pa.Table) else [batch])
        self._rows += batch.num_rows
        self.filled |= batch.num_rows > 0
        if self._rows >= _ROWS_AT_ONCE or len(self._waiting) >= _BATCHES_AT_ONCE:
            self._hash()

    def _hash(self) -> None:
        if not self._waiting:
            return
        if len(self._waiting) == 1:
            rows = dict(zip(self._waiting[0].schema.names, self._waiting[0].columns, strict=True))
        else:
            rows = whole_columns(pa.Table.from_batches(self._waiting))
        for field, of_values, of_valid in zip(self._fields, self._values, self._valid, strict=True):
            values, valid = canonical(rows[field.name])
            of_values.update(np.ascontiguousarray(values).data)
            if field.nullable:
                of_valid.update(valid.data)
        self._waiting.clear()
        self._rows = 0

    def digest(self) -> bytes:
        """Return the digest of all rows so far."""
        self._hash()
        whole = hashlib.blake2b(f"{self._table} {SCHEMA_VERSION}".encode(), digest_size=_SIZE)
        for field, of_values, of_valid in zip(self._fields, self._values, self._valid, strict=True):
            whole.update(f"\n{field.name} {field.type} ".encode())
            whole.update(of_values.digest())
            whole.update(of_valid.digest())
        return whole.digest()


class RunDigest:
    """The running digests of a run's tables, and the one that stands for all of them."""

    def __init__(self) -> None:
        self.tables = {table: TableDigest(table) for table in SCHEMAS}

    def hexdigest(self) -> str:
        """Return 32 hexadecimal digits, equal for runs with equal deterministic columns."""
        whole = hashlib.blake2b(digest_size=_SIZE)
        for name, table in self.tables.items():
            if table.filled or name not in ADDED:
                whole.update(table.digest())
        return whole.hexdigest()
