"""Secure sums of a run: the coordinator's side of a round, what is agreed for the run, and decoded sums.

A :class:`SecureSums` belongs to a run, or to some of its phases, and gives a :class:`RoundOfSums` for each
round, which is both ends at once: the machine of the coordinator, a :class:`SecureAggregation`, and the part
of each simulated device. They meet in frames alone; that both are here lets the oracle see the inputs.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import SumFacts
from coordinator.scenario.secure_section import StageDeadlines
from edge.crypto.entropy import Entropy
from edge.crypto.errors import SecAggError
from edge.learning.updates import Aggregate, ArraySpec
from edge.secagg.config import CountPart, RealPart, SecAggConfig
from edge.secagg.graph import GraphParameters
from edge.secagg.inputs import EXAMPLES, LOSS, Sums
from edge.secagg.participant import Participant
from edge.secagg.states import CoordinatorState
from edge.wire.messages import DecryptRequest, FromCoordinator, Model


class Step(NamedTuple):
    """What follows from an event: messages to send, each with its receiver, and why a frame was refused."""

    send: Sequence[tuple[int, FromCoordinator | DecryptRequest]]
    refused: SecAggError | None = None


class SecureAggregation(Protocol):
    """A state machine: frames, losses and deadlines go in, messages to send come out."""

    state: CoordinatorState
    """The stage whose answers are collected; ``DONE`` and ``ABORTED`` are final."""
    failure: SecAggError | None
    """What ended the round without a sum."""
    opened: bool
    """Whether the sum was seen without its masks or its encryption, whatever came of it."""
    dropped: dict[int, CoordinatorState]
    """The stage at which each device was lost, refused or too late, by id."""
    culprits: dict[int, SecAggError]
    """By id, the error by which a device was found to have broken the protocol."""

    @property
    def waiting(self) -> frozenset[int]:
        """Whose answers are awaited."""

    @property
    def parameters(self) -> GraphParameters | None:
        """Degree and threshold of the round's graph; None before they are known, and without a graph."""

    @property
    def contributors(self) -> frozenset[int]:
        """Whose inputs are in the sum; known once the collection of inputs has ended."""

    def receive(self, sender: int, message: Any) -> Step:
        """Take a frame that arrived from the device ``sender``; a refusal is in the result, never raised."""

    def lost(self, device: int) -> Step:
        """Give up ``device``, which is gone."""

    def deadline_passed(self, stage: CoordinatorState) -> Step:
        """End ``stage`` with the answers that are there; does nothing if it has ended before."""

    def sums(self) -> Sums:
        """Return the decoded sum; only once the state is ``DONE``."""


@runtime_checkable
class MixedAggregation(SecureAggregation, Protocol):
    """One beside which devices may report in the clear."""

    def reported(self, device: int) -> Step:
        """Count ``device``, whose first message is awaited, as reported in the clear instead."""


def lengths(specs: Sequence[ArraySpec]) -> Iterator[tuple[str, int]]:
    """Yield name and number of elements of each array of a dense update, from specs of one client."""
    for spec in specs:
        yield spec.name, int(spec.rows[0]) * int(np.prod(spec.row_shape, dtype=np.int64))


def arrays_of(parts: Sequence[RealPart | CountPart]) -> Iterator[RealPart]:
    """Yield the parts that hold the arrays of an update."""
    for part in parts:
        if isinstance(part, RealPart) and part.name != LOSS:
            yield part


def aggregate_of(sums: Sums, specs: Sequence[ArraySpec]) -> Aggregate:
    """Return a decoded sum as what a method's server update takes; ``specs`` are those of one client."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for spec in specs:
        shape = (int(spec.rows[0]), *spec.row_shape)
        arrays[spec.name] = sums.reals[spec.name].reshape(shape).astype(spec.dtype)
    weight = float(sums.weight)
    examples = int(sums.counts[EXAMPLES][0]) if EXAMPLES in sums.counts else 0
    loss = float(sums.reals[LOSS][0]) / examples if LOSS in sums.reals and examples > 0 else float("nan")
    return Aggregate(arrays, weight, sums.contributors, examples, loss)


def joined(first: Aggregate, second: Aggregate) -> Aggregate:
    """Return one aggregate over the clients of two, whose arrays have the same names and shapes."""
    examples = first.examples + second.examples
    losses = [part.loss * part.examples for part in (first, second) if part.examples > 0]
    return Aggregate(
        {name: array + second.sums[name] for name, array in first.sums.items()},
        first.weight + second.weight,
        first.clients + second.clients,
        examples,
        sum(losses) / examples if examples > 0 else math.nan,
    )


class RoundOfSums(abc.ABC):
    """One round: implements what the coordinator's actor and the simulated devices ask for."""

    def __init__(self, deadlines: StageDeadlines) -> None:
        self._deadlines = deadlines
        self.patience_s = 2.0 * deadlines.total_s
        """How much longer than for a report a device waits until the sum is made, seconds."""

    def deadline_s(self, stage: CoordinatorState) -> float:
        """Return how long a stage may take, seconds; of all stages but the first."""
        return self._deadlines.of(stage)

    @abc.abstractmethod
    def start(self, model: Model, invited: list[int], target: int) -> SecureAggregation:
        """Return the machine that makes the sum over those of ``invited`` that come, ``target`` at most."""

    @abc.abstractmethod
    def participant(self, device: int, model: Model) -> Participant:
        """Return the part of ``device``, which was given ``model``."""

    @abc.abstractmethod
    def arrived(self, device: int) -> None:
        """Count the input of ``device``, which the coordinator took."""

    @abc.abstractmethod
    def facts(self) -> SumFacts:
        """Return the facts of the sum, once the round is over."""


class SecureSums(abc.ABC):
    """How the updates of a run are summed."""

    input_bytes: int
    """Length of what a device sends as its input, which is also the memory it takes beside the update."""
    watch: Callable[[int, int, npt.NDArray[Any]], None] | None = None
    """Told, beside the protocol, the round, the device, and its encoded input, [L], which changes later."""

    @property
    @abc.abstractmethod
    def masked(self) -> SecAggConfig | None:
        """What is agreed for masks; None where there are none."""

    @property
    @abc.abstractmethod
    def rounding_norm(self) -> float:
        """The largest L2 norm of what rounding does to an update that weighs 1, in the update's units."""

    @abc.abstractmethod
    def round(self, round_number: int, *, devices_elsewhere: bool = False) -> RoundOfSums:
        """Return a round; with ``devices_elsewhere`` the coordinator's end only, which sees no inputs."""

    @abc.abstractmethod
    def part_of(self, device: int, model: Model, entropy: Entropy) -> Participant:
        """Return the part of a device that is by itself; ``entropy`` is where its secrets come from."""
