"""A failing scenario as a file that reproduces the failure, as small as it gets."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from coordinator.run_directory import write_atomically
from coordinator.scenario.load import load
from coordinator.swarm.generator import Document, document, text_of
from coordinator.swarm.invariants.base import Violation
from coordinator.swarm.invariants.registry import REPLAYS
from coordinator.swarm.minimise import Fails, minimise
from coordinator.swarm.verdict import VALID, digests_of, fails_alike, judge_text
from coordinator.swarm.workers import Digest, Worker


@dataclass(frozen=True, slots=True)
class Kept:
    """A failure that was kept: which, where its scenario lies, and whether that is the smallest found."""

    index: int
    violation: Violation
    path: Path
    minimised: bool

    @property
    def command(self) -> str:
        """What reproduces it."""
        return f"recfleet swarm --replay {shlex.quote(str(self.path))}"


def replay_command(seed: int, index: int) -> str:
    """Return what runs a scenario of a swarm again, as it was."""
    return f"recfleet swarm --seed {seed} --only {index}"


def keep(seed: int, index: int, violation: Violation, folder: Path, worker: Worker, *, small: bool) -> Kept:
    """Write the scenario in which an invariant fails, and return where.

    Parameters
    ----------
    seed, index : which scenario of which swarm.
    violation : what fails in it.
    folder : where the file goes; made if there is none.
    worker : another process, for runs that differ between processes.
    small : whether to look for the smallest scenario in which it fails.
    """
    made = document(seed, index)
    fails = _fails(violation.invariant, worker)
    # One that is not valid has no run; and what fails but sometimes cannot be made small.
    minimised = small and violation.invariant != VALID and fails(made)
    if minimised:
        made = minimise(made, fails)
        violation = _as_found(made, violation)
    path = folder / f"{seed}-{index}-{violation.invariant}.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    head = f"# Scenario {index} of the swarm with seed {seed}; {violation.invariant} does not hold:\n"
    what = f"# {' '.join(violation.message.split())}\n"
    write_atomically(path, (head + what + text_of(made)).encode())
    return Kept(index, violation, path, minimised)


def _as_found(made: Document, violation: Violation) -> Violation:
    found = judge_text(text_of(made)).violations
    return next((one for one in found if one.invariant == violation.invariant), violation)


def _fails(invariant: str, worker: Worker) -> Fails:
    if invariant != REPLAYS:
        return lambda made: fails_alike(invariant, made)

    def differs(made: Document) -> bool:
        text = text_of(made)
        worker.ask(Digest(text))
        here = digests_of(text)
        return here != {worker.answer()}

    return differs


def judge_file(path: Path, worker: Worker) -> tuple[Violation, ...]:
    """Run the scenario in a file, here twice and once in another process; return what does not hold of it.

    Raises
    ------
    ScenarioError : the file cannot be read, or holds no valid scenario.
    """
    text = load(path).resolved
    worker.ask(Digest(text))
    verdict = judge_text(text)
    elsewhere = worker.answer()
    found = verdict.violations
    if elsewhere != verdict.digest and all(one.invariant != REPLAYS for one in found):
        message = f"the digest is {verdict.digest}, and {elsewhere} in a process with another PYTHONHASHSEED"
        return (*found, Violation(REPLAYS, message))
    return found
