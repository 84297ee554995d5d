"""The section ``rounds.pacing``: how long the coordinator waits, and what it does with stragglers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from coordinator.scenario.model import Section
from device_profiles.fields import NonNegativeInt, PositiveFraction, PositiveInt, PositiveSeconds


class _InRounds(Section):
    """What all ways of pacing have in common that go round after round."""

    learns: ClassVar[bool] = False
    """Whether the coordinator needs to know what devices reported."""

    grace: PositiveSeconds | None = Field(
        default=None,
        description="close a round this long after its quorum was met; by default at its cohort or deadline",
    )


class Synchronous(_InRounds):
    """Round after round: each ends with the last report wanted, or at its deadline."""

    mode: Literal["synchronous"] = Field(default="synchronous", description="synchronous: round after round")


class PartialWorkPacing(_InRounds):
    """Round after round; each device takes as many local steps as its deadline allows, one at least."""

    mode: Literal["partial-work"]
    margin: PositiveFraction = Field(
        default=0.9, description="part of the deadline that a device plans to use, by what its link promises"
    )


class Tiers(_InRounds):
    """Round after round, each with devices of one tier of speed (TiFL, Chai et al. 2020)."""

    learns: ClassVar[bool] = True

    mode: Literal["tiers"]
    tiers: PositiveInt = Field(
        default=5, description="tiers of equal size that devices are put into by speed"
    )
    profiling: PositiveInt = Field(default=5, description="first rounds, which draw from the whole fleet")
    every: PositiveInt = Field(default=10, description="rounds after which devices are put into tiers anew")
    credits: PositiveInt = Field(
        default=10, description="rounds that a tier may have before all others have had as many"
    )


class Buffered(Section):
    """No rounds: a server step after every ``cohort`` reports, whatever model they began with (FedBuff)."""

    learns: ClassVar[bool] = False

    mode: Literal["buffered"]
    concurrency: PositiveInt = Field(description="devices at work at any time")
    staleness_limit: NonNegativeInt = Field(
        default=10, description="reports on a model that so many server steps have replaced still count"
    )
    staleness_weight: Literal["inverse-sqrt", "constant"] = Field(
        default="inverse-sqrt",
        description="what a report is multiplied by that is τ steps old: 1/√(1 + τ), or 1; a fresh one by 1",
    )


Pacing = Annotated[Synchronous | PartialWorkPacing | Tiers | Buffered, Field(discriminator="mode")]
