"""Random faults: every kind that a scenario can have, at any stage, in windows that end before the quiet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from coordinator.scenario.faults_section import KINDS
from edge.core.rng import Draws
from edge.core.vocabulary import label

Fault = dict[str, Any]

STORM: Final = "storm"
"""The phase in which faults may strike; none does afterwards."""


@dataclass(frozen=True, slots=True)
class Stormy:
    """What faults may strike: the stages that a device comes to in the storm, its length, and the fleet.

    ``lasts_s`` is a time, in seconds, at which the storm is still going on, whatever happens in it.
    """

    stages: tuple[str, ...]
    lasts_s: float
    devices: int
    regions: int
    classes: tuple[str, ...]
    networks: tuple[str, ...]
    buffered: bool = False
    """Whether there are no rounds whose devices a fault could strike together."""
    rows: bool = True
    """Whether a fault can promote an item: scores are products with rows of items."""
    poisonous: bool = False
    """Whether updates are poisoned more often than else."""


_OFTEN: Final = 8.0
"""How often updates are poisoned, where something withstands it, for once that another fault strikes."""


def fault(draws: Draws, name: str, storm: Stormy) -> Fault:
    """Return a random fault, as a scenario writes it."""
    keys = {
        key: _OFTEN if storm.poisonous and kind.of_updates else 1.0
        for key, kind in KINDS.items()
        if not (storm.buffered and kind.of_rounds) and (storm.rows or not kind.of_items)
    }
    return fault_of(draws, name, draws.weighted(keys), storm)


def fault_of(draws: Draws, name: str, key: str, storm: Stormy) -> Fault:
    """Return a random fault of the kind ``key``, as a scenario writes it."""
    settings = KINDS[key].drawn(draws)
    kind = KINDS[key].model_validate(settings)
    made: Fault = {"name": name}
    pinnable = {label(one) for one in kind.pinnable}
    stages = [stage for stage in storm.stages if stage in pinnable]
    pinned = bool(stages) and draws.chance(0.5)
    timed = not pinned if kind.must_begin or kind.momentary else draws.chance(0.5)
    if timed:
        at_s = draws.between(0.01, storm.lasts_s)
        made["at"] = _seconds(at_s)
        if not kind.momentary:
            made["for"] = _seconds(max(0.01, draws.between(0.01, 1) * (storm.lasts_s - at_s)))
    else:
        made["during"] = STORM
    if pinned:
        made["at_stage"] = draws.one(stages)
        if not timed and kind.lasting and (kind.must_end or draws.chance(0.4)):
            made["for"] = draws.seconds(0.1, 60)
    if kind.of_devices:
        made["on"] = _victims(draws, storm)
    if kind.directable and draws.chance(0.4):
        made["direction"] = draws.one(("up", "down", "both"))
    made[key] = settings
    return made


def _seconds(seconds: float) -> str:
    return f"{seconds:.4g} s"


def _victims(draws: Draws, storm: Stormy) -> dict[str, Any]:
    on: dict[str, Any] = {}
    if draws.chance(0.8):
        on["fraction"] = draws.percent(0.05, 1.0)
    slowest = 0 if storm.buffered else 1
    match draws.weighted({"all": 6, "class": 1, "network": 1, "region": 1, "devices": 1, "slowest": slowest}):
        case "class":
            on["class"] = draws.one(storm.classes)
        case "network":
            on["network"] = draws.one(storm.networks)
        case "region":
            on["region"] = f"region-{draws.whole(0, storm.regions - 1)}"
        case "devices":
            on["devices"] = draws.some(range(storm.devices), draws.whole(1, min(4, storm.devices)))
        case "slowest":
            return {**on, "slowest": draws.percent(0.1, 1.0)}
    if draws.chance(0.2):
        on["fixed"] = True
    return on
