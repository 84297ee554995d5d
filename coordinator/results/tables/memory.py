"""The tables of a run that is kept in memory: for many short runs, which are looked at and forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from coordinator.results.tables.schemas import SCHEMAS
from coordinator.results.tables.writer import TableWriter


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
