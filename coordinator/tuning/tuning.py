"""A tuning from its first trial to its best: in parallel, resumable, every run an ordinary run directory.

The directory of a tuning holds the runs, ``tuning.journal`` with the trials that have ended, ``best.yaml``,
and ``sweep.json`` and ``sweep.csv``, in which each trial is a cell: reports and comparisons read these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from coordinator.cluster.jobs import TRIES
from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.host import host_facts
from coordinator.engine.progress import TimeLeft
from coordinator.engine.run_files import MANIFEST, SWEEP_TABLE, write_atomically
from coordinator.results.figures import Figure, show
from coordinator.results.run_directory import RunDirectoryError, make_folder, run_name, write_json
from coordinator.results.sweep import UNHELD, CellResult, Result, csv_text, json_table
from coordinator.results.tables.reader import RunFormatError, open_run
from coordinator.run.assembling import assemble
from coordinator.run.baseline import is_run_of
from coordinator.scenario.dump import resolved
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.sweep import Cell, repeats
from coordinator.sweeps.execution import CSV_TABLE, alone, note_error
from coordinator.sweeps.runs import Task, finished_result, run_all
from coordinator.tuning.best import best_text
from coordinator.tuning.goal import RAN, Goal, TuneError, distances
from coordinator.tuning.journal import Ended, TrialJournal
from coordinator.tuning.proposals import Tried, first_points, propose
from coordinator.tuning.space import Point, Space
from device_profiles.documents import Node
from device_profiles.errors import DocumentError
from edge.core.rng import stream

__all__ = ["BEST", "EndedTrial", "TuningOutcome", "TuningPlan", "ranked", "run_tuning"]

BEST: Final = "best.yaml"
"""The scenario of the best trial."""
OnTrial: TypeAlias = "Callable[[EndedTrial, float | None], None]"
OnLost: TypeAlias = Callable[[str, str], None]
Settings: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of key and value, as text."""


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """What a tuning shall do.

    Attributes
    ----------
    loaded : the scenario; its thresholds are those that have to hold.
    space, goal : what is varied, and what for.
    trials : how many, those of an earlier tuning in the directory included.
    repeat : runs of each trial, with the seeds seed, seed + 1, …; figures are means, thresholds hold in all.
    seed : of the search.
    """

    loaded: LoadedScenario
    space: Space
    goal: Goal
    trials: int
    repeat: int = 1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """A trial that has ended.

    Attributes
    ----------
    number : counted from 1, in the order in which trials have ended.
    ended : what became of it.
    cell, results : its scenarios, and the results of their runs by seed.
    unit : of the goal's figure; None where that is not known.
    kept : it had ended before this tuning went on.
    """

    number: int
    ended: Ended
    cell: Cell
    results: Mapping[int, Result]
    unit: str | None
    kept: bool = False

    @property
    def held(self) -> bool:
        """Whether every threshold held, so that it may be the best."""
        return self.ended.how == "held"


@dataclass(frozen=True, slots=True)
class TuningOutcome:
    """How a tuning ended.

    Attributes
    ----------
    trials : all that have ended.
    best : the best that held its thresholds; None where none did.
    failed : why runs failed, by the settings of their trials.
    exhausted : whether it ended because every setting had been tried.
    exit_code : that it earns.
    """

    trials: tuple[EndedTrial, ...]
    best: EndedTrial | None
    failed: Mapping[str, str]
    exhausted: bool
    exit_code: ExitCode


def ranked(trials: Sequence[EndedTrial], goal: Goal) -> list[EndedTrial]:
    """Return trials, the best first: those that held by their figure, the others by what is missed."""

    def place(trial: EndedTrial) -> tuple[bool, float, int]:
        ended = trial.ended
        if trial.held and ended.value is not None:
            return False, -ended.value if goal.maximise else ended.value, trial.number
        missed = -math.fsum(distance for distance in ended.distances.values() if distance < 0)
        return True, missed, trial.number

    return sorted(trials, key=place)


def check_space(plan: TuningPlan) -> None:
    """Refuse a space with a value that cannot be meant.

    Each end of a range, and each value of a list, is laid over the scenario as it is written, then with all
    other keys at their least, then at their largest values: one of these has to be a scenario.

    Raises
    ------
    ScenarioError : with the errors of every such value.
    """
    space = plan.space
    written = as_written(plan)
    problems: dict[tuple[Any, str], DocumentError] = {}
    for at, axis in enumerate(space.axes):
        for value in axis.values.checks():
            first: ScenarioError | None = None
            for others in (
                written,
                *(tuple(one.values.checks()[end] for one in space.axes) for end in (0, -1)),
            ):
                try:
                    _scenarios(plan, (*others[:at], value, *others[at + 1 :]))
                except ScenarioError as error:
                    first = first or error
                else:
                    break
            else:
                assert first is not None
                for problem in first.problems:
                    problems.setdefault((problem.position, problem.message), problem)
    if problems:
        raise ScenarioError(list(problems.values()))


def as_written(plan: TuningPlan) -> Point:
    """Return the point at which the scenario is; a key that is outside of its range is at the middle."""
    document: Node = resolved(plan.loaded.scenario)
    point = []
    for axis in plan.space.axes:
        node = document
        for part in axis.path:
            if isinstance(node, dict):
                node = node.get(str(part))
            elif isinstance(node, list) and isinstance(part, int) and part < len(node):
                node = node[part]
            else:
                node = None
        found = axis.values.found(node)
        point.append(axis.values.at(0.5) if found is None else found)
    return tuple(point)


def _scenarios(plan: TuningPlan, point: Point) -> tuple[LoadedScenario, ...]:
    """Return the scenarios of a trial, one a seed; raise ScenarioError."""
    try:
        document = plan.space.laid_over(plan.loaded.document, point)
    except DocumentError as error:
        raise ScenarioError([error]) from None
    return repeats(plan.loaded, document, plan.repeat)


def run_tuning(
    plan: TuningPlan, *, target: Path, choice: ClusterChoice, on_trial: OnTrial, on_lost: OnLost
) -> TuningOutcome:
    """Do the trials of a tuning, and write its tables and the best scenario.

    Parameters
    ----------
    plan : what to do. With one worker the trials follow from it alone, however often they were interrupted.
    target : the directory; trials that have ended in it are kept.
    choice : where runs are done, and how many at a time.
    on_trial : receives each trial when it has ended, those that were kept first, and about how many seconds
        the others still take, if that is known.
    on_lost : receives the settings of a trial of which a run is tried again, and how its worker was lost.

    A ``KeyboardInterrupt`` ends what is running in order; the tables then hold what has been finished.

    Raises
    ------
    ScenarioError : the space holds a value that cannot be meant.
    TuneError : the directory is that of another tuning, or the figure is never observed.
    MissingExtraError : Optuna is not installed.
    RunDirectoryError : the directory cannot be written or is that of a run, or another process is at it.
    """
    if (target / MANIFEST).exists():
        raise RunDirectoryError(f"{target}: is the directory of a run; give another --out")
    check_space(plan)
    make_folder(target)
    with alone(target, "a tuning"):
        tuning = _Tuning(plan, target, on_trial, on_lost)
        with choice.open() as cluster:
            tuning.begin(cluster.limit)
            interrupted = run_all(tuning.tasks(), cluster, tuning.note, tuning.note_loss)
        tuning.write_tables()
    return tuning.outcome(interrupted=interrupted)


@dataclass
class _RunningTrial:
    """A trial whose runs have been begun."""

    point: Point
    cell: Cell
    results: dict[int, Result]


class _Tuning:
    """The trials of a tuning: what has ended, what is running, and what is tried next."""

    def __init__(self, plan: TuningPlan, target: Path, on_trial: OnTrial, on_lost: OnLost) -> None:
        self._plan, self._target = plan, target
        self._on_trial, self._on_lost = on_trial, on_lost
        identity = {
            "scenario": plan.loaded.hash,
            "goal": str(plan.goal),
            "space": "; ".join(f"{axis.name}={axis.values}" for axis in plan.space.axes),
            "search": f"seed {plan.seed}, {plan.repeat} runs a trial",
            "version": str(host_facts()["recfleet"]),
        }
        self._journal = TrialJournal(target, plan.space, plan.goal, identity)
        self._trials: list[EndedTrial] = []
        self._running: list[_RunningTrial] = []
        self._begun: list[tuple[_RunningTrial, LoadedScenario]] = []
        """The runs by their number among the tasks."""
        self._failed: dict[str, str] = {}
        self._in_a_row = 0
        """Trials that have failed since one that did not."""
        self._tried: set[Point] = set()
        """Points of trials that have failed: they are not tried again by this process."""
        self._directories: dict[str, str] = {}
        """Settings by the directory of their run."""
        self._data_are_known = False
        """Whether a kept run has been found to be of the data that are there now."""
        self._exhausted = False
        self._time_left: TimeLeft | None = None
        for ended in self._journal.ended():
            self._keep(ended)

    @property
    def best(self) -> EndedTrial | None:
        """The best trial that held its thresholds."""
        first = ranked(self._trials, self._plan.goal)[:1]
        return first[0] if first and first[0].held else None

    def begin(self, workers: int) -> None:
        """Begin to count the time, with runs of so many workers."""
        left, at_a_time = self._plan.trials - len(self._trials), max(1, workers // self._plan.repeat)
        self._time_left = TimeLeft(left, at_a_time)

    def tasks(self) -> Iterator[Task]:
        """Yield the runs of one trial after another; the next is chosen when a process is free for it."""
        while len(self._trials) + len(self._running) < self._plan.trials and self._in_a_row < TRIES:
            point = self._next()
            if point is None:
                self._exhausted = not self._running
                return
            settings = self._plan.space.settings(point)
            try:
                runs = _scenarios(self._plan, point)
            except ScenarioError as error:
                self._end_unrun(point, settings, error.problems[0].message)
                continue
            cell = Cell(0, settings, runs)
            twin = self._directories.setdefault(self._directory(runs[0]).name, cell.label)
            if twin != cell.label:
                self._end_unrun(point, settings, f"is the same run as {twin}")
                continue
            running = _RunningTrial(point, cell, {})
            self._running.append(running)
            for loaded in runs:
                self._begun.append((running, loaded))
                yield Task(loaded, self._directory(loaded))

    def note(self, number: int, result: Result) -> None:
        """Take the result of a run."""
        running, loaded = self._begun[number]
        note_error(self._directory(loaded), result)
        running.results[loaded.scenario.seed] = result
        if len(running.results) < len(running.cell.runs):
            return
        self._running.remove(running)
        found = {one.status: one for one in running.results.values()}
        if "interrupted" in found:
            return
        if "failed" in found:
            self._in_a_row += 1
            self._tried.add(running.point)
            self._failed[running.cell.label] = found["failed"].error or ""
            return
        self._in_a_row = 0
        self._end(running)

    def note_loss(self, number: int, how: str) -> None:
        """Report a run that is tried again."""
        running, _ = self._begun[number]
        self._on_lost(running.cell.label, how)

    def _directory(self, loaded: LoadedScenario) -> Path:
        return self._target / run_name(loaded.name, loaded.scenario.seed, loaded.hash)

    def _next(self) -> Point | None:
        """Return the point of the next trial; None where all have been tried."""
        space = self._plan.space
        tried = [
            Tried(trial.ended.point, self._signed(trial.ended.value), trial.ended.distances)
            for trial in self._trials
        ]
        tried += [Tried(running.point) for running in self._running]
        known = {one.point for one in tried} | self._tried
        number = len(tried)
        first = [as_written(self._plan)]
        first += first_points(space, stream(self._plan.seed, "tune", "first"), len(space.axes))
        for point in first:
            if point not in known:
                return point
        if not self._trials:
            # Nothing is known yet, and all the first points are being tried.
            more = first_points(space, stream(self._plan.seed, "tune", "more"), number + len(first))
            return next((point for point in more if point not in known), None)
        rng = stream(self._plan.seed, "tune", "proposal", number)
        return propose(space, [*tried, *(Tried(point) for point in self._tried)], rng)

    def _signed(self, value: float | None) -> float | None:
        return -value if value is not None and self._plan.goal.maximise else value

    def _end_unrun(self, point: Point, settings: Settings, why: str) -> None:
        """End a trial that cannot be run."""
        self._add(Ended(point, "refused", None, {RAN: -1.0}, why), Cell(0, settings, ()), {}, None)

    def _end(self, running: _RunningTrial) -> None:
        """End a trial whose runs have ended."""
        results = dict(sorted(running.results.items()))
        names = tuple((seed, self._name(result)) for seed, result in results.items())
        for result in results.values():
            if result.figures is None or result.directory is None:
                # Refused when its data were read, or its baseline missed what it has to hold.
                ended = Ended(running.point, result.status, None, {RAN: -1.0}, result.error, names)
                self._add(ended, running.cell, results, None)
                return
        found: dict[str, float] = {}
        early, figures = False, {}
        for seed, result in results.items():
            assert result.directory is not None
            run = open_run(result.directory)
            early |= self._was_ended(run.manifest, result)
            figures[seed] = self._plan.goal.figure(result, run)
            for name, distance in distances(result.verdicts).items():
                found[name] = min(distance, found.get(name, distance))
        values = [figure.value for figure in figures.values() if figure is not None]
        value = math.fsum(values) / len(values) if len(values) == len(figures) else None
        statuses = {result.status for result in results.values()}
        how = next((status for status in UNHELD[::-1] if status in statuses), "held")
        if early:
            how, value = "ended early", None
        elif how in ("held", "missed") and value is None:
            self._check_observed()
            how = "unobserved"
        elif how not in ("held", "missed"):
            value = None
        found[RAN] = 1.0 if how in ("held", "missed", "ended early") else -1.0
        ended = Ended(running.point, how, value, found, None, names)
        unit = next((figure.unit for figure in figures.values() if figure is not None), None)
        shown = {seed: self._with(result, figures[seed]) for seed, result in results.items()}
        self._add(ended, running.cell, shown, unit)

    def _with(self, result: Result, figure: Figure | None) -> Result:
        """Return a result among whose figures is that of the goal."""
        if figure is None:
            return result
        return replace(result, figures={self._plan.goal.name: figure, **(result.figures or {})})

    @staticmethod
    def _name(result: Result) -> str:
        return "" if result.directory is None else result.directory.name

    def _was_ended(self, manifest: Mapping[str, Any], result: Result) -> bool:
        """Return whether a threshold has ended a run before its last round."""
        aborting = {str(one) for one in self._plan.loaded.scenario.thresholds if one.abort is not None}
        missed = {record["threshold"] for record in result.verdicts if not record["held"]}
        return manifest.get("stopped_by") is not None and not aborting.isdisjoint(missed)

    def _check_observed(self) -> None:
        """Refuse a figure that no run has."""
        if all(trial.ended.value is None for trial in self._trials):
            name = self._plan.goal.name
            raise TuneError(f"{name!r} was not observed in a run that went to its end; name another figure")

    def _add(self, ended: Ended, cell: Cell, results: Mapping[int, Result], unit: str | None) -> None:
        """Keep a trial that has ended; its number is that of the order in which trials end."""
        self._journal.add(ended)
        before, number = self.best, len(self._trials) + 1
        trial = EndedTrial(number, ended, replace(cell, number=number), results, unit)
        self._trials.append(trial)
        if self.best is not before:
            self._write_best()
        if self._time_left is not None:
            self._time_left.done()
        self._on_trial(trial, None if self._time_left is None else self._time_left.left_s())

    def _keep(self, ended: Ended) -> None:
        """Take a trial that had ended before, with what is left of its runs."""
        number = len(self._trials) + 1
        runs = _scenarios(self._plan, ended.point) if ended.runs else ()
        cell = Cell(number, self._plan.space.settings(ended.point), runs)
        results: dict[int, Result] = {}
        unit = None
        for (seed, name), loaded in zip(ended.runs, runs, strict=True):
            directory = self._target / name
            self._directories[name] = cell.label
            try:
                result = finished_result(directory, kept=True)
                run = open_run(directory)
            except RunFormatError:
                # Its figures are in the journal.
                continue
            if not self._data_are_known:
                self._data_are_known = True
                if not is_run_of(directory, loaded, assemble(loaded).data_facts):
                    raise TuneError(f"{directory}: its data have changed since; give another --out")
            figure = self._plan.goal.figure(result, run)
            unit = unit if figure is None else figure.unit
            results[seed] = self._with(result, figure)
        trial = EndedTrial(number, ended, cell, results, unit, kept=True)
        self._trials.append(trial)
        self._on_trial(trial, None)

    def _write_best(self) -> None:
        best = self.best
        assert best is not None
        assert best.ended.value is not None
        assert best.unit is not None
        said = f"{self._plan.goal.name}: {show(best.ended.value, best.unit)}, in trial {best.number}"
        text = best_text(self._plan.loaded, best.cell.runs[0], self._target, said)
        write_atomically(self._target / BEST, text.encode())

    def write_tables(self) -> None:
        """Write ``sweep.json`` and ``sweep.csv``; a trial is a cell."""
        cells = [CellResult(trial.cell, trial.results) for trial in self._trials]
        table = json_table(self._plan.loaded.name, self._plan.repeat, cells, self._target)
        best = self.best
        table["tuned"] = {
            "goal": str(self._plan.goal),
            "figure": self._plan.goal.name,
            "maximise": self._plan.goal.maximise,
            "keys": [axis.name for axis in self._plan.space.axes],
            "best": None if best is None else best.number,
            "trials": [{"cell": trial.number, "how": trial.ended.how} for trial in self._trials],
        }
        write_json(self._target / SWEEP_TABLE, table)
        write_atomically(self._target / CSV_TABLE, csv_text(cells).encode())

    def outcome(self, *, interrupted: bool) -> TuningOutcome:
        """Return how it ended."""
        if interrupted:
            code = ExitCode.INTERRUPTED
        elif self._failed:
            code = ExitCode.INTERNAL_ERROR
        else:
            code = ExitCode.HELD if self.best is not None else ExitCode.THRESHOLD_MISSED
        return TuningOutcome(tuple(self._trials), self.best, self._failed, self._exhausted, code)
