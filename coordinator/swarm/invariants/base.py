"""What an invariant is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
