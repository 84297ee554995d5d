"""What the devices of one simulated round share, and what the round will be like for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from edge.clock import VirtualClockLoop
from edge.device.compute import ComputeQueue, Kernel
from edge.device.crypto_costs import CryptoCosts
from edge.device.round_faults import RoundFaults
from edge.learning.updates import Array, ClientUpdate
from edge.messages import Model
from edge.secagg.participant import Participant
from edge.transport.cohort import CohortLinks
from edge.transport.link import Conditions, Delivery, SimulatedNetwork
from edge.vocabulary import Reason

if TYPE_CHECKING:
    from edge.device.simulated import SimulatedDevice
    from edge.device.working_device import WorkingDevice


@dataclass(slots=True)
class CohortPlan:
    """What a round will be like for each invited device, by slot; lists where devices look things up."""

    reachable: npt.NDArray[np.bool_]
    """Whether it is available when it is invited, an array."""
    failed_connects: npt.NDArray[np.int64]
    """Attempts to connect that fail before one succeeds, an array."""
    computes: npt.NDArray[np.bool_]
    """Whether it gets as far as a finished computation, if it is reached and in time; an array."""
    obstacle: list[Reason]
    """What makes it decline, or ``NONE``."""
    shortage: list[Reason]
    """What makes the computation fail (``MEMORY``, ``NO_DATA``), or ``NONE``."""
    compute_s: list[float]
    """How long the computation takes, simulated seconds."""
    drop_stage: list[int]
    """Stage in which it vanishes by chance, −1 for never."""
    drop_fraction: list[float]
    """How far into that stage, 0…1."""
    leaves_s: list[float]
    """When its availability ends, absolute seconds; ``inf`` for never."""
    bare: list[bool]
    """Whether it lacks what never changes and is sent only once."""
    crypto: list[CryptoCosts]
    """What cryptography costs it; empty where updates are reported in the clear."""
    shielded: list[bool]
    """Whether it reports in the clear while others sum securely; empty where all have the same way."""


class SumOfRound(Protocol):
    """How the devices of a round have their updates summed so that only the sum is seen."""

    patience_s: float
    """How much longer than for a report a device waits until the sum is made, seconds."""

    def participant(self, device: int, model: Model) -> Participant:
        """Return the part of ``device``, which was given ``model``."""


class RoundServices(Protocol):
    """What the devices of one round share."""

    loop: VirtualClockLoop
    network: SimulatedNetwork
    links: CohortLinks
    conditions: Conditions
    compute: ComputeQueue
    kernel: Kernel[ClientUpdate]
    plan: CohortPlan
    faults: RoundFaults | None
    """What goes wrong on purpose; None where nothing does."""

    @property
    def protect(self) -> Callable[[WorkingDevice, ClientUpdate], ClientUpdate | Reason] | None:
        """Makes of a device's update what may be seen of it; None where everything may.

        Gives the reason instead when the update cannot be protected (it is not finite).
        """

    @property
    def keep(self) -> Callable[[int, Array], None] | None:
        """Puts what a device, by its id, keeps between rounds into its storage; None: none keeps anything."""

    @property
    def secure_sum(self) -> SumOfRound | None:
        """How the updates of the round are summed, but for those of shielded devices; None: not securely."""

    def answers(self, device: int) -> None:
        """Note in the device's own memory that it answers the round: it accepts, from now on but once."""

    def record(self, packed: bytes) -> None:
        """Add a packed record to the round's log."""

    def deliver(self, delivery: Delivery) -> None:
        """Hand a frame to the coordinator."""

    def finished(self, device: SimulatedDevice) -> None:
        """Take note that ``device`` has ended its participation."""

    def crashed(self, device: SimulatedDevice, error: Exception) -> None:
        """Take note of a bug in the actor."""
