"""Prepared ratings: a folder with a table sorted by user, as Parquet, and a manifest of what it holds.

The table is one that any reader of Parquet reads, with columns ``user``, ``item``, and if there are any
``rating`` (float32) and ``time`` (null where it is unknown). Duplicates are gone, bad rows too. Each of its
row groups has all ratings of a range of users.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from edge.core.errors import DataError
from edge.data.build import Columns, build_store
from edge.data.store import Labels, RatingStore
from edge.data.table.files import Rows
from edge.data.table.options import TableOptions
from edge.data.table.reading import TableFacts, read_columns
from edge.data.table.values import changed_when_read, mapped

TABLE_FILE: Final = "ratings.parquet"
MANIFEST_FILE: Final = "_manifest.json"
"""Readers of tables pass over names that begin so."""

_GROUP_ROWS: Final = 1 << 20
"""Of a row group, about; one user's ratings are never apart."""
_CHUNK_ROWS: Final = 1 << 20
_LARGEST_TIME_S: Final = 2**53


def prepare_ratings(
    path: Path,
    target: Path,
    format: str = "auto",  # noqa: A002
    options: TableOptions | None = None,
    rows: Rows | None = None,
) -> TableFacts:
    """Write the ratings of a file or folder, prepared, to the folder ``target``; return what was read.

    Besides the distinct ids, memory is needed for a block of the file and a row group; all else lies in files
    beside ``target``, 40 bytes a rating, for as long as it takes.

    Parameters
    ----------
    path, format, options, rows : as :func:`~edge.data.table.reading.read_ratings` has them.
    target : is made; an empty folder may be there.

    Raises
    ------
    DataError
        as for :func:`~edge.data.table.reading.read_ratings`; there is something at ``target``; or an id could
        not be read again as what it is.
    """
    options = options or TableOptions()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise DataError(f"{target}: is there already; write another folder, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as name:
        scratch = Path(name)
        columns, found = read_columns(path, format, options, rows, scratch)
        for labels in (columns.user_ids, columns.item_ids):
            changed = changed_when_read(labels)
            if changed is not None:
                raise DataError(f"{path}: id {changed!r} would be read as another one; take its quotes away")
        ready = scratch / "prepared"
        ready.mkdir()
        implicit = "rating" not in found["columns"]
        ratings, groups = 0, 0
        user_ids, item_ids = _labels(columns.user_ids), _labels(columns.item_ids)
        schema = _schema(columns, user_ids.type, item_ids.type, implicit)
        with pq.ParquetWriter(ready / TABLE_FILE, schema, compression="zstd") as writer:
            for first, store in _by_users(columns, options.duplicates, str(path), scratch):
                users = user_ids.slice(first, store.n_users)
                writer.write_table(_table(store, users, item_ids, schema, str(path)), store.n_ratings)
                ratings, groups = ratings + store.n_ratings, groups + 1
        facts = TableFacts(**found, ratings=ratings, duplicates=found["rows"] - ratings)
        if facts.duplicates and options.duplicates == "error":
            raise DataError(
                f"{path}: {facts.duplicates:,} rows repeat a user's rating of an item; keep one of each, or "
                "write data.duplicates: last, first or mean"
            )
        manifest = {
            "source": facts.path.name,
            "format": facts.format,
            "columns": dict(facts.columns),
            "rows": facts.rows,
            "duplicates": facts.duplicates,
            "skipped": facts.skipped,
            "ratings": ratings,
            "users": facts.users,
            "items": facts.items,
            "row_groups": groups,
            "sha256": _digest(ready / TABLE_FILE),
        }
        (ready / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            target.rmdir()
        ready.rename(target)
    return facts


def check_prepared(path: Path) -> None:
    """Compare the table of a prepared folder with its manifest; any other path passes.

    Raises
    ------
    DataError
        when it is not the table that was prepared.
    """
    file = path / MANIFEST_FILE
    if not file.is_file():
        return
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        expected = manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: is no manifest of prepared ratings; prepare them again") from error
    table = path / TABLE_FILE
    if not table.is_file() or _digest(table) != expected:
        raise DataError(f"{table}: is not what {MANIFEST_FILE} was written with; prepare the ratings again")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _by_users(
    columns: Columns, duplicates: str, where: str, scratch: Path
) -> Iterator[tuple[int, RatingStore]]:
    """Yield the first user of each range of users, ascending, and the ratings of all in it."""
    counts = np.zeros(columns.user_ids.size, dtype=np.int64)
    chunks = [slice(first, first + _CHUNK_ROWS) for first in range(0, columns.rows, _CHUNK_ROWS)]
    for chunk in chunks:
        users, ratings = np.unique(columns.users[chunk], return_counts=True)
        counts[users] += ratings
    ends = np.cumsum(counts)
    _, first_users, group_of = np.unique(
        (ends - counts) // _GROUP_ROWS, return_index=True, return_inverse=True
    )
    starts = ends[first_users] - counts[first_users]
    moved = _moved(columns, group_of, starts, chunks, scratch)
    for first, last, start, end in zip(
        first_users,
        [*first_users[1:], counts.size],
        starts,
        [*starts[1:], columns.rows],
        strict=True,
    ):
        users, items, values, *times = (np.array(part[start:end]) for part in moved)
        part = Columns(
            columns.user_ids[first:last],
            columns.item_ids,
            users - np.int32(first),
            items,
            values,
            times[0] if times else None,
        )
        yield int(first), build_store(part, "last" if duplicates == "error" else duplicates, where)[0]


def _moved(
    columns: Columns,
    group_of: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    chunks: list[slice],
    scratch: Path,
) -> list[npt.NDArray[Any]]:
    """Return users, items, ratings and perhaps times, those of a group together, each in their old order.

    Parameters
    ----------
    group_of, starts : the group of each user, and where each group begins.
    """
    given: list[npt.NDArray[Any]] = [columns.users, columns.items, columns.ratings]
    given += [] if columns.times is None else [columns.times]
    moved = [mapped(scratch / f"moved-{at}", array.dtype, columns.rows) for at, array in enumerate(given)]
    ahead = starts.copy()
    for chunk in chunks:
        groups = group_of[columns.users[chunk]]
        order = np.argsort(groups, kind="stable")
        groups = groups[order]
        of_group = np.bincount(groups, minlength=ahead.size)
        places = np.repeat(ahead - (np.cumsum(of_group) - of_group), of_group) + np.arange(groups.size)
        for new, old in zip(moved, given, strict=True):
            new[places] = old[chunk][order]
        ahead += of_group
    return moved


def _labels(labels: Labels) -> pa.Array:
    return pa.array(labels.tolist(), pa.string() if labels.dtype.kind == "U" else pa.int64())


def _schema(columns: Columns, user: pa.DataType, item: pa.DataType, implicit: bool) -> pa.Schema:
    fields = [("user", user), ("item", item)]
    fields += [] if implicit else [("rating", pa.float32())]
    # Not numbers, whose unit a reader would have to guess.
    fields += [] if columns.times is None else [("time", pa.timestamp("ms", "UTC"))]
    return pa.schema(fields)


def _table(
    store: RatingStore, user_ids: pa.Array, item_ids: pa.Array, schema: pa.Schema, where: str
) -> pa.Table:
    columns = {
        "user": user_ids.take(pa.array(store.owners())),
        "item": item_ids.take(pa.array(store.items)),
    }
    if "rating" in schema.names:
        columns["rating"] = pa.array(store.decoded())
    if store.timestamps is not None:
        if np.abs(store.timestamps).max() > _LARGEST_TIME_S:
            raise DataError(f"{where}: a time lies beyond {_LARGEST_TIME_S:,} s from 1970; leave it out")
        unknown = store.timestamps == 0
        columns["time"] = pa.array(store.timestamps * 1000, schema.field("time").type, mask=unknown)
    return pa.table(columns, schema)
