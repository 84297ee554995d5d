"""Tables as plain columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from coordinator.results.tables.digest import whole_columns
from coordinator.results.tables.metric_source import Tables

Columns = dict[str, list[Any]]
"""Columns by name, as plain values: labels as text, None where null."""


def columns(tables: Tables, table: str, *names: str) -> Columns:
    """Return columns of a table, all by default."""
    found: Columns = {}
    for name, column in whole_columns(tables.read(table, names or None)).items():
        if pa.types.is_dictionary(column.type):
            words = np.array([*column.dictionary.to_pylist(), None], dtype=object)
            codes = column.indices.fill_null(len(words) - 1).to_numpy()
            found[name] = words[codes].tolist()
        else:
            found[name] = column.to_pylist() if column.null_count else column.to_numpy().tolist()
    return found


def rows(tables: Tables, table: str, *names: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with the columns named, all by default."""
    found = columns(tables, table, *names)
    for values in zip(*found.values(), strict=True):
        yield dict(zip(found, values, strict=True))
