"""The backend of a run on the real clock: devices that have joined over sockets."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import ActiveRound, Broadcast
from coordinator.engine.actor import Coordinator
from coordinator.engine.assembly import Assembly
from coordinator.engine.backend import CrashHandler, Probe, RunningCohort
from coordinator.engine.facts import CohortFacts, Floats
from coordinator.engine.round_records import facts_of
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.engine.secure_sums import RoundOfSums, SecureSums
from coordinator.engine.selection.experience import ANSWERS, UPDATES, Experience
from coordinator.engine.shielding import Shield
from coordinator.engine.workload import RemoteWorkload, TrainingKernel
from coordinator.service.hooks import ServiceObserver
from coordinator.service.session_records import SessionRecords
from coordinator.service.sessions import DeviceSession, Sessions, Transfer
from edge.clock.real import RealClockLoop
from edge.core.errors import CodecError
from edge.core.vocabulary import Direction, Outcome, Reason, RoundKind, Stage
from edge.device.compute import Kernel
from edge.device.participation import (
    LAST_OF_REPORT,
    OUTCOME_OF_RECEIPT,
    RECEIPT_PATIENCE,
)
from edge.device.round_faults import RoundFaults
from edge.learning.base import Work
from edge.learning.updates import ClientUpdate
from edge.secagg.participant import reason_of
from edge.wire.codec import CodecLimits, decode
from edge.wire.messages import (
    KINDS,
    Abort,
    Accept,
    AcceptBare,
    Acknowledge,
    AdvertiseKeys,
    AnyMessage,
    ConsistencyCheck,
    ConsistencySignature,
    Decline,
    DecryptedSum,
    DecryptRequest,
    EncryptedInput,
    Failure,
    Invite,
    KeyList,
    MaskedInput,
    Model,
    Report,
    SealedShares,
    SharesDelivery,
    UnmaskRequest,
    UnmaskShares,
)
from edge.wire.session import Noted, Received

FRAMES_OF_ROUND = 1024
"""Most messages, and most notes, that a device may send in one round; the protocol needs a dozen."""
_REASONS = {int(reason): reason for reason in Reason}

Ids = npt.NDArray[np.int64]

_ANSWERED = frozenset((Model, KeyList, SharesDelivery, ConsistencyCheck, UnmaskRequest, DecryptRequest))
"""What a device answers, unless it goes away or its time is up."""
_ANSWERS = frozenset(
    (
        *(Report, AdvertiseKeys, SealedShares, MaskedInput, ConsistencySignature, UnmaskShares),
        *(EncryptedInput, DecryptedSum),
    )
)
"""What it answers with."""
T = TypeVar("T")
_STAGES = frozenset(int(stage) for stage in Stage)


class SessionCohort:
    """The invited devices of one round, each at the end of its session.

    A device has ended when it was told how the round went for it and has acknowledged that, when it said that
    it does not take part or no longer, when its session is over, or when all patience is.

    Parameters
    ----------
    backend : what all rounds share.
    ids : int64 [n], the invited devices.
    round_number, phase : the round, and the phase of the scenario that it belongs to.
    kernel : what devices compute; they have it, too.
    done : called once, when the last device has ended its participation.
    """

    def __init__(
        self,
        backend: SocketBackend,
        ids: Ids,
        round_number: int,
        phase: str,
        kernel: TrainingKernel,
        done: Callable[[RunningCohort], None],
    ) -> None:
        self._backend = backend
        self._done = done
        self.ids = ids
        self.devices: list[int] = ids.tolist()
        self.round_number = round_number
        self.kernel: Kernel[ClientUpdate] = kernel
        asked = backend.asked.get(RoundKind.of(round_number))
        self._task = task = backend if asked is None else asked
        self._trains = asked is None
        self.examples = task.workload.examples(ids).copy()
        """What the scenario's data has; of a device that reports in the clear, what it says."""
        if backend.data_elsewhere:
            self.examples[:] = 0
        self.counts_kept_back = backend.counts_kept_back(phase)
        self.work_share: npt.NDArray[np.float64] | None = None
        self.sums = sums = task.secure_sums[phase]
        self.secure_sum: RoundOfSums | None = None
        if sums is not None:
            self.secure_sum = sums.round(round_number, devices_elsewhere=True)
        self.faults: RoundFaults | None = None
        n = len(ids)
        self.clipped: npt.NDArray[np.bool_] | None = None
        self._records = SessionRecords(backend.loop, self.devices)
        self.log = self._records.log
        self.outcome: list[int] = [Outcome.UNREACHABLE] * n
        self.stage: list[int] = [Stage.INVITE] * n
        self.reason: list[int] = [Reason.UNAVAILABLE] * n
        self.loss = [math.nan] * n
        self.round: ActiveRound | None = None
        self.invited_s = 0.0
        self._slot_of = {device: slot for slot, device in enumerate(self.devices)}
        self._under_way: list[set[Transfer]] = [set() for _ in range(n)]
        """Messages that a device has not acknowledged yet."""
        self._awaited = [0] * n
        """How many answers a device owes: it gives them all before it heeds a receipt."""
        self._frames = [0] * n
        """How many messages and notes each device has sent."""
        self._told = [False] * n
        """Whether it is known how a device's participation ends."""
        self._ended = [False] * n
        self._applied: list[int] = []
        self._open = n + 1
        backend.fleet.busy[ids] = True

    # -- invitation ------------------------------------------------------------------------------------

    def invite(self, round_: ActiveRound, invitation: Broadcast) -> None:
        """Send the invitation to every device of the cohort."""
        self.round = round_
        backend = self._backend
        self.invited_s = backend.loop.now_s
        message = invitation.message
        assert isinstance(message, Invite)
        for slot, device in enumerate(self.devices):
            session = backend.sessions.of(device)
            if session is None:
                self._told[slot] = True
                self._end(slot)
            else:
                session.push(message, invitation.frame_bytes, invitation.payload_bytes)
        patience_s = RECEIPT_PATIENCE * message.report_within_s
        if self.secure_sum is not None:
            patience_s += self.secure_sum.patience_s
        self._patience = backend.loop.call_later(patience_s, self._out_of_patience)
        # The cohort itself is open until the invitations are out, lest it end within this loop.
        backend.loop.call_soon(self._closed_one)

    def _out_of_patience(self) -> None:
        for slot in range(len(self.devices)):
            if not self._ended[slot]:
                if not self._told[slot] and self.stage[slot] != Stage.INVITE:
                    self._tell(slot, Outcome.LATE, Reason.DEADLINE)
                self._lose(slot, Reason.DEADLINE)

    @property
    def work(self) -> Work:
        """What the round costs each device, by the data that is here, or that it says it has."""
        workload = self._task.workload
        if self._backend.data_elsewhere:
            return workload.algorithm.work(np.maximum(self.examples, 1))
        return workload.work(self.ids)

    def crash(self) -> None:
        """Never called: no fault strikes the coordinator on the real clock."""
        raise NotImplementedError("faults do not strike on the real clock")

    # -- messages down ---------------------------------------------------------------------------------

    def pushed(self, transfer: Transfer, device: int) -> None:
        """Handle a message that starts on its way to a device."""
        slot = self._slot_of[device]
        self._under_way[slot].add(transfer)
        message = transfer.message
        if message.__class__ in _ANSWERED:
            self._awaited[slot] += 1
        elif isinstance(message, Acknowledge):
            receipt = Reason(message.reason)
            self._tell(slot, OUTCOME_OF_RECEIPT.get(receipt, Outcome.LATE), receipt)
            if receipt in (Reason.GARBAGE, Reason.OUT_OF_RANGE):
                self._awaited[slot] = 0  # what it sends from now on is not wanted
        elif isinstance(message, Abort):
            self._tell(slot, Outcome.ABANDONED, reason_of(message.reason))

    def acknowledged(self, transfer: Transfer, device: int, arrival_s: float) -> None:
        """Respond when a message has arrived, and when."""
        slot = self._slot_of[device]
        if transfer not in self._under_way[slot]:
            return  # it was given up before
        self._under_way[slot].remove(transfer)
        self._records.arrived(slot, transfer, max(arrival_s, transfer.start_s))
        if isinstance(transfer.message, Model):
            self._backend.fleet.bare[device] = False  # what never changes has arrived, and is kept
            if self.stage[slot] == Stage.DOWNLOAD:
                self.stage[slot] = Stage.COMPUTE
        self._end_when_quiet(slot)

    # -- messages up -----------------------------------------------------------------------------------

    def floods(self, device: int) -> bool:
        """Count a message or note of a device; return whether that is one too many for this round."""
        slot = self._slot_of[device]
        self._frames[slot] += 1
        return self._frames[slot] > FRAMES_OF_ROUND

    def received(self, session: DeviceSession, message: AnyMessage, received: Received) -> Reason:
        """Hand a message to the coordinator, record what it made of it, and return that."""
        slot = self._slot_of[session.device]
        self._open += 1  # the answer may end the last device, but not the round before this record
        reason = self._backend.coordinator.frame_received(session, message)
        self._records.received(slot, message, self._since_invited(received), reason)
        if message.round_number == self.round_number and message.run_id == self._backend.run_id:
            if isinstance(message, Failure | Abort):
                self._awaited[slot] = 0
            elif message.__class__ in _ANSWERS:
                self._awaited[slot] = max(0, self._awaited[slot] - 1)
            self._advance(slot, message, reason)
            self._end_when_quiet(slot)
        self._closed_one()
        return reason

    def _advance(self, slot: int, message: AnyMessage, reason: Reason) -> None:
        """Handle what a message says about where its device stands."""
        device = self.devices[slot]
        experience = self._backend.experience if self._trains else None
        if message.__class__ in UPDATES and experience is not None:
            experience.learn(device, message, reason, self._backend.loop.now_s - self.invited_s)
        if (
            isinstance(message, Report)
            and reason in ANSWERS
            and (message.examples or not self.counts_kept_back)
        ):
            # Devices that add noise report neither examples nor loss.
            self.loss[slot] = message.loss
            if self._trains:
                self.examples[slot] = message.examples
        if reason is not Reason.NONE:
            return
        if isinstance(message, Accept | AcceptBare):
            self.stage[slot] = Stage.DOWNLOAD
        elif isinstance(message, Decline):
            self._tell(slot, Outcome.DECLINED, _reason(message.reason))
        elif isinstance(message, Failure):
            self._tell(slot, Outcome.FAILED, _reason(message.reason))
        elif isinstance(message, Abort):
            self._tell(slot, Outcome.FAILED, reason_of(message.reason))
        else:
            last = isinstance(message, LAST_OF_REPORT)
            self.stage[slot] = Stage.ACKNOWLEDGE if last else KINDS[message.__class__].stage
            if isinstance(message, Report):
                self._applied.append(slot)
            elif isinstance(message, MaskedInput | EncryptedInput):
                assert self.secure_sum is not None
                self.secure_sum.arrived(device)

    def garbage(self, session: DeviceSession, received: Received) -> None:
        """Refuse a message that is none, and record it."""
        slot = self._slot_of[session.device]
        self._open += 1
        reason = self._backend.coordinator.garbage_received(session, self.round_number)
        if self.round is not None:
            # No link does that to bytes: the device has sent them.
            self.round.spoilers.setdefault(session.device, reason)
        self._records.garbage(slot, Stage(self.stage[slot]), self._since_invited(received), reason)
        self._closed_one()

    def noted(self, device: int, noted: Noted) -> None:
        """Record how long a device says that it has computed, unless that is for its data to be kept back."""
        if noted.seconds is None or (self.counts_kept_back and noted.stage == Stage.COMPUTE):
            return
        end_s = max(noted.at_s, self.invited_s)
        start_s = max(end_s - noted.seconds, self.invited_s)
        self._records.computed(self._slot_of[device], Stage(noted.stage), start_s, end_s)

    def _since_invited(self, received: Received) -> Received:
        """Return a message that was begun no sooner than the round."""
        return received._replace(begun_s=max(received.begun_s, self.invited_s))

    # -- ends ------------------------------------------------------------------------------------------

    def left(self, device: int, reason: Reason) -> None:
        """Respond when a device's session is over."""
        slot = self._slot_of[device]
        if self._ended[slot]:
            return
        self._open += 1
        self._backend.coordinator.lost(self.round_number, device)
        if not self._told[slot]:
            self._tell(slot, Outcome.DROPPED, reason)
            self._records.dropped(slot, Stage(self.stage[slot]), reason)
        self._lose(slot, reason)
        self._closed_one()

    def _tell(self, slot: int, outcome: Outcome, reason: Reason) -> None:
        if not self._told[slot]:
            self._told[slot] = True
            self.outcome[slot], self.reason[slot] = outcome, reason

    def _lose(self, slot: int, reason: Reason) -> None:
        """Give up what is on its way to a device, and end its participation."""
        for transfer in sorted(self._under_way[slot], key=lambda one: one.start_s):
            self._records.lost(slot, transfer, reason)
        self._under_way[slot].clear()
        self._told[slot] = True
        self._end(slot)

    def _end_when_quiet(self, slot: int) -> None:
        if self._told[slot] and not self._under_way[slot] and not self._awaited[slot]:
            self._end(slot)

    def _end(self, slot: int) -> None:
        if self._ended[slot]:
            return
        self._ended[slot] = True
        device = self.devices[slot]
        self._backend.fleet.busy[device] = False
        self._backend.freed(self, device)
        if self.outcome[slot] == Outcome.COMPLETED:
            self.stage[slot] = -1
        self._closed_one()

    def _closed_one(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._patience.cancel()
            self._done(self)

    def close(self) -> None:
        """Settle how the devices have ended: nothing of theirs is on its way any more."""
        for slot in self._counted():
            # Whoever went away before its receipt does not know it, but its report counts.
            self.outcome[slot], self.stage[slot], self.reason[slot] = Outcome.COMPLETED, -1, Reason.NONE

    def _counted(self) -> list[int]:
        """Return the slots of the devices whose updates have been taken."""
        machine = None if self.round is None else self.round.machine
        if not isinstance(machine, SecureRoundMachine):
            return self._applied
        return [*self._applied, *np.flatnonzero(np.isin(self.ids, list(machine.summed))).tolist()]

    def interrupted(self, columns: Floats) -> CohortFacts:
        """Return the facts of the devices if the coordinator's process ends now; ``columns`` is the log."""
        ended = facts_of(self._backend.fleet, self, columns)
        open_ = ~np.array(self._told)
        ended.outcome[open_], ended.reason[open_] = Outcome.DROPPED, Reason.COORDINATOR_CRASH
        counted = self._counted()
        ended.outcome[counted], ended.stage[counted], ended.reason[counted] = (
            Outcome.COMPLETED,
            -1,
            Reason.NONE,
        )
        return ended


def _reason(code: int) -> Reason:
    """Return the reason that a device gives; an unknown one is garbage."""
    return _REASONS.get(code, Reason.GARBAGE)


class SocketBackend:
    """Devices behind sessions; implements ``Backend``, and listens to the sessions.

    Parameters
    ----------
    run_id : of the run.
    loop : the clock.
    assembly : what the run works with.
    coordinator : talks to the devices.
    experience : receives what arrives from each device; None where nobody learns from it.
    observer : receives what passes.
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
        self.asked = assembly.asked()
        self.data_elsewhere = isinstance(assembly.workload, RemoteWorkload)
        """Whether devices alone have the data."""
        self.counts_kept_back = assembly.counts_kept_back
        self.secure_sums: Mapping[str, SecureSums | None] = assembly.secure_sums
        self.shields: Mapping[str, Shield | None] = assembly.shields
        self.coordinator = coordinator
        self.experience = experience
        self.probe: Probe | None = None
        self._observer = observer
        self._limits = CodecLimits(frame_bytes=frame_bytes)
        self._changed = changed
        self._cohort_of: dict[int, SessionCohort] = {}
        """The cohort that each busy device is in."""
        self._enough: tuple[int, asyncio.Future[None]] | None = None

    # -- as a backend --------------------------------------------------------------------------------------

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

    def catch_up(self) -> None:
        """Do nothing: on the real clock what has happened has been seen."""

    def forget(self, kernel: Kernel[ClientUpdate]) -> None:
        """Do nothing: devices compute elsewhere."""

    def freed(self, cohort: SessionCohort, device: int) -> None:
        """Respond when a device has ended its part in a cohort."""
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
        """Handle a new session."""
        assert self.fleet.joined is not None
        self.fleet.joined[session.device] = True
        if self._enough is not None and len(self.sessions) >= self._enough[0]:
            self.wait_no_longer()
        self._changed()

    def left(self, session: DeviceSession, reason: Reason) -> None:
        """Respond when a session is over."""
        assert self.fleet.joined is not None
        self.fleet.joined[session.device] = False
        self.fleet.bare[session.device] = bool(self.workload.algorithm.fixed())
        cohort = self._cohort_of.get(session.device)
        if cohort is not None:
            with self.loop.one_moment():
                cohort.left(session.device, reason)

    def pushed(self, session: DeviceSession, transfer: Transfer) -> None:
        """Handle a message that starts on its way."""
        message = transfer.message
        cohort = self._cohort_of.get(session.device)
        if cohort is not None and cohort.round_number == message.round_number:
            cohort.pushed(transfer, session.device)
        self._observer.on_frame(message.round_number, session.device, Direction.DOWN, message, Reason.NONE)

    def acknowledged(self, session: DeviceSession, transfer: Transfer, arrival_s: float) -> None:
        """Respond when a message has arrived, and when."""
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
            if cohort is not None:
                cohort.garbage(session, received)
            return
        if cohort is not None:
            reason = cohort.received(session, message, received)
        else:
            reason = self.coordinator.frame_received(session, message)
        self._observer.on_frame(message.round_number, session.device, Direction.UP, message, reason)

    def noted(self, session: DeviceSession, noted: Noted) -> None:
        """Handle that a device computes, or how long it has."""
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
