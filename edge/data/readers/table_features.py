"""Item features from any table: CSV with a header, or Parquet. One row per item, columns of numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edge.core.errors import DataError
from edge.data.features import FeatureTable, ItemFeatures, align
from edge.data.store import Labels
from edge.data.table.files import read_bytes
from edge.data.table.values import text_labels

_LARGEST = 1e150
_PARQUET_MAGIC = b"PAR1"


class _TableCells(NamedTuple):
    """Cells as text or number, None where empty: columns by name, and where each row stands."""

    columns: dict[str, list[Any]]
    places: list[str]


def read_table_features(
    path: Path,
    item_ids: Labels | None,
    *,
    item_column: str = "item",
    columns: Sequence[str] | None = None,
    title_column: str | None = None,
) -> ItemFeatures:
    """Read the features of a store's items from a CSV file (comma, or tab in ``.tsv``) or a Parquet file.

    Parameters
    ----------
    path : the file; what begins like Parquet is Parquet, everything else is CSV in UTF-8.
    item_ids : the item labels of a store, to align with.
    item_column : the column of item ids.
    columns : the columns to use, numbers or true and false; None for all columns of that kind. An empty cell
        or NaN becomes the column's mean.
    title_column : the column of names for people.

    Raises
    ------
    DataError
        with ``file:line`` (CSV) or file and row from 1 (Parquet), and the column: a column that does not
        exist, a repeated or empty header, a row of another length, an item that is missing or stands twice, a
        cell that is no number, infinite or beyond 1e150; when there is nothing to use; and as
        :func:`edge.data.features.align`.
    """
    try:
        with path.open("rb") as stream:
            is_parquet = stream.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    table = _read_parquet(path) if is_parquet else _read_csv(path)
    for name in (item_column, *(columns or ()), *([title_column] if title_column is not None else ())):
        if name not in table.columns:
            raise DataError(f"{path}: no column {name!r}; the table has {', '.join(table.columns)}")
    if not table.places:
        raise DataError(f"{path}: the table has no rows; expected one per item")
    if columns is None:
        others = [name for name in table.columns if name not in (item_column, title_column)]
        columns = [name for name in others if _is_numeric(table.columns[name])]
        if not columns:
            raise DataError(f"{path}: no column of numbers beside {item_column!r}; add one")
    elif not columns or len(set(columns)) < len(columns) or item_column in columns:
        raise DataError(
            f"{path}: columns {list(columns)}; name at least one, none twice, and not {item_column!r}"
        )
    raw = np.array([_numbers(table, name) for name in columns], dtype=np.float64).T
    titles = None
    if title_column is not None:
        titles = ["" if cell is None else str(cell) for cell in table.columns[title_column]]
    ids = _item_ids(table, item_column)
    return align(FeatureTable(ids, tuple(columns), raw, titles, str(path)), item_ids)


def _read_csv(path: Path) -> _TableCells:
    data = read_bytes(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: a byte that is not UTF-8; save the file as UTF-8") from error
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True
    )
    names: list[str] = []
    cells: list[list[str | None]] = []
    places: list[str] = []
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if not names:
                names = _header(where, row)
            elif row:
                if len(row) != len(names):
                    raise DataError(f"{where}: {len(row)} fields instead of {len(names)}, as in the header")
                cells.append([cell.strip() or None for cell in row])
                places.append(where)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}; expected comma-separated values") from error
    return _TableCells({name: [row[at] for row in cells] for at, name in enumerate(names)}, places)


def _header(where: str, row: list[str]) -> list[str]:
    names = [name.strip() for name in row]
    if "" in names or len(set(names)) < len(names):
        raise DataError(f"{where}: header {','.join(row)[:120]!r}; give every column a name of its own")
    return names


def _read_parquet(path: Path) -> _TableCells:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    names = _header(str(path), table.column_names)
    places = [f"{path}: row {number}" for number in range(1, table.num_rows + 1)]
    return _TableCells({name: table[name].to_pylist() for name in names}, places)


def _number(cell: Any) -> float | None:
    """Return the number of a cell, NaN for an empty one, None for what is no number."""
    if cell is None:
        return math.nan
    if isinstance(cell, bool | int | float):
        return float(cell)
    if not isinstance(cell, str):
        return None
    if cell.lower() in ("true", "false"):
        return float(cell.lower() == "true")
    try:
        return float(cell)
    except ValueError:
        return None


def _is_numeric(cells: list[Any]) -> bool:
    numbers = [_number(cell) for cell in cells]
    # A column without any number is no column of numbers.
    return all(number is not None for number in numbers) and not all(
        math.isnan(number) for number in numbers if number is not None
    )


def _numbers(table: _TableCells, name: str) -> list[float]:
    numbers: list[float] = []
    for where, cell in zip(table.places, table.columns[name], strict=True):
        number = _number(cell)
        if number is None:
            raise DataError(
                f"{where}: column {name!r}: {str(cell)[:80]!r} is not a number; leave it empty if unknown"
            )
        if abs(number) > _LARGEST:
            raise DataError(
                f"{where}: column {name!r}: {cell} is infinite or beyond {_LARGEST:g}; scale it down"
            )
        numbers.append(number)
    return numbers


def _item_ids(table: _TableCells, name: str) -> Labels:
    seen: dict[str, str] = {}
    for where, cell in zip(table.places, table.columns[name], strict=True):
        if cell is None or isinstance(cell, bool) or not isinstance(cell, int | str):
            raise DataError(f"{where}: column {name!r}: item {cell!r}; ids are whole numbers or text")
        if str(cell) in seen:
            raise DataError(
                f"{where}: item {str(cell)!r} stands already at {seen[str(cell)]}; keep one of them"
            )
        seen[str(cell)] = where
    return text_labels(list(seen))
