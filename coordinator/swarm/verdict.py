"""What a swarm finds out about one scenario."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from coordinator.scenario.errors import ScenarioError
from coordinator.swarm.coverage import Coverage, coverage_of
from coordinator.swarm.generator import Document, document, text_of
from coordinator.swarm.invariants.base import Violation
from coordinator.swarm.invariants.registry import REPLAYS, violations_of
from coordinator.swarm.trial import run_trial
from edge.core.draws import Draws

VALID: Final = "valid"
"""The name of the invariant that the loader takes what the generator makes."""
_REPEATED: Final = 1 / 8
"""Share of the scenarios that are run twice in the same process; as many are in another process."""
_OTHER_BATCH: Final = 3
"""Devices that compute together when a run is repeated; no result may depend on it."""


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
        again = run_trial(text, name, batch=_OTHER_BATCH).digest()
        if again != digest:
            message = (
                f"the digest is {digest}, and {again} when the run is repeated in batches of {_OTHER_BATCH}"
            )
            violations.append(Violation(REPLAYS, message))
    took_s = time.perf_counter() - start_s
    return Verdict(index, tuple(violations), digest, coverage_of(trial), took_s, elsewhere)


def digest_of(text: str) -> str:
    """Return the digest of a run of a scenario; empty for one that is not valid."""
    try:
        return run_trial(text, "swarm").digest()
    except ScenarioError:
        return ""


def fails_alike(invariant: str, made: Document) -> bool:
    """Return whether an invariant fails in a scenario, seen from this process alone."""
    return any(one.invariant == invariant for one in judge_text(text_of(made)).violations)
