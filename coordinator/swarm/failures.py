"""A failing scenario as a file that reproduces the failure, as small as it gets."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from coordinator.engine.run_files import write_atomically
from coordinator.scenario.load import load
from coordinator.swarm.generator import Document, document, text_of
from coordinator.swarm.invariants.registry import REPLAYS, Violation
from coordinator.swarm.minimise import Fails, minimise
from coordinator.swarm.verdict import VALID, fails_alike, judge_text
from coordinator.swarm.workers import Digests
from edge.core import plugins


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
        return f"recfleet swarm{plugin_options()} --replay {shlex.quote(str(self.path))}"


def plugin_options() -> str:
    """Return the options that load the plug-ins of this process again."""
    return "".join(f" --plugin {shlex.quote(one)}" for one in plugins.loaded())


def replay_command(seed: int, index: int) -> str:
    """Return what runs a scenario of a swarm again, as it was."""
    return f"recfleet swarm{plugin_options()} --seed {seed} --only {index}"


def keep(seed: int, index: int, violation: Violation, folder: Path, digests: Digests, *, small: bool) -> Kept:
    """Write the scenario in which an invariant fails, and return where.

    Parameters
    ----------
    seed, index : which scenario of which swarm.
    violation : what fails in it.
    folder : where the file goes; made if there is none.
    digests : of other processes, for runs that differ between processes.
    small : whether to look for the smallest scenario in which it fails.
    """
    made = document(seed, index)
    fails = _fails(violation.invariant, digests)
    # One that is not valid has no run; and what fails but sometimes cannot be made small.
    minimised = small and violation.invariant != VALID and fails(made)
    if minimised:
        made = minimise(made, fails)
        found = (*judge_text(text_of(made)).violations, *_unlike_each_other(text_of(made), digests))
        violation = next((one for one in found if one.invariant == violation.invariant), violation)
    path = folder / f"{seed}-{index}-{violation.invariant}.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    head = f"# Scenario {index} of the swarm with seed {seed}; {violation.invariant} does not hold:\n"
    what = f"# {' '.join(violation.message.split())}\n"
    write_atomically(path, (head + what + text_of(made)).encode())
    return Kept(index, violation, path, minimised)


def _fails(invariant: str, digests: Digests) -> Fails:
    if invariant != REPLAYS:
        return lambda made: fails_alike(invariant, made)

    def differs(made: Document) -> bool:
        text = text_of(made)
        found = {one.invariant for one in judge_text(text).violations}
        # One that is not valid has no run that could differ.
        return REPLAYS in found or (VALID not in found and bool(_unlike_each_other(text, digests)))

    return differs


def _unlike_each_other(text: str, digests: Digests) -> tuple[Violation, ...]:
    """Return the violation that a run differs between processes, if it does.

    This process is none of them: the seed of its hashes is another every time, those of workers never are.
    """
    found = sorted(set(digests(text)))
    if len(found) == 1:
        return ()
    message = f"the digests are {', '.join(found)} in processes with other PYTHONHASHSEEDs"
    return (Violation(REPLAYS, message),)


def judge_file(path: Path, digests: Digests) -> tuple[Violation, ...]:
    """Run the scenario in a file, here twice and in other processes; return what does not hold of it.

    Raises
    ------
    ScenarioError : the file cannot be read, or holds no valid scenario.
    """
    text = load(path).resolved
    found = judge_text(text).violations
    if any(one.invariant == REPLAYS for one in found):
        return found
    return (*found, *_unlike_each_other(text, digests))
