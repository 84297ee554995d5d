"""Faults of devices: gone, slow, short of battery or memory, with a wrong clock, all at once, harmful."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import STAGE_OF_LABEL, Fault
from coordinator.simulation.faults.base import COMPUTING, SENDING, FaultKind, Strike
from device_profiles.fields import Fraction, PositiveFloat, PositiveFraction, PositiveSeconds, StrictBool
from edge.core.rng import Draws
from edge.core.vocabulary import Reason, Stage
from edge.device.round_faults import ComputeSlowdown, Gathering, Poison


class Vanish(FaultKind):
    """The device disappears without a word, at a stage or `at` a time; it cannot be reached `for` as long.

    At a stage it does so while it downloads, computes, or sends what the stage asks for.
    """

    key = "vanish"
    summary = "devices disappear without a word"
    must_begin = True

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if fault.at_stage is None and fault.at is None:
            yield FieldProblem(("vanish",), "says not when; write 'at_stage' or 'at'", None, of_key=True)

    def strike(self, strike: Strike) -> None:
        """Let the devices go away; who is invited while it lasts cannot be reached."""
        strike.end(Reason.VANISHED)
        start_s, end_s = strike.fault.window_s
        if strike.stage is None and strike.fault.lasts_s is not None:
            now_s = strike.setting.now_s
            if start_s <= now_s < end_s:
                strike.setting.plan.reachable[strike.slots] = False


class Slowdown(FaultKind):
    """Computing takes `factor` times as long: the update, and the cryptography of a secure sum."""

    key = "slowdown"
    summary = "computing takes longer"
    stages = COMPUTING
    elsewhere = "devices compute nothing at it"

    factor: PositiveFloat = Field(description="how many times as long; 1 or more")

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.factor < 1:
            message = f"{self.factor:g} would be faster; write 1 or more"
            yield FieldProblem(("slowdown", "factor"), message)

    @property
    def neutral(self) -> bool:
        """Once as long is as long as ever."""
        return self.factor == 1

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"factor": f"{draws.between(1, 1000):.4g}"}

    def strike(self, strike: Strike) -> None:
        """Slow the devices down."""
        start_s, end_s = strike.fault.window_s
        effect = ComputeSlowdown(strike.number, strike.stage, start_s, end_s, self.factor)
        for slot in strike.slots.tolist():
            strike.faults.slowdowns.setdefault(slot, []).append(effect)


class BatteryDrain(FaultKind):
    """The battery falls to a level: an empty device declines, one that empties it computing leaves.

    Devices on mains power are not struck. Batteries are full again at midnight.
    """

    key = "battery_drain"
    summary = "batteries run down"
    lingers = True
    stages = frozenset()
    elsewhere = "a battery falls before the round begins"

    level: Fraction = Field(description="share of a full battery that is left, at most")

    @property
    def neutral(self) -> bool:
        """A full battery is no lower than before."""
        return self.level >= 1

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"level": "0%" if draws.chance(0.5) else draws.percent(0.0001, 0.3)}

    def strike(self, strike: Strike) -> None:
        """Drain the batteries, and plan who declines and who leaves."""
        if not strike.begun:
            return
        setting, plan = strike.setting, strike.setting.plan
        left_s = setting.fleet.drain(setting.ids[strike.slots], self.level, setting.now_s)
        for slot, seconds in zip(strike.slots.tolist(), left_s.tolist(), strict=True):
            if seconds <= 0.0:
                plan.obstacle[slot] = Reason.BATTERY
                plan.computes[slot] = False
                strike.faults.obstacles[slot] = strike.number
            elif seconds < plan.compute_s[slot]:
                strike.end_one(slot, Stage.COMPUTE, seconds / plan.compute_s[slot], Reason.BATTERY)


class MemoryPressure(FaultKind):
    """Other programs leave the task less memory; a device on which it does not fit fails."""

    key = "memory_pressure"
    summary = "other programs use the memory"
    stages = frozenset()
    elsewhere = "memory is short when the device computes"

    factor: PositiveFraction = Field(description="share of its memory that the device keeps")

    @property
    def neutral(self) -> bool:
        """A device that keeps all of its memory has it."""
        return self.factor >= 1

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"factor": draws.percent(1e-8, 0.1)}

    def strike(self, strike: Strike) -> None:
        """Plan whose computation fails."""
        if not strike.begun:
            return
        setting, plan = strike.setting, strike.setting.plan
        ids, needed = setting.ids[strike.slots], setting.memory_bytes[strike.slots]
        fits = setting.fleet.memory_fits(ids, needed, self.factor)
        for slot in strike.slots[np.flatnonzero(~fits)].tolist():
            if plan.shortage[slot] == Reason.NONE:
                plan.shortage[slot] = Reason.MEMORY
                plan.computes[slot] = False
                strike.faults.shortages[slot] = strike.number


class ClockSkew(FaultKind):
    """The device is wrong about the time: it gives up too early, or works on when the round is over."""

    key = "clock_skew"
    summary = "clocks of devices are wrong"
    stages = frozenset()
    elsewhere = "a clock is wrong at all stages"

    ahead: PositiveSeconds | None = Field(
        default=None, description="by how much its clock is ahead: its deadlines come too early"
    )
    behind: PositiveSeconds | None = Field(
        default=None, description="by how much its clock is behind: its deadlines come too late"
    )

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.ahead is None and self.behind is None:
            yield FieldProblem(("clock_skew",), "says not how wrong; write 'ahead' or 'behind' below it")
        elif self.ahead is not None and self.behind is not None:
            message = "contradicts ahead; write one of the two"
            yield FieldProblem(("clock_skew", "behind"), message, None, of_key=True)

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {draws.one(("ahead", "behind")): draws.seconds(0.1, 200)}

    def strike(self, strike: Strike) -> None:
        """Note by how much the devices are wrong."""
        if strike.begun:
            later_s = (self.behind or 0.0) - (self.ahead or 0.0)
            for slot in strike.slots.tolist():
                strike.faults.skews.setdefault(slot, []).append((strike.number, later_s))


class FlashCrowd(FaultKind):
    """The devices all send at one instant: their answers to the invitation, or what `at_stage` asks for.

    Whoever is ready before that instant waits for it. After the answers every model leaves at once, over the
    coordinator's own link.
    """

    key = "flash_crowd"
    summary = "devices all come at once"
    stages = SENDING
    of_rounds = True
    elsewhere = "devices send nothing at it"

    after: PositiveSeconds = Field(description="the instant, counted from the beginning of the round")

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        return {"after": draws.seconds(0.1, 60)}

    def strike(self, strike: Strike) -> None:
        """Let the devices wait for each other."""
        if not strike.begun:
            return
        fault = strike.fault
        stage = Stage.INVITE if fault.at_stage is None else STAGE_OF_LABEL[fault.at_stage]
        gathering = Gathering(strike.number, stage, strike.setting.now_s + self.after)
        for slot in strike.slots.tolist():
            strike.faults.gatherings.setdefault(slot, []).append(gathering)


class PoisonedUpdates(FaultKind):
    """The device spoils its update before it is masked or sent, and before it is clipped, if at all."""

    key = "poisoned_updates"
    summary = "updates do harm"
    of_updates = True
    stages = frozenset()
    elsewhere = "an update is spoilt when it is computed"

    kind: Literal["nan", "huge-norm", "sign-flip"] = Field(
        description="it is not a number, much too large, or points the wrong way"
    )
    scale: PositiveFloat | None = Field(
        default=None, description="factor on the update; 1000000 for `huge-norm` and 1 for `sign-flip`"
    )

    ignores_bound: StrictBool = Field(
        default=False,
        description="spoil the update after its norm was clipped (`aggregation.norm_bound`, "
        "`privacy.clip_norm`), as a device does that ignores the bound",
    )

    def problems(self, fault: Fault) -> Iterator[FieldProblem]:
        """Yield what contradicts the fault."""
        if self.kind == "nan" and self.scale is not None:
            message = "what is no number has no scale; leave it out"
            yield FieldProblem(("poisoned_updates", "scale"), message, None, of_key=True)

    @property
    def exceeds_bound(self) -> bool:
        """Whether it spoils the update after it was clipped."""
        return self.ignores_bound

    @property
    def factor(self) -> float:
        """What the update is multiplied by."""
        if self.kind == "nan":
            return math.nan
        if self.kind == "sign-flip":
            return -(self.scale or 1.0)
        return self.scale or 1e6

    @property
    def neutral(self) -> bool:
        """What is multiplied by one stays as it is."""
        return self.factor == 1

    @classmethod
    def drawn(cls, draws: Draws) -> dict[str, Any]:
        """Return random settings."""
        kind = draws.one(("nan", "huge-norm", "sign-flip"))
        made = {"kind": kind}
        if kind != "nan" and draws.chance(0.3):
            made["scale"] = f"{draws.between(1, 1e9):.4g}"
        return {**made, "ignores_bound": "true"} if draws.chance(0.4) else made

    def strike(self, strike: Strike) -> None:
        """Spoil the updates."""
        if strike.begun:
            for slot in strike.slots.tolist():
                strike.faults.poisons.setdefault(slot, []).append(
                    Poison(strike.number, self.factor, self.ignores_bound)
                )
