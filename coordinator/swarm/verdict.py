"""The verdict on one random scenario: what does not hold of its run, and what it covered."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.registered_sections import method_name
from coordinator.swarm.generator import Document, document, text_of
from coordinator.swarm.invariants.registry import REPLAYS, Violation, violations_of
from coordinator.swarm.trial import Trial, rows, run_trial
from edge.core.rng import Draws
from edge.core.vocabulary import RoundOutcome, label

Coverage = Counter[tuple[str, str, str]]
"""How often, by section, row and column."""
MODES: Final = "rounds, by how updates were summed"
KINDS: Final = "device rounds struck, by kind of fault and outcome"
STAGES: Final = "device rounds, by the stage at which they ended and outcome"
PARTS: Final = "scenarios, by what is in them"
VALID: Final = "valid"
"""The name of the invariant that the loader takes what the generator makes."""
_REPEATED: Final = 1 / 8
"""Share of the scenarios that are run twice in the same process; as many are in another process."""
_OTHER_BATCH: Final = 3
"""Devices that compute together when a run is repeated; no result may depend on it.

Nor on whether devices act one by one, as they do where every frame is watched, or in waves, as they do in a
repeated run.
"""


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one scenario: what does not hold, the digest of its run, what it covered, and how long it took.

    ``elsewhere`` says that the digest shall be compared with that of a run in another process.
    """

    index: int
    violations: tuple[Violation, ...]
    digest: str
    coverage: Coverage
    wall_s: float
    elsewhere: bool = False


def judge(seed: int, index: int, *, thorough: bool = False) -> Verdict:
    """Run scenario ``index`` of the swarm under ``seed`` and say what does not hold of it.

    ``thorough`` repeats the run whether or not it is among those that are.
    """
    draws = Draws(seed, index, "repeat")
    twice = draws.chance(_REPEATED) or thorough
    elsewhere = draws.chance(_REPEATED) or thorough
    return judge_text(text_of(document(seed, index)), index, twice=twice, elsewhere=elsewhere)


def judge_text(text: str, index: int = 0, *, twice: bool = True, elsewhere: bool = False) -> Verdict:
    """Run a scenario and say what does not hold of it; see :func:`judge`."""
    start_s = time.perf_counter()
    name = f"swarm-{index}"
    try:
        trial = run_trial(text, name)
    except ScenarioError as error:
        message = str(error).partition("\n")[0]
        took_s = time.perf_counter() - start_s
        return Verdict(index, (Violation(VALID, message),), "", Coverage(), took_s)
    violations = violations_of(trial)
    digest = trial.digest()
    if twice and trial.error is None:
        again = run_trial(text, name, batch=_OTHER_BATCH, watched=False).digest()
        if again != digest:
            message = (
                f"the digest is {digest}, and {again} when the run is repeated in batches of {_OTHER_BATCH}, "
                "in waves"
            )
            violations.append(Violation(REPLAYS, message))
    took_s = time.perf_counter() - start_s
    return Verdict(index, tuple(violations), digest, coverage_of(trial), took_s, elsewhere)


def digest_of(text: str) -> str:
    """Return the digest of a run of a scenario; empty for one that is not valid."""
    try:
        return run_trial(text, "swarm", watched=False).digest()
    except ScenarioError:
        return ""


def fails_alike(invariant: str, made: Document) -> bool:
    """Return whether an invariant fails in a scenario, seen from this process alone."""
    return any(one.invariant == invariant for one in judge_text(text_of(made)).violations)
