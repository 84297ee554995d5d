"""What faults do to the devices of one round, by slot; filled in before the round begins.

Nothing here decides when a fault strikes or whom: that is a matter of the scenario. A round without faults
has no such object.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from edge.clock.virtual import VirtualClockLoop
from edge.core.rng import hashed_uniform_scalar
from edge.core.vocabulary import Direction, Reason, Stage
from edge.learning.promotion import Attacker
from edge.learning.updates import Array, ClientUpdate
from edge.network.disturbances import LinkEffect
from edge.network.link import Delivery
from edge.wire.messages import KINDS

_STRUCK = 0
_MOMENT = 1 << 32
"""Where the counters of a frame's draws begin: whether it is struck, and how far it gets."""


class StrickenDevice(Protocol):
    """What a fault can do to the frames of a device."""

    slot: int
    frames_sent: int
    loop: VirtualClockLoop

    def repeat(self, delivery: Delivery) -> None:
        """Send a frame once more."""

    def hold(self, delivery: Delivery, seconds: float) -> None:
        """Let a frame that has come arrive later."""

    def release(self, delivery: Delivery) -> None:
        """Let a frame arrive that was held up."""

    def vanish_at(self, at_s: float, reason: Reason) -> None:
        """Go away at a moment, absolute seconds."""


class FrameFault(enum.Enum):
    """What can become of a frame."""

    LATE = "late"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class FrameEffect:
    """What a fault does to the frames of one device.

    Attributes
    ----------
    fault : number of the fault among those of the scenario.
    kind : what becomes of a frame that is struck.
    direction : the one that it strikes, ``NONE`` for both.
    stage : whose frames it strikes; None for all.
    start_s, end_s : absolute seconds; a frame is struck when it is sent.
    probability : of a frame to be struck.
    seconds : how much later a frame comes; of those that are reordered, at most.
    key : of the fault's draws for this device and round.
    """

    fault: int
    kind: FrameFault
    direction: Direction
    stage: Stage | None
    start_s: float
    end_s: float
    probability: float
    seconds: float
    key: int

    def may_meet(self, stage: Stage, start_s: float, end_s: float) -> bool:
        """Return whether a frame of a stage that is sent within that time may be struck."""
        return self.stage in (None, stage) and self.start_s <= end_s and self.end_s > start_s

    def strikes(self, direction: Direction, stage: Stage, number: int, now_s: float) -> bool:
        """Return whether frame ``number`` of the device, sent now, is struck."""
        if self.direction not in (Direction.NONE, direction) or self.stage not in (None, stage):
            return False
        if not self.start_s <= now_s < self.end_s:
            return False
        return self.probability >= 1.0 or hashed_uniform_scalar(self.key, number, _STRUCK) < self.probability


@dataclass(frozen=True, slots=True)
class ComputeSlowdown:
    """Computing takes ``factor`` times as long from ``start_s`` to ``end_s``; at a stage, or None: at all."""

    fault: int
    stage: Stage | None
    start_s: float
    end_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Gathering:
    """What a device would send at a stage before ``until_s`` waits until then."""

    fault: int
    stage: Stage
    until_s: float


@dataclass(frozen=True, slots=True)
class Poison:
    """An update is multiplied by ``factor`` (NaN: is not a number).

    Before anything protects it, or with ``protected`` after its norm was clipped: the device ignores bounds.
    """

    fault: int
    factor: float
    protected: bool = False

    def of(self, update: ClientUpdate, model: Mapping[str, Array]) -> ClientUpdate:
        """Return what becomes of an update."""
        # Real numbers alone: the names of items stay, or the update would be malformed as well.
        with np.errstate(over="ignore", invalid="ignore"):
            arrays = {
                name: array * array.dtype.type(self.factor) if array.dtype.kind == "f" else array
                for name, array in update.arrays.items()
            }
        return update._replace(arrays=arrays)


@dataclass(frozen=True, slots=True)
class Aimed:
    """An update promotes one item, as ``attacker`` does; before anything protects it, or after."""

    fault: int
    attacker: Attacker
    protected: bool = False

    def of(self, update: ClientUpdate, model: Mapping[str, Array]) -> ClientUpdate:
        """Return what becomes of an update, given the model that the device received."""
        return self.attacker.update(update, model)


@dataclass(frozen=True, slots=True)
class Ending:
    """A device goes away at a moment, ``at_s`` (absolute seconds), or at the stage that its plan says."""

    fault: int
    reason: Reason
    at_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Handling:
    """The coordinator takes ``seconds`` for each frame that arrives from ``start_s`` to ``end_s``."""

    fault: int
    start_s: float
    end_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Crash:
    """The coordinator crashes for ``down_s`` seconds when the first frame of a stage arrives."""

    fault: int
    stage: Stage
    down_s: float


@dataclass(slots=True)
class Strikes:
    """When and how often a fault struck a device at a stage."""

    first_s: float
    last_s: float
    count: int


@dataclass(slots=True)
class RoundFaults:
    """What faults do to the devices of one round, by slot, and what they did."""

    links: dict[int, list[LinkEffect]] = field(default_factory=dict)
    frames: dict[int, list[FrameEffect]] = field(default_factory=dict)
    slowdowns: dict[int, list[ComputeSlowdown]] = field(default_factory=dict)
    planned: dict[int, Ending] = field(default_factory=dict)
    """Who goes away at the stage in the round's plan because of a fault."""
    timed: dict[int, list[Ending]] = field(default_factory=dict)
    """Who goes away at a moment."""
    obstacles: dict[int, int] = field(default_factory=dict)
    """The fault that makes a device decline."""
    shortages: dict[int, int] = field(default_factory=dict)
    """The fault that makes the computation of a device fail."""
    skews: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    """By how many seconds a device takes its deadlines for later than they are, with the fault."""
    gatherings: dict[int, list[Gathering]] = field(default_factory=dict)
    poisons: dict[int, list[Poison | Aimed]] = field(default_factory=dict)
    handlings: list[Handling] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)
    struck: dict[tuple[int, int, Stage], Strikes] = field(default_factory=dict)
    """By fault, slot and stage: what has struck."""
    _corrupt: set[Delivery] = field(default_factory=set)
    _delays: dict[Delivery, float] = field(default_factory=dict)
    """Frames that will be held up when they arrive, and for how long."""
    _overtaken: dict[tuple[int, Direction], Delivery] = field(default_factory=dict)
    """The frame of a device that waits to be overtaken."""
    _handled_s: float = -math.inf
    """When the coordinator has handled all that it has."""

    @property
    def leave_frames(self) -> bool:
        """Whether the coordinator takes no time for frames, and never crashes."""
        return not (self.handlings or self.crashes)

    @property
    def empty(self) -> bool:
        """Whether nothing goes wrong that has not been planned."""
        return self.leave_frames and not self.slots()

    def slots(self) -> list[int]:
        """Return the slots that a fault may strike, increasing."""
        of_slots = (
            *(self.links, self.frames, self.slowdowns, self.planned, self.timed, self.obstacles),
            *(self.shortages, self.skews, self.gatherings, self.poisons),
        )
        return sorted(set().union(*of_slots))

    def note(self, fault: int, slot: int, stage: Stage, now_s: float) -> None:
        """Note that a fault strikes."""
        found = self.struck.get((fault, slot, stage))
        if found is None:
            self.struck[fault, slot, stage] = Strikes(now_s, now_s, 1)
        else:
            found.last_s = max(found.last_s, now_s)
            found.count += 1

    # -- frames ----------------------------------------------------------------------------------------

    def meeting_invitations(self, now_s: float, arrival_s: Sequence[float]) -> list[int]:
        """Return the slots whose invitations, sent from ``now_s`` on, a fault of links or frames may meet.

        ``arrival_s`` says of every slot when its invitation arrives if none does.
        """
        return sorted(
            slot
            for slot in self.frames.keys() | self.links.keys()
            if any(
                effect.may_meet(Stage.INVITE, now_s, arrival_s[slot])
                for effect in (*self.frames.get(slot, ()), *self.links.get(slot, ()))
            )
        )

    def sent(self, device: StrickenDevice, delivery: Delivery) -> None:
        """Decide what becomes of a frame that a device, or the coordinator to it, has just begun to send."""
        number, now_s = device.frames_sent - 1, device.loop.now_s
        stage = KINDS[delivery.message.__class__].stage
        for effect in self.frames.get(device.slot, ()):
            if not effect.strikes(delivery.direction, stage, number, now_s):
                continue
            self.note(effect.fault, device.slot, stage, now_s)
            match effect.kind:
                case FrameFault.LATE:
                    self._delays[delivery] = self._delays.get(delivery, 0.0) + effect.seconds
                case FrameFault.DUPLICATE:
                    device.repeat(delivery)
                case FrameFault.REORDER:
                    self._delays[delivery] = self._delays.get(delivery, 0.0) + effect.seconds
                    self._overtaken[device.slot, delivery.direction] = delivery
                case FrameFault.CORRUPT:
                    self._corrupt.add(delivery)
                case FrameFault.RESET:
                    span_s = delivery.last_byte_s - delivery.first_byte_s
                    moment = hashed_uniform_scalar(effect.key, number, _MOMENT)
                    device.vanish_at(delivery.first_byte_s + moment * span_s, Reason.CONNECTION_RESET)

    def holds_up(self, device: StrickenDevice, delivery: Delivery) -> bool:
        """Return whether a frame that has come the whole way is held up; it will come again."""
        delay_s = self._delays.pop(delivery, 0.0)
        if delay_s > 0.0:
            device.hold(delivery, delay_s)
            return True
        way = (device.slot, delivery.direction)
        waiting = self._overtaken.get(way)
        if waiting is None:
            return False
        del self._overtaken[way]
        if waiting is not delivery and self._delays.pop(waiting, 0.0) == 0.0 and waiting.live:
            # It is overtaken at this moment: it comes right behind.
            device.release(waiting)
        return False

    def corrupts(self, delivery: Delivery) -> bool:
        """Return whether the bytes of a frame that arrives are garbage."""
        return delivery in self._corrupt

    def handled_s(self, slot: int, stage: Stage, now_s: float) -> float:
        """Return when the coordinator has handled a frame that arrives now: one after the other."""
        seconds = 0.0
        for handling in self.handlings:
            if handling.start_s <= now_s < handling.end_s:
                seconds += handling.seconds
                self.note(handling.fault, slot, stage, now_s)
        if seconds == 0.0 and self._handled_s <= now_s:
            return now_s
        self._handled_s = max(self._handled_s, now_s) + seconds
        return self._handled_s

    # -- devices ---------------------------------------------------------------------------------------

    def obstructed(self, slot: int, now_s: float) -> None:
        """Note that a device is asked, and declines if a fault makes it."""
        if slot in self.obstacles:
            self.note(self.obstacles[slot], slot, Stage.INVITE, now_s)

    def short(self, slot: int, now_s: float) -> None:
        """Note that a device fails to compute, because of a fault or not."""
        if slot in self.shortages:
            self.note(self.shortages[slot], slot, Stage.COMPUTE, now_s)

    def skew_s(self, slot: int, now_s: float) -> float:
        """Return by how much a device takes its deadlines for later than they are, seconds."""
        total_s = 0.0
        for fault, seconds in self.skews.get(slot, ()):
            self.note(fault, slot, Stage.INVITE, now_s)
            total_s += seconds
        return total_s

    def compute_s(self, slot: int, stage: Stage, start_s: float, seconds: float) -> float:
        """Return how long a computation takes that is begun at ``start_s`` and is one of ``seconds``."""
        slow = [one for one in self.slowdowns.get(slot, ()) if one.stage in (None, stage)]
        t_s, left_s = start_s, seconds
        while slow:
            now = [one for one in slow if one.start_s <= t_s < one.end_s]
            factor = math.prod(one.factor for one in now)
            edges = [edge for one in slow for edge in (one.start_s, one.end_s) if edge > t_s]
            until_s = min(edges, default=math.inf)
            for one in now:
                self.note(one.fault, slot, stage, t_s)
            if t_s + left_s * factor <= until_s:
                return (t_s - start_s) + left_s * factor
            left_s -= (until_s - t_s) / factor
            t_s = until_s
        return seconds

    def wait_s(self, slot: int, stage: Stage, now_s: float) -> float:
        """Return how long a device holds back what it would send at a stage."""
        longest_s = 0.0
        for gathering in self.gatherings.get(slot, ()):
            if gathering.stage is stage and gathering.until_s > now_s:
                self.note(gathering.fault, slot, stage, now_s)
                longest_s = max(longest_s, gathering.until_s - now_s)
        return longest_s

    def poisoned(
        self,
        slot: int,
        update: ClientUpdate,
        model: Mapping[str, Array],
        now_s: float,
        *,
        protected: bool = False,
    ) -> ClientUpdate:
        """Return what a device makes of its update, before it is protected or after.

        ``model`` is what it received.
        """
        for poison in self.poisons.get(slot, ()):
            if poison.protected is protected:
                self.note(poison.fault, slot, Stage.COMPUTE, now_s)
                update = poison.of(update, model)
        return update
