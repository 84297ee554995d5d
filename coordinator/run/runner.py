"""One run, from a loaded scenario to a run directory and a verdict, for people and for machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from coordinator.engine.assembly import Assembly
from coordinator.engine.host import peak_rss_bytes, system_trouble
from coordinator.engine.progress import RunObserver
from coordinator.engine.run_files import BASELINE, ENDED, ITEMS, REPORT, SUMMARY, VERDICTS, Status
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.training import Training
from coordinator.results.advice import advice_record, advise
from coordinator.results.learnt import judge_learning
from coordinator.results.report.page import write_report
from coordinator.results.report.view import RunView
from coordinator.results.run_directory import RunDirectory
from coordinator.results.summary import summarise
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.reader import RunTables, open_run
from coordinator.results.tables.trace import TRACE, write_trace
from coordinator.results.tables.writer import RunWriter, TableRecorder
from coordinator.results.threshold_watch import ThresholdWatch
from coordinator.results.verdicts import json_values, verdict_records
from coordinator.run.assembling import assemble
from coordinator.run.baseline import BaselineMissedError, baseline_of, earlier_baseline
from coordinator.run.conductor import Conductor, RunFeed, Survival, Verdicts
from coordinator.run.leakage import sampler_facts
from coordinator.run.virtual_time import VirtualTime, quiet_collector
from coordinator.scenario.dump import resolved
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.registered_sections import selection_facts
from coordinator.scenario.rounds_section import Buffered
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.threshold_evaluation import evaluate, exit_code
from coordinator.scenario.thresholds import Threshold
from coordinator.secure.plan import modes

if TYPE_CHECKING:
    from coordinator.results.junit import Suite


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended, and where its results are.

    Attributes
    ----------
    status : ``finished``; ``no-round-completed`` or ``diverged`` when nothing was learnt; ``interrupted``; or
        ``failed`` when its baseline missed its own thresholds.
    directory : the run directory.
    verdicts : on having learnt, where that was broken or the scenario has ``expect``, and on the thresholds;
        none of a run that did not go to its end.
    reason : why it stopped before its last round; None when it did not.
    exit_code : for scripts.
    ending : how nothing was learnt, since when, and the likely setting; None of a run that learnt, or was not
        judged.
    baseline_verdicts : on the thresholds that the baseline has to hold; none without a baseline.
    unseen : thresholds that are not judged, because their metrics are not observed on this clock.
    unwritten : why what is only made from the tables could not be written, by its file's name.
    """

    status: str
    directory: Path
    verdicts: Verdicts
    reason: str | None
    exit_code: ExitCode
    ending: str | None = None
    baseline_verdicts: Verdicts = ()
    unseen: tuple[Threshold, ...] = ()
    unwritten: Mapping[str, str] = field(default_factory=dict)


OnJudged: TypeAlias = Callable[[RunOutcome, Mapping[str, Any], Mapping[str, Any]], None]
"""Is given a run's outcome, its summary and what is known of its data, before its report is written."""


def run_scenario(
    loaded: LoadedScenario,
    *,
    target: Path,
    observer: RunObserver,
    conductor: Conductor | None = None,
    feeds: Sequence[RunFeed] = (),
    on_judged: OnJudged | None = None,
) -> RunOutcome:
    """Run a scenario on the virtual clock and write its run directory.

    Parameters
    ----------
    loaded : the scenario.
    target : the path that the finished run shall have.
    observer : receives what happens.
    conductor : takes it through its rounds; without one it is simulated in this process.
    feeds : are given what is written.
    on_judged : is called once the verdict is known, before the slower part of what is written.

    A scenario with a baseline runs that first, or takes the one that an earlier run has left. If it misses
    its own thresholds the run ends there, and its exit code is that of a missed threshold.

    A ``KeyboardInterrupt`` ends the run with what has been finished; its directory stays readable. Any other
    error passes through, after the directory has been marked as failed.

    Raises
    ------
    DataError, ScenarioError, RunDirectoryError : before anything is written.
    """
    # From here on: between a baseline and its run all that was imported would be searched for garbage.
    with quiet_collector():
        return run_assembled(
            loaded,
            assemble(loaded),
            target=target,
            observer=observer,
            conductor=conductor,
            feeds=feeds,
            on_judged=on_judged,
        )


def run_assembled(
    loaded: LoadedScenario,
    assembly: Assembly,
    *,
    target: Path,
    observer: RunObserver,
    conductor: Conductor | None = None,
    feeds: Sequence[RunFeed] = (),
    on_judged: OnJudged | None = None,
) -> RunOutcome:
    """Run a scenario whose data, method and fleet have been assembled; see :func:`run_scenario`.

    ``conductor`` takes it through its rounds; without one it is simulated.
    """
    conduct = VirtualTime() if conductor is None else conductor
    hidden = conduct.unseen(assembly)
    seen = tuple(one for one in loaded.scenario.thresholds if one.metric not in hidden)
    unseen = tuple(one for one in loaded.scenario.thresholds if one.metric in hidden)
    calm = None if loaded.scenario.baseline is None else baseline_of(loaded)
    found = None if calm is None else earlier_baseline(target, calm, assembly.data_facts)
    kept = {} if found is None else {BASELINE: found}
    manifest = _manifest(loaded, assembly, conduct)
    with _directory(conduct.survival, target, loaded.resolved, manifest, kept) as directory:
        course = _train(loaded, assembly, conduct, directory, calm, seen, observer, feeds)
        tables = open_run(directory.path)
        ending = _judge(loaded, course, tables, seen)
        verdicts = course.of_baseline if course.training is None else ending.verdicts
        for feed in feeds:
            feed.on_verdicts(verdicts, course.reason, ending.text)
        interrupted = ending.status == "interrupted"
        code = ExitCode.INTERRUPTED if interrupted else exit_code((*course.of_baseline, *ending.verdicts))
        outcome = RunOutcome(
            ending.status,
            target,
            ending.verdicts,
            course.reason,
            code,
            ending.text,
            course.of_baseline,
            unseen,
        )
        private = None if assembly.privacy is None else assembly.privacy.facts()
        negatives = sampler_facts(loaded.scenario, assembly, tables if ending.judged else None)
        records = verdict_records(ending.verdicts)
        mean = assembly.rating_mean()
        summary = summarise(tables, ending.status, private, negatives, None if mean is None else mean.facts())
        advice = advise(loaded.scenario, tables, summary, records)
        summary["advice"] = [advice_record(one) for one in advice]
        directory.write_json(SUMMARY, json_values(summary))
        if ending.judged:
            directory.write_json(VERDICTS, {"thresholds": records})
        try:
            if on_judged is not None:
                observer.on_end(ending.status)
                on_judged(outcome, summary, assembly.data_facts)
        finally:
            # Whether or not there is anybody to read the verdict, the run is kept.
            path, unwritten = _conclude(
                loaded, assembly, directory, tables, course, outcome, ending.status, summary, records
            )
        if conduct.survival is not None and ending.judged:
            conduct.survival.finished(path)
    if on_judged is None:
        # Who watches a run may end the process now: all is written.
        observer.on_end(ending.status)
    return replace(outcome, directory=path, unwritten=unwritten)


@dataclass(slots=True)
class _Course:
    """How training went.

    Attributes
    ----------
    status : ``failed`` until it went to its end or was interrupted; what a run learnt is judged afterwards.
    stop, reason : why training ended, and why before its last round.
    digest : of the tables of a run that went to its end.
    of_baseline, baseline : verdicts on the baseline, and its metrics.
    watch : the thresholds that end a run.
    training : None where it never began.
    began_s, ended_s : on this host's clock.
    """

    status: Status = "failed"
    stop: StopReason | None = None
    reason: str | None = None
    digest: str | None = None
    of_baseline: Verdicts = ()
    baseline: TableMetricSource | None = None
    watch: ThresholdWatch | None = None
    training: Training | None = None
    began_s: float = 0.0
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ending:
    """What a run came to: its status, the verdicts, and how nothing was learnt."""

    status: Status
    judged: bool = False
    verdicts: Verdicts = ()
    text: str | None = None


def _manifest(loaded: LoadedScenario, assembly: Assembly, conduct: Conductor) -> dict[str, Any]:
    """Return what the manifest says of a run before it begins."""
    scenario = loaded.scenario
    manifest = {
        "scenario": loaded.name,
        "title": scenario.title,
        "seed": scenario.seed,
        "run_id": conduct.run_id(loaded),
        "scenario_hash": loaded.hash,
        "clock": conduct.clock,
        "secrets": conduct.secrets.value,
        "data": assembly.data_facts,
        "secure_aggregation": modes(scenario),
        "plugins": [one.facts() for one in scenario.plugins],
        "work": "estimated" if assembly.workload.algorithm.estimates_work() else "counted",
        "selection": selection_facts(scenario.rounds.selection),
        "unscored": assembly.evaluator.unscored,
        "select": scenario.evaluation.select,
        "notices": list(assembly.notices),
    }
    negatives = sampler_facts(scenario, assembly)
    if negatives is not None:
        manifest["negatives"] = negatives
    mean = assembly.rating_mean()
    if mean is not None:
        manifest["rating_mean"] = mean.facts()
    if assembly.privacy is not None:
        assembly.privacy.draw_from(conduct.secrets)
        manifest["privacy"] = assembly.privacy.facts()
    if assembly.workload.algorithm.hides_values:
        # Not above: runs of other methods, which are most, start without it.
        from coordinator.engine.privacy import value_facts  # noqa: PLC0415 - most runs do without

        manifest["value_privacy"] = value_facts(assembly.workload, assembly.secure_sums.values())
    return manifest


def _train(
    loaded: LoadedScenario,
    assembly: Assembly,
    conduct: Conductor,
    directory: RunDirectory,
    calm: LoadedScenario | None,
    seen: Sequence[Threshold],
    observer: RunObserver,
    feeds: Sequence[RunFeed],
) -> _Course:
    """Run the baseline, which is ``calm``, and train; write tables and model."""
    course, scenario, survival = _Course(), loaded.scenario, conduct.survival
    # Before the baseline, so that a run that is killed during it can be read, too.
    with (
        _writer(survival, directory.path, record_events=scenario.record.events == "all") as writer,
        # Whoever goes on with a run relies on the rows of every round that is over.
        _recorder(writer, assembly, packed=survival is None) as recorder,
    ):
        course.began_s = time.perf_counter()
        try:
            if calm is not None:
                course.of_baseline = _run_baseline(calm, directory.path / BASELINE, observer)
                course.baseline = TableMetricSource(open_run(directory.path / BASELINE))
                course.began_s = time.perf_counter()
            watch = course.watch = ThresholdWatch(seen, course.baseline)
            for feed in feeds:
                feed.on_begin(loaded, conduct.clock, course.baseline)
            takers = [*([watch.take] if watch else []), *(feed.on_batch for feed in feeds)]
            if takers:
                writer.watch = _all_of(*takers)
            observer.on_start(loaded.name, scenario.round_count)
            course.training = training = training_kind(scenario)(
                scenario, assembly, recorder, observer, watch, directory.path, conduct.secrets
            )
            if survival is not None:
                survival.begin(training, assembly.fleet, writer)
            stop = course.stop = conduct(loaded, assembly, training)
            recorder.flush()
            if stop is StopReason.STOPPED:
                course.status = "interrupted"
            course.reason = None if stop is StopReason.LAST_ROUND else _why(stop, watch, training)
        except BaselineMissedError as missed:
            course.of_baseline, course.reason = missed.verdicts, str(missed)
        except KeyboardInterrupt:
            course.status, course.reason = "interrupted", "interrupted by the user"
        except BaseException:
            observer.on_end("failed")
            raise
        if course.training is not None:
            directory.write_model(dict(course.training.model))
        if assembly.catalogue is not None:
            directory.write_json(ITEMS, assembly.catalogue)
        if course.stop is not None and course.status != "interrupted":
            course.digest = writer.finish()
    course.ended_s = time.perf_counter()
    return course


def _judge(loaded: LoadedScenario, course: _Course, tables: RunTables, seen: Sequence[Threshold]) -> _Ending:
    """Judge a run that went to its end; any other keeps its status."""
    if course.digest is None:
        return _Ending(course.status)
    assert course.stop is not None
    learnt = judge_learning(loaded.scenario, tables, course.stop)
    promised = with_endings(evaluate(seen, TableMetricSource(tables), course.baseline), course.watch)
    verdicts = promised if learnt.verdict is None else (learnt.verdict, *promised)
    return _Ending(learnt.status, True, verdicts, learnt.ending)


def _conclude(
    loaded: LoadedScenario,
    assembly: Assembly,
    directory: RunDirectory,
    tables: RunTables,
    course: _Course,
    outcome: RunOutcome,
    status: Status,
    summary: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
) -> tuple[Path, dict[str, str]]:
    """Write trace, report and manifest; return the run's place and what is unwritten."""
    unwritten: dict[str, str] = {}
    with _allowed_to_fail(TRACE, unwritten):
        write_trace(tables, directory.path / TRACE, loaded.scenario.record.trace_devices)
    measured = {
        "assemble_s": assembly.wall_s,
        "run_s": course.ended_s - course.began_s,
        "peak_rss_bytes": peak_rss_bytes(),
    }
    facts: dict[str, Any] = {
        "digest": course.digest,
        "stopped_by": course.reason,
        "ending": outcome.ending,
        "thresholds": [str(verdict) for verdict in outcome.verdicts],
        "unseen_thresholds": [str(threshold) for threshold in outcome.unseen],
        "measured": measured,
        "suspended_devices": np.flatnonzero(assembly.fleet.suspended).tolist(),
    }
    if assembly.privacy is not None:
        facts["privacy"] = assembly.privacy.facts()
    if summary["negatives"] is not None:
        facts["negatives"] = summary["negatives"]
    mean = assembly.rating_mean()
    if mean is not None:
        facts["rating_mean"] = mean.facts()
    with _allowed_to_fail(REPORT, unwritten):
        name, manifest = outcome.directory.name, {**tables.manifest, **facts}
        known = resolved(loaded.scenario)
        write_report(RunView(tables, name, name, summary, manifest, records, known))
    if unwritten:
        facts["unwritten"] = unwritten
    measured["write_s"] = time.perf_counter() - course.ended_s
    return directory.finish(status, **facts), unwritten


@contextmanager
def _allowed_to_fail(name: str, unwritten: dict[str, str]) -> Iterator[None]:
    """Keep the run whatever becomes of a file that can be made from its tables at any time; note why not."""
    try:
        yield
    except Exception as error:
        trouble = system_trouble(error)
        unwritten[name] = f"{type(error).__name__}: {error}" if trouble is None else trouble


def _directory(
    survival: Survival | None,
    target: Path,
    resolved: str,
    manifest: Mapping[str, Any],
    kept: Mapping[str, Path],
) -> RunDirectory:
    if survival is None:
        return RunDirectory.create(target, resolved, manifest, kept)
    return survival.directory(target, resolved, manifest)


def _writer(survival: Survival | None, directory: Path, *, record_events: bool) -> RunWriter:
    if survival is None:
        return RunWriter(directory, record_events=record_events)
    return survival.writer(directory, record_events=record_events)


def _recorder(writer: RunWriter, assembly: Assembly, *, packed: bool) -> TableRecorder:
    names = assembly.fleet.names
    return TableRecorder(writer, names) if packed else TableRecorder(writer, names, rounds_at_once=1)


def _run_baseline(calm: LoadedScenario, target: Path, observer: RunObserver) -> Verdicts:
    """Run a baseline that is not there yet; return the verdicts on what it has to hold.

    Raises
    ------
    BaselineMissedError : it does not hold.
    """
    if target.exists():
        return evaluate(calm.scenario.thresholds, TableMetricSource(open_run(target)))
    outcome = run_scenario(calm, target=target, observer=observer)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt
    if outcome.exit_code is not ExitCode.HELD:
        raise BaselineMissedError(outcome.verdicts)
    return outcome.verdicts


def _all_of(*takers: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    def take(table: str, batch: Any) -> None:
        for one in takers:
            one(table, batch)

    return take


def _why(stop: StopReason, watch: ThresholdWatch, training: Training) -> str:
    if stop is StopReason.DIVERGED and training.diverged_on is not None:
        return f"diverged: {training.diverged_on}"
    ended_by = watch.ended_by
    return str(stop) if ended_by is None else f"{stop}: {ended_by.threshold} ({ended_by.reason})"


def training_kind(scenario: ScenarioSettings) -> type[Training]:
    """Return how the model of a scenario is trained: round after round, or by a buffer."""
    if not isinstance(scenario.rounds.pacing, Buffered):
        return Training
    from coordinator.simulation.buffered_training import BufferedTraining  # noqa: PLC0415

    return BufferedTraining


def with_endings(verdicts: Verdicts, watch: ThresholdWatch | None) -> Verdicts:
    """Return the verdicts with that on which a run was ended in its place.

    What devices did afterwards may have turned it, and a promise that ended the run is not held.
    """
    ended_by = None if watch is None else watch.ended_by
    if ended_by is None:
        return verdicts
    final = replace(ended_by, reason=f"{ended_by.reason}, and ended the run")
    return tuple(final if verdict.threshold == ended_by.threshold else verdict for verdict in verdicts)


def outcome_record(loaded: LoadedScenario, outcome: RunOutcome) -> dict[str, Any]:
    """Return what ``recfleet run --json`` writes; ``thresholds`` are those of ``verdicts.json``."""
    return {
        "scenario": loaded.name,
        "title": loaded.scenario.title,
        "seed": loaded.scenario.seed,
        "scenario_hash": loaded.hash,
        "status": outcome.status,
        "stopped_by": outcome.reason,
        "ending": outcome.ending,
        "exit_code": int(outcome.exit_code),
        "directory": str(outcome.directory),
        "thresholds": verdict_records(outcome.verdicts),
        "baseline_thresholds": verdict_records(outcome.baseline_verdicts),
    }


def suites_of_run(loaded: LoadedScenario, outcome: RunOutcome) -> list[Suite]:
    """Return the test suites of a run: its baseline's, where it has one, and its own."""
    from coordinator.results.junit import Case, Suite, cases_of, wall_s_of  # noqa: PLC0415

    name = loaded.name
    suites = []
    if outcome.baseline_verdicts:
        ran = Case("run", wall_s=wall_s_of(outcome.directory / BASELINE))
        cases = cases_of(verdict_records(outcome.baseline_verdicts))
        suites.append(Suite(f"{name} baseline", name, (ran, *cases)))
    error = None if outcome.status in ENDED else f"{outcome.status}: {outcome.reason}"
    ran = Case("run", error=error, wall_s=wall_s_of(outcome.directory))
    return [*suites, Suite(name, name, (ran, *cases_of(verdict_records(outcome.verdicts))))]
