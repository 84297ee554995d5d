"""The coordinator: selects, invites, judges frames, and closes rounds.

:meth:`Coordinator.run` is the coordinator's story, one round after the other. Frames arrive through
:meth:`Coordinator.frame_received`, which asks the round's machine what to do and does it. The coordinator
knows devices as channels to send on; whether they are simulated or real it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.engine.active_round import ActiveRound, Broadcast, Channel, Cohort, OwnParts, SecureSum
from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.pacing.buffer import VersionMachine
from coordinator.engine.rounds import FrameVerdict, RoundMachine, RoundPlan
from coordinator.engine.secure_rounds import STAGE_OF_STATE, SecureRoundMachine
from edge.core.errors import RemoteProtocolError
from edge.core.vocabulary import Reason
from edge.learning.accumulators import OUT_OF_RANGE
from edge.learning.updates import Accumulator, UpdateBatch
from edge.secagg.states import CoordinatorState
from edge.wire.codec import measure
from edge.wire.messages import (
    FROM_DEVICES,
    Acknowledge,
    AnyMessage,
    Arrays,
    DecryptRequest,
    EncryptedInput,
    Invite,
    MaskedInput,
    Model,
    Report,
)

# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_SEND_MODEL = FrameVerdict.SEND_MODEL
_AGGREGATE = FrameVerdict.AGGREGATE
_REFUSE = FrameVerdict.REFUSE
_NOTE = FrameVerdict.NOTE
_NONE = Reason.NONE
UPDATES = frozenset((Report, MaskedInput, EncryptedInput))
"""What brings the update of a device."""


class Coordinator:
    """Runs rounds and judges frames.

    Parameters
    ----------
    run_id : names the run in every message.
    task : what devices are invited to, for example the algorithm's name.
    ranges : of the numbers in reports.
    """

    def __init__(self, run_id: str, task: str, ranges: ReportRanges) -> None:
        self.run_id = run_id
        self._ranges = ranges
        self._task = task
        self._rounds: dict[int, ActiveRound] = {}
        self._latest: ActiveRound | None = None

    async def run_round(
        self,
        plan: RoundPlan,
        cohort: Cohort,
        arrays: Arrays,
        accumulator: Accumulator,
        secure: SecureSum | None = None,
        fixed: Arrays | None = None,
        own: OwnParts | None = None,
        ranges: ReportRanges | None = None,
    ) -> ActiveRound:
        """Invite ``cohort``, collect reports until the round is over, and return it.

        With ``secure`` the updates are summed by its protocol instead of being reported, or beside being
        reported if the plan is for a mixed round. ``fixed`` never
        changes and is sent only to devices that say they lack it; ``own`` is what each is sent for itself.
        Numbers in reports lie in ``ranges``; None: in those of the run.
        The round goes on answering stragglers
        until :meth:`forget` is called for it.
        """
        loop = asyncio.get_running_loop()
        message = Model(plan.run_id, plan.round_number, arrays)
        machine: RoundMachine | SecureRoundMachine
        if secure is None:
            machine = RoundMachine(plan, cohort.devices)
        else:
            aggregation = secure.start(message, cohort.devices, plan.target)
            machine = SecureRoundMachine(plan, cohort.devices, aggregation)
        active = self._opened(machine, message, accumulator, fixed)
        active.secure, active.own, active.ranges = secure, own, ranges
        end_s = loop.time() + plan.deadline_s if plan.close is None else plan.close[0]
        deadline = loop.call_at(end_s, self._deadline_passed, active)
        cohort.invite(active, self._invitation(active))
        await active.closed
        deadline.cancel()
        if active.stage_timer is not None:
            active.stage_timer.cancel()
        return active

    def _opened(
        self,
        machine: RoundMachine | SecureRoundMachine,
        message: Model,
        accumulator: Accumulator,
        fixed: Arrays | None,
    ) -> ActiveRound:
        """Return a round that begins now, and answer for it from now on."""
        loop = asyncio.get_running_loop()
        model = Broadcast.of(message)
        whole = Broadcast.of(message._replace(arrays={**fixed, **message.arrays})) if fixed else model
        active = ActiveRound(machine, model, whole, accumulator, loop.time(), loop.create_future())
        self._rounds[machine.plan.round_number] = active
        self._latest = active
        return active

    def _invitation(self, active: ActiveRound) -> Broadcast:
        plan = active.machine.plan
        size = active.model.frame_bytes
        return Broadcast.of(Invite(plan.run_id, plan.round_number, self._task, plan.deadline_s, size))

    def open_version(
        self,
        machine: VersionMachine,
        arrays: Arrays,
        accumulator: Accumulator,
        fixed: Arrays | None,
        changed: Callable[[], None],
    ) -> ActiveRound:
        """Open a model version: reports on it are taken until its machine is retired.

        ``changed`` is called after every report and whenever a device will no longer report.
        """
        message = Model(machine.plan.run_id, machine.plan.round_number, arrays)
        active = self._opened(machine, message, accumulator, fixed)
        active.changed = changed
        return active

    def invite(self, active: ActiveRound, cohort: Cohort) -> None:
        """Invite devices to an open model version; each has the time of its deadline from now on."""
        loop = asyncio.get_running_loop()
        loop.call_later(active.machine.plan.deadline_s, self._devices_silent, active, cohort.devices)
        cohort.invite(active, self._invitation(active))

    def _devices_silent(self, active: ActiveRound, devices: list[int]) -> None:
        machine = active.machine
        assert isinstance(machine, VersionMachine)
        if not machine.over:
            machine.deadline_of(devices)
            self._notice_end(active)

    def forget(self, round_number: int) -> None:
        """Stop answering for a round: all of its devices are done, or were before a crash."""
        self._rounds.pop(round_number, None)

    def crash(self) -> None:
        """Lose everything that is under way: rounds that are not over are abandoned, none is answered for."""
        for active in self._rounds.values():
            active.machine.abandon(Reason.COORDINATOR_CRASH)
            active.channels.clear()
            self._notice_end(active)
        self._rounds.clear()
        self._latest = None

    def _deadline_passed(self, active: ActiveRound) -> None:
        machine = active.machine
        if isinstance(machine, SecureRoundMachine):
            if not machine.over:
                self._stage_deadline_passed(active, machine, machine.first_stage)
            return
        if active.wave is not None:
            active.wave.catch_up()
        machine.deadline_passed()
        self._notice_end(active)
        if active.wave is not None:
            active.wave.rearm()

    def lost(self, round_number: int, device: int) -> None:
        """Give up ``device``, whose connection is gone."""
        active = self._rounds.get(round_number)
        if active is None:
            return
        machine = active.machine
        if isinstance(machine, SecureRoundMachine):
            before = machine.stage
            self._go_on(active, machine, before, machine.lost(device))
        else:
            machine.lost(device)
            self._notice_end(active)

    def frame_received(self, channel: Channel, message: AnyMessage) -> Reason:
        """Judge a frame, act on it, and return ``Reason.NONE`` if it counted, else why it was discarded."""
        active = self._rounds.get(message.round_number, self._latest)
        if active is None:
            return Reason.STALE
        if message.__class__ in UPDATES:
            active.arrived.add(channel.device)
        machine = active.machine
        if isinstance(machine, SecureRoundMachine):
            return self._frame_of_sum_received(active, machine, channel, message)
        if not isinstance(message, FROM_DEVICES):
            return Reason.WRONG_STAGE
        if message.device != channel.device:
            return Reason.NOT_INVITED  # one device speaks for another
        if message.__class__ is Report:
            assert isinstance(message, Report)
            refused = self._refused(active, message)
            if refused is not None:
                machine.lost(message.device)
                self._notice_end(active)
                active.answer(channel, refused)
                return refused
        verdict, reason = machine.received(message)
        if verdict is _SEND_MODEL:
            active.send_model(channel, message)
        elif verdict is _AGGREGATE:
            assert isinstance(message, Report)
            active.accumulator.add(active.update_of(message), message.device)
            active.answer(channel, _NONE)
            self._grant_grace(active, machine)
            self._notice_end(active)
        elif verdict is _REFUSE:
            _refuse(active, channel, message, reason)
        elif verdict is _NOTE:
            self._notice_end(active)
        return reason

    def _refused(self, active: ActiveRound, report: Report) -> Reason | None:
        """Return why a report of this round is not believed; None: it is well-formed and within its ranges.

        One that comes too late is looked at, too: more is read from it than its update.
        """
        plan = active.machine.plan
        if report.round_number != plan.round_number or report.run_id != plan.run_id:
            return None
        reason = self.objection(active, report)
        if reason is not None:
            active.spoilers.setdefault(report.device, reason)
        return reason

    def objection(self, active: ActiveRound, report: Report) -> Reason | None:
        """Return what is wrong with the numbers of a report; None: nothing is."""
        try:
            self._ranges_of(active).check(report, active.accumulator)
        except RemoteProtocolError as error:
            return Reason.OUT_OF_RANGE if error.reason == OUT_OF_RANGE else Reason.GARBAGE
        return None

    def believes_all(self, active: ActiveRound, updates: UpdateBatch) -> bool:
        """Return whether reports of ``updates`` are known to be in order; False: look at each of them."""
        return self._ranges_of(active).check_many(updates, active.accumulator)

    def _ranges_of(self, active: ActiveRound) -> ReportRanges:
        return self._ranges if active.ranges is None else active.ranges

    def counted(self, active: ActiveRound, machine: RoundMachine, *, reports: bool) -> None:
        """Respond to what the machine of a round has counted, ``reports`` among it or not."""
        if reports:
            self._grant_grace(active, machine)
        self._notice_end(active)

    def _grant_grace(self, active: ActiveRound, machine: RoundMachine) -> None:
        """Give the others only so much longer, once the quorum is met."""
        plan = machine.plan
        if plan.grace_s is not None and machine.reports == plan.quorum and not machine.over:
            loop = asyncio.get_running_loop()
            active.stage_timer = loop.call_later(plan.grace_s, self._deadline_passed, active)

    def garbage_received(self, channel: Channel, round_number: int) -> Reason:
        """Refuse bytes that are no frame: the device that sent them takes no further part in the round."""
        active = self._rounds.get(round_number)
        if active is not None:
            active.arrived.add(channel.device)  # it may have been an update, all but a bit of it
            self.lost(round_number, channel.device)
            active.answer(channel, Reason.GARBAGE)
        return Reason.GARBAGE

    def _notice_end(self, active: ActiveRound) -> None:
        if active.changed is not None:
            active.changed()
        elif active.machine.over and not active.closed.done():
            active.end_s = asyncio.get_running_loop().time()
            active.closed.set_result(None)

    # -- secure sums -----------------------------------------------------------------------------------

    def _frame_of_sum_received(
        self, active: ActiveRound, machine: SecureRoundMachine, channel: Channel, message: AnyMessage
    ) -> Reason:
        before = machine.stage
        if isinstance(message, Report) and message.device == channel.device:
            refused = self._refused(active, message)
            if refused is not None:
                if machine.awaits_report(channel.device, message):
                    send = machine.lost(channel.device)
                    active.answer(channel, refused)
                    self._go_on(active, machine, before, send)
                return refused
        verdict, reason, send = machine.received(channel.device, message)
        if verdict is _SEND_MODEL:
            active.channels[channel.device] = channel
            active.send_model(channel, message)
        elif verdict is _AGGREGATE:
            assert isinstance(message, Report)
            active.accumulator.add(active.update_of(message), message.device)
            active.answer(channel, _NONE)
        elif verdict is _REFUSE:
            _refuse(active, channel, message, reason)
        self._go_on(active, machine, before, send)
        return reason

    def _go_on(
        self,
        active: ActiveRound,
        machine: SecureRoundMachine,
        before: CoordinatorState,
        send: list[tuple[int, AnyMessage]],
    ) -> None:
        """Send what follows from an event, and see to the deadline or the end that comes with a new stage."""
        if machine.stage is not before:
            active.stage_end_s[STAGE_OF_STATE[before]] = asyncio.get_running_loop().time()
        for device, message in send:
            channel = active.channels.get(device)
            if channel is not None:  # nothing was agreed with a device that was never given the model
                channel.push(message, *measure(message))
        if machine.over:
            if not active.closed.done():
                self._give_receipts(active, machine, {device for device, _ in send})
            self._notice_end(active)
        elif machine.stage is not before or any(type(message) is DecryptRequest for _, message in send):
            self._await_stage(active, machine)

    def _await_stage(self, active: ActiveRound, machine: SecureRoundMachine) -> None:
        assert active.secure is not None
        loop = asyncio.get_running_loop()
        stage = machine.stage
        seconds = active.secure.deadline_s(stage)
        if active.stage_timer is not None:
            active.stage_timer.cancel()
        active.stage_timer = loop.call_later(seconds, self._stage_deadline_passed, active, machine, stage)

    def _stage_deadline_passed(
        self, active: ActiveRound, machine: SecureRoundMachine, stage: CoordinatorState
    ) -> None:
        if machine.over or machine.stage is not stage:
            return
        self._go_on(active, machine, stage, machine.deadline_passed(stage))

    def _give_receipts(self, active: ActiveRound, machine: SecureRoundMachine, told: set[int]) -> None:
        """Send receipts to the devices whose updates were taken, unless they have one."""
        for device in sorted(machine.aggregation.contributors - told):
            channel = active.channels.get(device)
            if channel is not None:
                active.answer(channel, machine.reason_of_sum)


def _refuse(active: ActiveRound, channel: Channel, message: AnyMessage, reason: Reason) -> None:
    """Tell a device that its frame does not count."""
    if reason is not Reason.STALE:
        active.answer(channel, reason)
        return
    # In the name of the frame's own round: a receipt of this one would end the device's part in it.
    receipt = Broadcast.of(Acknowledge(message.run_id, message.round_number, reason))
    channel.push(receipt.message, receipt.frame_bytes, receipt.payload_bytes)
