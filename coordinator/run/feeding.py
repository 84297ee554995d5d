"""Runs give their sinks what they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from coordinator.engine.run_files import RESOLVED_SCENARIO
from coordinator.results.run_directory import run_status
from coordinator.results.sinks import Sink
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import RunFormatError, open_run
from coordinator.results.tables.schemas import SCHEMAS
from coordinator.results.verdicts import read_verdicts, verdict_records
from coordinator.run.conductor import RunFeed, Verdicts
from coordinator.run.runner import RunOutcome
from coordinator.scenario.errors import did_you_mean
from coordinator.scenario.load import LoadedScenario
from device_profiles.documents import parse_document, read_document
from device_profiles.errors import DocumentError
from edge.core import plugins
from edge.core.errors import PluginError
from edge.core.plugins import SINKS, code_errors

__all__ = ["Feeding", "feeding"]


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
        self._verdicts: Sequence[Mapping[str, Any]] = ()
        self.trouble: str | None = None
        """What it raised, and where; None: nothing."""

    def on_begin(
        self, loaded: LoadedScenario, clock: Literal["virtual", "real"], baseline: TableMetricSource | None
    ) -> None:
        """Give the facts of the run."""
        self.begin(
            {
                "scenario": loaded.name,
                "title": loaded.scenario.title,
                "seed": loaded.scenario.seed,
                "scenario_hash": loaded.hash,
                "clock": clock,
                "settings": parse_document(loaded.resolved, loaded.name).root,
            }
        )

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Give the facts of a run, as :meth:`Sink.begin` takes them."""
        self._give(lambda: self._sink.begin(facts))

    def on_batch(self, table: str, batch: Any) -> None:
        """Give rows."""
        self._give(lambda: self._sink.rows(table, batch))

    def on_verdicts(self, verdicts: Verdicts, reason: str | None, ending: str | None) -> None:
        """Keep the verdicts until the run has its directory."""
        self.judge(verdict_records(verdicts))

    def judge(self, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Keep the verdicts, as records, until the end."""
        self._verdicts = verdicts

    def end(self, status: str, directory: Path) -> None:
        """Give the end."""
        self._give(lambda: self._sink.end(status, self._verdicts, directory))

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
        return self.troubles()

    def replay(self, directory: Path) -> list[str]:
        """Give the sinks a run that lies in a directory; return what has gone wrong with any, in words.

        Each table comes as a whole, one after another. Of a run that is going on or was cut short there are
        its finished rounds.

        Raises
        ------
        RunFormatError : there is no run, or it is damaged.
        """
        run = open_run(directory)
        manifest = run.manifest
        try:
            settings = read_document(directory / RESOLVED_SCENARIO).root
            verdicts = read_verdicts(directory)
            facts = {
                **{key: manifest[key] for key in ("scenario", "title", "seed", "scenario_hash")},
                "clock": manifest.get("clock", "virtual"),
                "settings": settings,
            }
        except (DocumentError, KeyError) as error:
            raise RunFormatError(f"{directory}: the run is damaged: {error}") from error
        for feed in self.feeds:
            feed.begin(facts)
        for table in SCHEMAS:
            for batch in run.read(table).to_batches():
                for feed in self.feeds:
                    feed.on_batch(table, batch)
        for feed in self.feeds:
            feed.judge(verdicts)
            feed.end(run_status(directory, manifest), directory)
        return self.troubles()

    def troubles(self) -> list[str]:
        """Return what has gone wrong with any sink, in words."""
        return [feed.trouble for feed in self.feeds if feed.trouble is not None]
