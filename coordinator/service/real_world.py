"""The world of a run on the real clock: devices that have joined over sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from coordinator.actor import Coordinator
from coordinator.assembly import Assembly
from coordinator.selection.experience import Experience
from coordinator.service.device_session import DeviceSession, Transfer
from coordinator.service.hooks import ServiceObserver
from coordinator.service.session_cohort import FRAMES_OF_ROUND, SessionCohort
from coordinator.service.sessions import Sessions
from coordinator.shielding import Shield
from coordinator.sums.base import SecureSums
from coordinator.witness import Witness
from coordinator.workload import TrainingKernel
from coordinator.world import CrashHandler, RunningCohort
from edge.codec import CodecLimits, decode
from edge.device.compute import Kernel
from edge.errors import CodecError
from edge.learning.updates import ClientUpdate
from edge.real_clock import RealClockLoop
from edge.session import Noted, Received
from edge.vocabulary import Direction, Reason, Stage

T = TypeVar("T")
Ids = npt.NDArray[np.int64]
_STAGES = frozenset(int(stage) for stage in Stage)


class RealWorld:
    """Devices behind sessions; implements :class:`~coordinator.world.World`, and listens to the sessions.

    Parameters
    ----------
    run_id : of the run.
    loop : the clock.
    assembly : what the run works with.
    coordinator : talks to the devices.
    experience : is told what arrives from each device; None where nobody learns from it.
    observer : is told what passes.
    frame_bytes : longest message.
    changed : called when a device has joined: there may be enough now.

    Attributes
    ----------
    sessions : set once they are there.
    """

    sessions: Sessions

    def __init__(
        self,
        *,
        run_id: str,
        loop: RealClockLoop,
        assembly: Assembly,
        coordinator: Coordinator,
        experience: Experience | None,
        observer: ServiceObserver,
        frame_bytes: int,
        changed: Callable[[], None],
    ) -> None:
        self.run_id = run_id
        self.loop = loop
        self.fleet = assembly.fleet
        self.fleet.joined = np.zeros(self.fleet.n, dtype=np.bool_)
        self.workload = assembly.workload
        self.counts_kept_back = assembly.counts_kept_back
        self.secure_sums: Mapping[str, SecureSums | None] = assembly.secure_sums
        self.shields: Mapping[str, Shield] = assembly.shields
        self.coordinator = coordinator
        self.experience = experience
        self.witness: Witness | None = None
        self._observer = observer
        self._limits = CodecLimits(frame_bytes=frame_bytes)
        self._changed = changed
        self._cohort_of: dict[int, SessionCohort] = {}
        """The cohort that each busy device is in."""
        self._enough: tuple[int, asyncio.Future[None]] | None = None
        self.unassigned_bytes = 0
        """Messages of devices that are in no round: they are in no table."""

    # -- as a world --------------------------------------------------------------------------------------

    def begin(self, crash: CrashHandler) -> None:
        """Do nothing: no fault strikes the coordinator here."""

    def cohort(
        self,
        ids: Ids,
        round_number: int,
        phase: str,
        kernel: TrainingKernel,
        done: Callable[[RunningCohort], None],
    ) -> SessionCohort:
        """Return the cohort of a round; ``done`` is called once, when its last device has ended."""
        cohort = SessionCohort(self, ids, round_number, phase, kernel, done)
        self._cohort_of.update(dict.fromkeys(cohort.devices, cohort))
        return cohort

    async def aside(self, measure: Callable[[], T]) -> T:
        """Return what ``measure`` does; devices are heard and answered meanwhile."""
        return await self.loop.run_in_executor(None, measure)

    def forget(self, kernel: Kernel[ClientUpdate]) -> None:
        """Do nothing: devices compute elsewhere."""

    def freed(self, cohort: SessionCohort, device: int) -> None:
        """Take note that a device has ended its part in a cohort."""
        if self._cohort_of.get(device) is cohort:
            del self._cohort_of[device]

    async def until_joined(self, wanted: int) -> None:
        """Wait until so many devices have joined."""
        if len(self.sessions) < wanted:
            self._enough = (wanted, self.loop.create_future())
            await self._enough[1]

    def wait_no_longer(self) -> None:
        """End :meth:`until_joined`, however many have joined."""
        if self._enough is not None:
            (_, enough), self._enough = self._enough, None
            enough.set_result(None)

    # -- as the listener of the sessions -----------------------------------------------------------------

    def joined(self, session: DeviceSession) -> None:
        """Take note of a new session."""
        assert self.fleet.joined is not None
        self.fleet.joined[session.device] = True
        if self._enough is not None and len(self.sessions) >= self._enough[0]:
            self.wait_no_longer()
        self._changed()

    def left(self, session: DeviceSession, reason: Reason) -> None:
        """Take note that a session is over."""
        assert self.fleet.joined is not None
        self.fleet.joined[session.device] = False
        self.fleet.bare[session.device] = bool(self.workload.algorithm.fixed())
        cohort = self._cohort_of.get(session.device)
        if cohort is not None:
            with self.loop.one_moment():
                cohort.left(session.device, reason)

    def pushed(self, session: DeviceSession, transfer: Transfer) -> None:
        """Take note of a message that starts on its way."""
        message = transfer.message
        cohort = self._cohort_of.get(session.device)
        if cohort is not None and cohort.round_number == message.round_number:
            cohort.pushed(transfer, session.device)
        else:
            self.unassigned_bytes += transfer.frame_bytes
        self._observer.on_frame(message.round_number, session.device, Direction.DOWN, message, Reason.NONE)

    def acknowledged(self, session: DeviceSession, transfer: Transfer, arrival_s: float) -> None:
        """Take note that a message has arrived, and when."""
        cohort = self._cohort_of.get(session.device)
        if cohort is not None and cohort.round_number == transfer.message.round_number:
            cohort.acknowledged(transfer, session.device, arrival_s)

    def received(self, session: DeviceSession, received: Received) -> None:
        """Take a message from a device, as bytes."""
        started_s = time.perf_counter()
        with self.loop.one_moment():
            self._receive(session, received)
        self._observer.on_handled(time.perf_counter() - started_s)

    def _receive(self, session: DeviceSession, received: Received) -> None:
        cohort = self._cohort_of.get(session.device)
        if self._floods(cohort, session):
            return
        try:
            message = decode(received.frame, self._limits)
        except CodecError:
            if cohort is None:
                self.unassigned_bytes += len(received.frame)
            else:
                cohort.garbage(session, received)
            return
        if cohort is not None:
            reason = cohort.received(session, message, received)
        else:
            self.unassigned_bytes += len(received.frame)
            reason = self.coordinator.frame_received(session, message)
        self._observer.on_frame(message.round_number, session.device, Direction.UP, message, reason)

    def noted(self, session: DeviceSession, noted: Noted) -> None:
        """Take note that a device computes, or how long it has."""
        cohort = self._cohort_of.get(session.device)
        if cohort is not None and noted.stage in _STAGES and not self._floods(cohort, session):
            cohort.noted(session.device, noted)

    def _floods(self, cohort: SessionCohort | None, session: DeviceSession) -> bool:
        """End the session of a device that sends more than any round needs; return whether it does."""
        if cohort is None or not cohort.floods(session.device):
            return False
        why = f"more than {FRAMES_OF_ROUND} messages in one round"
        self.loop.call_soon(self.sessions.end, session, Reason.GARBAGE, why)
        return True
