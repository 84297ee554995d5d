"""Reading the tables of a run: finished, interrupted, still going on, or killed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.results.tables.functions import are_all, call_function, cast, is_among, subset
from coordinator.results.tables.schemas import (
    ADDED,
    NEW_COLUMNS,
    OLDEST_VERSION,
    SCHEMA_VERSION,
    SCHEMAS,
    VERSION_KEY,
)
from coordinator.results.tables.writer import parquet_path, stream_and_pieces
from edge.core.errors import RecfleetError


class RunFormatError(RecfleetError):
    """A directory that is not a run, or a run of a version that this one cannot read."""


_SMALL_BYTES = 1 << 20
"""A table of no more bytes is read as a whole, once."""
_OF_ROUNDS = ("device_rounds", "events")
"""Tables whose rows are of rounds in the table of rounds."""


class JsonShape(BaseModel):
    """What is read of a JSON file of a run, with its types; other keys may be there.

    Numbers are numbers and texts are texts: nothing is converted.
    """

    model_config = ConfigDict(strict=True, extra="ignore")


class _Data(JsonShape):
    clients: int | None = None
    items: int | None = None


class _Host(JsonShape):
    recfleet: str | None = None
    machine: str | None = None
    python: str | None = None
    numpy: str | None = None
    memory_bytes: int = 0
    numerics: dict[str, str] = {}


class _Selection(JsonShape):
    available_only: bool = False


class _Tier(JsonShape):
    devices: int
    noise_multiplier: float
    weight: float
    most_reports: int
    epsilon: float | str


class _Privacy(JsonShape):
    delta: float | None = None
    claimed_epsilon: float | None = None
    tiers: dict[str, _Tier] = {}


class _ValuePrivacy(JsonShape):
    mechanism: str
    hides: str
    epsilon: float
    most_ratings: int | None = None
    epsilon_of_most_ratings: float | None = None


class _Negatives(JsonShape):
    sampler: str
    leaky_protocol: bool
    counter: dict[str, float | None] | None = None


class _RatingMean(JsonShape):
    value: float | None
    devices: int | None = None
    ratings: int | None = None


class Manifest(JsonShape):
    """What is read of ``manifest.json``."""

    schema_version: int = SCHEMA_VERSION
    status: str = "unknown"
    scenario: str = ""
    title: str | None = None
    seed: int = 0
    clock: Literal["virtual", "real"] = "virtual"
    data: _Data = _Data()
    secure_aggregation: dict[str, str] = {}
    selection: _Selection = _Selection()
    unscored: str | None = None
    negatives: _Negatives | None = None
    privacy: _Privacy | None = None
    value_privacy: _ValuePrivacy | None = None
    rating_mean: _RatingMean | None = None
    host: _Host = _Host()
    digest: str | None = None
    stopped_by: str | None = None
    ending: str | None = None
    measured: dict[str, float] = {}


class RunTables:
    """The tables of one run, read when asked for.

    Of a run without an end, the tables hold the finished rounds: what a killed process had written of a round
    that is not in ``rounds`` is left out, so the tables always agree with each other.

    Attributes
    ----------
    directory : where the run lies.
    manifest : the contents of ``manifest.json``; empty when there is none.
    complete : False when a table is still a stream: the run was killed, or goes on.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest = read_manifest(directory)
        self._is_parquet = {table: parquet_path(directory, table).exists() for table in SCHEMAS}
        self.complete = all(self._is_parquet[table] for table in SCHEMAS if table not in ADDED)
        missing = [
            table for table, is_parquet in self._is_parquet.items()
            if not is_parquet and table not in ADDED and stream_and_pieces(directory, table) is None
        ]  # fmt: skip
        if missing:
            raise RunFormatError(
                f"{directory}: not a run directory, it has no table {missing[0]!r}; "
                "give a directory that `recfleet run` has written"
            )
        self._whole: dict[str, Any] = {}
        """Small tables that have been read, with all columns."""
        self._last_round = None if self.complete else self._last_finished_round()

    def read(self, table: str, columns: Sequence[str] | None = None) -> Any:
        """Return a ``pyarrow.Table``.

        Parameters
        ----------
        table : one of :data:`~coordinator.results.tables.schemas.SCHEMAS`.
        columns : the columns wanted, all by default; few columns of a big table cost little.

        Raises
        ------
        RunFormatError
            When the table was written by a newer version, or is no table at all.
        """
        wanted = list(columns) if columns is not None else SCHEMAS[table].names
        if self._last_round is None:
            rows = self._read_whole(table, wanted)
            if table in _OF_ROUNDS and "round" in wanted:
                self._check_rounds(table, rows["round"])
            return rows
        with_round = wanted if "round" in wanted else ["round", *wanted]
        rows = self._read_whole(table, with_round)
        return subset(rows, call_function("less_equal", [rows["round"], self._last_round])).select(wanted)

    def _read_whole(self, table: str, columns: list[str]) -> Any:
        if self._is_parquet[table]:
            path = parquet_path(self.directory, table)
            if path.stat().st_size > _SMALL_BYTES:
                return _read_parquet(path, table, columns)
            if table not in self._whole:
                self._whole[table] = _read_parquet(path, table, SCHEMAS[table].names)
            return self._whole[table].select(columns)
        found = stream_and_pieces(self.directory, table)
        schema = pa.schema([SCHEMAS[table].field(name) for name in columns])
        if found is None:
            if table in ADDED and not parquet_path(self.directory, table).exists():
                return schema.empty_table()
            return _read_parquet(
                parquet_path(self.directory, table), table, columns
            )  # its run has just ended
        path, pieces = found
        tables = [_read_parquet(piece, table, columns) for piece in pieces]
        for batch in _stream_prefix(path):
            rows = pa.Table.from_batches([batch])
            known = _known_columns(batch.schema, table, columns)
            tables.append(_with_newer(rows.select(known), table, columns))
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _check_rounds(self, table: str, numbers: Any) -> None:
        known = self._read_whole("rounds", ["round"])["round"]
        if not are_all(is_among(numbers, known)):
            _damaged(parquet_path(self.directory, table), "it is of rounds that the table of rounds has not")

    def _last_finished_round(self) -> int:
        rounds = self._read_whole("rounds", ["round"])["round"]
        return int(np.max(rounds.to_numpy(), initial=0))


def _read_parquet(path: Path, table: str, columns: list[str]) -> Any:
    """Return columns of a table, of the types that a run writes."""
    try:
        with pq.ParquetFile(str(path)) as file:
            schema = file.schema_arrow
            _check_version(path, schema)
            known = _known_columns(schema, table, columns)
            lacking = [name for name in known if name not in schema.names]
            if lacking:
                _damaged(path, f"it has no column {lacking[0]!r}")
            # Threads that share a small table cost more than they save.
            threads = path.stat().st_size > _SMALL_BYTES
            rows = _with_newer(file.read(columns=known, use_threads=threads), table, columns)
            rows.validate(full=True)
            return _typed(path, rows, table)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RunFormatError(f"{path}: not a readable Parquet file: {error}") from error


def _typed(path: Path, rows: Any, table: str) -> Any:
    """Return rows with the types that a run writes; versions of pyarrow differ in the width of indices."""
    for place, name in enumerate(rows.column_names):
        wanted, column = SCHEMAS[table].field(name), rows.column(name)
        if pa.types.is_dictionary(wanted.type) and pa.types.is_dictionary(column.type):
            column = cast(column, wanted.type)
            rows = rows.set_column(place, wanted, column)
        if column.type != wanted.type:
            _damaged(path, f"its column {name!r} holds {column.type}, not {wanted.type}")
        if column.null_count and not wanted.nullable:
            _damaged(path, f"values are missing in its column {name!r}")
    return rows


def _known_columns(schema: Any, table: str, columns: list[str]) -> list[str]:
    """Return those of ``columns`` that the version of a table has, with the meaning of today."""
    version = int(schema.metadata[VERSION_KEY])
    newer = {column for since, of_it in NEW_COLUMNS.items() if since > version for column in of_it}
    return [name for name in columns if (table, name) not in newer]


def _with_newer(rows: Any, table: str, columns: list[str]) -> Any:
    """Return ``columns`` of a table; those that it lacks, for its version did, hold nulls."""
    known = frozenset(rows.column_names)
    for name in columns:
        if name not in known:
            field = SCHEMAS[table].field(name)
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(columns)


def _damaged(path: Path, what: str) -> NoReturn:
    raise RunFormatError(f"{path}: is damaged, {what}; use an unchanged run directory")


def _check_version(path: Path, schema: Any) -> None:
    version = (schema.metadata or {}).get(VERSION_KEY)
    if version is None or not version.isdigit():
        raise RunFormatError(f"{path}: not a table of a run, it has no schema version")
    if not OLDEST_VERSION <= int(version) <= SCHEMA_VERSION:
        raise RunFormatError(
            f"{path}: schema version {int(version)}, this recfleet reads {OLDEST_VERSION} to "
            f"{SCHEMA_VERSION}; use the version that wrote it (named in manifest.json)"
        )


def _stream_prefix(path: Path) -> Iterator[Any]:
    """Yield the whole batches of a stream that may end in the middle of one."""
    if path.stat().st_size == 0:
        return
    with pa.memory_map(str(path)) as stream:
        try:
            reader = pa.ipc.open_stream(stream)
        except (pa.ArrowException, OSError):
            return  # killed while it wrote the schema: no batch can follow
        _check_version(path, reader.schema)
        while True:
            try:
                yield reader.read_next_batch()
            except (StopIteration, pa.ArrowException, OSError):
                # End of the stream, or of what a killed process had written of its last batch.
                return


def read_json(path: Path, shape: type[JsonShape]) -> dict[str, Any]:
    """Return the contents of a JSON file of a run, an object; keys that are not in ``shape`` are unchecked.

    Raises
    ------
    RunFormatError : it cannot be read, or what it holds is of another type than ``shape`` says.
    FileNotFoundError : there is none.
    """
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFormatError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFormatError(f"{path}: is damaged, it is no JSON ({error})") from None
    if not isinstance(contents, dict):
        _damaged(path, "it holds no object")
    try:
        shape.model_validate(contents)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        _damaged(path, f"{where or 'it'}: {first['msg'].lower()}")
    return contents


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the contents of ``manifest.json`` in a run directory; nothing where there is none.

    Raises
    ------
    RunFormatError : it is damaged.
    """
    try:
        return read_json(directory / "manifest.json", Manifest)
    except FileNotFoundError:
        return {}


def open_run(directory: Path | str) -> RunTables:
    """Open the run in a directory.

    Raises
    ------
    RunFormatError
        When there is no run there; the message says what is missing.
    """
    path = Path(directory)
    if not path.is_dir():
        what = "is no directory" if path.exists() else "no such directory"
        raise RunFormatError(f"{path}: {what}; give one that `recfleet run` has written")
    try:
        return RunTables(path)
    except OSError as error:
        raise RunFormatError(
            f"{error.filename or path}: {error.strerror}; use a readable run directory"
        ) from None
