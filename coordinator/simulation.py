"""What all rounds of a simulated run share: the world of :mod:`coordinator.world` in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from coordinator.actor import Coordinator
from coordinator.cohort import SimulatedCohort
from coordinator.faults.striking import FaultsOfRun
from coordinator.fleet import Fleet
from coordinator.pacing.partial_work import PartialWork
from coordinator.privacy import RunPrivacy
from coordinator.scenario.rounds_section import Retry
from coordinator.selection.experience import Experience
from coordinator.shielding import Shield
from coordinator.sums.base import SecureSums
from coordinator.witness import Witness
from coordinator.workload import TrainingKernel, Workload
from coordinator.world import CrashHandler, RunningCohort
from edge.clock import VirtualClockLoop
from edge.device.compute import ComputeQueue, Kernel
from edge.learning.updates import ClientUpdate
from edge.transport.link import SimulatedNetwork

T = TypeVar("T")
Ids = npt.NDArray[np.int64]


@dataclass(slots=True)
class Simulation:
    """What all rounds of a simulated run share."""

    seed: int
    run_id: str
    loop: VirtualClockLoop
    network: SimulatedNetwork
    fleet: Fleet
    workload: Workload
    compute: ComputeQueue
    coordinator: Coordinator
    retry: Retry
    keep_alive: bool
    faults: FaultsOfRun
    """What goes wrong on purpose."""
    secure_sums: Mapping[str, SecureSums | None]
    """How updates are summed in each phase, by its name; None: every device reports in the clear."""
    shields: Mapping[str, Shield]
    """Who reports in the clear beside a secure sum, by the name of the phase; none where nobody does."""
    privacy: RunPrivacy | None
    """What devices do to their updates before anybody sees them; None: nothing."""
    norm_bound: float | None
    """What devices clip their updates to, beside privacy; None: nothing."""
    partial_work: PartialWork | None
    """How many local steps devices take; None: all of them."""
    experience: Experience | None
    """Is told what arrives from each device; None where nobody learns from it."""
    crashed: Callable[[str, BaseException], None]
    """Told of a bug: where, and what was raised."""
    crash: CrashHandler = lambda _fault, _down_s: None
    """Lets the coordinator crash because of a fault, for so many seconds."""
    witness: Witness | None = None
    """Sees what happens, beside the run."""

    def begin(self, crash: CrashHandler) -> None:
        """Set the crashes of the coordinator that have a time of their own."""
        self.crash = crash
        for number, at_s, down_s in self.faults.crashes:
            self.loop.call_at(at_s, crash, number, down_s)

    def cohort(
        self,
        ids: Ids,
        round_number: int,
        phase: str,
        kernel: TrainingKernel,
        done: Callable[[RunningCohort], None],
    ) -> SimulatedCohort:
        """Return the cohort of a round; ``done`` is called once, when its last device has ended."""
        return SimulatedCohort(self, ids, round_number, phase, kernel, done)

    async def aside(self, measure: Callable[[], T]) -> T:
        """Return what ``measure`` does; no time passes meanwhile."""
        return measure()

    def forget(self, kernel: Kernel[ClientUpdate]) -> None:
        """Take note that nobody will ask for ``kernel`` any more."""
        self.compute.forget(kernel)


class SimulationWitness(Witness, Protocol):
    """A witness of a simulated run, given what its rounds share."""

    def begins(self, simulation: Simulation) -> None:
        """Record the simulation, before its first round."""
