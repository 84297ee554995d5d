"""The section ``faults``: what goes wrong on purpose, when, and for whom."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from coordinator.scenario.model import Section
from coordinator.scenario.secure_section import Masking, SecureAggregation
from device_profiles.fields import PositiveFraction, Text
from edge.vocabulary import Stage, label

_ALWAYS: Final = (Stage.DOWNLOAD, Stage.COMPUTE)
_MASKING: Final = (*_ALWAYS, Stage.ADVERTISE_KEYS, Stage.SHARE_KEYS, Stage.MASKED_INPUT)


def _labels(*stages: Stage) -> tuple[str, ...]:
    return tuple(label(stage) for stage in stages)


STAGES_OF_MODE: Final = {
    "off": _labels(*_ALWAYS, Stage.REPORT),
    "secagg": _labels(*_MASKING, Stage.UNMASK),
    "secagg-plus": _labels(*_MASKING, Stage.UNMASK),
    "active": _labels(*_MASKING, Stage.CONSISTENCY, Stage.UNMASK),
    "ckks": _labels(*_ALWAYS, Stage.MASKED_INPUT, Stage.UNMASK),
}
"""The stages at which a device can be struck, by the mode of secure aggregation."""


def stages_of(section: SecureAggregation) -> tuple[str, ...]:
    """Return the stages at which a device can be struck where updates are summed as ``section`` says."""
    stages = STAGES_OF_MODE[section.mode]
    mixed = isinstance(section, Masking) and section.shielded is not None
    return (*stages, label(Stage.REPORT)) if mixed else stages


class Victims(Section):
    """Which devices a fault strikes."""

    fraction: PositiveFraction = Field(
        default=1.0, description="exact share of a round's invited devices, drawn by the seed"
    )


class Vanish(Section):
    """The device disappears without a word while it downloads, computes, or sends what the stage asks for."""


class Fault(Section):
    """Something that goes wrong in the rounds of a phase."""

    name: Text = Field(description="names the fault, and its random draws")
    during: Text | None = Field(default=None, description="name of a phase; by default the whole run")
    at_stage: Text = Field(description="stage of the round: `download`, `compute`, `masked-input` …")
    on: Victims = Field(default=Victims(), description="which devices")
    vanish: Vanish = Field(description="what happens: the device vanishes")
