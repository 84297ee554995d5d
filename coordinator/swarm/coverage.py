"""What a swarm has covered: counts by section, row and column, added up over scenarios."""

from __future__ import annotations

from collections import Counter
from typing import Final

from coordinator.scenario.learning_section import method_name
from coordinator.swarm.trial import Trial
from coordinator.swarm.views import rows
from edge.core.vocabulary import RoundOutcome, label

Coverage = Counter[tuple[str, str, str]]
"""How often, by section, row and column."""

MODES: Final = "rounds, by how updates were summed"
KINDS: Final = "device rounds struck, by kind of fault and outcome"
STAGES: Final = "device rounds, by the stage at which they ended and outcome"
PARTS: Final = "scenarios, by what is in them"


def coverage_of(trial: Trial) -> Coverage:
    """Return what one run has covered."""
    found: Coverage = Counter()
    scenario = trial.loaded.scenario
    for row in rows(trial.tables, "rounds", "phase", "outcome", "reason"):
        section = scenario.secure_in(row["phase"])
        crypto = getattr(section, "crypto", "real")
        mode = section.mode + ("" if crypto == "real" else ", modelled")
        completed = row["outcome"] == label(RoundOutcome.COMPLETED)
        found[MODES, mode, "completed" if completed else f"abandoned: {row['reason']}"] += 1
    outcome_of = {}
    for row in rows(trial.tables, "device_rounds", "round", "device", "stage", "outcome"):
        outcome_of[row["round"], row["device"]] = row["outcome"]
        found[STAGES, row["stage"] or "(completed)", row["outcome"]] += 1
    struck = {
        (row["kind"], row["round"], row["device"])
        for row in rows(trial.tables, "faults", "kind", "round", "device")
    }
    for kind, number, device in struck:
        found[KINDS, kind, outcome_of.get((number, device), "(coordinator)")] += 1
    fleet = scenario.fleet
    privacy = "none" if scenario.privacy is None else scenario.privacy.mechanism
    base = getattr(scenario.learning, "base", None)
    wrapped = "" if base is None else f" over {method_name(base)}"
    found[PARTS, "learning", method_name(scenario.learning) + wrapped] += 1
    bound = "" if scenario.aggregation.norm_bound is None else ", bounded"
    found[PARTS, "aggregation", scenario.aggregation.rule + bound] += 1
    found[
        PARTS, "availability", str(fleet.availability or (f"of {fleet.mix}" if fleet.mix else "always"))
    ] += 1
    found[PARTS, "fleet", fleet.mix or "written out"] += 1
    found[PARTS, "selection", scenario.rounds.selection.name] += 1
    found[PARTS, "pacing", scenario.rounds.pacing.mode] += 1
    found[PARTS, "privacy", privacy] += 1
    found[PARTS, "phases", "in rounds" if scenario.phases and scenario.phases[0].rounds else "in time"] += 1
    found[PARTS, "ended", "with an error" if trial.stop is None else str(trial.stop)] += 1
    found[PARTS, "faults", str(len(scenario.faults))] += 1
    return found
