"""Writing the tables while the run goes on.

During the run each table is an Arrow IPC stream (``rounds.arrows`` …) that grows by one batch per finished
round and is handed to the operating system at once: a killed process leaves a readable prefix. When the run
ends, each stream is converted, a bounded piece at a time, to Parquet (``rounds.parquet`` …) under a temporary
name, moved to its place in one step, and the stream removed. So a table is always there once, whole or as a
stream, and a Parquet file is never half written.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.host import errors_name
from coordinator.metrics.batches import RoundBatches
from coordinator.metrics.digest import RunDigest
from coordinator.metrics.schemas import SCHEMAS

_BUFFER_BYTES: Final = 1 << 20
_ROWS_PER_GROUP: Final = 1 << 16
"""Rows of a Parquet row group, and so what the conversion holds in memory."""


def stream_path(directory: Path, table: str) -> Path:
    """Return where a table's stream lies while its run goes on."""
    return directory / f"{table}.arrows"


def parquet_path(directory: Path, table: str) -> Path:
    """Return where a table lies once its run has ended."""
    return directory / f"{table}.parquet"


class TableWriter(abc.ABC):
    """Takes the rows of a run's tables, batch by batch, and keeps their digest.

    Parameters
    ----------
    record_events : whether to keep the table of events; without it that table has no rows.

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

    def _write(self, table: str, batch: Any) -> None:
        self._keep(table, batch)
        self._digest.tables[table].update(batch)
        if self.watch is not None:
            self.watch(table, batch)

    def write_round(self, batches: RoundBatches) -> None:
        """Write the rows of a finished round.

        The row of ``rounds`` goes last: a round that is in this table has all its rows in those of events and
        devices. Evaluations and inferences are made, and written, after the round.
        """
        if self.record_events:
            self._write("events", batches.events)
        self._write("device_rounds", batches.device_rounds)
        self._write("rounds", batches.rounds)

    def write_faults(self, batch: Any) -> None:
        """Write what faults did in a round, from ``batches.fault_batch``; before the rows of the round."""
        self._write("faults", batch)

    def write_evaluations(self, batch: Any) -> None:
        """Write the rows of one evaluation, from :func:`~coordinator.metrics.batches.evaluation_batch`."""
        self._write("evaluations", batch)

    def write_inferences(self, batch: Any) -> None:
        """Write the rows of one inference, from :func:`~coordinator.metrics.batches.inference_batch`."""
        self._write("inferences", batch)


class RunWriter(TableWriter):
    """Writes the tables of one run into its directory.

    Parameters
    ----------
    directory : an existing directory without tables.
    record_events : whether to keep the table of events; without it that table has no rows.

    Use it as a context manager: leaving it, for whatever reason, closes the streams. :meth:`finish` converts.
    """

    def __init__(self, directory: Path, *, record_events: bool = True) -> None:
        super().__init__(record_events=record_events)
        self._directory = directory
        self._sinks: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
        for table, schema in SCHEMAS.items():
            sink = pa.output_stream(str(stream_path(directory, table)), buffer_size=_BUFFER_BYTES)
            self._sinks[table] = sink
            self._streams[table] = pa.ipc.new_stream(sink, schema)

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
        with errors_name(stream_path(self._directory, table)):
            self._streams[table].write_batch(batch)
            self._sinks[table].flush()

    def close(self) -> None:
        """Close the streams; they stay as they are. Closing twice does nothing."""
        streams, self._streams = self._streams, {}
        # Each of them, even if one cannot be written any more.
        with contextlib.ExitStack() as closing:
            for table, stream in streams.items():
                closing.enter_context(errors_name(stream_path(self._directory, table)))
                closing.callback(self._sinks[table].close)
                closing.callback(stream.close)

    def finish(self) -> str:
        """Close the streams, convert them to Parquet and return the run's digest, 32 hexadecimal digits."""
        self.close()
        for table in SCHEMAS:
            convert(self._directory, table)
        return self._digest.hexdigest()


def convert(directory: Path, table: str) -> None:
    """Convert one table's closed stream to Parquet (zstd) and remove the stream."""
    source, target = stream_path(directory, table), parquet_path(directory, table)
    temporary = target.with_suffix(".parquet.tmp")
    try:
        with (
            errors_name(target),
            pa.memory_map(str(source)) as stream,
            pa.ipc.open_stream(stream) as reader,
            pq.ParquetWriter(str(temporary), reader.schema, compression="zstd") as writer,
        ):
            for piece in _pieces(reader):
                writer.write_table(piece, row_group_size=_ROWS_PER_GROUP)
        replace_durably(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    source.unlink()


def _pieces(reader: Any) -> Iterator[Any]:
    """Gather the batches of a stream into tables of about a row group: a group per round would be tiny."""
    waiting: list[Any] = []
    rows = 0
    for batch in reader:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_PER_GROUP:
            yield pa.Table.from_batches(waiting).unify_dictionaries().combine_chunks()
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).unify_dictionaries().combine_chunks()


def replace_durably(temporary: Path, target: Path) -> None:
    """Move a finished file to its place in one step, after its bytes have reached the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(target)
