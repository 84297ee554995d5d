"""A device on the real clock: the context in which the actor lives between sockets.

A :class:`ResidentDevice` stays for a whole session and takes part in one round after the other; each time the
actor is that of the simulation, :func:`~edge.device.actor.take_part`. What the device computes runs in an
executor, one device at a time, so that the loop goes on answering; how long it took is measured.

A device that is as slow as its profile has a time of its own, which starts with what came last and goes on by
what the profile says. It acts no sooner than then. Where the host gets to it later, it says what it says as
of its own time, and the link makes up for it as far as it can (:mod:`edge.network.shaping`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from edge.clock.virtual import DeadlineExceededError
from edge.core.errors import CodecError
from edge.core.vocabulary import Reason, Stage
from edge.device.actor import take_part
from edge.device.participation import RECEIPT_PATIENCE, Participation
from edge.learning.updates import ClientUpdate
from edge.secagg.participant import Answer, CryptoWork, Participant
from edge.wire.codec import CodecLimits, decode, encode
from edge.wire.messages import KINDS, Accept, AcceptBare, AnyMessage, Decline, Failure, Invite, Model
from edge.wire.session import Event, Received

_WAITING_FRAMES = 1024
"""Most frames that wait for an actor."""
_OF_INVITATION = (Accept, AcceptBare, Decline, Failure)
"""What a device sends that leaves it no more patient than it was."""


class LocalWork(Protocol):
    """What one device has and can do by itself."""

    def obstacle(self) -> Reason:
        """Say what keeps the device from taking part now, or ``Reason.NONE``."""

    def bare(self) -> bool:
        """Say whether the device lacks what never changes and is sent only once."""

    def update(self, model: Model) -> ClientUpdate | Reason:
        """Compute the update; called in an executor. Returns the reason instead when it cannot be done."""

    def participant(self, model: Model) -> Participant | None:
        """Return the device's part in the secure sum of this round; None where updates are reported."""

    def patience_s(self, round_number: int) -> float:
        """Return how much longer than for a report the device waits until a secure sum is made, seconds."""

    def compute_s(self, round_number: int) -> float:
        """Return how long the update shall take at least, seconds; 0 for no longer than it takes here."""

    def crypto_s(self, work: CryptoWork) -> float:
        """Return how long cryptography shall take at least, seconds; 0 for no longer than it takes here."""


class RoundMemory(Protocol):
    """What a device remembers of the rounds of its run, beyond the process that it lives in."""

    async def objection(self, run_id: str, round_number: int) -> Reason:
        """Return why the device does not answer a round; ``Reason.NONE`` once its answer will be remembered.

        A run that is not the one of the device's session is ``Reason.STALE``.
        """


class Wire(Protocol):
    """How a device reaches the coordinator."""

    @property
    def moment_s(self) -> float | None:
        """The device's own time, absolute seconds: when what came last was due, or what was told since.

        None for a device that has none but the host's.
        """

    def tell_time(self, when_s: float) -> None:
        """Say when, by the device's own time, it does what comes next."""

    def send(self, frame: bytes) -> object:
        """Queue a message."""

    def note(self, stage: int, seconds: float | None = None) -> None:
        """Say that a computation for a stage begins, or how long it took."""


class RealDevice:
    """One device during one round; implements :class:`~edge.device.actor.DeviceContext`."""

    def __init__(self, device: int, work: LocalWork, wire: Wire, executor: Executor, invite: Invite) -> None:
        self.device = device
        self._work = work
        self._wire = wire
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[tuple[float | None, AnyMessage]] = asyncio.Queue(_WAITING_FRAMES)
        self._run_id = invite.run_id
        self._round_number = invite.round_number
        now_s = self._loop.time()
        self._deadline_s = now_s + invite.report_within_s
        patience_s = work.patience_s(invite.round_number)
        self._patience_s = now_s + RECEIPT_PATIENCE * invite.report_within_s + patience_s
        self._obstacle = work.obstacle()
        self._own_time = wire.moment_s is not None
        self._free_s = now_s if wire.moment_s is None else wire.moment_s
        """Since when the device has been at what it does now."""
        self.discarded: Counter[Reason] = Counter()
        """Frames that were not acted on, by why not."""

    def invited_to(self, invite: Invite) -> bool:
        """Say whether an invitation is one to this very round."""
        return (invite.run_id, invite.round_number) == (self._run_id, self._round_number)

    def put(self, message: AnyMessage) -> None:
        """Let a frame from the coordinator arrive."""
        try:
            self._inbox.put_nowait((self._wire.moment_s, message))
        except asyncio.QueueFull:
            self.discarded[Reason.GARBAGE] += 1

    async def remember(self, memory: RoundMemory) -> None:
        """Have the round remembered before it is answered, unless something is in the way already."""
        if self._obstacle is Reason.NONE:
            self._obstacle = await memory.objection(self._run_id, self._round_number)

    # -- what the actor can do ---------------------------------------------------------------------------

    def obstacle(self) -> Reason:
        """Say what keeps the device from taking part now, or ``Reason.NONE``."""
        return self._obstacle

    def bare(self) -> bool:
        """Say whether the device lacks what never changes and is sent only once."""
        return self._work.bare()

    def send(self, message: AnyMessage) -> None:
        """Start sending ``message`` to the coordinator; returns at once."""
        if not isinstance(message, _OF_INVITATION):
            self._deadline_s = self._patience_s
        self._tell_time(self._free_s)
        self._wire.send(encode(message))

    async def receive(self) -> AnyMessage:
        """Wait for the next frame; raise ``DeadlineExceededError`` when time is up."""
        try:
            async with asyncio.timeout_at(self._deadline_s):
                moment_s, message = await self._inbox.get()
        except TimeoutError:
            self._free_s = self._loop.time()
            raise DeadlineExceededError(f"device {self.device}") from None
        self._free_s = self._loop.time() if moment_s is None else moment_s
        return message

    def settle(self, reason: Reason) -> None:
        """Count the frame received last, if it was discarded."""
        if reason is not Reason.NONE:
            self.discarded[reason] += 1

    async def train(self, model: Model) -> ClientUpdate | Reason:
        """Compute the update in the executor, and say how long it took."""
        start_s = self._free_s
        self._tell_time(start_s)
        self._wire.note(Stage.COMPUTE)
        try:
            async with asyncio.timeout_at(self._deadline_s):
                result = await self._loop.run_in_executor(self._executor, self._work.update, model)
                await self._take(self._work.compute_s(self._round_number))
        except TimeoutError:
            self._free_s = self._loop.time()
            self._computed_since(start_s)
            raise DeadlineExceededError(f"device {self.device}") from None
        self._computed_since(start_s)
        return result

    def _computed_since(self, start_s: float) -> None:
        self._tell_time(self._free_s)
        self._wire.note(Stage.COMPUTE, self._free_s - start_s)

    def participant(self, model: Model) -> Participant | None:
        """Return the device's part in the secure sum of this round; None where updates are reported."""
        return self._work.participant(model)

    async def prepare(self, answer: Answer) -> None:
        """Say how long the device has computed for ``answer``; a slow device has not finished yet."""
        start_s = self._free_s
        await self._take(self._work.crypto_s(answer.work))
        stage = KINDS[answer.message.__class__].stage
        self._tell_time(self._free_s)
        self._wire.note(stage, self._free_s - start_s)

    async def _take(self, seconds: float) -> None:
        """Let the device's work take so long from when it began, and at least as long as it takes here.

        By a time of its own it takes no longer, however late the host is.
        """
        until_s = self._free_s + seconds
        if (left_s := until_s - self._loop.time()) > 0.0:
            await asyncio.sleep(left_s)
        self._free_s = until_s if self._own_time else self._loop.time()

    def _tell_time(self, when_s: float) -> None:
        if self._own_time:
            self._wire.tell_time(when_s)


class ResidentDevice:
    """A device that takes part whenever it is invited; a listener of its session.

    Parameters
    ----------
    device : its id.
    work : what it has and can do.
    memory : which rounds it has answered.
    wire : how it reaches the coordinator.
    executor : computes; may be shared by many devices.
    frame_bytes : longest message.
    ended : receives how each participation ended.
    crashed : receives a bug in an actor.
    """

    def __init__(
        self,
        device: int,
        work: LocalWork,
        memory: RoundMemory,
        wire: Wire,
        executor: Executor,
        *,
        frame_bytes: int,
        ended: Callable[[Participation], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self.device = device
        self._work = work
        self._memory = memory
        self._wire = wire
        self._executor = executor
        self._limits = CodecLimits(frame_bytes=frame_bytes)
        self._ended = ended
        self._crashed = crashed
        self._context: RealDevice | None = None
        self._task: asyncio.Task[None] | None = None
        self.discarded: Counter[Reason] = Counter()
        """Frames that were not acted on, by why not; those of rounds that are over, or never were."""

    def happened(self, event: Event) -> None:
        """Take an event of the session."""
        if not isinstance(event, Received):
            return
        try:
            message = decode(event.frame, self._limits)
        except CodecError:
            # The session has delivered it whole: the coordinator means what it says, and says nothing.
            self.discarded[Reason.GARBAGE] += 1
            return
        if isinstance(message, Invite) and not self._busy_with(message):
            self._begin(message)
        elif self._context is not None:
            self._context.put(message)
        else:
            self.discarded[Reason.STALE] += 1

    def _busy_with(self, invite: Invite) -> bool:
        """Whether the device is in the round that it is invited to; one of another ends what it was in."""
        context = self._context
        return context is not None and context.invited_to(invite)

    def _begin(self, invite: Invite) -> None:
        self.leave()
        context = self._context = RealDevice(self.device, self._work, self._wire, self._executor, invite)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._live(context, invite), name=f"device {self.device}")

    async def _live(self, context: RealDevice, invite: Invite) -> None:
        try:
            await context.remember(self._memory)
            part = await take_part(context, invite)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._crashed(error)
            return
        self.discarded += context.discarded
        if self._context is context:
            self._context = self._task = None
        self._ended(part)

    def leave(self) -> None:
        """Stop whatever the device does now, without a word."""
        if self._task is not None:
            self._task.cancel()
        self._context = self._task = None

    @property
    def busy(self) -> bool:
        """Whether the device takes part in a round."""
        return self._context is not None
