"""Arrow columns from numpy arrays, and functions of Arrow over columns and tables, by name.

``pyarrow.compute`` makes a documented Python function of each of 300 when it is imported, which takes longer
than all calls of a run. Methods of arrays and tables such as ``filter`` and ``cast`` import it, too, and
``pyarrow.array`` of a numpy array imports masked arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Public as attributes of pyarrow.compute; defined here in every version.
from pyarrow._compute import (
    CastOptions,
    FilterOptions,
    ScalarAggregateOptions,
    SetLookupOptions,
    call_function,
)

__all__ = [
    "are_all",
    "array_of",
    "call_function",
    "cast",
    "filled",
    "is_among",
    "present",
    "rows_where",
    "subset",
]


def array_of(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return integers or floats [n] as a ``pyarrow.Array`` over the same memory.

    ``missing`` bool [n]: where it is null; None: nowhere.
    """
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def rows_where(table: Any, column: str, value: Any) -> Any:
    """Return the rows of a table or record batch whose ``column`` equals ``value``."""
    return subset(table, call_function("equal", [table.column(column), value]))


def subset(values: Any, mask: Any) -> Any:
    """Return the rows of a table, record batch or column where ``mask`` is true, neither false nor null."""
    return call_function("filter", [values, mask], FilterOptions("drop"))


def present(column: Any) -> Any:
    """Return the values of a column that are not null."""
    return call_function("drop_null", [column])


def filled(column: Any, value: Any) -> Any:
    """Return a column with ``value``, of its type, in place of nulls."""
    return call_function("coalesce", [column, pa.scalar(value, column.type)])


def cast(column: Any, to: Any, *, safe: bool = True) -> Any:
    """Return a column as another type.

    Raises
    ------
    ArrowInvalid : a value would change; with ``safe`` False it may.
    """
    return call_function("cast", [column], CastOptions.safe(to) if safe else CastOptions.unsafe(to))


def is_among(column: Any, values: Any) -> Any:
    """Return whether each value of a column is one of ``values``, a column of the same type."""
    return call_function("is_in", [column], SetLookupOptions(value_set=values))


def are_all(mask: Any) -> bool:
    """Return whether no value of a mask is false."""
    found = call_function("all", [mask], ScalarAggregateOptions(min_count=0))
    return bool(found.as_py())
