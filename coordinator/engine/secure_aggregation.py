"""The coordinator's side of a round whose sum alone is revealed, by whatever protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from edge.crypto.errors import SecAggError
from edge.secagg.graph import GraphParameters
from edge.secagg.inputs import Sums
from edge.secagg.states import CoordinatorState
from edge.wire.messages import DecryptRequest, FromCoordinator


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
        """Note that ``device`` is known to be gone."""

    def deadline_passed(self, stage: CoordinatorState) -> Step:
        """End ``stage`` with the answers that are there; does nothing if it has ended before."""

    def sums(self) -> Sums:
        """Return the decoded sum; only once the state is ``DONE``."""


@runtime_checkable
class MixedAggregation(SecureAggregation, Protocol):
    """One beside which devices may report in the clear."""

    def reported(self, device: int) -> Step:
        """Note that ``device``, whose first message is awaited, reported in the clear instead."""
