"""Writing the tables while the run goes on.

During the run each table is an Arrow IPC stream (``rounds.arrows`` …) that grows by whole batches, each
handed to the operating system at once: a killed process leaves a readable prefix. A batch holds the rows of
the rounds that were recorded since the last one (:class:`TableRecorder`). When the run
ends, each stream is converted, a bounded piece at a time, to Parquet (``rounds.parquet`` …) under a temporary
name, moved to its place in one step, and the stream removed. So a table is always there once, whole or as a
stream, and a Parquet file is never half written.

A run on the real clock may have no end. Its streams are cut from time to time: what the first has held
becomes a Parquet piece (``rounds.0.parquet``), and the next stream is named after the number of pieces
before it (``rounds.1.arrows``).
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.engine.facts import (
    CohortFacts,
    FaultStrike,
    FleetNames,
    Inferences,
    MetricValue,
    RoundFacts,
    RoundRow,
)
from coordinator.engine.run_files import errors_name, written_whole
from coordinator.results.tables.batches import (
    RecordedRow,
    RoundBatches,
    RoundRecord,
    evaluation_batch,
    evaluation_round_batches,
    fault_batch,
    inference_batch,
    packed_batches,
)
from coordinator.results.tables.digest import RunDigest
from coordinator.results.tables.schemas import SCHEMAS

_BUFFER_BYTES: Final = 1 << 18
_ROWS_PER_GROUP: Final = 1 << 16
"""Rows of a Parquet row group, and so what the conversion holds in memory."""

_ROUNDS_AT_ONCE: Final = 256
_EVENTS_AT_ONCE: Final = 1 << 16
"""Events that wait to become rows: 7 MB."""
_SECONDS_BETWEEN_WRITES: Final = 1.0


def stream_path(directory: Path, table: str, pieces: int = 0) -> Path:
    """Return where a table's stream lies while its run goes on, after so many pieces."""
    return directory / (f"{table}.{pieces}.arrows" if pieces else f"{table}.arrows")


def piece_path(directory: Path, table: str, number: int) -> Path:
    """Return where a piece of a table lies; the first is number 0."""
    return directory / f"{table}.{number}.parquet"


def parquet_path(directory: Path, table: str) -> Path:
    """Return where a table lies once its run has ended."""
    return directory / f"{table}.parquet"


def stream_and_pieces(directory: Path, table: str) -> tuple[Path, list[Path]] | None:
    """Return the stream of a table whose run goes on, and the pieces before it; None if there is none."""
    streams = _streams(directory, table)
    if not streams:
        return None
    # An earlier one has become a piece.
    pieces = max(streams)
    return streams[pieces], [piece_path(directory, table, number) for number in range(pieces)]


def _streams(directory: Path, table: str) -> dict[int, Path]:
    """Return the streams of a table by the number of pieces before them."""
    return _numbered(directory, rf"{table}(?:\.([0-9]+))?\.arrows")


def remove_pieces(directory: Path) -> None:
    """Remove the pieces of all tables of a run that has its tables."""
    for table in SCHEMAS:
        for piece in _numbered(directory, rf"{table}\.([0-9]+)\.parquet").values():
            piece.unlink()


def _numbered(directory: Path, pattern: str) -> dict[int, Path]:
    found = ((re.fullmatch(pattern, file.name), file) for file in directory.iterdir())
    return {int(match[1] or 0): file for match, file in found if match is not None}


class TableWriter(abc.ABC):
    """Takes the rows of a run's tables, batch by batch, and keeps their digest.

    Parameters
    ----------
    record_events : whether to keep all events; without it the table holds suspensions alone.

    Attributes
    ----------
    record_events : as given.
    watch : is given every batch once it has been written, with the name of its table; None for nobody.
    """

    def __init__(self, *, record_events: bool = True) -> None:
        self.record_events = record_events
        self.watch: Callable[[str, Any], None] | None = None
        self._digest = RunDigest()

    @abc.abstractmethod
    def _keep(self, table: str, batch: Any) -> None:
        """Keep the rows of a table."""

    def write(self, table: str, batch: Any) -> None:
        """Write rows of a table, a batch from :mod:`~coordinator.results.tables.batches`.

        What faults did in a round goes before the rows of the round, evaluations and inferences after them.
        """
        self._keep(table, batch)
        self._digest.tables[table].update(batch)
        if self.watch is not None:
            self.watch(table, batch)

    def write_round(self, batches: RoundBatches) -> None:
        """Write the rows of one or more finished rounds.

        Those of ``rounds`` go last: a round that is in this table has all its rows in those of events and
        devices.
        """
        events = batches.kept_events(record_events=self.record_events)
        if events is not None:
            self.write("events", events)
        self.write("device_rounds", batches.device_rounds)
        self.write("rounds", batches.rounds)


class RunWriter(TableWriter):
    """Writes the tables of one run into its directory.

    Parameters
    ----------
    directory : an existing directory; tables that are streams there begin anew.
    record_events : whether to keep all events; without it the table holds suspensions alone.
    pieces : of each table, how many are there already; none by default.

    Use it as a context manager: leaving it, for whatever reason, closes the streams. :meth:`finish` converts.
    """

    def __init__(
        self, directory: Path, *, record_events: bool = True, pieces: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(record_events=record_events)
        self._directory = directory
        self._paths: dict[str, Path] = {}
        self._sinks: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
        for table in SCHEMAS:
            self._begin_stream(table, (pieces or {}).get(table, 0))

    def _begin_stream(self, table: str, pieces: int) -> None:
        """Begin the only stream of a table, after so many pieces."""
        path = self._paths[table] = stream_path(self._directory, table, pieces)
        self._sinks[table] = pa.output_stream(str(path), buffer_size=_BUFFER_BYTES)
        self._streams[table] = pa.ipc.new_stream(self._sinks[table], SCHEMAS[table])
        for other in _streams(self._directory, table).values():
            if other != path:
                other.unlink()

    def cut(self, pieces: Mapping[str, int]) -> None:
        """Begin new streams of the tables whose rows so far are in so many pieces."""
        for table, count in pieces.items():
            self._close_stream(table)
            self._begin_stream(table, count)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except OSError:
            # On a disk that is full the error that ends the run says so, with the table that met it.
            if error is None:
                raise

    def _keep(self, table: str, batch: Any) -> None:
        with errors_name(self._paths[table]):
            self._streams[table].write_batch(batch)
            self._sinks[table].flush()

    def close(self) -> None:
        """Close the streams; they stay as they are. Closing twice does nothing."""
        # Each of them, even if one cannot be written any more.
        with contextlib.ExitStack() as closing:
            for table in list(self._streams):
                closing.callback(self._close_stream, table)

    def _close_stream(self, table: str) -> None:
        stream, sink = self._streams.pop(table), self._sinks.pop(table)
        with errors_name(self._paths.pop(table)):
            try:
                stream.close()
            finally:
                sink.close()

    def finish(self) -> str:
        """Close the streams, convert them to Parquet and return the run's digest, 32 hexadecimal digits."""
        self.close()
        for table in SCHEMAS:
            convert(self._directory, table)
        return self._digest.hexdigest()


def convert(directory: Path, table: str) -> None:
    """Convert one table's closed stream, and the pieces before it, to Parquet (zstd); remove the stream.

    Pieces stay: a run that cannot be finished after all is gone on with from them.
    """
    found = stream_and_pieces(directory, table)
    assert found is not None, f"a writer makes a stream of {table}"
    source, pieces = found
    with pa.memory_map(str(source)) as stream, pa.ipc.open_stream(stream) as reader:
        write_parquet(parquet_path(directory, table), table, itertools.chain(_rows_of(pieces), reader))
    source.unlink()


def _rows_of(pieces: Sequence[Path]) -> Iterator[Any]:
    for piece in pieces:
        with pq.ParquetFile(str(piece)) as file:
            yield from file.iter_batches(_ROWS_PER_GROUP)


def write_parquet(target: Path, table: str, batches: Iterable[Any]) -> None:
    """Write the rows of a table as Parquet (zstd), in one step that outlasts a loss of power."""
    # Hardly two floats are equal: a dictionary of them costs more time and room than it saves.
    repeated = [field.name for field in SCHEMAS[table] if not pa.types.is_floating(field.type)]
    with (
        written_whole(target) as temporary,
        pq.ParquetWriter(
            str(temporary),
            SCHEMAS[table],
            compression="zstd",
            use_dictionary=repeated,
            # By what rows are in order, so that readers find some rounds without reading all.
            write_statistics=["round"],
        ) as writer,
    ):
        for group in _groups(batches):
            writer.write_table(group, row_group_size=_ROWS_PER_GROUP)


def _groups(batches: Iterable[Any]) -> Iterator[Any]:
    """Gather batches into tables of about a row group: a group per round would be tiny."""
    waiting: list[Any] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_PER_GROUP:
            yield pa.Table.from_batches(waiting).unify_dictionaries()
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).unify_dictionaries()


class TablesInMemory(TableWriter):
    """Takes the tables of one run and gives them back.

    Parameters are those of :class:`~coordinator.results.tables.writer.TableWriter`.
    """

    def __init__(self, *, record_events: bool = True) -> None:
        super().__init__(record_events=record_events)
        self._batches: dict[str, list[Any]] = {table: [] for table in SCHEMAS}

    def _keep(self, table: str, batch: Any) -> None:
        self._batches[table].append(batch)

    def read(self, table: str, columns: Sequence[str] | None = None) -> Any:
        """Return a ``pyarrow.Table``; arguments as for ``read``."""
        whole = pa.Table.from_batches(self._batches[table], SCHEMAS[table])
        return whole if columns is None else whole.select(list(columns))

    def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        return sum(batch.num_rows for batch in self._batches[table])

    def digest(self) -> str:
        """Return the run's digest, 32 hexadecimal digits: that of a run directory with the same tables."""
        return self._digest.hexdigest()


class TableRecorder:
    """Records a run in its tables; implements :class:`~coordinator.engine.facts.Recorder`.

    Making and writing rows costs the same for one round as for a hundred. So finished rounds wait, as they
    were recorded, for others: until there are ``rounds_at_once``, or some ten thousand events, or the last
    rows were written a second ago. What a killed process loses is at most what it finished within a second.
    While the writer has a watch, nothing waits.

    Parameters
    ----------
    writer : of the tables.
    names : of device classes, networks and regions.
    rounds_at_once : the most rounds that wait; 1: each is written before the next begins.
    clock : seconds of wall time, monotonic.

    Use it as a context manager: leaving it, for whatever reason, writes what waits.
    """

    def __init__(
        self,
        writer: TableWriter,
        names: FleetNames,
        *,
        rounds_at_once: int = _ROUNDS_AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._names = names
        self._rounds_at_once = rounds_at_once
        self._clock = clock
        self._rounds: list[RoundRecord] = []
        self._others: dict[str, list[Any]] = {}
        """Batches of other tables that wait."""
        self._events = 0
        self._written_s = clock()

    def __enter__(self) -> TableRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
        except OSError:
            # As in a writer: the error that ends the run says it.
            if error is None:
                raise

    def round(self, facts: RoundFacts, cohort: CohortFacts, columns: npt.NDArray[np.float64]) -> RoundRow:
        """Record a finished round; return its row of ``rounds``. The arrays must stay as they are."""
        record = RoundRecord(facts, cohort, self._names, columns)
        self._rounds.append(record)
        self._events += columns.shape[1]
        self._flush_if_due()
        return RecordedRow(record)

    def evaluation_round(
        self, facts: RoundFacts, cohort: CohortFacts, columns: npt.NDArray[np.float64]
    ) -> None:
        """Record a round in which devices measured the model."""
        for table, batch in evaluation_round_batches(
            RoundRecord(facts, cohort, self._names, columns)
        ).items():
            self._add(table, batch)

    def faults(self, round_number: int, phase: str, strikes: Sequence[FaultStrike]) -> None:
        """Record what faults did in a round; before the round itself."""
        self._add("faults", fault_batch(round_number, phase, strikes))

    def evaluation(self, round_number: int, phase: str, time_s: float, values: Sequence[MetricValue]) -> None:
        """Record one evaluation of the model."""
        self._add("evaluations", evaluation_batch(round_number, phase, time_s, values))

    def inferences(self, round_number: int, phase: str, time_s: float, inferences: Inferences) -> None:
        """Record one inference of the model on devices."""
        self._add("inferences", inference_batch(round_number, phase, time_s, inferences, self._names))

    def _add(self, table: str, batch: Any) -> None:
        self._others.setdefault(table, []).append(batch)
        self._events += batch.num_rows
        self._flush_if_due()

    def _flush_if_due(self) -> None:
        if (
            self._writer.watch is not None
            or len(self._rounds) >= self._rounds_at_once
            or self._events >= _EVENTS_AT_ONCE
            or self._clock() - self._written_s >= _SECONDS_BETWEEN_WRITES
            or (self._rounds_at_once == 1 and self._others)
        ):
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        rounds, self._rounds = self._rounds, []
        others, self._others = self._others, {}
        self._events = 0
        if "faults" in others:
            self._write("faults", others.pop("faults"))
        if rounds:
            self._writer.write_round(packed_batches(rounds, record_events=self._writer.record_events))
        for table, batches in others.items():
            self._write(table, batches)
        self._written_s = self._clock()

    def _write(self, table: str, batches: Sequence[Any]) -> None:
        self._writer.write(table, _one_batch(batches))


def _one_batch(batches: Sequence[Any]) -> Any:
    filled = [batch for batch in batches if batch.num_rows]
    if len(filled) < 2:
        return (filled or batches)[0]
    return pa.Table.from_batches(filled).unify_dictionaries().combine_chunks().to_batches()[0]
