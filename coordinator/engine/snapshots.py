"""What of a training outlives the process of its coordinator.

A :class:`SnapshotStore` is given every step that must not be lost; it is safe when the method returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy.typing as npt

from coordinator.engine.backend import RunningCohort
from coordinator.engine.finished_round import FinishedRound
from coordinator.engine.fleet import Fleet
from coordinator.engine.invitations import Invitations
from coordinator.engine.mean_query import MeanQuery
from edge.core.vocabulary import RoundKind
from edge.learning.base import OptimizerState, State

if TYPE_CHECKING:
    from coordinator.engine.privacy import RunPrivacy

Memory = Mapping[str, npt.NDArray[Any]]
"""What the coordinator has learnt and spent, as arrays by name."""


class SnapshotStore(Protocol):
    """Keeps what a training must not lose."""

    def started(self, state: State, optimizer_state: OptimizerState, memory: Memory) -> None:
        """Keep where training begins, or goes on."""

    def began(self, cohort: RunningCohort, phase: str, start_s: float, memory: Memory) -> None:
        """Keep that a round begins: its number is not used again, whatever happens."""

    def over(
        self, over: FinishedRound, state: State, optimizer_state: OptimizerState, applied: int, memory: Memory
    ) -> None:
        """Keep how a round went and the model after it, in one step: it is applied from now on."""

    def written(self, number: int, memory: Memory) -> None:
        """Keep the rows of a round, of whatever kind, whose devices are all done."""

    def measuring(self, memory: Memory) -> None:
        """Keep what is spent at most while devices report sums, or what was learnt from these."""

    def measured(self, over: FinishedRound, memory: Memory) -> None:
        """Keep how a round in which devices report sums went, and what has been spent in it."""

    def looked_back(self, number: int, stop: str | None) -> None:
        """Keep what was measured after a round (0: before the first), and why training ends, if it does."""


class LostRound(NamedTuple):
    """A round that the end of a process has cut short.

    Attributes
    ----------
    phase, kind : the phase of the scenario that it belongs to, and what devices were asked for.
    over : whether it was over for the coordinator, and what had come by then is in its memory.
    unknown : the devices of which it is not known whether their update was seen.
    """

    phase: str
    kind: RoundKind
    over: bool
    unknown: frozenset[int]


@dataclass(frozen=True, slots=True)
class Recalled:
    """Where an earlier process has come to.

    Attributes
    ----------
    state, optimizer_state, applied : the model, and how many rounds have been applied to it.
    rounds_run : the last round that was begun.
    looked_back : the last round that the model was measured after, if it was to be; None: not even before
        the first.
    evaluated_at : the last round after which the model was evaluated; −1 for none.
    stop : why training has ended, if it has.
    memory : what was learnt and spent.
    lost : the rounds that were under way, or over but not for all of their devices.
    """

    state: State
    optimizer_state: OptimizerState
    applied: int
    rounds_run: int
    looked_back: int | None
    evaluated_at: int
    stop: str | None
    memory: Memory
    lost: tuple[LostRound, ...]


class CoordinatorMemory:
    """What the coordinator has learnt and spent, beside the model.

    Parameters
    ----------
    fleet, invitations, privacy, query : those that learn and spend.
    """

    def __init__(
        self, fleet: Fleet, invitations: Invitations, privacy: RunPrivacy | None, query: MeanQuery | None
    ) -> None:
        self._parts: dict[str, _Remembers] = {"fleet": fleet, "invitations": invitations}
        if privacy is not None:
            self._parts["privacy"] = privacy
        if query is not None:
            self._parts["mean query"] = query

    def arrays(self) -> Memory:
        """Return all of it."""
        memory: dict[str, npt.NDArray[Any]] = {}
        for name, part in self._parts.items():
            memory |= as_part(name, part.memory())
        return memory

    def recall(self, memory: Memory) -> None:
        """Go on with what :meth:`arrays` returned."""
        for name, part in self._parts.items():
            part.recall(of_part(memory, name))


class _Remembers(Protocol):
    def memory(self) -> Memory: ...

    def recall(self, memory: Memory) -> None: ...


def of_part(memory: Memory, part: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of one part of a memory, by their names there."""
    prefix = f"{part}/"
    return {name.removeprefix(prefix): array for name, array in memory.items() if name.startswith(prefix)}


def as_part(part: str, arrays: Memory) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of one part under names that no other part has."""
    return {f"{part}/{name}": array for name, array in arrays.items()}
