"""The section ``rounds.selection``: who is invited. The policies are in :mod:`coordinator.selection`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from coordinator.scenario.errors import FieldProblemsError, Problem, did_you_mean
from coordinator.scenario.model import Choice, Section, require
from device_profiles.fields import (
    Fraction,
    NonNegativeFloat,
    PositiveFraction,
    PositiveInt,
    Ratio,
    StrictBool,
)
from device_profiles.quantities import quoted
from device_profiles.units import write_ratio


class RandomSelection(Section):
    """Any device, there or not, each as likely as any other: the coordinator invites blindly."""

    learns: ClassVar[bool] = False
    """Whether the policy needs to know what devices reported."""
    needs_losses: ClassVar[bool] = False
    """Whether it needs the training loss of single devices."""
    by_reports: ClassVar[bool] = False
    """Whether who is drawn follows from losses or speeds that devices reported."""
    available_only: ClassVar[bool] = False

    policy: Literal["random"]


class AvailabilityAware(Section):
    """Any device that is available, each as likely as any other: devices check in."""

    learns: ClassVar[bool] = False
    needs_losses: ClassVar[bool] = False
    by_reports: ClassVar[bool] = False
    available_only: ClassVar[bool] = True

    policy: Literal["availability-aware"] = Field(
        default="availability-aware", description="availability-aware: any device that is available"
    )


class _Learning(Section):
    """What policies have in common that look at what was reported before."""

    learns: ClassVar[bool] = True
    needs_losses: ClassVar[bool] = False
    by_reports: ClassVar[bool] = True

    available_only: StrictBool = Field(
        default=True, description="draw only devices that are available at the moment"
    )


class PowerOfChoice(_Learning):
    """Of some candidates, those with the highest last known loss (Cho et al. 2020)."""

    needs_losses: ClassVar[bool] = True

    policy: Literal["power-of-choice"]
    candidates: Ratio = Field(
        default=2.0, description="candidates drawn per device invited, in proportion to their data"
    )

    @model_validator(mode="after")
    def _consistent(self) -> PowerOfChoice:
        require(self._problems())
        return self

    def _problems(self) -> Iterator[Problem]:
        if not 1 <= self.candidates <= 100:
            message = f"{write_ratio(self.candidates)} is not between 100% and 10000%; write 200%, or more"
            yield Problem(("candidates",), message)


class Oort(_Learning):
    """Devices whose data teaches much and that are quick (Lai et al. 2021)."""

    needs_losses: ClassVar[bool] = True

    policy: Literal["oort"]
    exploration: Fraction = Field(
        default=0.9, description="share of a round's devices that have never reported, at first"
    )
    exploration_decay: PositiveFraction = Field(
        default=0.98, description="the share is multiplied by this each round"
    )
    exploration_floor: Fraction = Field(default=0.2, description="the share never falls below")
    penalty: NonNegativeFloat = Field(
        default=2.0, description="exponent α of the penalty on devices slower than preferred; 0 for none"
    )
    cutoff: PositiveFraction = Field(
        default=0.95, description="devices above this share of the cut-off utility are drawn from"
    )
    clip: PositiveFraction = Field(
        default=0.95, description="quantile at which statistical utility is clipped"
    )
    fairness: Fraction = Field(default=0.0, description="weight of having been asked rarely, against utility")
    blacklist_after: PositiveInt | None = Field(
        default=None,
        description="a device that reported so often is only invited if nobody else can be; never by default",
    )
    preferred: PositiveFraction = Field(
        default=0.3, description="quantile of the known durations that a device may take, at first"
    )
    pacer_step: Fraction = Field(default=0.05, description="how much the pacer widens that quantile")
    pacer_window: PositiveInt = Field(
        default=20, description="rounds whose utility the pacer compares with that of as many before"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Oort:
        require(self._problems())
        return self

    def _problems(self) -> Iterator[Problem]:
        if self.exploration_floor > self.exploration:
            message = (
                f"{write_ratio(self.exploration_floor)} is above the {write_ratio(self.exploration)} that"
                " exploration starts with; write less"
            )
            yield Problem(("exploration_floor",), message)


class RoundRobin(_Learning):
    """In turn: who was invited least often comes first."""

    by_reports: ClassVar[bool] = False

    policy: Literal["round-robin"]


class DeadlineAware(_Learning):
    """Any device that is expected to make the deadline."""

    policy: Literal["deadline-aware"]
    margin: Ratio = Field(
        default=1.0, description="how much of the deadline a device may be expected to need"
    )


SECTIONS: Final[dict[str, type[Section]]] = {
    "random": RandomSelection,
    "availability-aware": AvailabilityAware,
    "power-of-choice": PowerOfChoice,
    "oort": Oort,
    "round-robin": RoundRobin,
    "deadline-aware": DeadlineAware,
}
"""The section of each policy."""


def _read_word(value: object) -> object:
    """Return the section that a word in place of one stands for."""
    if not isinstance(value, str):
        return value
    word = value.strip()
    if word not in SECTIONS:
        message = f"{quoted(value)} is none of: {', '.join(SECTIONS)}"
        raise FieldProblemsError((Problem((), message, did_you_mean(word, SECTIONS)),))
    return {"policy": word}


class _OrWord:
    """Tells editors that a word may stand in place of the section."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(SECTIONS)}, handler(schema)]}


Selection = RandomSelection | AvailabilityAware | PowerOfChoice | Oort | RoundRobin | DeadlineAware


def selection_facts(section: Selection) -> dict[str, Any]:
    """Return what the manifest of a run says of its selection."""
    return {"policy": section.policy, "available_only": section.available_only}


SelectionOrWord = Annotated[
    Selection,
    Field(discriminator="policy"),
    Choice("policy", SECTIONS, "name of a policy, with its defaults"),
    BeforeValidator(_read_word),
    _OrWord(),
]
