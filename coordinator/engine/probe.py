"""A probe of a run: sees what passes between devices and coordinator, beside the run.

For checks that must not rest on what the run writes about itself. Nothing that a probe does may change the
run; a deployment has none.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from coordinator.engine.rounds import RoundMachine
from coordinator.engine.secure_rounds import SecureRoundMachine
from edge.core.vocabulary import Reason
from edge.learning.base import State
from edge.learning.updates import Aggregate
from edge.network.link import Delivery
from edge.wire.message_kinds import AnyMessage


class Probe(Protocol):
    """Is told of a run what it cannot read in the tables."""

    def invited(self, round_number: int, devices: list[int], frame_bytes: int, now_s: float) -> None:
        """Handle an invitation of ``frame_bytes`` and whom it reaches; most do not come through `sent`."""

    def sent(self, delivery: Delivery) -> None:
        """Handle a frame that was put on a link."""

    def judged(
        self, round_number: int, device: int, message: AnyMessage, reason: Reason, now_s: float
    ) -> None:
        """Handle what the coordinator made of a frame from a device of a round; ``NONE``: it counts."""

    def encoded(self, round_number: int, device: int, vector: npt.NDArray[Any]) -> None:
        """Handle a device's input to a secure sum before it is hidden, [L]; it changes afterwards."""

    def summed(
        self, round_number: int, machine: RoundMachine | SecureRoundMachine, aggregate: Aggregate
    ) -> None:
        """Handle the sum of a completed round, before the coordinator adds noise."""

    def applied(self, round_number: int, before: State, after: State) -> None:
        """Handle the model before and after a sum was applied."""

    async def ends(self) -> None:
        """Look at what is left when the last round is over."""
