"""A device in virtual time: its link, what it computes, and the context in which its actor lives.

It exists from the invitation to the end of the participation. What its profile makes of the round (rates,
computing time, when it leaves …) has been drawn for the whole cohort beforehand, the :class:`CohortPlan`.
"""

from __future__ import annotations

import abc
import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.clock.virtual import DeadlineExceededError, Mailbox, VirtualClockLoop, sleep
from edge.core.log import pack_record
from edge.core.vocabulary import Direction, EventKind, Fate, Outcome, Reason, Stage
from edge.device.actor import take_part
from edge.device.compute import ComputeQueue, Kernel
from edge.device.compute_model import CryptoCosts
from edge.device.participation import (
    LAST_OF_REPORT,
    OUTCOME_OF_RECEIPT,
    RECEIPT_PATIENCE,
    Participation,
    event_of_discarded,
)
from edge.learning.updates import Array, ClientUpdate
from edge.network.cohort import CohortLinks
from edge.network.link import Delivery, DeviceLink, SimulatedNetwork
from edge.network.loss import TransferFailedError
from edge.network.pace import Conditions
from edge.network.tcp import INITIAL_WINDOW_BYTES, tcp_ip_bytes
from edge.secagg.participant import Answer, Participant, reason_of
from edge.wire.codec import measure
from edge.wire.messages import (
    KINDS,
    Abort,
    Accept,
    AcceptBare,
    AnyMessage,
    Decline,
    Failure,
    Invite,
    Model,
    Report,
)

if TYPE_CHECKING:
    from edge.device.round_faults import Ending, RoundFaults

# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_NOWHERE = Direction.NONE
_DISCARDED = Fate.DISCARDED
_DELIVERED = Fate.DELIVERED
_NONE = Reason.NONE
_COMPUTE = Stage.COMPUTE
_REPORT = Stage.REPORT
_COMPUTED = EventKind.COMPUTED
_DOWN = Direction.DOWN
_UP = Direction.UP
_INVITE = Stage.INVITE
_DOWNLOAD = Stage.DOWNLOAD
_ACKNOWLEDGE = Stage.ACKNOWLEDGE


Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class CohortPlan:
    """What a round will be like for each invited device: arrays by slot."""

    reachable: npt.NDArray[np.bool_]
    """Whether it is available when it is invited."""
    failed_connects: npt.NDArray[np.int64]
    """Attempts to connect that fail before one succeeds."""
    computes: npt.NDArray[np.bool_]
    """Whether it gets as far as a finished computation, if it is reached and in time."""
    obstacle: Codes
    """The :class:`Reason` that makes it decline, or ``NONE``."""
    shortage: Codes
    """The :class:`Reason` that makes the computation fail (``MEMORY``, ``NO_DATA``), or ``NONE``."""
    compute_s: Floats
    """How long the computation takes, simulated seconds."""
    drop_stage: Codes
    """Stage in which it vanishes by chance, −1 for never."""
    drop_fraction: Floats
    """How far into that stage, 0…1."""
    leaves_s: Floats
    """When its availability ends, absolute seconds; ``inf`` for never."""
    bare: npt.NDArray[np.bool_]
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
    def protect(self) -> Callable[[int, ClientUpdate], ClientUpdate | Reason] | None:
        """Makes of an update, given the device's slot, what may be seen of it; None where everything may.

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
        """Respond when ``device`` has ended its participation."""

    def crashed(self, device: SimulatedDevice, error: Exception) -> None:
        """Handle a bug in the actor."""


class Inbox(Mailbox):
    """The frames that have arrived; ``await`` gives the message and remembers its delivery as ``last``."""

    __slots__ = ("last",)

    last: Delivery

    def _take(self) -> AnyMessage:
        self.last = self._messages.pop(0)
        return self.last.message

    def close(self) -> list[Any]:
        """Close the mailbox and let go of the last frame, and with it of the round."""
        if hasattr(self, "last"):
            del self.last
        return super().close()


class RecordedLink(DeviceLink):
    """The link of ``device`` in one round, and how far its participation has come."""

    __slots__ = ("_services", "device", "outcome", "reason", "stage")

    def __init__(self, services: RoundServices, device: int, slot: int) -> None:
        super().__init__(services.loop, services.links, slot)
        self._services = services
        self.device = device
        self.outcome: Outcome | None = None
        """How the participation ended, as far as the device knows; set once."""
        self.reason = _NONE
        self.stage = Stage.INVITE

    def log_frame(self, delivery: Delivery, fate: Fate, reason: Reason) -> None:
        """Record a frame that has arrived, and what became of it."""
        services = self._services
        message = delivery.message
        kind = KINDS[message.__class__]
        services.record(
            pack_record(
                self.loop.now_s,
                self.slot,
                self.device,
                kind.event if fate is not _DISCARDED else event_of_discarded(message.__class__, reason),
                kind.stage,
                delivery.direction,
                delivery.start_s,
                delivery.end_s,
                delivery.payload_bytes,
                delivery.framing_bytes,
                delivery.tcp_ip_bytes,
                delivery.retransmitted_bytes,
                fate,
                reason,
            )
        )

    def _log_loss(self, delivery: Delivery, reason: Reason, share: float) -> None:
        """Record a frame that will not arrive, with the ``share`` of it that was sent."""
        delivery.end_s = self.loop.now_s
        delivery.payload_bytes = int(delivery.payload_bytes * share)
        delivery.framing_bytes = int(delivery.framing_bytes * share)
        delivery.tcp_ip_bytes = int(delivery.tcp_ip_bytes * share)
        delivery.retransmitted_bytes = int(delivery.retransmitted_bytes * share)
        self.log_frame(delivery, Fate.LOST, reason)

    def _log_event(self, kind: EventKind, stage: Stage, start_s: float, reason: Reason) -> None:
        now_s = self.loop.now_s
        self._services.record(
            pack_record(
                now_s, self.slot, self.device, kind, stage, _NOWHERE, start_s, now_s, 0, 0, 0, 0,
                _DELIVERED, reason,
            )
        )  # fmt: skip

    def _send_in_vain(self, direction: Direction, message: AnyMessage) -> None:
        """Record a frame to a device that is gone: TCP sends one window and hears nothing more."""
        frame_bytes, payload_bytes = measure(message)
        lost = Delivery(self, direction, message, frame_bytes, payload_bytes)
        lost.start_s = lost.end_s = self.loop.now_s
        lost.retransmitted_bytes = 0
        lost.tcp_ip_bytes = tcp_ip_bytes(frame_bytes)
        self._log_loss(lost, self.reason, min(1.0, INITIAL_WINDOW_BYTES / frame_bytes))

    def _cut(self, reason: Reason) -> None:
        services = self._services
        for delivery in services.network.cut(self):
            self._log_loss(delivery, reason, delivery.sent_share(self.loop.now_s))


class VanishedError(Exception):
    """The device is gone; unwinds its actor from within."""


class WorkingDevice(RecordedLink):
    """A device that takes its time for what it computes; how it comes and goes is for others to say."""

    __slots__ = ("_compute_start_s", "_computing", "_deadline_s", "loss")

    def __init__(self, services: RoundServices, device: int, slot: int) -> None:
        super().__init__(services, device, slot)
        self._compute_start_s = 0.0
        self._computing: Stage | None = None
        """The stage for which the device computes at this moment."""
        self._deadline_s = math.inf
        self.loss = math.nan
        """Local training loss, once an update was computed."""

    @abc.abstractmethod
    def _vanish_as_planned(self) -> None:
        """Go away, by chance or because of a fault."""

    async def _gather(self, stage: Stage) -> None:
        """Wait with what is sent at ``stage`` for the others, where a fault wants them all at once."""
        faults = self._services.faults
        if faults is not None and (wait_s := faults.wait_s(self.slot, stage, self.loop.now_s)) > 0.0:
            await sleep(wait_s)

    async def train(self, model: Model) -> ClientUpdate | Reason:
        """Take the device's time for the computation and return its result."""
        services = self._services
        plan = services.plan
        self.stage = _COMPUTE
        shortage = plan.shortage.item(self.slot)
        faults = services.faults
        if shortage:
            if faults is not None:
                faults.short(self.slot, self.loop.now_s)
            return Reason(shortage)
        self._compute_start_s = start_s = self.loop.now_s
        self._computing = _COMPUTE
        seconds = plan.compute_s.item(self.slot)
        if faults is not None:
            seconds = faults.compute_s(self.slot, _COMPUTE, start_s, seconds)
        if plan.drop_stage.item(self.slot) == _COMPUTE:
            before_s = seconds * plan.drop_fraction.item(self.slot)
            if start_s + before_s < self._deadline_s:
                await sleep(before_s)
                self._vanish_as_planned()
                raise VanishedError
        if start_s + seconds > self._deadline_s:
            # It knows that it cannot make it only when the time is up: others may be done by then.
            await sleep(self._deadline_s - start_s)
            self._computing = None
            self._log_event(_COMPUTED, _COMPUTE, start_s, Reason.DEADLINE)
            raise DeadlineExceededError
        result = await services.compute.run(services.kernel, self.device, seconds)
        self.loss = result.loss
        self._computing = None
        self._log_event(_COMPUTED, _COMPUTE, start_s, _NONE)
        if services.keep is not None and result.local is not None:
            # Now, not when the report has arrived: a device cannot know whether it will.
            services.keep(self.device, result.local)
            result = result._replace(local=None)
        if faults is not None:
            result = faults.poisoned(self.slot, result, model.arrays, self.loop.now_s)
            if self._in_clear():
                await self._gather(_REPORT)
        protect = services.protect
        made = result if protect is None else protect(self.slot, result)
        if faults is not None and isinstance(made, ClientUpdate):
            return faults.poisoned(self.slot, made, model.arrays, self.loop.now_s, protected=True)
        return made

    def participant(self, model: Model) -> Participant | None:
        """Return the device's part in the secure sum of this round; None where updates are reported."""
        sums = self._services.secure_sum
        return None if sums is None or self._in_clear() else sums.participant(self.device, model)

    def _in_clear(self) -> bool:
        """Say whether the device reports its update by itself, where others may sum theirs securely."""
        shielded = self._services.plan.shielded
        return self._services.secure_sum is None or (len(shielded) > 0 and shielded[self.slot])

    async def prepare(self, answer: Answer) -> None:
        """Take the device's time for what ``answer`` had it compute."""
        self.stage = self._computing = stage = KINDS[answer.message.__class__].stage
        self._compute_start_s = start_s = self.loop.now_s
        seconds = self._services.plan.crypto[self.slot].seconds(answer.work)
        faults = self._services.faults
        if faults is not None:
            seconds = faults.compute_s(self.slot, stage, start_s, seconds)
        await sleep(seconds)
        self._computing = None
        self._log_event(_COMPUTED, stage, start_s, _NONE)
        if faults is not None:
            await self._gather(stage)


class SimulatedDevice(WorkingDevice):
    """One device during one round; implements :class:`~edge.device.actor.DeviceContext`."""

    __slots__ = ("_invite", "_mailbox", "_patience_s", "_task", "over")

    def __init__(self, services: RoundServices, device: int, slot: int) -> None:
        super().__init__(services, device, slot)
        self._mailbox: Inbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._invite: Invite | None = None
        self._patience_s = math.inf
        self.over = False

    def __str__(self) -> str:
        return f"device {self.device} in round {self._invite.round_number if self._invite else '?'}"

    # -- frames and records ----------------------------------------------------------------------------

    def arrived(self, delivery: Delivery) -> None:
        """Take a frame from the coordinator; the first invitation starts the actor."""
        faults = self._services.faults
        if faults is not None and (faults.holds_up(self, delivery) or self._garbled(faults, delivery)):
            return
        if self.outcome is not None:
            self.log_frame(delivery, _DISCARDED, self.reason or Reason.WRONG_STAGE)
            self._finish_when_quiet()
        elif self._mailbox is not None:
            if not self._mailbox.put(delivery):
                self.log_frame(delivery, _DISCARDED, Reason.GARBAGE)
        elif isinstance(delivery.message, Invite):
            self.log_frame(delivery, _DELIVERED, _NONE)
            self._begin(delivery.message)
        else:
            self.log_frame(delivery, _DISCARDED, Reason.WRONG_STAGE)

    def delivered(self, delivery: Delivery) -> None:
        """Learn that a frame of this device has arrived, and pass it on."""
        faults = self._services.faults
        if faults is not None and faults.holds_up(self, delivery):
            return
        if isinstance(delivery.message, LAST_OF_REPORT) and self.outcome is None:
            self.stage = _ACKNOWLEDGE
        self._services.deliver(delivery)
        if self.outcome is not None:
            self._finish_when_quiet()
        elif self.stage is _ACKNOWLEDGE and self._services.plan.drop_stage.item(self.slot) == _ACKNOWLEDGE:
            self._vanish_as_planned()

    def _garbled(self, faults: RoundFaults, delivery: Delivery) -> bool:
        """Return whether a frame has arrived as garbage: nothing after it on the connection can be read."""
        if not faults.corrupts(delivery):
            return False
        self.log_frame(delivery, _DISCARDED, Reason.GARBAGE)
        if self.outcome is None:
            self.vanish(Reason.GARBAGE)
        else:
            self._finish_when_quiet()
        return True

    def push(self, message: AnyMessage, frame_bytes: int, payload_bytes: int) -> None:
        """Start sending a frame of the coordinator to this device; returns at once."""
        self.transmit(_DOWN, message, frame_bytes, payload_bytes)

    def invite(self, invitation: Invite, frame_bytes: int, payload_bytes: int) -> None:
        """Start sending the invitation, unless the device has gone away before."""
        if not self.over:
            self.push(invitation, frame_bytes, payload_bytes)

    def transmit(
        self,
        direction: Direction,
        message: AnyMessage,
        frame_bytes: int | None = None,
        payload_bytes: int = 0,
    ) -> Delivery | None:
        """Put a frame on this device's link; None (and a record of the loss) when the connection is dead.

        ``frame_bytes`` and ``payload_bytes`` are measured here unless they are known already.
        """
        services = self._services
        if self.over:
            self._send_in_vain(direction, message)
            return None
        if frame_bytes is None:
            frame_bytes, payload_bytes = measure(message)
        try:
            delivery = services.network.transmit(
                self, services.conditions, direction, message, frame_bytes, payload_bytes
            )
        except TransferFailedError:
            self._send_in_vain(direction, message)
            self.vanish(Reason.CONNECTION_LOST)
            return None
        if services.faults is not None:
            services.faults.sent(self, delivery)
        return delivery

    def repeat(self, delivery: Delivery) -> None:
        """Send a frame once more; a copy that TCP gives up is lost, and changes nothing."""
        try:
            self._services.network.repeat(delivery, self._services.conditions)
        except TransferFailedError:
            self._send_in_vain(delivery.direction, delivery.message)

    def gave_up(self, delivery: Delivery) -> None:
        """Lose the connection: TCP has given up on a frame."""
        if delivery.live:
            self.break_off(Reason.CONNECTION_LOST)

    def break_off(self, reason: Reason) -> None:
        """Lose the connection, whether the participation has ended or not."""
        if self.outcome is None:
            self.vanish(reason)
        else:
            self._cut(reason)
            self._finish_when_quiet()

    def give_up_invitation(self) -> None:
        """Forget a device that an invitation has not reached in all the time that a round may take."""
        if self._invite is None and self.outcome is None:
            self._end(Outcome.UNREACHABLE, Reason.CONNECTION_LOST)
            self._cut(Reason.CONNECTION_LOST)
            self._finish()

    # -- life ------------------------------------------------------------------------------------------

    def expect(self, invite: Invite, arrival_s: float) -> None:
        """Let the invitation arrive at ``arrival_s``; its transfer is recorded by the caller."""
        self.connected = True
        self.frames_sent = 1
        self.arrived_s = arrival_s
        self.radio_until_s = arrival_s + self.cohort.tail_s[self.slot]
        self._invite = invite
        self.loop.push_timer(arrival_s, self)

    def fire(self, when: float) -> None:
        """Receive the invitation: the device is its own timer for it; called by the loop."""
        assert self._invite is not None
        if self.over:
            return
        self.loop.now_s = when
        self._begin(self._invite)

    def _begin(self, invite: Invite) -> None:
        loop = self.loop
        self._invite = invite
        self._deadline_s = loop.now_s + invite.report_within_s
        sums = self._services.secure_sum
        patience_s = RECEIPT_PATIENCE * invite.report_within_s + (0.0 if sums is None else sums.patience_s)
        self._patience_s = loop.now_s + patience_s
        faults = self._services.faults
        if faults is not None:
            self._begin_among_faults(faults)
        self._mailbox = Inbox(loop, self)
        self._mailbox.set_deadline(self._deadline_s)
        leaves_s = self._services.plan.leaves_s.item(self.slot)
        if leaves_s < self._patience_s:
            loop.call_at(leaves_s, self.vanish, Reason.SESSION_ENDED)
        # loop.create_task() would do the same, with checks for a closed loop and a task factory. The task
        # needs no name: what it waits for, its mailbox, says whose it is.
        self._task = asyncio.Task(self._live(invite), loop=loop)

    def _begin_among_faults(self, faults: RoundFaults) -> None:
        now_s = self.loop.now_s
        skew_s = faults.skew_s(self.slot, now_s)
        self._deadline_s += skew_s
        self._patience_s += skew_s
        for ending in faults.timed.get(self.slot, ()):
            self.loop.call_at(max(ending.at_s, now_s), self._struck, faults, ending)

    def _struck(self, faults: RoundFaults, ending: Ending) -> None:
        """Go away because of a fault."""
        if self.outcome is None:
            faults.note(ending.fault, self.slot, self.stage, self.loop.now_s)
            self.vanish(ending.reason)

    async def _live(self, invite: Invite) -> None:
        try:
            await self._gather(Stage.INVITE)
            self._conclude(await take_part(self, invite))
        except VanishedError:
            return
        except asyncio.CancelledError:
            if self.outcome is None:
                raise
            return
        except Exception as error:
            self._services.crashed(self, error)

    def _conclude(self, part: Participation) -> None:
        if self.outcome is None:  # a refusal or failure was noted when it was sent
            receipt = part.receipt
            if receipt is not None:
                self._end(OUTCOME_OF_RECEIPT.get(receipt, Outcome.LATE), receipt)
            elif part.abandoned is not None:
                self._end(Outcome.ABANDONED, part.abandoned)
            else:
                self._end(Outcome.LATE, Reason.DEADLINE)
                self._cut(Reason.DEADLINE)
        self._finish_when_quiet()

    def _finish_when_quiet(self) -> None:
        """Finish once nothing is on its way any more."""
        if not self.over and not self.in_flight:
            self._finish()

    def _end(self, outcome: Outcome, reason: Reason) -> None:
        self.outcome = outcome
        self.reason = reason

    def _finish(self) -> None:
        # No reference cycle is left behind: a round's thousands of devices are freed at once, not collected.
        self.over = True
        self._task = None
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            for delivery in mailbox.close():
                self.log_frame(delivery, _DISCARDED, self.reason or Reason.WRONG_STAGE)
        self._services.finished(self)

    def vanish(self, reason: Reason) -> None:
        """Disappear without a word: frames under way are lost, the actor ends where it stands."""
        if self.outcome is not None:
            return
        self._end(Outcome.DROPPED, reason)
        self._cut(reason)
        if self._computing is not None:
            self._log_event(_COMPUTED, self._computing, self._compute_start_s, reason)
        self._log_event(EventKind.DROPPED, self.stage, self.loop.now_s, reason)
        if self._task is not None:
            self._task.cancel()  # before the mailbox lets go of it
        self._finish()

    # -- what the actor can do -------------------------------------------------------------------------

    def obstacle(self) -> Reason:
        """Say what keeps the device from taking part now, or ``Reason.NONE``."""
        if self._services.faults is not None:
            self._services.faults.obstructed(self.slot, self.loop.now_s)
        return Reason(self._services.plan.obstacle.item(self.slot))

    def bare(self) -> bool:
        """Say whether the device lacks what never changes and is sent only once."""
        return self._services.plan.bare.item(self.slot)

    def send(self, message: AnyMessage) -> None:
        """Start sending ``message`` to the coordinator; returns at once."""
        kind = type(message)
        accepts = kind is Accept or kind is AcceptBare
        if accepts:
            self._services.answers(self.device)
        delivery = self.transmit(_UP, message)
        if delivery is None:
            raise VanishedError
        if accepts:
            self._answered(delivery)
        elif kind is Report:
            self.stage = _REPORT
            self._report_leaves(delivery)
        elif isinstance(message, Decline):
            self._end(Outcome.DECLINED, Reason(message.reason))
        elif isinstance(message, Failure):
            self._end(Outcome.FAILED, Reason(message.reason))
        elif isinstance(message, Abort):
            self._end(Outcome.FAILED, reason_of(message.reason))
        else:
            self._report_leaves(delivery)

    def _answered(self, delivery: Delivery) -> None:
        """Await the model, unless the device vanishes with its answer or before the model has come."""
        planned = self._services.plan.drop_stage.item(self.slot)
        if planned == _INVITE:
            self._vanish_during(delivery)
            return
        self.stage = _DOWNLOAD
        if planned == _DOWNLOAD:
            self.loop.call_at(delivery.end_s, self._vanish_as_planned)

    def _report_leaves(self, delivery: Delivery) -> None:
        """Be patient from now on, unless the device vanishes while this part of its report travels."""
        assert self._mailbox is not None
        self._mailbox.set_deadline(self._patience_s)
        if self._services.plan.drop_stage.item(self.slot) == self.stage:
            self._vanish_during(delivery)

    def _vanish_during(self, delivery: Delivery) -> None:
        span_s = delivery.last_byte_s - delivery.first_byte_s
        fraction = self._services.plan.drop_fraction.item(self.slot)
        self.loop.call_at(delivery.first_byte_s + fraction * span_s, self._vanish_as_planned)

    def _vanish_as_planned(self) -> None:
        faults = self._services.faults
        ending = None if faults is None else faults.planned.get(self.slot)
        if ending is None or faults is None:
            self.vanish(Reason.VANISHED)
        else:
            self._struck(faults, ending)

    def vanish_at(self, when_s: float, reason: Reason) -> None:
        """Let the device go away at ``when_s``, absolute seconds."""
        self.loop.call_at(when_s, self.vanish, reason)

    def receive(self) -> Awaitable[AnyMessage]:
        """Wait for the next frame; raise ``DeadlineExceededError`` when time is up."""
        assert self._mailbox is not None
        return self._mailbox

    def settle(self, reason: Reason) -> None:
        """Record what became of the frame received last."""
        assert self._mailbox is not None
        self.log_frame(self._mailbox.last, _DISCARDED if reason else _DELIVERED, reason)
