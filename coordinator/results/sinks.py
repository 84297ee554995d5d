"""Sinks: what a run writes is given to something else as well, such as a tracker of experiments."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from coordinator.results.verdicts import json_values
from edge.core.errors import PluginError
from edge.core.plugins import PluginKind

__all__ = ["KIND", "JsonLines", "Sink"]


class Sink:
    """Takes what a run writes; base of all sinks.

    A sink has a class attribute ``name`` and overrides what it needs. Nothing it does changes the run: what
    it raises ends the sink alone, and is shown when the run is over.

    Parameters
    ----------
    target : where it writes: what stands behind ``=`` in ``--sink name=target``; empty where nothing does.
    """

    name: ClassVar[str] = ""

    def __init__(self, target: str) -> None:
        self.target = target

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Take the facts of a run before its first round.

        ``scenario``, ``title``, ``seed``, ``scenario_hash``, ``clock``, and ``settings``: the scenario with
        its defaults, as nested mappings of text.
        """

    def rows(self, table: str, batch: Any) -> None:
        """Take rows of a table, a ``pyarrow.RecordBatch``, as they are written."""

    def end(self, status: str, verdicts: Sequence[Mapping[str, Any]], directory: Path) -> None:
        """Take how the run ended, its verdicts (as in ``verdicts.json``), and the directory of its results.

        A run that failed ends with status ``failed``, no verdicts, and the directory that it was to have.
        """


def _lacks(sink: type[Sink]) -> Iterator[str]:
    if not isinstance(sink.name, str) or not sink.name:
        yield "has no attribute 'name', a text"


def _name_of(sink: type[Sink]) -> str:
    return sink.name


KIND: Final = PluginKind("sink", Sink, _name_of, _lacks)
"""The extension point."""


class JsonLines(Sink):
    """Writes a line of JSON for the beginning, each row and the end, to a file or standard output (``-``)."""

    name = "jsonl"

    def __init__(self, target: str) -> None:
        super().__init__(target)
        if not target:
            raise PluginError("--sink jsonl: writes to a file; name one, 'jsonl=rows.jsonl', or 'jsonl=-'")
        self._file = sys.stdout if target == "-" else Path(target).open("w", encoding="utf-8")  # noqa: SIM115

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write the facts, under ``begin``."""
        self._write({"begin": dict(facts)})

    def rows(self, table: str, batch: Any) -> None:
        """Write the rows, each under the name of its table."""
        for row in batch.to_pylist():
            self._write({table: row})

    def end(self, status: str, verdicts: Sequence[Mapping[str, Any]], directory: Path) -> None:
        """Write the verdicts and close the file."""
        self._write({"end": {"status": status, "verdicts": list(verdicts), "directory": str(directory)}})
        if self._file is not sys.stdout:
            self._file.close()

    def _write(self, contents: Mapping[str, Any]) -> None:
        line = json.dumps(json_values(contents), ensure_ascii=False, allow_nan=False)
        self._file.write(f"{line}\n")
        self._file.flush()
