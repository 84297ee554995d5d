"""The work of a simulated device: training, and what a secure sum has it compute."""

from __future__ import annotations

import abc
import math

from edge.clock import sleep
from edge.device.recorded_link import RecordedLink
from edge.device.round_services import RoundServices
from edge.learning.updates import ClientUpdate
from edge.mailbox import DeadlineExceededError
from edge.message_kinds import KINDS
from edge.messages import Model
from edge.secagg.participant import Answer, Participant
from edge.vocabulary import EventKind, Reason, Stage

# On Python 3.11 a member of an enum is looked up through a hook, fifteen times as slowly as a global.
_NONE = Reason.NONE
_COMPUTE = Stage.COMPUTE
_REPORT = Stage.REPORT
_COMPUTED = EventKind.COMPUTED


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
        shortage = plan.shortage[self.slot]
        faults = services.faults
        if shortage is not _NONE:
            if faults is not None:
                faults.short(self.slot, self.loop.now_s)
            return shortage
        self._compute_start_s = start_s = self.loop.now_s
        self._computing = _COMPUTE
        seconds = plan.compute_s[self.slot]
        if faults is not None:
            seconds = faults.compute_s(self.slot, _COMPUTE, start_s, seconds)
        if plan.drop_stage[self.slot] == _COMPUTE:
            before_s = seconds * plan.drop_fraction[self.slot]
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
            result = faults.poisoned(self.slot, result, self.loop.now_s)
            if self._in_clear():
                await self._gather(_REPORT)
        protect = services.protect
        made = result if protect is None else protect(self, result)
        if faults is not None and isinstance(made, ClientUpdate):
            return faults.poisoned(self.slot, made, self.loop.now_s, protected=True)
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
