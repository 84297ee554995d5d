"""Devices that are invited together while training goes on, each of which ends in a step of its own."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coordinator.engine.workload import TrainingKernel
from coordinator.simulation.backend import SimulatedCohort, Simulation
from edge.core.vocabulary import Outcome, Reason
from edge.device.simulated import SimulatedDevice
from edge.network.link import Delivery


class CohortListener(Protocol):
    """Is told how the devices of a cohort fare."""

    def applied(self, cohort: BufferedCohort, slot: int) -> None:
        """Respond when the report of a device has gone into the buffer."""

    def ended(self, cohort: BufferedCohort, slot: int) -> None:
        """Respond when a device has ended its participation."""

    def cohort_done(self, cohort: SimulatedCohort) -> None:
        """Respond when all devices of a cohort have."""


class BufferedCohort(SimulatedCohort):
    """A cohort whose devices are told of one by one; see :class:`SimulatedCohort`."""

    def __init__(
        self,
        simulation: Simulation,
        ids: npt.NDArray[np.int64],
        version: int,
        phase: str,
        kernel: TrainingKernel,
        listener: CohortListener,
    ) -> None:
        super().__init__(simulation, ids, version, phase, kernel, listener.cohort_done)
        self._listener = listener
        self._unjudged: Counter[int] = Counter()
        """Frames of each slot that have arrived and that the coordinator has not judged yet."""
        self._ended: set[int] = set()
        """Slots of devices that have ended while a frame of theirs was not judged yet."""

    def deliver(self, delivery: Delivery) -> None:
        """Hand a frame to the coordinator, which may take its time to judge it."""
        self._unjudged[delivery.link.slot] += 1
        super().deliver(delivery)

    def _handle(self, device: SimulatedDevice, delivery: Delivery) -> None:
        """Let the coordinator judge a frame, and tell of a report that was taken.

        A device can end before that is known, for example because its receipt cannot be sent: of its end is
        told after that, and after its last record.
        """
        self._open += 1
        slot = device.slot
        before = len(self._applied)
        super()._handle(device, delivery)
        if len(self._applied) > before:
            self._listener.applied(self, slot)
        self._unjudged[slot] -= 1
        if slot in self._ended and not self._unjudged[slot]:
            self._ended.discard(slot)
            self._tell_of_end(slot)
        self._closed_one()

    def finished(self, device: SimulatedDevice) -> None:
        """Respond when ``device`` has ended its participation, and pass that on."""
        self._open += 1
        super().finished(device)
        if self._unjudged[device.slot]:
            self._ended.add(device.slot)
        else:
            self._tell_of_end(device.slot)
        self._closed_one()

    def _tell_of_end(self, slot: int) -> None:
        if slot in self._applied:
            # Whoever went away before its receipt does not know it, but its report counts.
            self.outcome[slot], self.stage[slot], self.reason[slot] = Outcome.COMPLETED, -1, Reason.NONE
        self._listener.ended(self, slot)

    def _foresee(self, clients: list[int]) -> None:
        """Announce nobody: who starts to compute joins the others that have the same model."""
