"""The sections whose contents come from the registry: ``learning`` and ``rounds.selection``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, Field

from coordinator.scenario.model import Registered, Section
from device_profiles.fields import StrictBool
from edge.core.plugins import ALGORITHMS, SELECTORS, View

Learning = Annotated[
    BaseModel,
    Registered("algorithm", View(ALGORITHMS, lambda method: method.Settings), kind=ALGORITHMS),
]


def method_name(settings: Any) -> str:
    """Return the name under which the method of these settings is registered."""
    return str(settings.algorithm)


class PolicySettings(Section):
    """The settings of a policy of selection. One of its own has a field ``policy: Literal["its-name"]``."""

    learns: ClassVar[bool] = False
    """Whether the policy needs to know what devices reported."""
    needs_losses: ClassVar[bool] = False
    """Whether it needs the training loss of single devices."""
    by_reports: ClassVar[bool] = False
    """Whether who is drawn follows from losses or speeds that devices reported."""
    by_examples: ClassVar[bool] = False
    """Whether who is drawn follows from how many examples devices say that they hold."""
    even: ClassVar[bool] = False
    """Whether any device, there or not, is as likely as any other."""

    @property
    def name(self) -> str:
        """The policy, the key ``policy``."""
        found: str = getattr(self, "policy")  # noqa: B009 - each policy has a field of its own
        return found

    @property
    def draws_available(self) -> bool:
        """Whether only devices are drawn that are available at the moment."""
        return bool(getattr(self, "available_only", True))


class AvailableSettings(PolicySettings):
    """The settings of a policy that draws from available devices unless it is asked for any."""

    available_only: StrictBool = Field(
        default=True, description="draw only devices that are available at the moment"
    )


SECTIONS: Final = View(SELECTORS, lambda policy: policy.Settings)
"""The section of each policy."""


def default_selection() -> PolicySettings:
    """Return the selection of a scenario that asks for none."""
    found: PolicySettings = SECTIONS["availability-aware"](policy="availability-aware")
    return found


def fitting_policies(unfit: str) -> str:
    """Return the policies without a flag of :class:`PolicySettings`, as words of a hint."""
    names = [f"'{name}'" for name, section in SECTIONS.items() if not getattr(section, unfit)]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def selection_facts(section: PolicySettings) -> dict[str, Any]:
    """Return what the manifest of a run says of its selection."""
    return {"policy": section.name, "available_only": section.draws_available}


Selection = Annotated[
    PolicySettings, Registered("policy", SECTIONS, "name of a policy, with its defaults", SELECTORS)
]
