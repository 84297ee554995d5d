"""Devices whose updates do harm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.faults_section import Fault
from coordinator.simulation.faults.base import FaultKind, Strike
from device_profiles.fields import PositiveFloat, StrictBool
from edge.core.draws import Draws
from edge.device.round_faults import Poison


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
