"""How a run ended, for machines: as JSON and as JUnit test suites."""

from __future__ import annotations

from typing import Any

from coordinator.engine.run_files import ENDED
from coordinator.results.junit import Case, Suite, cases_of
from coordinator.results.verdicts import verdict_records
from coordinator.run.runner import RunOutcome
from coordinator.scenario.load import LoadedScenario


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
    name = loaded.name
    suites = []
    if outcome.baseline_verdicts:
        suites.append(Suite(f"{name} baseline", name, cases_of(verdict_records(outcome.baseline_verdicts))))
    cases = cases_of(verdict_records(outcome.verdicts))
    if outcome.status not in ENDED:
        cases = (*cases, Case("run", error=f"{outcome.status}: {outcome.reason}"))
    return [*suites, Suite(name, name, cases)]
