"""recfleet from Python: what ``import recfleet`` gives.

Scenarios are read, written as dictionaries and edited; runs and sweeps are started and their tables opened.
All of it works in a script, in a notebook (an event loop that is running is left alone), and many times in
one process.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy.typing as npt
import pyarrow.csv
from rich.console import Console, RenderableType

from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.facts import MetricValue
from coordinator.engine.progress import (
    InterruptibleProgress,
    Observers,
    PlainProgress,
    RunObserver,
)
from coordinator.engine.run_files import ENDED, MODEL, REPORT, RESOLVED_SCENARIO, write_atomically
from coordinator.results.answers import answers
from coordinator.results.export import read_model
from coordinator.results.figures import Figure, of_json, run_figures
from coordinator.results.report.page import report_of
from coordinator.results.run_directory import RunDirectoryError, require_no_finished_run, run_name, run_status
from coordinator.results.summary import summarise
from coordinator.results.summary_tables import render
from coordinator.results.sweep import CellResult, Result, csv_text, held_cells, sweep_tables
from coordinator.results.tables.reader import RunFormatError, RunTables
from coordinator.results.tables.reader import open_run as open_tables
from coordinator.results.verdicts import read_verdicts
from coordinator.run.feeding import feeding
from coordinator.run.predicting import DEFAULT_TOP, Split
from coordinator.run.predicting import predict as predictions_of
from coordinator.run.runner import run_scenario
from coordinator.scenario import EngineName
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import LoadedScenario, edited, load, load_mapping
from coordinator.scenario.merge import override_text
from coordinator.scenario.shipped import is_name, shipped_files
from coordinator.scenario.sweep import Cell, load_cells
from coordinator.sweeps.execution import run_sweep
from device_profiles.errors import ProfileError, TraceError, UnknownProfileError
from edge.core import plugins as registry
from edge.core.errors import DataError, ExportError, PluginError, RecfleetError

__all__ = [
    "DataError",
    "ExportError",
    "Figure",
    "MetricValue",
    "PluginError",
    "ProfileError",
    "RecfleetError",
    "Run",
    "RunDirectoryError",
    "RunFormatError",
    "Scenario",
    "ScenarioError",
    "SweepResult",
    "ThresholdVerdict",
    "TraceError",
    "UnknownProfileError",
    "load_plugins",
    "open_run",
    "run",
    "run_async",
    "sweep",
]

Settings: TypeAlias = Mapping[str, object]
"""Values by key: ``{"rounds.cohort": 50, "rounds.deadline": "45 s"}``; None removes a key."""
Plugins: TypeAlias = Sequence[str | os.PathLike[str]]
"""Python files and modules with methods, faults or selectors."""
OnRound: TypeAlias = Callable[[Mapping[str, Any]], object]
"""Is called with the row of each finished round, by column; returning False ends the run in order."""
OnEvaluation: TypeAlias = Callable[[int, Sequence[MetricValue]], object]
"""Is called with the number of finished rounds and their metrics; returning False ends the run in order."""
ScenarioLike: TypeAlias = "Scenario | Mapping[str, object] | str | os.PathLike[str]"
"""A scenario, a dictionary of one, a path, or the name of a shipped one."""

_RUNS: Final = Path("runs")
_WIDTH: Final = 120
_Made = TypeVar("_Made")


def load_plugins(*plugins: str | os.PathLike[str]) -> None:
    """Register methods, faults and selectors of Python files or modules, for this process.

    A file that has changed since it was loaded is loaded anew: run the cell that writes it, then this.

    Raises
    ------
    PluginError : with file and line.
    """
    for one in plugins:
        if not isinstance(one, str | os.PathLike):
            raise TypeError(f"plugins are files or modules, not {one!r}; write a class to a file of its own")
        registry.load(one)


@dataclass(frozen=True)
class Scenario:
    """A valid scenario; immutable.

    ``Scenario.load`` reads a file, ``Scenario.of`` takes a dictionary, :meth:`edited` changes settings.
    """

    loaded: LoadedScenario
    """What it is inside recfleet."""

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, set: Settings | None = None, plugins: Plugins = ()
    ) -> Scenario:
        """Read a scenario file, or the shipped scenario of a name such as ``quickstart``.

        Raises
        ------
        ScenarioError : with every error; ``problems`` has each with file, line, column and key.
        PluginError : a plug-in that cannot be used.
        """
        load_plugins(*plugins)
        text = os.fspath(path)
        shipped = shipped_files().get(text) if is_name(text) else None
        return cls(load(text if shipped is None else shipped, _overrides(set)))

    @classmethod
    def of(
        cls,
        mapping: Mapping[str, object],
        *,
        name: str = "scenario",
        set: Settings | None = None,
        plugins: Plugins = (),
    ) -> Scenario:
        """Make a scenario of a dictionary that holds what a file would; ``name`` begins that of its runs.

        Names of files in it start at the current folder.

        Raises
        ------
        ScenarioError, PluginError : as :meth:`load`.
        TypeError : a value that no file could hold.
        """
        load_plugins(*plugins)
        return cls(load_mapping(mapping, name, _overrides(set)))

    def edited(self, set: Settings) -> Scenario:
        """Return this scenario with settings laid over it; mappings merge, lists replace, None removes.

        Raises
        ------
        ScenarioError : as :meth:`load`.
        """
        return Scenario(edited(self.loaded, _overrides(set)))

    @property
    def name(self) -> str:
        """The name of its file without the suffix."""
        return self.loaded.name

    @property
    def seed(self) -> int:
        """Seed of its runs."""
        return self.loaded.scenario.seed

    @property
    def hash(self) -> str:
        """64 hexadecimal digits: equal for scenarios of which every run is equal."""
        return self.loaded.hash

    @property
    def yaml(self) -> str:
        """All of it as a file would have it, defaults included."""
        return self.loaded.resolved

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of its section ``sweep``; none without one."""
        return load_cells(self.loaded)

    def __repr__(self) -> str:
        return f"<Scenario {self.name!r}, seed {self.seed}, hash {self.hash[:8]}>"


@dataclass(frozen=True, slots=True)
class ThresholdVerdict:
    """Whether a threshold held in a run.

    Attributes
    ----------
    threshold : as the scenario has it.
    metric, aggregation : what was compared.
    held : the verdict.
    value, limit, margin : in base units (seconds, bytes, joules, shares from 0 to 1); the margin is positive
        on the side that holds; None where nothing was observed.
    observations : how many values were aggregated.
    reason : why it did not hold; None where it did.
    """

    threshold: str
    metric: str
    aggregation: str
    held: bool
    value: float | None
    limit: float | None
    margin: float | None
    observations: int
    reason: str | None

    def __str__(self) -> str:
        why = "" if self.reason is None else f" ({self.reason})"
        return f"{'held' if self.held else 'MISSED'} {self.threshold}{why}"


class Run:
    """A run in its directory: finished, interrupted, killed or still going on.

    Tables are ``pyarrow.Table``: ``.to_pandas()`` and ``polars.from_arrow`` take them. They are read when
    first asked for; open a run that goes on anew to see more of it.
    """

    def __init__(self, directory: Path) -> None:
        self.tables: RunTables = open_tables(directory)
        self.directory = directory

    @property
    def status(self) -> str:
        """One of running, finished, no-round-completed, diverged, interrupted, failed and killed."""
        return run_status(self.directory, self.tables.manifest)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The contents of ``manifest.json``: seed, versions, hashes, host, data."""
        return self.tables.manifest

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario of the run, with its defaults. Plug-ins that it uses have to be loaded."""
        loaded = load(self.directory / RESOLVED_SCENARIO, references=False)
        return Scenario(replace(loaded, name=self.manifest.get("scenario", loaded.name)))

    @cached_property
    def thresholds(self) -> tuple[ThresholdVerdict, ...]:
        """Verdicts on the thresholds, and on having learnt; none of a run that was not judged."""
        names = ThresholdVerdict.__dataclass_fields__
        return tuple(
            ThresholdVerdict(**{name: of_json(record[name]) for name in names}) for record in self._verdicts
        )

    @cached_property
    def _verdicts(self) -> list[dict[str, Any]]:
        return read_verdicts(self.directory)

    @property
    def held(self) -> bool:
        """Whether the run went to its end and every threshold held: what exit code 0 says."""
        return self.status in ENDED and all(one.held for one in self.thresholds)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The figures of ``summary.json``: rounds, outcomes, latency, bytes, energy, accuracy."""
        return summarise(self.tables)

    @cached_property
    def answers(self) -> tuple[tuple[str, str], ...]:
        """What `recfleet run` says first, each with what it answers: promises, rounds, waste, advice."""
        return tuple(answers(self.summary, self._verdicts))

    @cached_property
    def figures(self) -> Mapping[str, Figure]:
        """The figures by which runs are compared, by name, each with value and unit."""
        return run_figures(self.tables, self._verdicts)

    @cached_property
    def rounds(self) -> Any:
        """A row per round."""
        return self.table("rounds")

    @cached_property
    def device_rounds(self) -> Any:
        """A row per device and round: outcome, times, bytes, energy."""
        return self.table("device_rounds")

    @cached_property
    def events(self) -> Any:
        """The event log."""
        return self.table("events")

    @cached_property
    def evaluations(self) -> Any:
        """A row per metric and evaluation."""
        return self.table("evaluations")

    @cached_property
    def evaluation_rounds(self) -> Any:
        """A row per evaluation on devices."""
        return self.table("evaluation_rounds")

    @cached_property
    def device_evaluations(self) -> Any:
        """A row per device and evaluation: outcome, times, bytes, energy."""
        return self.table("device_evaluations")

    @cached_property
    def inferences(self) -> Any:
        """A row per model that a device ran."""
        return self.table("inferences")

    @cached_property
    def faults(self) -> Any:
        """A row per device that a fault struck."""
        return self.table("faults")

    def table(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """Return a table by name; a few columns of a big one cost little."""
        return self.tables.read(name, columns)

    @cached_property
    def model(self) -> Mapping[str, npt.NDArray[Any]]:
        """The global parameters at the end, by name.

        Raises
        ------
        ExportError : there are none, or they are damaged.
        """
        return read_model(self.directory / MODEL)

    def predict(
        self, split: Split | None = None, *, top: int = DEFAULT_TOP, set: Settings | None = None
    ) -> Any:
        """Return what the model predicts for the users that the run evaluates, as a ``pyarrow.Table``.

        Columns are ``user``, ``item``, ``score``, ``rank``, ``rating`` and ``population``; see
        :func:`coordinator.run.predicting.predict`. ``set`` says where the ratings are, if they have moved.
        """
        return predictions_of(self.directory, split=split, top=top, overrides=_overrides(set)).table()

    def report(self, file: str | os.PathLike[str] | None = None) -> Path:
        """Write the HTML report to ``file``; return its path. Without one it is that of the run directory."""
        target = self.directory / REPORT if file is None else Path(file)
        if file is not None or not target.exists():
            write_atomically(target, report_of([self.directory]).encode())
        return target

    def __repr__(self) -> str:
        missed = sum(not one.held for one in self.thresholds)
        kept = f"{len(self.thresholds) - missed} of {len(self.thresholds)} thresholds held"
        return f"<Run {str(self.directory)!r}: {self.status}, {kept}>"

    def _repr_html_(self) -> str:
        verdicts = "".join(f"<li>{escape(str(one))}</li>" for one in self.thresholds)
        said = "".join(f"<div>{question}: {escape(text)}</div>" for question, text in self.answers)
        where = f"<code>{escape(str(self.directory))}</code>"
        return f"{said}{_html(render(self.summary))}<ul>{verdicts}</ul>{where}"


@dataclass(frozen=True)
class SweepResult:
    """A sweep that has been done, or as much of it as was before it was interrupted.

    Attributes
    ----------
    directory : of the runs, and of ``sweep.json`` and ``sweep.csv``.
    cells : each combination of settings with its results by seed; ``estimates()`` gives means with intervals.
    interrupted : whether it was; the same call goes on from there.
    """

    directory: Path
    cells: tuple[CellResult, ...]
    interrupted: bool

    @property
    def held(self) -> bool:
        """Whether every run went to its end and held its thresholds."""
        return not self.interrupted and all(one.held == len(one.cell.runs) for one in self.cells)

    @property
    def table(self) -> Any:
        """A row per cell with settings, means and half widths, as in ``sweep.csv``; a ``pyarrow.Table``."""
        return pyarrow.csv.read_csv(io.BytesIO(csv_text(self.cells).encode()))

    def runs(self) -> Iterator[tuple[Mapping[str, str], int, Run]]:
        """Yield settings, seed and run of every finished run."""
        for one in self.cells:
            for seed, result in sorted(one.results.items()):
                if result.figures is not None and result.directory is not None:
                    yield dict(one.cell.settings), seed, Run(result.directory)

    def __repr__(self) -> str:
        done = sum(len(one.finished) for one in self.cells)
        return f"<SweepResult {str(self.directory)!r}: {len(self.cells)} cells, {done} finished runs>"

    def _repr_html_(self) -> str:
        tables = "".join(map(_html, sweep_tables(self.cells, _WIDTH)))
        return f"{tables}<p>{escape(held_cells(self.cells))}</p>"


def run(
    scenario: ScenarioLike,
    *,
    set: Settings | None = None,
    seed: int | None = None,
    plugins: Plugins = (),
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    clock: Literal["virtual", "real"] = "virtual",
    on_round: OnRound | None = None,
    on_evaluation: OnEvaluation | None = None,
    sinks: Sequence[str] = (),
    progress: bool = False,
) -> Run:
    """Run a scenario; return the run, whether its thresholds held or not.

    A ``KeyboardInterrupt`` ends the run in order; its status is then ``interrupted``. Where an event loop
    runs in this thread, as in a notebook, the run has a thread of its own.

    Parameters
    ----------
    scenario : what to run; a file and a dictionary are loaded and checked first.
    set, seed : settings laid over it.
    plugins : Python files and modules to load first.
    out : directory of the run; by default ``runs/<scenario>-<seed>-<hash>`` in the current folder, where an
        equal run is replaced.
    overwrite : replace another finished run in ``out``, or one on the real clock.
    clock : ``real`` runs all devices in this process with sockets between them.
    on_round, on_evaluation : are called as the run goes on, in the thread of the run; what they raise ends it
        as ``failed`` and passes through.
    sinks : what the run writes is given to these, too, each ``name=target``; one that fails is a
        ``RuntimeWarning`` at the end of the run.
    progress : print a line per round, at most one a second, to standard error.

    Raises
    ------
    ScenarioError, DataError, PluginError, RunDirectoryError : before anything is written.
    """
    work, stop = _work(
        scenario, set, seed, plugins, out, overwrite, clock, on_round, on_evaluation, sinks, progress
    )
    if not _in_a_loop():
        return work()
    with ThreadPoolExecutor(1, "recfleet-run") as thread:
        running: Future[Run] = thread.submit(work)
        try:
            return running.result()
        except KeyboardInterrupt:
            stop()
            return running.result()


async def run_async(
    scenario: ScenarioLike,
    *,
    set: Settings | None = None,
    seed: int | None = None,
    plugins: Plugins = (),
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    clock: Literal["virtual", "real"] = "virtual",
    on_round: OnRound | None = None,
    on_evaluation: OnEvaluation | None = None,
    sinks: Sequence[str] = (),
    progress: bool = False,
) -> Run:
    """Run a scenario in a thread of its own, beside the tasks of the running event loop; see :func:`run`.

    Cancelling it ends the run in order, at its next round; its directory stays readable.
    """
    work, stop = _work(
        scenario, set, seed, plugins, out, overwrite, clock, on_round, on_evaluation, sinks, progress
    )
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([running])
        running.exception()  # what it ended with, if anything, gives way to the cancellation
        raise


def sweep(
    scenario: ScenarioLike,
    *,
    set: Settings | None = None,
    plugins: Plugins = (),
    jobs: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    out: str | os.PathLike[str] | None = None,
    on_result: Callable[[Cell, int, Result], object] | None = None,
) -> SweepResult:
    """Run all cells of a scenario's section ``sweep`` in parallel; runs that are finished already are kept.

    In a script call it under ``if __name__ == "__main__":``, as every process imports the script.

    Parameters
    ----------
    scenario, set, plugins : as :func:`run` has them.
    jobs : runs at a time, by default as many as there are processors.
    engine, address : ``local``, processes of this host, or ``ray``, actors of the Ray cluster at an address;
        without one, that of the variable RAY_ADDRESS, or one that is started here.
    out : directory of the sweep, by default ``runs/<scenario>-sweep``.
    on_result : is called with cell, seed and result of each run, in the order in which they end.

    Raises
    ------
    ScenarioError : with every error of the scenario and of its cells.
    ValueError : it has no section ``sweep``.
    RunDirectoryError : the directory cannot be written.
    ClusterError : there is no Ray cluster at the address.
    MissingExtraError : Ray is not installed.
    """
    made = _scenario(scenario, set, None, plugins)
    cells = made.cells
    if not cells:
        raise ValueError(f"{made.name} has no section 'sweep'; add one with set, or call run")
    target = _RUNS / f"{made.name}-sweep" if out is None else Path(out)

    def report(cell: Cell, seed: int, result: Result, _: float | None) -> None:
        if on_result is not None:
            on_result(cell, seed, result)

    choice = ClusterChoice(engine, jobs, address)
    outcome = run_sweep(cells, target=target, choice=choice, on_result=report, on_lost=lambda *_: None)
    return SweepResult(target, outcome.cells, outcome.exit_code is ExitCode.INTERRUPTED)


def open_run(directory: str | os.PathLike[str]) -> Run:
    """Open the run in a directory.

    Raises
    ------
    RunFormatError : there is none, or it is of another version.
    """
    return Run(Path(directory))


class _Callbacks(InterruptibleProgress):
    """Calls a user's functions; what returns False ends the run."""

    def __init__(self, on_round: OnRound | None, on_evaluation: OnEvaluation | None) -> None:
        super().__init__()
        self._on_round = on_round
        self._on_evaluation = on_evaluation

    def on_round(self, row: Mapping[str, Any]) -> None:
        if self._on_round is not None and self._on_round(dict(row)) is False:
            self.interrupt()
        super().on_round(row)

    def on_evaluation(self, round_number: int, values: Sequence[MetricValue]) -> None:
        if self._on_evaluation is not None and self._on_evaluation(round_number, values) is False:
            self.interrupt()
        super().on_evaluation(round_number, values)


def _work(
    scenario: ScenarioLike,
    settings: Settings | None,
    seed: int | None,
    plugins: Plugins,
    out: str | os.PathLike[str] | None,
    overwrite: bool,
    clock: Literal["virtual", "real"],
    on_round: OnRound | None,
    on_evaluation: OnEvaluation | None,
    sinks: Sequence[str],
    progress: bool,
) -> tuple[Callable[[], Run], Callable[[], None]]:
    """Load and check everything; return what runs it, and what ends that at the next round."""
    loaded = _scenario(scenario, settings, seed, plugins).loaded
    target = _RUNS / run_name(loaded.name, loaded.scenario.seed, loaded.hash) if out is None else Path(out)
    if clock not in ("virtual", "real"):
        raise ValueError(f"clock is 'virtual' or 'real', not {clock!r}")
    # Without `out` the name says all that a simulated run depends on: what it replaces is the same run.
    if not overwrite and (out is not None or clock == "real"):
        require_no_finished_run(target)
    callbacks = _Callbacks(on_round, on_evaluation)
    observer: RunObserver = callbacks
    if progress:
        observer = Observers(PlainProgress(_print_error), callbacks)

    def work() -> Run:
        with feeding(sinks, target) as given:
            if clock == "virtual":
                outcome = run_scenario(loaded, target=target, observer=observer, feeds=given.feeds)
            else:
                from coordinator.service.local_run import run_here  # noqa: PLC0415 - aiohttp, for few runs

                outcome = run_here(loaded, target=target, observer=observer, feeds=given.feeds)
        for trouble in given.end(outcome):
            warnings.warn(trouble, RuntimeWarning, stacklevel=2)
        return Run(outcome.directory)

    return work, callbacks.interrupt


def _scenario(
    scenario: ScenarioLike, settings: Settings | None, seed: int | None, plugins: Plugins
) -> Scenario:
    settings = {**(settings or {}), **({} if seed is None else {"seed": seed})}
    if isinstance(scenario, Scenario):
        load_plugins(*plugins)
        return scenario.edited(settings) if settings else scenario
    if isinstance(scenario, Mapping):
        return Scenario.of(scenario, set=settings, plugins=plugins)
    return Scenario.load(scenario, set=settings, plugins=plugins)


def _overrides(settings: Settings | None) -> list[str]:
    return [override_text(key, value) for key, value in (settings or {}).items()]


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _print_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _html(shown: RenderableType) -> str:
    """Return what a terminal would show as HTML, with its styles inline."""
    # Not what rich does in a notebook: it would display the table at once.
    console = Console(record=True, file=io.StringIO(), width=_WIDTH, force_jupyter=False)
    console.print(shown)
    return console.export_html(inline_styles=True, code_format="<pre style='line-height:1.2'>{code}</pre>")
