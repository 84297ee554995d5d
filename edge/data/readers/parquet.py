"""Parquet tables of ratings, with columns by their usual names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from edge.data.build import LARGEST_RATING, RatingsFile, build_store
from edge.data.readers.delimited import text_labels
from edge.data.store import Labels
from edge.errors import DataError

FORMAT = "parquet"
_NAMES = {
    "user": ("user", "userid", "uid"),
    "item": ("item", "itemid", "iid", "movie", "movieid", "artist", "artistid"),
    "rating": ("rating", "stars", "score"),
    "timestamp": ("timestamp", "time", "ts", "unixtimestamp"),
}


def read_parquet(path: Path) -> RatingsFile:
    """Read a Parquet file with a user, an item, a rating and perhaps a timestamp column.

    Names are compared without case, underscores and dashes: ``user``/``user_id``/``uid``,
    ``item``/``item_id``/``movie_id``/``artist_id``/``iid``, ``rating``/``stars``/``score``,
    ``timestamp``/``time``/``ts``. Other columns are skipped. Ids are whole numbers from 0 or text; a
    timestamp is a number of seconds since 1970 or an Arrow timestamp.

    Raises
    ------
    DataError
        when the file is no Parquet, a column is missing, ambiguous or of another type, or a row has a null, a
        negative id or a rating that is not finite or beyond 1e9; rows are counted from 1.
    """
    try:
        names = _choose_columns(path, pq.read_schema(path).names)
        table = pq.read_table(path, columns=list(names.values()))
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    if table.num_rows == 0:
        raise DataError(f"{path}: no ratings in the table")
    for name in names.values():
        _refuse_rows(path, np.asarray(table[name].is_null()), name, "is null")
    users = _ids(path, table[names["user"]], names["user"])
    items = _ids(path, table[names["item"]], names["item"])
    ratings = _numbers(path, table[names["rating"]], names["rating"])
    large = np.abs(ratings) > LARGEST_RATING
    _refuse_rows(path, large, names["rating"], f"is beyond {LARGEST_RATING:g}; scale ratings down")
    timestamps = None
    if "timestamp" in names:
        column = table[names["timestamp"]]
        if pa.types.is_timestamp(column.type):
            # Cast by way of seconds: the unit of an Arrow timestamp is part of its type.
            column = column.cast(pa.timestamp("s", column.type.tz), safe=False).cast(pa.int64())
        timestamps = np.floor(_numbers(path, column, names["timestamp"])).astype(np.int64)
    store, duplicates = build_store(users, items, ratings, timestamps)
    return RatingsFile(store, path, FORMAT, table.num_rows, duplicates)


def _choose_columns(path: Path, present: list[str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for role, names in _NAMES.items():
        found = [name for name in present if name.lower().replace("_", "").replace("-", "") in names]
        if len(found) > 1:
            raise DataError(f"{path}: columns {', '.join(found)} could all be the {role}; keep one of them")
        if found:
            chosen[role] = found[0]
        elif role != "timestamp":
            raise DataError(f"{path}: no {role} column among {', '.join(present)}; name one of them {role!r}")
    return chosen


def _refuse_rows(path: Path, bad: npt.NDArray[np.bool_], name: str, problem: str) -> None:
    if bad.any():
        raise DataError(f"{path}: row {int(np.argmax(bad)) + 1}: column {name!r} {problem}")


def _ids(path: Path, column: pa.ChunkedArray, name: str) -> Labels:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        ids = np.asarray(column.cast(pa.int64()).to_numpy(), dtype=np.int64)
        _refuse_rows(path, ids < 0, name, "is negative; ids are whole numbers from 0 or text")
        return ids
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.chunk(0)
        return text_labels(encoded.dictionary.to_pylist(), encoded.indices.to_numpy())
    raise DataError(f"{path}: column {name!r} is {column.type}; ids are whole numbers or text")


def _numbers(path: Path, column: pa.ChunkedArray, name: str) -> npt.NDArray[np.float64]:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(f"{path}: column {name!r} is {column.type}; expected numbers")
    values = np.asarray(column.to_numpy(), dtype=np.float64)
    _refuse_rows(path, ~np.isfinite(values), name, "is not a finite number")
    return values
