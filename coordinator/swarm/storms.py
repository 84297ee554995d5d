"""Random faults: every kind that a scenario can have, at any stage, in windows that end before the quiet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coordinator.scenario.faults_section import KINDS
from coordinator.swarm.draws import Draws
from edge.vocabulary import Stage, label

Settings = dict[str, Any]
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
    poisonous: bool = False
    """Whether updates are poisoned more often than else."""


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def _seconds(seconds: float) -> str:
    return f"{seconds:.4g} s"


def _bandwidth(draws: Draws) -> Settings:
    way = draws.whole(0, 3)
    settings: Settings = {}
    if way & 1:
        settings["up"] = f"{draws.between(1, 2000):.4g} kbit/s"
    if way & 2:
        settings["down"] = f"{draws.between(1, 2000):.4g} kbit/s"
    return settings or {"scale": _percent(draws.between(0.01, 1.0))}


def _clock_skew(draws: Draws) -> Settings:
    return {draws.one(("ahead", "behind")): _seconds(draws.between(0.1, 200))}


def _poisoned(draws: Draws) -> Settings:
    kind = draws.one(("nan", "huge-norm", "sign-flip"))
    made: Settings = {"kind": kind}
    if kind != "nan" and draws.chance(0.3):
        made["scale"] = f"{draws.between(1, 1e9):.4g}"
    return {**made, "ignores_bound": "true"} if draws.chance(0.4) else made


def _sometimes(draws: Draws) -> Settings:
    return {"probability": _percent(draws.between(0.02, 1.0))} if draws.chance(0.7) else {}


_SETTINGS: Final[dict[str, Callable[[Draws], Settings]]] = {
    "vanish": lambda _: {},
    "slowdown": lambda draws: {"factor": f"{draws.between(1, 1000):.4g}"},
    "bandwidth": _bandwidth,
    "latency": lambda draws: {
        "mean": _seconds(draws.between(0.01, 10)),
        **({"jitter": _seconds(draws.between(0.01, 5))} if draws.chance(0.5) else {}),
    },
    "loss": lambda draws: {"probability": _percent(draws.between(0.01, 0.9))},
    "blackout": lambda _: {},
    "flapping": lambda draws: {
        "period": _seconds(draws.between(0.5, 60)),
        "up": _percent(draws.between(0.1, 0.95)),
    },
    "reset": lambda draws: {"probability": _percent(draws.between(0.02, 0.5))},
    "late": lambda draws: {"by": _seconds(draws.between(0.01, 200)), **_sometimes(draws)},
    "duplicate": _sometimes,
    "reorder": lambda draws: {"wait": _seconds(draws.between(0.05, 20)), **_sometimes(draws)},
    "corrupt": _sometimes,
    "battery_drain": lambda draws: {
        "level": "0%" if draws.chance(0.5) else _percent(draws.between(0.0001, 0.3))
    },
    "memory_pressure": lambda draws: {"factor": _percent(draws.between(1e-8, 0.1))},
    "clock_skew": _clock_skew,
    "flash_crowd": lambda draws: {"after": _seconds(draws.between(0.1, 60))},
    "poisoned_updates": _poisoned,
    "coordinator_slow": lambda draws: {"handling": _seconds(draws.between(0.001, 5))},
    "coordinator_crash": lambda _: {},
}
"""The settings of each kind of fault; a kind without an entry is never drawn, and a test says so."""
_POISON: Final = "poisoned_updates"
_OFTEN: Final = 8.0
"""How often updates are poisoned, where something withstands it, for once that another fault strikes."""


def fault(draws: Draws, name: str, storm: Stormy) -> Fault:
    """Return a random fault, as a scenario writes it."""
    keys = {key: 1.0 for key in _SETTINGS if not (storm.buffered and KINDS[key].of_rounds)}
    if storm.poisonous:
        keys[_POISON] = _OFTEN
    key = draws.weighted(keys)
    kind = KINDS[key]
    settings = _SETTINGS[key](draws)
    made: Fault = {"name": name}
    stages = [stage for stage in storm.stages if stage in {label(one) for one in kind.stages}]
    moment = key in ("vanish", "coordinator_crash")
    if key == "reset" and draws.chance(0.5):
        settings, moment = {}, True
    elif key == "reset":
        stages = [stage for stage in stages if stage != label(Stage.COMPUTE)]
    pinned = bool(stages) and draws.chance(0.5)
    timed = draws.chance(0.5) if not moment else not pinned
    if timed:
        at_s = draws.between(0.01, storm.lasts_s)
        made["at"] = _seconds(at_s)
        if key != "reset" or settings:
            made["for"] = _seconds(max(0.01, draws.between(0.01, 1) * (storm.lasts_s - at_s)))
    else:
        made["during"] = STORM
    if pinned:
        made["at_stage"] = draws.one(stages)
        if not timed and kind.lasting and (key == "coordinator_crash" or draws.chance(0.4)):
            made["for"] = _seconds(draws.between(0.1, 60))
    if kind.of_devices:
        made["on"] = _victims(draws, storm)
    both_ways = settings if key == "reset" else key != "bandwidth" or "scale" in settings
    if kind.directed and both_ways and draws.chance(0.4):
        made["direction"] = draws.one(("up", "down", "both"))
    made[key] = settings
    return made


def _victims(draws: Draws, storm: Stormy) -> dict[str, Any]:
    on: dict[str, Any] = {}
    if draws.chance(0.8):
        on["fraction"] = _percent(draws.between(0.05, 1.0))
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
            return {**on, "slowest": _percent(draws.between(0.1, 1.0))}
    if draws.chance(0.2):
        on["fixed"] = True
    return on
