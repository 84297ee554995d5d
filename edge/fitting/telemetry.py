"""The table of telemetry: transfers, compute tasks and check-ins of devices, one a row.

Its columns are :data:`COLUMNS`; docs/telemetry.md explains them. A table comes from a Parquet or CSV file, or
from one of the importers. What cannot be is refused with file, row and column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from edge.core.errors import DataError

Floats = npt.NDArray[np.float64]
Type = Literal["text", "number", "truth"]

MOST_ROWS: Final = 20_000_000
_FASTEST_BPS: Final = 100e9
_LONGEST_S: Final = 7 * 86_400.0
_CLOSE: Final = 0.5
KINDS: Final = ("transfer", "compute", "check-in")
DIRECTIONS: Final = ("down", "up")
SPANS: Final = {"body": 0.0, "one-way": 0.5, "answer": 1.0}
"""What of a round trip a span holds beside the data and the handshakes."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column: its type, the kinds of rows that must have it, its unit and its meaning."""

    type: Type
    needed: tuple[str, ...]
    unit: str
    meaning: str


COLUMNS: Final[Mapping[str, ColumnSpec]] = {
    "kind": ColumnSpec("text", KINDS, "", "`transfer`, `compute` (a task) or `check-in` (was it available)"),
    "device": ColumnSpec("text", KINDS, "", "pseudonym of the device, text or a number"),
    "class": ColumnSpec("text", (), "", "class of device, such as its model"),
    "network": ColumnSpec("text", (), "", "kind of network as the device saw it at the start"),
    "time_s": ColumnSpec("number", KINDS, "s", "start, one clock a device; or `time`, with a zone"),
    "utc_offset_h": ColumnSpec("number", (), "h", "local time less UTC, for the hours of availability"),
    "ok": ColumnSpec("truth", (), "", "whether it arrived, finished, was available; by default it did"),
    "seconds": ColumnSpec("number", ("transfer", "compute"), "s", "how long it took; empty if not `ok`"),
    "direction": ColumnSpec("text", ("transfer",), "", "`down` to the device or `up` from it"),
    "bytes": ColumnSpec("number", ("transfer",), "bytes", "payload on the socket, compressed as it was sent"),
    "span": ColumnSpec(
        "text", (), "",
        "what `seconds` holds beside the data: `body` nothing, `one-way` half a round trip (the default), "
        "`answer` a whole one",
    ),
    "handshakes": ColumnSpec("number", (), "", "round trips before the first byte: 0, 1 TCP, 2 TLS"),
    "cold": ColumnSpec("truth", (), "", "whether the radio was idle; by default after 10 s of silence"),
    "rtt_s": ColumnSpec("number", (), "s", "measured round trip of the connection"),
    "server_s": ColumnSpec("number", (), "s", "what the server took within `seconds`; it is taken off"),
    "resent": ColumnSpec("number", (), "", "packets of the transfer that were sent again"),
    "failed_connects": ColumnSpec("number", (), "", "attempts to connect that failed before it"),
    "flops": ColumnSpec("number", (), "", "floating point operations of the task"),
    "moved_bytes": ColumnSpec("number", (), "bytes", "what the task read and wrote"),
    "ops": ColumnSpec("number", (), "", "operations that the task launched"),
    "steps": ColumnSpec("number", (), "", "training steps of the task"),
    "examples": ColumnSpec("number", (), "", "examples of the task"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A table of telemetry.

    Attributes
    ----------
    name : of the file, for messages.
    columns : every one of :data:`COLUMNS`: float64 [n] (NaN: empty), for text object [n] (None: empty).
    dropped : rows of the source that could not be used, by reason.
    """

    name: str
    columns: Mapping[str, npt.NDArray[Any]]
    dropped: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.columns["kind"])

    def of_kind(self, kind: str) -> npt.NDArray[np.int64]:
        """Return the rows of a kind, int64."""
        return np.flatnonzero(self.columns["kind"] == kind)


def read_table(path: Path) -> Any:
    """Return the ``pyarrow.Table`` of a Parquet or CSV file.

    Raises
    ------
    DataError : it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(4)
        if head == b"PAR1":
            file = pq.ParquetFile(str(path))
            if file.metadata.num_rows > MOST_ROWS:
                raise DataError(
                    f"{path}: {file.metadata.num_rows:,} rows are too many; give {MOST_ROWS:,} or fewer"
                )
            table = file.read()
            table.validate(full=True)
            return table
        return pacsv.read_csv(str(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        # It may quote what is in the file, which may be anything.
        why = "".join(one if one.isprintable() else " " for one in str(error)[:200])
        raise DataError(f"{path}: is neither a Parquet file nor CSV with a header: {why}") from None


def telemetry_of(name: str, table: Any) -> Telemetry:
    """Return the telemetry in a ``pyarrow.Table`` with columns of :data:`COLUMNS`; others are ignored.

    Raises
    ------
    DataError : a column that is missing or of another type, a value that cannot be; with row and column.
    """
    if table.num_rows == 0:
        raise DataError(f"{name}: has no rows; give at least 30 transfers of 10 devices")
    known = set(table.column_names)
    if "time" in known and "time_s" not in known:
        table, known = _with_seconds(name, table), known | {"time_s"}
    if "kind" not in known:
        raise DataError(
            f"{name}: has no column 'kind'; write one with {', '.join(map(repr, KINDS))} in each row"
        )
    columns = {
        key: _column(name, table, key, spec) if key in known else _empty(table.num_rows, spec)
        for key, spec in COLUMNS.items()
    }
    _check(name, columns, known)
    return Telemetry(name, columns, {})


def table_of(columns: Mapping[str, Any]) -> Any:
    """Return columns as a ``pyarrow.Table`` of telemetry, in the order of :data:`COLUMNS`."""
    types = {"text": pa.string(), "number": pa.float64(), "truth": pa.bool_()}
    fields = [
        pa.field(key, types[spec.type], metadata={"unit": spec.unit, "meaning": spec.meaning})
        for key, spec in COLUMNS.items()
        if key in columns
    ]
    arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _with_seconds(name: str, table: Any) -> Any:
    column = table["time"]
    if not pa.types.is_timestamp(column.type):
        raise DataError(
            f"{name}: column 'time' holds {column.type}; write timestamps with a zone, or 'time_s' in seconds"
        )
    if column.type.tz is None:
        raise DataError(
            f"{name}: timestamps in column 'time' have no zone; write them in UTC, as 2024-03-01T12:00:00Z"
        )
    micros = pc.cast(pc.cast(column, pa.timestamp("us", "UTC"), safe=False), pa.int64())
    return table.append_column("time_s", pc.divide(pc.cast(micros, pa.float64()), 1e6))


def _empty(n: int, spec: ColumnSpec) -> npt.NDArray[Any]:
    return np.full(n, None, dtype=object) if spec.type == "text" else np.full(n, np.nan)


def _column(name: str, table: Any, key: str, spec: ColumnSpec) -> npt.NDArray[Any]:
    column = table[key].combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    kind = column.type
    if pa.types.is_null(kind):
        return _empty(len(column), spec)
    try:
        if spec.type == "text":
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
                raise DataError(f"{name}: column {key!r} holds {kind}; write text")
            return np.array(pc.cast(column, pa.string()).to_pylist(), dtype=object)
        if spec.type == "truth" and not pa.types.is_boolean(kind):
            raise DataError(f"{name}: column {key!r} holds {kind}; write true or false")
        if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise DataError(
                f"{name}: column {key!r} holds {kind}; write numbers{f', {spec.unit}' if spec.unit else ''}"
            )
        plain = pc.cast(column, pa.int8()) if pa.types.is_boolean(kind) else column
        return np.asarray(
            pc.cast(plain, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{name}: column {key!r} cannot be read: {error}") from None


def _refuse(
    name: str, columns: Mapping[str, npt.NDArray[Any]], bad: npt.NDArray[np.bool_], key: str, advice: str
) -> None:
    rows = np.flatnonzero(bad)
    if rows.size:
        row = int(rows[0])
        value = columns[key][row]
        shown = "nothing" if value is None or str(value) == "nan" else str(value)[:60]
        more = f" (and {rows.size - 1:,} more rows)" if rows.size > 1 else ""
        raise DataError(f"{name}: row {row + 1}, column {key!r}: {shown}{more}; {advice}")


def _missing(name: str, key: str, kind: str) -> NoReturn:
    spec = COLUMNS[key]
    raise DataError(f"{name}: has no column {key!r}, which rows of kind {kind!r} need: {spec.meaning}")


def _check(name: str, columns: Mapping[str, npt.NDArray[Any]], known: set[str]) -> None:
    kind = columns["kind"]
    of = {one: kind == one for one in KINDS}
    _refuse(
        name, columns, ~np.logical_or.reduce(list(of.values())), "kind", f"write one of {', '.join(KINDS)}"
    )
    for key, spec in COLUMNS.items():
        for one in spec.needed:
            if of[one].any() and key not in known:
                _missing(name, key, one)
    for key in ("device",):
        empty = np.array([value is None or not value.strip() for value in columns[key]])
        _refuse(name, columns, empty, key, "write a pseudonym of the device")
    for key, spec in COLUMNS.items():
        if spec.type == "number":
            _refuse(name, columns, np.isinf(columns[key]), key, "write a finite number")
    _refuse(name, columns, np.isnan(columns["time_s"]), "time_s", "write the start in seconds")
    _refuse(
        name, columns, np.abs(columns["time_s"]) > 1e11, "time_s", "write seconds, not milliseconds or less"
    )
    done = columns["ok"] != 0.0
    took = of["transfer"] | of["compute"]
    seconds = columns["seconds"]
    _refuse(
        name, columns, took & done & np.isnan(seconds), "seconds", "write how long it took, or 'ok' as false"
    )
    _refuse(name, columns, took & done & (seconds <= 0.0), "seconds", "write a time above zero")
    _refuse(name, columns, took & (seconds > _LONGEST_S), "seconds", "write seconds; a week is the most")
    moved = of["transfer"]
    for key, allowed in (("direction", DIRECTIONS), ("span", tuple(SPANS))):
        wrong = moved & ~np.isin(columns[key].astype(str), [*allowed, *(("None",) if key == "span" else ())])
        _refuse(name, columns, wrong, key, f"write one of {', '.join(allowed)}")
    size = columns["bytes"]
    _refuse(name, columns, moved & ~(size >= 0.0), "bytes", "write the bytes of the payload, 0 or more")
    with np.errstate(invalid="ignore", divide="ignore"):
        fast = moved & done & (8.0 * size / seconds > _FASTEST_BPS)
    _refuse(name, columns, fast, "bytes", "more than 100 Gbit/s; write bytes, and 'seconds' in seconds")
    server = columns["server_s"]
    _refuse(name, columns, moved & done & (server >= seconds), "server_s", "write less than 'seconds'")
    for key in (
        "rtt_s",
        "server_s",
        "handshakes",
        "resent",
        "failed_connects",
        "flops",
        "moved_bytes",
        "ops",
        "steps",
        "examples",
    ):
        _refuse(name, columns, columns[key] < 0.0, key, "write 0 or more")
    _refuse(name, columns, columns["handshakes"] > 4, "handshakes", "write 0, 1 or 2")
    _refuse(name, columns, np.abs(columns["utc_offset_h"]) > 14.5, "utc_offset_h", "write hours, -12 to 14")
