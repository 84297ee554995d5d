"""The coordinator: selects, invites, judges frames, and closes rounds.

:meth:`Coordinator.run` is the coordinator's story, one round after the other. Frames arrive through
:meth:`Coordinator.frame_received`, which asks the round's machine what to do and does it. The coordinator
knows devices as channels to send on; whether they are simulated or real it does not know.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.rounds import RoundMachine, RoundPlan, Verdict
from edge.codec import measure
from edge.errors import RemoteProtocolError
from edge.learning.base import Accumulator, ClientUpdate
from edge.messages import FROM_DEVICES, Acknowledge, Arrays, Invite, Message, Model, Report
from edge.vocabulary import Reason


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A message for many devices, with its sizes in bytes: one object, measured once."""

    message: Message
    frame_bytes: int
    payload_bytes: int

    @classmethod
    def of(cls, message: Message) -> Broadcast:
        """Measure ``message``."""
        return cls(message, *measure(message))


class Channel(Protocol):
    """The coordinator's end of the connection to a device."""

    device: int
    """Who is at the other end."""

    def push(self, message: Message, frame_bytes: int, payload_bytes: int) -> None:
        """Start sending a frame to the device; returns at once."""


class Cohort(Protocol):
    """The devices chosen for a round."""

    devices: list[int]

    def invite(self, round_: ActiveRound, invitation: Broadcast) -> None:
        """Send the invitation to every device of the cohort."""


@dataclass(slots=True)
class ActiveRound:
    """A round from its invitation until its last device is done."""

    machine: RoundMachine
    model: Broadcast
    accumulator: Accumulator
    start_s: float
    closed: asyncio.Future[None]
    end_s: float = 0.0
    receipts: dict[Reason, Broadcast] = field(default_factory=dict)

    def receipt(self, reason: Reason) -> Broadcast:
        """Return the acknowledgement that says ``reason`` (``NONE``: the report counts)."""
        found = self.receipts.get(reason)
        if found is None:
            plan = self.machine.plan
            found = Broadcast.of(Acknowledge(plan.run_id, plan.round_number, reason))
            self.receipts[reason] = found
        return found

    def answer(self, channel: Channel, reason: Reason) -> None:
        """Send the acknowledgement that says ``reason``."""
        receipt = self.receipt(reason)
        channel.push(receipt.message, receipt.frame_bytes, receipt.payload_bytes)


# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_SEND_MODEL = Verdict.SEND_MODEL
_AGGREGATE = Verdict.AGGREGATE
_REFUSE = Verdict.REFUSE
_NOTE = Verdict.NOTE
_NONE = Reason.NONE


class Coordinator:
    """Runs rounds and judges frames.

    Parameters
    ----------
    run_id : names the run in every message.
    task : what devices are invited to, for example the algorithm's name.
    """

    def __init__(self, run_id: str, task: str) -> None:
        self.run_id = run_id
        self._task = task
        self._rounds: dict[int, ActiveRound] = {}
        self._latest: ActiveRound | None = None

    async def run_round(
        self, plan: RoundPlan, cohort: Cohort, arrays: Arrays, accumulator: Accumulator
    ) -> ActiveRound:
        """Invite ``cohort``, collect reports until the round is over, and return it.

        The round goes on answering stragglers until :meth:`forget` is called for it.
        """
        loop = asyncio.get_running_loop()
        model = Broadcast.of(Model(plan.run_id, plan.round_number, arrays))
        active = ActiveRound(
            machine=RoundMachine(plan, cohort.devices),
            model=model,
            accumulator=accumulator,
            start_s=loop.time(),
            closed=loop.create_future(),
        )
        self._rounds[plan.round_number] = active
        self._latest = active
        deadline = loop.call_later(plan.deadline_s, self._deadline_passed, active)
        invite = Invite(plan.run_id, plan.round_number, self._task, plan.deadline_s, model.frame_bytes)
        cohort.invite(active, Broadcast.of(invite))
        await active.closed
        deadline.cancel()
        return active

    def forget(self, round_number: int) -> None:
        """Stop answering for a round: all of its devices are done."""
        del self._rounds[round_number]

    def _deadline_passed(self, active: ActiveRound) -> None:
        active.machine.deadline_passed()
        self._notice_end(active)

    def lost(self, round_number: int, device: int) -> None:
        """Note that the connection to ``device`` is known to be gone."""
        active = self._rounds.get(round_number)
        if active is not None:
            active.machine.lost(device)
            self._notice_end(active)

    def frame_received(self, channel: Channel, message: Message) -> Reason:
        """Judge a frame, act on it, and return ``Reason.NONE`` if it counted, else why it was discarded."""
        active = self._rounds.get(message.round_number, self._latest)
        if active is None:
            return Reason.STALE
        machine = active.machine
        if not isinstance(message, FROM_DEVICES):
            return Reason.WRONG_STAGE
        if message.device != channel.device:
            return Reason.NOT_INVITED  # one device speaks for another
        if message.__class__ is Report and not machine.over:
            assert isinstance(message, Report)
            try:
                active.accumulator.check(message.arrays)
            except RemoteProtocolError:
                machine.lost(message.device)
                self._notice_end(active)
                active.answer(channel, Reason.GARBAGE)
                return Reason.GARBAGE
        verdict, reason = machine.received(message)
        if verdict is _SEND_MODEL:
            model = active.model
            channel.push(model.message, model.frame_bytes, model.payload_bytes)
        elif verdict is _AGGREGATE:
            assert isinstance(message, Report)
            active.accumulator.add(
                ClientUpdate(message.arrays, message.weight, message.examples, message.loss)
            )
            active.answer(channel, _NONE)
            self._notice_end(active)
        elif verdict is _REFUSE:
            active.answer(channel, reason)
        elif verdict is _NOTE:
            self._notice_end(active)
        return reason

    def _notice_end(self, active: ActiveRound) -> None:
        if active.machine.over and not active.closed.done():
            active.end_s = asyncio.get_running_loop().time()
            active.closed.set_result(None)
