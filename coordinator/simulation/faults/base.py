"""What every kind of fault is made of, and what it is given to strike a round with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import FleetNames
from coordinator.scenario.faults_section import EVERYWHERE, STAGE_OF_LABEL, STAGE_ORDER, Fault, FaultSettings
from edge.core.plugins import PluginKind
from edge.core.rng import hashed_bits, hashed_uniform, stream_key
from edge.core.vocabulary import SUM_STAGES, Direction, Reason, Stage, Way
from edge.device.simulated import CohortPlan

if TYPE_CHECKING:
    from edge.device.round_faults import RoundFaults
    from edge.learning.promotion import PromotedItem
    from edge.network.disturbances import LinkEffect

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

RANK: Final = {int(stage): rank for rank, stage in enumerate(STAGE_ORDER)}

WAY_OF_STAGE: Final = {Stage.REPORT: Way.CLEAR, **dict.fromkeys(SUM_STAGES, Way.SECURE)}
"""The stages that are those of one way."""

WITH_FRAMES: Final = EVERYWHERE - {Stage.COMPUTE}
"""The stages in which something is sent."""
COMPUTING: Final = EVERYWHERE - {Stage.INVITE, Stage.DOWNLOAD, Stage.REPORT, Stage.ACKNOWLEDGE}
"""The stages in which a device computes."""
SENDING: Final = EVERYWHERE - {Stage.DOWNLOAD, Stage.COMPUTE, Stage.ACKNOWLEDGE}
"""The stages in which a device sends something."""


class FleetView(Protocol):
    """What faults ask of a fleet."""

    n: int
    names: FleetNames
    device_class: npt.NDArray[np.uint8]
    network: npt.NDArray[np.uint8]
    region: npt.NDArray[np.uint8]

    def drain(self, ids: Ids, level: float, now_s: float) -> Floats:
        """Let the batteries of ``ids`` fall to a level, and return how long each still computes, seconds."""

    def memory_fits(self, ids: Ids, memory_bytes: Ids, factor: float) -> npt.NDArray[np.bool_]:
        """Return whether the task of each device fits in what ``factor`` leaves of its memory."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A round as faults find it: who was invited, when, and what the round will be like.

    ``ids`` int64 [n] are the invited devices, ``memory_bytes`` int64 [n] what their tasks need.
    """

    seed: int
    fleet: FleetView
    ids: Ids
    round_number: int
    now_s: float
    plan: CohortPlan
    memory_bytes: Ids


class Strike:
    """One fault on its way to strike one round.

    Attributes
    ----------
    fault, number : the fault, and its place among those of the scenario.
    setting : the round.
    slots : int64 [struck], increasing; whom it strikes.
    faults : takes what it does.
    target : the item that faults promote; None in a scenario in which none does.
    """

    __slots__ = ("_keys", "fault", "faults", "number", "setting", "slots", "target")

    def __init__(
        self,
        fault: Fault,
        number: int,
        setting: Setting,
        slots: Ids,
        faults: RoundFaults,
        target: PromotedItem | None = None,
    ) -> None:
        self.fault = fault
        self.number = number
        self.setting = setting
        self.slots = slots
        self.faults = faults
        self.target = target
        self._keys: list[int] | None = None

    @property
    def stage(self) -> Stage | None:
        """The stage that the fault is pinned to."""
        return None if self.fault.at_stage is None else STAGE_OF_LABEL[self.fault.at_stage]

    @property
    def direction(self) -> Direction:
        """The direction that the fault strikes, ``NONE`` for both."""
        return {"up": Direction.UP, "down": Direction.DOWN}.get(self.fault.direction or "", Direction.NONE)

    @property
    def begun(self) -> bool:
        """Whether the fault lasts at the moment at which the round begins."""
        start_s, end_s = self.fault.window_s
        return start_s <= self.setting.now_s < end_s

    def each(self) -> Iterator[tuple[int, int]]:
        """Yield every slot that is struck, with the key of the draws for its device and round."""
        if self._keys is None:
            key = stream_key(self.setting.seed, "fault", self.fault.name, "frames")
            ids = self.setting.ids[self.slots]
            self._keys = hashed_bits(key, ids, self.setting.round_number).tolist()
        return zip(self.slots.tolist(), self._keys, strict=True)

    def uniform(self, counter: int) -> Floats:
        """Return a uniform in (0, 1) for every device that is struck, float64 [struck]."""
        key = stream_key(self.setting.seed, "fault", self.fault.name)
        return hashed_uniform(key, self.setting.ids[self.slots], self.setting.round_number, counter)

    def lay(self, effect: LinkEffect) -> None:
        """Lay an effect on the links that are struck; when and at which stage follows from the fault.

        Pinned to a stage, a fault that lasts some time begins with the first frame of it.
        """
        fault, stage = self.fault, self.stage
        start_s, end_s = fault.window_s
        laid = replace(effect, fault=self.number, stage=stage, start_s=start_s, end_s=end_s)
        if stage is not None and fault.at is None and fault.lasts_s is not None:
            laid = replace(laid, stage=None, opens=stage, start_s=math.inf, end_s=fault.lasts_s)
        if effect.direction is Direction.NONE:
            laid.direction = self.direction
        moments = [0.0] * len(self.slots) if math.isinf(effect.period_s) else self._moments().tolist()
        for (slot, key), moment in zip(self.each(), moments, strict=True):
            own = replace(laid, key=key, offset_s=(moment - 1.0) * effect.period_s if moment else 0.0)
            self.faults.links.setdefault(slot, []).append(own)

    def _moments(self) -> Floats:
        """Return where in its period each device is at time 0; the same in every round, float64 [struck]."""
        key = stream_key(self.setting.seed, "fault", self.fault.name, "period")
        return hashed_uniform(key, self.setting.ids[self.slots])

    def end(self, reason: Reason) -> None:
        """Let the devices that are struck go away: at the fault's stage, or at its time.

        One that would go away sooner anyway does.
        """
        stage = self.stage
        if stage is not None:
            self._end_at(stage, reason)
            return
        from edge.device.round_faults import Ending  # noqa: PLC0415 - most runs do without

        at_s = self.fault.window_s[0]
        for slot in self.slots.tolist():
            self.faults.timed.setdefault(slot, []).append(Ending(self.number, reason, at_s))

    def _end_at(self, stage: Stage, reason: Reason) -> None:
        if not self.begun:
            return
        for slot, fraction in zip(self.slots.tolist(), self.uniform(1).tolist(), strict=True):
            self.end_one(slot, stage, fraction, reason)

    def end_one(self, slot: int, stage: Stage, fraction: float, reason: Reason) -> None:
        """Let a device go away when it is ``fraction`` into a stage, unless it would sooner anyway.

        One that does not come to the stage is spared: where some report in the clear and others sum securely,
        these have stages of their own.
        """
        plan = self.setting.plan
        way = WAY_OF_STAGE.get(stage)
        if plan.shielded and way is not None and plan.shielded[slot] != (way is Way.CLEAR):
            return
        from edge.device.round_faults import Ending  # noqa: PLC0415 - most runs do without

        planned = int(plan.drop_stage[slot])
        when = (RANK[stage], fraction)
        if planned < 0 or when < (RANK[planned], plan.drop_fraction[slot]):
            plan.drop_stage[slot] = stage
            plan.drop_fraction[slot] = fraction
            self.faults.planned[slot] = Ending(self.number, reason)
        if RANK[stage] <= RANK[Stage.COMPUTE]:
            plan.computes[slot] = False


class FaultKind(FaultSettings):
    """A kind of fault: its settings, and what it does.

    It has a ``key``, a ``summary``, and the method :meth:`strike`; the other attributes of
    :class:`~coordinator.scenario.faults_section.FaultSettings` have defaults.
    """

    def strike(self, strike: Strike) -> None:
        """Add the effect on the round that is struck."""
        raise NotImplementedError


def _lacks(kind: type[FaultKind]) -> Iterator[str]:
    key = getattr(kind, "key", None)
    if not isinstance(key, str) or not key.isidentifier() or not key.islower():
        yield "has no 'key', text such as 'solar_flare'"
    elif hasattr(Fault, key) or key in Fault.model_fields:
        yield f"has the key {key!r}, which every fault has; write another"
    if not isinstance(getattr(kind, "summary", None), str):
        yield "has no 'summary', a few words on what happens"
    if kind.strike is FaultKind.strike:
        yield "has no method 'strike'"
    if kind.stages != EVERYWHERE and not kind.elsewhere:
        yield "has 'stages', but not 'elsewhere': why it cannot be pinned to the other stages"


def _name_of(kind: type[FaultKind]) -> str:
    return kind.key


KIND: Final = PluginKind("fault", FaultKind, _name_of, _lacks)
"""The extension point."""


class LinkFault(FaultKind):
    """A kind that lays an effect on links."""

    directed = True
    stages = WITH_FRAMES
    of_links = True
    lasting = True
    elsewhere = "nothing is sent at it"
