"""Devices that are invited together while training goes on, each of which ends in a step of its own."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from coordinator.cohort import SimulatedCohort, Simulation
from coordinator.workload import TrainingKernel
from edge.device.simulated import SimulatedDevice
from edge.transport.link import Delivery
from edge.vocabulary import Outcome, Reason


class Listener(Protocol):
    """Is told how the devices of a cohort fare."""

    def applied(self, cohort: BufferedCohort, slot: int) -> None:
        """Take note that the report of a device has gone into the buffer."""

    def ended(self, cohort: BufferedCohort, slot: int) -> None:
        """Take note that a device has ended its participation."""

    def cohort_done(self, cohort: SimulatedCohort) -> None:
        """Take note that all devices of a cohort have."""


class BufferedCohort(SimulatedCohort):
    """A cohort whose devices are told of one by one; see :class:`SimulatedCohort`."""

    def __init__(
        self,
        simulation: Simulation,
        ids: npt.NDArray[np.int64],
        version: int,
        phase: str,
        kernel: TrainingKernel,
        listener: Listener,
    ) -> None:
        super().__init__(simulation, ids, version, phase, kernel, listener.cohort_done)
        self._listener = listener

    def deliver(self, delivery: Delivery) -> None:
        """Hand a frame to the coordinator, and tell of a report that was taken."""
        before = len(self._applied)
        super().deliver(delivery)
        if len(self._applied) > before:
            self._listener.applied(self, self._applied[-1])

    def finished(self, device: SimulatedDevice) -> None:
        """Take note that ``device`` has ended its participation, and tell of it."""
        super().finished(device)
        slot = device.slot
        if slot in self._applied:
            # Whoever went away before its receipt does not know it, but its report counts.
            self.outcome[slot], self.stage[slot], self.reason[slot] = Outcome.COMPLETED, -1, Reason.NONE
        self._listener.ended(self, slot)

    def _foresee(self, clients: list[int]) -> None:
        """Announce nobody: who starts to compute joins the others that have the same model."""
