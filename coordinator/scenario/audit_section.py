"""The section ``audit``: what is tried on the masked ratings of a run."""

from __future__ import annotations

from pydantic import Field

from coordinator.scenario.model import Section
from device_profiles.fields import PositiveFloat, PositiveInt


class Audit(Section):
    """Attacks on the masks of FedMMF, by somebody who saw every masked rating."""

    recovery: tuple[PositiveFloat, ...] = Field(
        default=(0.5, 1.0), description="a rating counts as recovered within this many stars", min_length=1
    )
    ranking: PositiveInt = Field(default=10, description="favourites that are looked for")
