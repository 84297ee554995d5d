"""A device in virtual time: the context in which the actor of a simulated device lives.

It exists from the invitation to the end of the participation. What its profile makes of the round (rates,
computing time, when it leaves …) has been drawn for the whole cohort beforehand, the
:class:`~edge.device.round_services.CohortPlan`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable

from edge.codec import measure
from edge.device.actor import take_part
from edge.device.endings import (
    LAST_OF_REPORT,
    OUTCOME_OF_RECEIPT,
    RECEIPT_PATIENCE,
)
from edge.device.inbox import Inbox
from edge.device.participation import Participation
from edge.device.round_faults import Ending, RoundFaults
from edge.device.round_services import RoundServices
from edge.device.working_device import VanishedError, WorkingDevice
from edge.message_kinds import AnyMessage
from edge.messages import Accept, AcceptBare, Decline, Failure, Invite, Report
from edge.secagg.reasons import reason_of
from edge.secagg_messages import Abort
from edge.transport.link import Delivery
from edge.transport.loss import TransferFailedError
from edge.vocabulary import Direction, EventKind, Fate, Outcome, Reason, Stage

# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_DOWN = Direction.DOWN
_UP = Direction.UP
_DISCARDED = Fate.DISCARDED
_DELIVERED = Fate.DELIVERED
_NONE = Reason.NONE
_INVITE = Stage.INVITE
_DOWNLOAD = Stage.DOWNLOAD
_REPORT = Stage.REPORT
_ACKNOWLEDGE = Stage.ACKNOWLEDGE
_COMPUTED = EventKind.COMPUTED


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
        elif self.stage is _ACKNOWLEDGE and self._services.plan.drop_stage[self.slot] == _ACKNOWLEDGE:
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
        leaves_s = self._services.plan.leaves_s[self.slot]
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
        return self._services.plan.obstacle[self.slot]

    def bare(self) -> bool:
        """Say whether the device lacks what never changes and is sent only once."""
        return self._services.plan.bare[self.slot]

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
        planned = self._services.plan.drop_stage[self.slot]
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
        if self._services.plan.drop_stage[self.slot] == self.stage:
            self._vanish_during(delivery)

    def _vanish_during(self, delivery: Delivery) -> None:
        span_s = delivery.last_byte_s - delivery.first_byte_s
        fraction = self._services.plan.drop_fraction[self.slot]
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
