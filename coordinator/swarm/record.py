"""What the probe of a run in a swarm writes down: frames, verdicts, inputs, sums and models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator.engine.rounds import RoundMachine
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.secure.secagg.server import SecAggServer
from coordinator.simulation.backend import Simulation, SimulationProbe
from edge.clock.virtual import sleep
from edge.core.vocabulary import Reason
from edge.crypto.ring import RingVector
from edge.device.simulated import SimulatedDevice
from edge.learning.base import State
from edge.learning.updates import Aggregate, Array
from edge.network.link import Delivery
from edge.wire.messages import AnyMessage, DecryptedSum, EncryptedInput, MaskedInput, Report

LONGEST_RUN_S: Final = 90 * 86400.0
"""Simulated time after which a run is held to be frozen: its waits add up to less."""
MOST_FRAMES: Final = 200_000
"""Frames after which a run is held to go round in circles."""
_INPUTS: Final = (Report, MaskedInput, EncryptedInput)


class FrozenError(RuntimeError):
    """A run that does not come to its end."""


class Input(NamedTuple):
    """A device's update as it reached the coordinator: of the round of its cohort, at ``time_s``.

    ``named_round`` is the round that the frame itself names. ``reason`` is ``NONE`` where it was accepted;
    ``report`` is None where the update cannot be read in it.
    """

    round_number: int
    named_round: int
    device: int
    time_s: float
    reason: Reason
    report: Report | None


class Summed(NamedTuple):
    """The sum of a completed round, before any noise of the coordinator.

    ``total`` is the sum in the ring and ``survivors`` are whose inputs the protocol says are in it; None for
    sums in the clear and under homomorphic encryption.
    """

    aggregate: Aggregate
    total: RingVector | None
    survivors: tuple[int, ...] | None


class Applied(NamedTuple):
    """The model before and after the sum of a round was applied."""

    round_number: int
    before: State
    after: State


@dataclass(slots=True)
class Record(SimulationProbe):
    """A probe that keeps what the invariants ask for."""

    deliveries: list[Delivery] = field(default_factory=list)
    """Every frame that was put on a link."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Of each of them: the length of the frame, and the bytes of arrays in it, as they were sent."""
    inputs: list[Input] = field(default_factory=list)
    """Every update that reached the coordinator, in their order."""
    decrypted: dict[int, list[Array]] = field(default_factory=dict)
    """The decrypted sums that the coordinator accepted, by round."""
    vectors: dict[tuple[int, int], Array] = field(default_factory=dict)
    """Each device's input to a secure sum, by round and device, as it was before it was hidden."""
    sums: dict[int, list[Summed]] = field(default_factory=dict)
    """The sums that were made, by round."""
    moves: list[Applied] = field(default_factory=list)
    """How the model moved, in order."""
    left: list[str] = field(default_factory=list)
    """What was still there, or still happened, when the run was over."""
    _simulation: Simulation | None = None
    _watchdog: asyncio.TimerHandle | None = None

    def begins(self, simulation: Simulation) -> None:
        """Set a limit to the simulated time."""
        self._simulation = simulation
        self._watchdog = simulation.loop.call_at(LONGEST_RUN_S, self._freeze, f"after {LONGEST_RUN_S:g} s")

    def _freeze(self, when: str) -> None:
        assert self._simulation is not None
        self._simulation.crashed("in the swarm", FrozenError(f"the run has not come to its end {when}"))

    def sent(self, delivery: Delivery) -> None:
        """Keep the frame."""
        self.deliveries.append(delivery)
        self.sizes.append((delivery.payload_bytes + delivery.framing_bytes, delivery.payload_bytes))
        if len(self.deliveries) == MOST_FRAMES:
            self._freeze(f"after {MOST_FRAMES} frames")

    def judged(
        self, round_number: int, device: int, message: AnyMessage, reason: Reason, now_s: float
    ) -> None:
        """Keep updates and decrypted sums."""
        if isinstance(message, _INPUTS):
            report = message if isinstance(message, Report) else None
            self.inputs.append(Input(round_number, message.round_number, device, now_s, reason, report))
        elif isinstance(message, DecryptedSum) and reason is Reason.NONE:
            self.decrypted.setdefault(round_number, []).append(message.arrays["total"])

    def encoded(self, round_number: int, device: int, vector: npt.NDArray[Any]) -> None:
        """Keep a copy of the input."""
        self.vectors[round_number, device] = vector.copy()

    def summed(
        self, round_number: int, machine: RoundMachine | SecureRoundMachine, aggregate: Aggregate
    ) -> None:
        """Keep the sum."""
        total, survivors = None, None
        if isinstance(machine, SecureRoundMachine) and isinstance(machine.aggregation, SecAggServer):
            result = machine.aggregation.result
            if result is not None:
                total, survivors = result.total.copy(), tuple(result.survivors.tolist())
        self.sums.setdefault(round_number, []).append(Summed(aggregate, total, survivors))

    def applied(self, round_number: int, before: State, after: State) -> None:
        """Keep both models; neither is ever written to."""
        self.moves.append(Applied(round_number, before, after))

    async def ends(self) -> None:
        """Note what is left over, let every timer fire, and note what happens although all is over."""
        simulation = self._simulation
        assert simulation is not None
        assert self._watchdog is not None
        self._watchdog.cancel()
        here = asyncio.current_task()
        names = sorted(
            task.get_name() for task in asyncio.all_tasks() if task is not here and not task.done()
        )
        self.left += [f"the task {name} has not ended" for name in names]
        busy = np.flatnonzero(simulation.fleet.busy).tolist()
        self.left += [f"device {device} is still busy" for device in busy]
        before = len(self.deliveries), len(self.inputs), len(self.moves)
        while (last_s := simulation.loop.last_timer_s()) > simulation.loop.now_s:
            await sleep(last_s - simulation.loop.now_s)
        after = len(self.deliveries), len(self.inputs), len(self.moves)
        for what, was, is_ in zip(
            ("frames sent", "updates received", "sums applied"), before, after, strict=True
        ):
            if is_ > was:
                self.left.append(f"{is_ - was} {what} after the end")
        self.left += [
            f"a frame of device {delivery.link.device} is still on its way"
            for delivery in self.deliveries
            if delivery.live and isinstance(delivery.link, SimulatedDevice)
        ]
