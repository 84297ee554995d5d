"""One device's story in one round.

The actor is written once: under the virtual clock its context sends over simulated links and waits in
simulated time; on the real clock another context does the same over sockets. Nothing here knows which.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from edge.clock.virtual import DeadlineExceededError
from edge.core.vocabulary import Reason
from edge.crypto.errors import SecAggError
from edge.device.participation import Participation, State
from edge.learning.updates import ClientUpdate
from edge.secagg.participant import Answer, Participant, reason_of
from edge.wire.messages import AnyMessage, Invite, Model

# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_AWAITING_MODEL = State.AWAITING_MODEL
_COMPUTING = State.COMPUTING
_AWAITING_RECEIPT = State.AWAITING_RECEIPT


class DeviceContext(Protocol):
    """What a device can do: look at itself, talk to the coordinator, compute."""

    @property
    def device(self) -> int:
        """The device's id."""

    def obstacle(self) -> Reason:
        """Say what keeps the device from taking part now, or ``Reason.NONE``."""

    def bare(self) -> bool:
        """Say whether the device lacks what never changes and is sent only once."""

    def send(self, message: AnyMessage) -> None:
        """Start sending ``message`` to the coordinator; returns at once."""

    def receive(self) -> Awaitable[AnyMessage]:
        """Wait for the next frame; raise ``DeadlineExceededError`` when time is up."""

    def settle(self, reason: Reason) -> None:
        """Say what became of the frame received last: acted on (``NONE``), or discarded and why."""

    async def train(self, model: Model) -> ClientUpdate | Reason:
        """Reconstruct the local factors and compute the update, taking the device's time for it.

        Returns the reason instead when the device cannot do the work (no data, out of memory).
        """

    def participant(self, model: Model) -> Participant | None:
        """Return the device's part in the secure sum of this round; None where updates are reported."""

    async def prepare(self, answer: Answer) -> None:
        """Take the device's time for what ``answer`` had it compute."""


async def take_part(context: DeviceContext, invite: Invite) -> Participation:
    """Answer an invitation, download, train, report, and wait for the receipt.

    Returns the participation as it ended. ``CancelledError`` passes through: a device that vanishes does
    not say goodbye.
    """
    part = Participation(context.device)
    context.send(part.invited(invite, context.obstacle(), bare=context.bare()))
    try:
        while part.state is _AWAITING_MODEL:
            model = await context.receive()
            context.settle(part.received(model))
        if part.state is _COMPUTING and isinstance(model, Model):
            result = await context.train(model)
            if isinstance(result, Reason):
                context.send(part.failed(result))
            elif (participant := context.participant(model)) is not None:
                await _sum_securely(context, part, participant, result)
            else:
                context.send(part.computed(result.arrays, result.weight, result.examples, result.loss))
        while part.state is _AWAITING_RECEIPT:
            context.settle(part.received(await context.receive()))
    except DeadlineExceededError:
        part.timed_out()
    return part


async def _sum_securely(
    context: DeviceContext, part: Participation, participant: Participant, update: ClientUpdate
) -> None:
    """Take the update through the stages of a secure sum, until the device has done its part in it."""
    try:
        answer: Answer | None = participant.begin(update)
    except SecAggError as error:
        context.send(part.failed(reason_of(error.reason)))
        return
    part.sums()
    while True:
        if answer is not None:
            await context.prepare(answer)
            context.send(answer.message)
        over = participant.over
        if over:
            break
        answer = None
        message = await context.receive()
        reason = part.received(message)
        if part.over:
            context.settle(reason)
            return  # a receipt: the round is over for this device
        if reason is not Reason.NONE:
            context.settle(reason)
            continue
        try:
            answer = participant.receive(message)
        except SecAggError as error:
            context.settle(reason_of(error.reason))
            if participant.over:
                context.send(participant.give_up(error.reason))
            continue
        context.settle(Reason.NONE)
    if participant.failure is None:
        part.contributed()
    else:
        part.aborted(reason_of(participant.failure))
