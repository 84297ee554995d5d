"""Sinks: what a run writes is given to something else as well, such as a tracker of experiments."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.verdicts import json_values, verdict_records
from coordinator.run.conductor import RunFeed, Verdicts
from coordinator.run.runner import RunOutcome
from coordinator.scenario.errors import did_you_mean
from coordinator.scenario.load import LoadedScenario
from device_profiles.documents import parse_document
from edge.core import plugins
from edge.core.errors import PluginError
from edge.core.plugins import SINKS, PluginKind, code_errors

__all__ = ["KIND", "JsonLines", "Sink", "SinkFeed", "feeding", "make_sink"]


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


def make_sink(written: str) -> Sink:
    """Make the sink that ``name`` or ``name=target`` asks for.

    Raises
    ------
    PluginError : there is no such sink, or it cannot be made.
    """
    name, _, target = written.partition("=")
    known = plugins.names(SINKS)
    if name not in known:
        hint = did_you_mean(name, known, listed="there are")
        raise PluginError(f"--sink {written}: there is no sink {name!r}; {hint}, or {plugins.ADVICE}")
    with code_errors(f"--sink {written}"):
        sink: Sink = plugins.get(SINKS, name)(target)
    return sink


class SinkFeed(RunFeed):
    """Gives a sink what a run writes, until it raises something."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._verdicts: Verdicts = ()
        self.trouble: str | None = None
        """What it raised, and where; None: nothing."""

    def on_begin(
        self, loaded: LoadedScenario, clock: Literal["virtual", "real"], baseline: TableMetricSource | None
    ) -> None:
        """Give the facts of the run."""
        facts = {
            "scenario": loaded.name,
            "title": loaded.scenario.title,
            "seed": loaded.scenario.seed,
            "scenario_hash": loaded.hash,
            "clock": clock,
            "settings": parse_document(loaded.resolved, loaded.name).root,
        }
        self._give(lambda: self._sink.begin(facts))

    def on_batch(self, table: str, batch: Any) -> None:
        """Give rows."""
        self._give(lambda: self._sink.rows(table, batch))

    def on_verdicts(self, verdicts: Verdicts, reason: str | None, ending: str | None) -> None:
        """Keep the verdicts until the run has its directory."""
        self._verdicts = verdicts

    def end(self, status: str, directory: Path) -> None:
        """Give the end."""
        self._give(lambda: self._sink.end(status, verdict_records(self._verdicts), directory))

    def _give(self, call: Callable[[], None]) -> None:
        if self.trouble is not None:
            return
        try:
            with code_errors(f"the sink {self._sink.name!r}"):
                call()
        except Exception as error:
            self.trouble = f"the sink {self._sink.name!r} was given no more: {error}"


@contextmanager
def feeding(written: Sequence[str], target: Path) -> Iterator[Feeding]:
    """Make sinks, and end them as failed when what is done within raises something.

    Parameters
    ----------
    written : each ``name`` or ``name=target``.
    target : the directory that the run shall have.
    """
    made = Feeding([SinkFeed(make_sink(one)) for one in written])
    try:
        yield made
    except BaseException:
        for feed in made.feeds:
            feed.end("failed", target)
        raise


class Feeding:
    """The sinks of a run."""

    def __init__(self, feeds: Sequence[SinkFeed]) -> None:
        self.feeds = feeds

    def end(self, outcome: RunOutcome) -> list[str]:
        """Give the sinks the end of the run; return what has gone wrong with any, in words."""
        for feed in self.feeds:
            feed.end(outcome.status, outcome.directory)
        return [feed.trouble for feed in self.feeds if feed.trouble is not None]
