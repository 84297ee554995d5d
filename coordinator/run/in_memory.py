"""A run of which nothing is kept but its verdicts: simulated, with its tables in memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from coordinator.engine.progress import RunObserver
from coordinator.results.learnt import judge_learning
from coordinator.results.tables.metric_source import TableMetricSource
from coordinator.results.tables.writer import TableRecorder, TablesInMemory
from coordinator.results.threshold_watch import ThresholdWatch
from coordinator.run.assembling import assemble
from coordinator.run.baseline import baseline_of
from coordinator.run.conductor import Verdicts
from coordinator.run.runner import training_kind, with_endings
from coordinator.run.virtual_time import VirtualTime
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.threshold_evaluation import evaluate, exit_code


@dataclass(frozen=True, slots=True)
class Judged:
    """What a run has come to.

    Attributes
    ----------
    verdicts : as :class:`~coordinator.run.runner.RunOutcome` has them; those of the baseline where it missed
        its own thresholds.
    tables : of the run; of the baseline likewise.
    """

    verdicts: Verdicts
    tables: TablesInMemory

    @property
    def held(self) -> bool:
        """Whether every promise was kept."""
        return exit_code(self.verdicts) is ExitCode.HELD


def judge_in_memory(loaded: LoadedScenario, baseline: Judged | None) -> Judged:
    """Run a scenario and return its verdicts: those of ``recfleet run``.

    Parameters
    ----------
    loaded : the scenario.
    baseline : the run without faults that its thresholds compare with; None where it has none.

    Raises
    ------
    DataError, ScenarioError : the data does not suit the scenario.
    """
    if baseline is not None and not baseline.held:
        return baseline
    scenario, conduct = loaded.scenario, VirtualTime()
    compared = None if baseline is None else TableMetricSource(baseline.tables)
    assembly = assemble(loaded)
    if assembly.privacy is not None:
        assembly.privacy.draw_from(conduct.secrets)
    tables = TablesInMemory(record_events=False)
    # A coordinator that may crash leaves a checkpoint.
    with (
        tempfile.TemporaryDirectory(prefix="recfleet-run-") as folder,
        TableRecorder(tables, assembly.fleet.names) as recorder,
    ):
        watch = ThresholdWatch(scenario.thresholds, compared)
        if watch:
            tables.watch = watch.take
        training = training_kind(scenario)(
            scenario, assembly, recorder, RunObserver(), watch, Path(folder), conduct.secrets
        )
        stop = conduct(loaded, assembly, training)
        recorder.flush()
    learnt = judge_learning(scenario, tables, stop)
    promised = with_endings(evaluate(scenario.thresholds, TableMetricSource(tables), compared), watch)
    return Judged(promised if learnt.verdict is None else (learnt.verdict, *promised), tables)


def judge_baseline(loaded: LoadedScenario) -> Judged | None:
    """Run the baseline of a scenario; None where it has none."""
    return None if loaded.scenario.baseline is None else judge_in_memory(baseline_of(loaded), None)
