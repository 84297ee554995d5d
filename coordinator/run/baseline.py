"""The run without faults that thresholds compare with: ``baseline: same-seed-without-faults``.

It is an ordinary run of the same scenario and seed, inside the directory of the run it serves. Since equal
scenarios give equal runs, one that lies there already is taken as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.engine.host import host_facts
from coordinator.engine.run_files import BASELINE, ENDED, PARTIAL_SUFFIX
from coordinator.results.tables.reader import RunFormatError, open_run
from coordinator.results.verdicts import read_verdicts
from coordinator.scenario import thresholds
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.threshold_evaluation import ThresholdResult
from edge.core.errors import RecfleetError


class BaselineMissedError(RecfleetError):
    """The run without faults did not hold its own thresholds; ``verdicts`` says which."""

    def __init__(self, verdicts: tuple[ThresholdResult, ...]) -> None:
        self.verdicts = verdicts
        missed = [
            f"{verdict.threshold} ({verdict.reason})" if verdict.implicit else str(verdict.threshold)
            for verdict in verdicts
            if not verdict.held
        ]
        super().__init__(
            f"the baseline, without faults, missed {'; '.join(missed)}; nothing can be compared with it. "
            "Loosen these thresholds, or mend the scenario until they hold without faults"
        )


def own_thresholds(scenario: ScenarioSettings) -> tuple[thresholds.Threshold, ...]:
    """Return the thresholds that the baseline of a scenario has to hold.

    They are those that do not compare with it and are not about a phase that a fault is aimed at.
    """
    struck = {phase for fault in scenario.faults for phase in fault.during or ()}
    return tuple(
        threshold
        for threshold in scenario.thresholds
        if threshold.limit.relative_to != thresholds.BASELINE
        and dict(threshold.tags).get("phase") not in struck
    )


def baseline_of(loaded: LoadedScenario) -> LoadedScenario:
    """Return the scenario without its faults, with the thresholds that it has to hold.

    The exposure of an item that a fault promotes is measured without the fault, too.
    """
    scenario = loaded.scenario
    evaluation = scenario.evaluation.model_copy(update={"exposure": scenario.exposure})
    calm = scenario.model_copy(
        update={
            "faults": (),
            "baseline": None,
            "thresholds": own_thresholds(scenario),
            "expect": None,
            "evaluation": evaluation,
        }
    )
    return replace(loaded, scenario=calm, name=f"{loaded.name} baseline")


def is_run_of(directory: Path, loaded: LoadedScenario, data_facts: Mapping[str, Any]) -> bool:
    """Return whether a finished run of a scenario lies in a directory: same settings, data and version.

    ``data_facts`` is what the assembly of a run says of its data.
    """
    try:
        run = open_run(directory)
        run.read("rounds", ["round"])
        read_verdicts(directory)
    except RunFormatError:
        return False
    manifest = run.manifest
    # By way of JSON, as those of the manifest: a tuple is a list there.
    facts = json.loads(json.dumps(data_facts))
    return (
        manifest.get("status") in ENDED
        and manifest.get("scenario_hash") == loaded.hash
        and manifest.get("data") == facts
        and manifest.get("host", {}).get("recfleet") == host_facts()["recfleet"]
    )


def earlier_baseline(target: Path, calm: LoadedScenario, data_facts: Mapping[str, Any]) -> Path | None:
    """Return the baseline that an earlier run at ``target`` has left, finished or not, if it will do."""
    for run in (target, target.with_name(target.name + PARTIAL_SUFFIX)):
        found = run / BASELINE
        if is_run_of(found, calm, data_facts) and all(record["held"] for record in read_verdicts(found)):
            return found
    return None
