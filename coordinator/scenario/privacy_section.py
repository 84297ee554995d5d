"""The ``privacy`` section: which noise hides a single user, and how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.model import Section, clip_problems
from device_profiles.fields import ByKey, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, StrictBool


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

    def _problems(self) -> Iterator[FieldProblem]:
        from edge.privacy import accounting  # noqa: PLC0415 - most runs do without

        if self.accounting and not accounting.available():
            message = "epsilon needs the package dp-accounting"
            hint = "install it with \"pip install 'recfleet[dp]'\", or write 'accounting: false'"
            yield FieldProblem(("accounting",), message, hint)
        yield from clip_problems("clip_norm", self.clip_norm)
        if self.delta >= 1:
            yield FieldProblem(
                ("delta",), f"{self.delta:g} promises nothing; write a number below 1, such as '1e-5'"
            )


class _OnFloats(_Mechanism):
    """A mechanism whose noise is added to floats."""

    sampler: Literal["discrete", "floating-point"] | None = Field(
        default=None,
        description="how Gaussian noise is drawn: `discrete`, on a grid of 2^-30 of it or finer; or in "
        "`floating-point`, whose low bits may give away what it was added to; by default discrete on the "
        "real clock and in floating point on the virtual one",
    )


class _SingleNoise(_Mechanism):
    """A mechanism whose noise is the same for everybody."""

    noise_multiplier: NonNegativeFloat | None = None
    calibration: Literal["multiplier", "naive"] = Field(
        default="multiplier",
        description="what says how much noise there is: `noise_multiplier`; or, to see what it is worth, the "
        "`naive` σ = clip_norm/ε of `claimed_epsilon`, which is no calibration of Gaussian noise",
    )
    claimed_epsilon: PositiveFloat | None = Field(
        default=None,
        description="the ε that a naive calibration claims; the run prints the true one beside it",
    )

    @property
    def multiplier(self) -> float:
        """Standard deviation of the noise, divided by ``clip_norm``."""
        if self.claimed_epsilon is not None:
            from edge.privacy.accounting import naive_multiplier  # noqa: PLC0415 - most runs do without

            return naive_multiplier(self.claimed_epsilon)
        assert self.noise_multiplier is not None, "the section was checked"
        return self.noise_multiplier

    def _problems(self) -> Iterator[FieldProblem]:
        yield from super()._problems()
        naive = self.calibration == "naive"
        if naive and self.noise_multiplier is not None:
            message = "the naive calibration says how much noise there is; leave it out"
            yield FieldProblem(
                ("noise_multiplier",), message, "or write 'calibration: multiplier'", of_key=True
            )
        if naive and self.claimed_epsilon is None:
            yield FieldProblem(("claimed_epsilon",), "missing; write what is claimed, such as '1'")
        if not naive and self.noise_multiplier is None:
            yield FieldProblem(("noise_multiplier",), "missing; write a number of 0 or more")
        if not naive and self.claimed_epsilon is not None:
            message = "is claimed by a naive calibration only"
            yield FieldProblem(("claimed_epsilon",), message, "write 'calibration: naive'", of_key=True)


class CentralGaussian(_SingleNoise, _OnFloats):
    """The coordinator adds Gaussian noise to the sum, and is trusted with it."""

    mechanism: Literal["central-gaussian"]
    noise_multiplier: NonNegativeFloat | None = Field(
        default=None,
        description="standard deviation of the noise on the sum, divided by `clip_norm`; 0 adds none",
    )
    amplification: Literal["none", "sampling"] = Field(
        default="none",
        description="count as privacy that nobody knows who was drawn; right only if every device is as "
        "likely to be invited as any other, in every round",
    )


class LocalGaussian(_SingleNoise, _OnFloats):
    """Each device adds Gaussian noise to its own update, and trusts nobody."""

    mechanism: Literal["local-gaussian"]
    noise_multiplier: NonNegativeFloat | None = Field(
        default=None,
        description="standard deviation of the noise on one update, divided by `clip_norm`; 0 adds none",
    )


class DistributedDiscreteGaussian(_SingleNoise):
    """Each device adds its share of the noise before masking; the coordinator sees the noisy sum only.

    The shares are sized for the fewest honest devices that a sum may have.
    """

    mechanism: Literal["distributed-discrete-gaussian"]
    noise_multiplier: NonNegativeFloat | None = Field(
        default=None,
        description="standard deviation of the noise on the sum over the fewest devices, divided by "
        "`clip_norm`; 0 adds none",
    )


class Tier(Section):
    """Users who are about as active, and the noise that they ask for."""

    name: str = Field(description="what the tier is called in the summary of the run")
    up_to: PositiveInt | None = Field(
        default=None,
        description="most training ratings of a user of the tier, a number that must be public; "
        "none for the last tier",
    )
    noise_multiplier: NonNegativeFloat = Field(
        description="standard deviation of the noise on an update, divided by `clip_norm`"
    )


class PersonalGaussian(_OnFloats):
    """Each device adds as much Gaussian noise as its tier asks for; noisier updates weigh less (DPPS)."""

    mechanism: Literal["personal-gaussian"]
    tiers: tuple[Tier, ...] = Field(
        description="tiers by activity, the least active first; weights are as one over the variance"
    )
    shrinkage: Fraction = Field(
        default=0.0, description="γ: the coordinator multiplies the mean of a round by 1 − γ"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        yield from super()._problems()
        if self.shrinkage >= 1:
            yield FieldProblem(("shrinkage",), "nothing would be left of an update; write less than 100%")
        if not self.tiers:
            yield FieldProblem(("tiers",), "there are none; write '- {name: all, noise_multiplier: 1}'")
            return
        bounds = [tier.up_to for tier in self.tiers]
        for index, (bound, tier) in enumerate(zip(bounds, self.tiers, strict=True)):
            last = index == len(bounds) - 1
            before = bounds[index - 1] if index else 0
            if last != (bound is None):
                message = "the last tier has no bound" if last else "only the last tier has no bound"
                hint = "leave it out" if last else "write 'up_to: 50'"
                yield FieldProblem(("tiers", index, "up_to"), message, hint)
            elif bound is not None and before is not None and bound <= before:
                message = f"{bound} is not above the {before} of the tier before"
                yield FieldProblem(("tiers", index, "up_to"), message)
            if tier.name in [other.name for other in self.tiers[:index]]:
                yield FieldProblem(("tiers", index, "name"), f"{tier.name!r} is there already")
            if (tier.noise_multiplier == 0) != (self.tiers[0].noise_multiplier == 0):
                message = "an update without noise would weigh more than all others together"
                yield FieldProblem(
                    ("tiers", index, "noise_multiplier"), message, "write 0 for all tiers, or none"
                )

    @property
    def weights(self) -> tuple[float, ...]:
        """What an update of each tier weighs: one over its variance, 1 for the least noise."""
        least = min(tier.noise_multiplier for tier in self.tiers)
        return tuple(
            (least / tier.noise_multiplier) ** 2 if tier.noise_multiplier else 1.0 for tier in self.tiers
        )


if TYPE_CHECKING:
    Privacy = CentralGaussian | LocalGaussian | DistributedDiscreteGaussian | PersonalGaussian
else:
    Privacy = Annotated[
        CentralGaussian | LocalGaussian | DistributedDiscreteGaussian | PersonalGaussian,
        ByKey("mechanism"),
    ]
