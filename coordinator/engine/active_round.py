"""A round that is going on: its machine, its messages, and whom the coordinator speaks to in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.rounds import RoundMachine
from coordinator.engine.secure_rounds import SecureRoundMachine
from coordinator.engine.secure_sums import SecureAggregation
from edge.core.vocabulary import Reason, Stage
from edge.learning.updates import Accumulator, ClientUpdate
from edge.secagg.states import CoordinatorState
from edge.wire.codec import measure
from edge.wire.messages import AcceptBare, Acknowledge, AnyMessage, Arrays, Message, Model, Report


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

    def push(self, message: AnyMessage, frame_bytes: int, payload_bytes: int) -> None:
        """Start sending a frame to the device; returns at once."""


class SecureSum(Protocol):
    """How the updates of a round are summed so that only the sum is seen."""

    def start(self, model: Model, invited: list[int], target: int) -> SecureAggregation:
        """Return the machine that makes the sum over those of ``invited`` that come, ``target`` at most."""

    def deadline_s(self, stage: CoordinatorState) -> float:
        """Return how long a stage may take, seconds; of all stages but the first."""


class OwnParts(Protocol):
    """What the model has of each device alone, where a method keeps such things on the coordinator."""

    def sent_to(self, device: int) -> Arrays:
        """Return what ``device`` is sent in the place of the model's arrays of these names and sizes."""

    def named(self, device: int, arrays: Arrays) -> Arrays:
        """Return the arrays of a report from ``device`` with what says whose they are."""


class ForeseenDevices(Protocol):
    """Devices of a round that are looked at only when something depends on them."""

    def catch_up(self) -> None:
        """Let everything happen that comes before this moment."""

    def rearm(self) -> None:
        """Look again at when the round may close: something else has changed it."""


class Cohort(Protocol):
    """The devices chosen for a round."""

    devices: list[int]

    def invite(self, round_: ActiveRound, invitation: Broadcast) -> None:
        """Send the invitation to every device of the cohort."""


@dataclass(slots=True)
class ActiveRound:
    """A round from its invitation until its last device is done."""

    machine: RoundMachine | SecureRoundMachine
    model: Broadcast
    whole_model: Broadcast
    """The model with what never changes, for devices that lack it."""
    accumulator: Accumulator
    start_s: float
    closed: asyncio.Future[None]
    ranges: ReportRanges | None = None
    """What the numbers of its reports lie between; None: what they do in the run."""
    secure: SecureSum | None = None
    own: OwnParts | None = None
    wave: ForeseenDevices | None = None
    """Those of its devices that are computed as arrays; None: each acts by itself."""
    end_s: float = 0.0
    stage_end_s: dict[Stage, float] = field(default_factory=dict)
    """When each stage of a secure sum ended on the coordinator, in order."""
    receipts: dict[Reason, Broadcast] = field(default_factory=dict)
    stage_timer: asyncio.TimerHandle | None = None
    """Ends the stage of a secure sum that is going on, or the time of grace after the quorum."""
    changed: Callable[[], None] | None = None
    """Of a model version that stays open: called when a report has come, or when one will not come."""
    spoilers: dict[int, Reason] = field(default_factory=dict)
    """Devices that broke the protocol, or reported what cannot be, each with why."""
    arrived: set[int] = field(default_factory=set)
    """Devices an update of which has arrived, whatever became of it."""
    struck: set[int] = field(default_factory=set)
    """The members of ``spoilers`` that have been looked at for a strike of this round."""
    channels: dict[int, Channel] = field(default_factory=dict)
    """Those that a secure sum sends to at any time, by device."""

    def receipt(self, reason: Reason) -> Broadcast:
        """Return the acknowledgement that says ``reason`` (``NONE``: the report counts)."""
        found = self.receipts.get(reason)
        if found is None:
            plan = self.machine.plan
            found = Broadcast.of(Acknowledge(plan.run_id, plan.round_number, reason))
            self.receipts[reason] = found
        return found

    def send_model(self, channel: Channel, message: AnyMessage) -> None:
        """Send the model to a device that accepted with ``message``."""
        model = self.whole_model if message.__class__ is AcceptBare else self.model
        sent = model.message
        if self.own is not None:
            assert isinstance(sent, Model)
            sent = sent._replace(arrays={**sent.arrays, **self.own.sent_to(channel.device)})
        channel.push(sent, model.frame_bytes, model.payload_bytes)

    def update_of(self, report: Report) -> ClientUpdate:
        """Return the update that a report brings."""
        update = ClientUpdate(report.arrays, report.weight, report.examples, report.loss)
        return self.named(update, report.device)

    def named(self, update: ClientUpdate, device: int) -> ClientUpdate:
        """Return the update of ``device`` with what says whose the arrays are that are its own."""
        if self.own is None:
            return update
        return update._replace(arrays=self.own.named(device, update.arrays))

    def stage_s(self) -> dict[Stage, float]:
        """Return how long each stage of a secure sum took, seconds; the first began with the round."""
        found = {}
        start_s = self.start_s
        for stage, end_s in self.stage_end_s.items():
            found[stage] = end_s - start_s
            start_s = end_s
        return found

    def answer(self, channel: Channel, reason: Reason) -> None:
        """Send the acknowledgement that says ``reason``."""
        receipt = self.receipt(reason)
        channel.push(receipt.message, receipt.frame_bytes, receipt.payload_bytes)
