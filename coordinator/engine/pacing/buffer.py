"""Asynchronous training with a buffer, the coordinator's side, without I/O.

Source: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation" (FedBuff, AISTATS),
algorithm 1. Devices train on the model that was the latest when they were invited. Their reports go into a
buffer, each multiplied by s(τ), τ the server steps made since; when the buffer holds K reports the server
takes a step with their mean and empties it:

    Δ̄ = (1/K)·Σ s(τ_i)·Δ_i,    s(τ) = 1/√(1 + τ)

s(0) = 1: a fresh report counts as in a synchronous round, and a buffer of fresh ones is one. The divisor is
that of the reports without s, as in the paper: stale reports make a step shorter, not only lighter. Where
updates have weights w_i (numbers of examples), the mean is Σ s(τ_i)·w_i·Δ_i / Σ w_i.

Beyond the paper, a report that is more than a limit of steps old is refused; a device whose deadline passes
frees its place (the paper's devices always answer); and a device is not asked twice for the same model, for
its update would be the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from coordinator.engine.rounds import FrameVerdict, Member, RoundMachine, RoundPlan
from edge.core.vocabulary import Reason, RoundOutcome
from edge.learning.updates import Accumulator, Aggregate, Array, ClientUpdate, Layout, UpdateBatch
from edge.wire.messages import FROM_DEVICES, Accept, AcceptBare, Message, Report

Weight = Literal["inverse-sqrt", "constant"]


def staleness_weight(kind: Weight, staleness: int) -> float:
    """Return s(τ), 1 for a fresh report; see the module."""
    return 1.0 if kind == "constant" else 1.0 / math.sqrt(1.0 + staleness)


class VersionMachine(RoundMachine):
    """The devices that were invited while one model was the latest.

    It receives them one after the other, and takes their reports until it is retired; it never closes by
    itself.

    Parameters
    ----------
    plan : its deadline is each device's own; target and quorum mean nothing here.
    invited : the first devices.
    """

    __slots__ = ("_silent",)

    def __init__(self, plan: RoundPlan, invited: list[int]) -> None:
        super().__init__(plan, invited)
        self._silent: set[int] = set()

    @property
    def at_work(self) -> int:
        """Devices that may still report in time."""
        return 0 if self.over else self.open

    def invite(self, devices: list[int]) -> None:
        """Record that more devices are invited, none of them for the second time."""
        self._members.update(dict.fromkeys(devices, Member.INVITED))
        self.open += len(devices)

    def deadline_of(self, devices: list[int]) -> None:
        """End the wait for those of ``devices`` that have not reported: their time is up."""
        for device in devices:
            if self._members[device] in (Member.INVITED, Member.ACCEPTED):
                self._silent.add(device)
                self._leave(device)

    def received(self, message: Message) -> tuple[FrameVerdict, Reason]:
        """Judge a frame from a device; see :meth:`RoundMachine.received`."""
        mine = message.round_number == self.plan.round_number and message.run_id == self.plan.run_id
        if not mine or not isinstance(message, FROM_DEVICES) or message.device not in self._silent:
            return super().received(message)
        self._silent.discard(message.device)
        if isinstance(message, Report | Accept | AcceptBare):
            return FrameVerdict.REFUSE, Reason.DEADLINE
        return FrameVerdict.NOTE, Reason.NONE

    def retire(self, reason: Reason) -> None:
        """Take no more reports: the model is too old (``STALE``), or training is over (``COHORT_FULL``)."""
        if self.outcome is None:
            self.outcome = RoundOutcome.COMPLETED
            self.closed_by = reason

    def _close_if_done(self) -> None:
        """Stay open: others may be invited yet."""

    @property
    def lateness(self) -> Reason:
        """Why the version was retired."""
        return self.closed_by


class Buffer:
    """Adds up the reports of one server step.

    Parameters
    ----------
    number : the step, from 1.
    accumulator : empty.
    """

    def __init__(self, number: int, accumulator: Accumulator) -> None:
        self.number = number
        self.reports = 0
        self._accumulator = accumulator

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return self._accumulator.layout

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        self._accumulator.check(arrays)

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        return self._accumulator.check_many(batch)

    def add(self, update: ClientUpdate, client: int, weight: float) -> None:
        """Add the report of ``client``, its update multiplied by ``weight``."""
        if weight != 1.0:
            update = update._replace(
                arrays={
                    name: array * array.dtype.type(weight)
                    if np.issubdtype(array.dtype, np.floating)
                    else array
                    for name, array in update.arrays.items()
                }
            )
        self._accumulator.add(update, client)
        self.reports += 1

    def result(self) -> Aggregate:
        """Return the sum of the reports."""
        return self._accumulator.result()


class Doorway(Accumulator):
    """An accumulator in front of the buffer for the reports on one model.

    Parameters
    ----------
    buffer : returns the buffer of the step that is under way.
    staleness : returns how many steps old the model is now.
    weight : s.
    """

    def __init__(
        self, buffer: Callable[[], Buffer], staleness: Callable[[], int], weight: Callable[[int], float]
    ) -> None:
        self._buffer = buffer
        self._staleness = staleness
        self._weight = weight
        self.last = (0, 0)
        """The step that the last report went into, and how many steps old it was."""

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return self._buffer().layout

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        self._buffer().check(arrays)

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch."""
        return self._buffer().check_many(batch)

    def add(self, update: ClientUpdate, client: int) -> None:
        """Put the report of ``client`` into the buffer, with the weight of its age."""
        buffer, staleness = self._buffer(), self._staleness()
        self.last = (buffer.number, staleness)
        buffer.add(update, client, self._weight(staleness))

    def result(self) -> Aggregate:
        """Return the sum of the step under way, which is not of this model's reports alone."""
        return self._buffer().result()
