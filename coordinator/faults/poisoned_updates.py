"""Devices whose updates do harm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from coordinator.faults.base import FaultKind, Strike
from coordinator.scenario.errors import Problem
from device_profiles.fields import PositiveFloat, StrictBool
from edge.device.round_faults import Poison
from edge.vocabulary import Stage

if TYPE_CHECKING:
    from coordinator.scenario.faults_section import Fault


class PoisonedUpdates(FaultKind):
    """The device spoils its update before it is masked or sent, and before it is clipped, if at all."""

    stages: ClassVar[frozenset[Stage]] = frozenset()
    elsewhere: ClassVar[str] = "an update is spoilt when it is computed"

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

    def problems(self, fault: Fault) -> Iterator[Problem]:
        """Yield what contradicts the fault."""
        if self.kind == "nan" and self.scale is not None:
            message = "what is no number has no scale; leave it out"
            yield Problem(("poisoned_updates", "scale"), message, None, of_key=True)

    @property
    def factor(self) -> float:
        """What the update is multiplied by."""
        if self.kind == "nan":
            return math.nan
        if self.kind == "sign-flip":
            return -(self.scale or 1.0)
        return self.scale or 1e6

    def strike(self, strike: Strike) -> None:
        """Spoil the updates."""
        if strike.begun:
            for slot in strike.slots.tolist():
                strike.faults.poisons.setdefault(slot, []).append(
                    Poison(strike.number, self.factor, self.ignores_bound)
                )
