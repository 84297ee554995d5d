"""The ``privacy`` section: which noise hides a single user, and how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from coordinator.scenario.errors import Problem
from coordinator.scenario.model import Section, require
from device_profiles.fields import NonNegativeFloat, PositiveFloat, StrictBool
from edge.privacy import accounting
from edge.privacy.clipping import SMALLEST_BOUND


class _Mechanism(Section):
    """What every mechanism has."""

    clip_norm: PositiveFloat = Field(
        description="largest L2 norm of a device's update, over all its arrays; longer ones are scaled down"
    )
    delta: PositiveFloat = Field(
        default=1e-5, description="probability, below 1, that the bound epsilon may be missed"
    )
    accounting: StrictBool = Field(
        default=True, description="report the epsilon that was spent; needs the extra `dp`"
    )

    @model_validator(mode="after")
    def _accountable(self) -> _Mechanism:
        require(self._problems())
        return self

    def _problems(self) -> Iterator[Problem]:
        if self.accounting and not accounting.available():
            message = "epsilon needs the package dp-accounting"
            hint = "install it with \"pip install 'recfleet[dp]'\", or write 'accounting: false'"
            yield Problem(("accounting",), message, hint)
        if self.clip_norm < SMALLEST_BOUND:
            yield Problem(
                ("clip_norm",), f"{self.clip_norm:g} is too small; write {SMALLEST_BOUND:g} or more"
            )
        if self.delta >= 1:
            yield Problem(
                ("delta",), f"{self.delta:g} promises nothing; write a number below 1, such as '1e-5'"
            )


class CentralGaussian(_Mechanism):
    """The coordinator adds Gaussian noise to the sum, and is trusted with it."""

    mechanism: Literal["central-gaussian"]
    noise_multiplier: NonNegativeFloat = Field(
        description="standard deviation of the noise on the sum, divided by `clip_norm`; 0 adds none"
    )
    amplification: Literal["none", "sampling"] = Field(
        default="none",
        description="count as privacy that nobody knows who was drawn; right only if every device is as "
        "likely to be invited as any other, in every round",
    )


class LocalGaussian(_Mechanism):
    """Each device adds Gaussian noise to its own update, and trusts nobody."""

    mechanism: Literal["local-gaussian"]
    noise_multiplier: NonNegativeFloat = Field(
        description="standard deviation of the noise on one update, divided by `clip_norm`; 0 adds none"
    )


class DistributedDiscreteGaussian(_Mechanism):
    """Each device adds its share of the noise before masking; the coordinator sees the noisy sum only.

    The shares are sized for the fewest honest devices that a sum may have.
    """

    mechanism: Literal["distributed-discrete-gaussian"]
    noise_multiplier: NonNegativeFloat = Field(
        description="standard deviation of the noise on the sum over the fewest devices, divided by "
        "`clip_norm`; 0 adds none"
    )


if TYPE_CHECKING:
    Privacy = CentralGaussian | LocalGaussian | DistributedDiscreteGaussian
else:
    Privacy = Annotated[
        CentralGaussian | LocalGaussian | DistributedDiscreteGaussian, Field(discriminator="mechanism")
    ]
