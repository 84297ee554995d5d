"""Groups of a fleet, written alike in scenarios and in the catalogue: which devices are on which networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from device_profiles.checks import not_whole
from device_profiles.fields import PositiveFraction, Text
from device_profiles.link_traces import WrittenTrace
from device_profiles.profile import FleetGroup
from device_profiles.traces import RateTrace

MAX_GROUPS: Final = 255
"""A device's group is a byte."""


class FleetShare(BaseModel):
    """Devices of one kind on links of one kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Text = Field(description="name of a device profile")
    network: Text = Field(description="name of a network profile")
    share: PositiveFraction = Field(description="share of the fleet")
    availability: Text | None = Field(
        default=None, description="name of an availability profile; by default that of the fleet"
    )
    link_trace: WrittenTrace | None = Field(
        default=None,
        description="trace that the links of the group follow; by default its network's, else the fleet's",
    )

    def build(self, trace: RateTrace | None) -> FleetGroup:
        """Return the group; ``trace`` is what was read of ``link_trace``."""
        return FleetGroup(self.device, self.network, self.share, self.availability, trace)


def problem_of(groups: Sequence[FleetShare]) -> str | None:
    """Return what is wrong with groups as a whole, or None."""
    if len(groups) > MAX_GROUPS:
        return f"{len(groups)} are too many; write {MAX_GROUPS} or fewer"
    return not_whole(math.fsum(group.share for group in groups))


def beside_groups(key: str) -> str:
    """Return what is wrong with ``key``, which groups stand in place of."""
    return f"'groups' says which devices are on which networks; leave out '{key}' or 'groups'"
