"""All invariants, by name, and what a violation of one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from coordinator.scenario.rounds_section import Buffered
from coordinator.swarm.invariants.bounds import bounded_updates
from coordinator.swarm.invariants.conservation import conserved_bytes, exact_frames
from coordinator.swarm.invariants.figures import consistent_figures, spent_privacy
from coordinator.swarm.invariants.recovery import recovers
from coordinator.swarm.invariants.rounds import (
    applied_once,
    comes_to_an_end,
    honest_receipts,
    one_round_at_a_time,
    timely_rounds,
)
from coordinator.swarm.invariants.steps import one_move
from coordinator.swarm.invariants.sums import exact_sums
from coordinator.swarm.trial import Trial


@dataclass(frozen=True, slots=True)
class Invariant:
    """A check with its name.

    ``after_errors`` says whether a run that an error ended is checked, too; ``of_rounds`` that the check is
    about rounds, which buffered pacing does not have.
    """

    name: str
    check: Callable[[Trial], Iterator[str]]
    after_errors: bool = False
    of_rounds: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    """That an invariant does not hold of a run, with the first of the sentences that say so."""

    invariant: str
    message: str


ENDS: Final = "ends"
"""The name of the invariant that a run comes to an end, and its process outlives it."""
INVARIANTS: Final = (
    Invariant(ENDS, comes_to_an_end, after_errors=True),
    Invariant("exact-sums", exact_sums, of_rounds=True),
    Invariant("one-move", one_move, of_rounds=True),
    Invariant("bounded-updates", bounded_updates),
    Invariant("conserved-bytes", conserved_bytes),
    Invariant("exact-frames", exact_frames),
    Invariant("applied-once", applied_once, of_rounds=True),
    Invariant("honest-receipts", honest_receipts, of_rounds=True),
    Invariant("one-round-at-a-time", one_round_at_a_time, of_rounds=True),
    Invariant("timely-rounds", timely_rounds, of_rounds=True),
    Invariant("recovers", recovers, of_rounds=True),
    Invariant("consistent-figures", consistent_figures),
    Invariant("spent-privacy", spent_privacy),
)
"""Those that one run shows; that it can be replayed takes two, see :mod:`coordinator.swarm.verdict`."""
REPLAYS: Final = "replays"
"""The name of the invariant that a run is the same when it is repeated."""


def violations_of(trial: Trial) -> list[Violation]:
    """Return the invariants that do not hold of a run, each with the first thing that is wrong."""
    found = []
    buffered = isinstance(trial.loaded.scenario.rounds.pacing, Buffered)
    for invariant in INVARIANTS:
        if buffered and invariant.of_rounds:
            continue
        if trial.error is not None and not invariant.after_errors:
            continue
        message = next(iter(invariant.check(trial)), None)
        if message is not None:
            found.append(Violation(invariant.name, message))
    return found
