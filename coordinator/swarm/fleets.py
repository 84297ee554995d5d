"""Random fleets: devices, networks and availability out of the catalogue, and the links."""

from __future__ import annotations

import functools
from typing import Any, Final

from device_profiles import catalogue
from edge.core.draws import Draws

Settings = dict[str, Any]

_AVAILABILITY: Final = {"always_on": 6, None: 4, "bernoulli_google": 3, "flash_heavy_tail": 1}
_RARELY_THERE: Final = (
    "battery_gated",
    "diurnal_charging",
    "flaky_mobile",
    "onoff_sessions",
    "regional_outage",
)


def fleet(draws: Draws) -> Settings:
    """Return a random fleet."""
    names = _catalogue().names()
    made: Settings
    if draws.chance(0.6):
        made = {"mix": draws.one(names["fleets"])}
    else:
        made = {"devices": _shares(draws, names["devices"]), "networks": _shares(draws, names["networks"])}
    wanted = draws.weighted(_AVAILABILITY) if draws.chance(0.8) else draws.one(_RARELY_THERE)
    if wanted is not None:
        made["availability"] = wanted
    if draws.chance(0.3):
        made["regions"] = draws.whole(2, 4)
    if draws.chance(0.2):
        made["time_zones"] = draws.whole(2, 24)
    return made


def _shares(draws: Draws, names: tuple[str, ...]) -> dict[str, str]:
    chosen = draws.some(names, draws.whole(1, 3))
    shares = [100 // len(chosen)] * len(chosen)
    shares[0] += 100 - sum(shares)
    return {name: f"{share}%" for name, share in zip(chosen, shares, strict=True)}


@functools.cache
def _catalogue() -> catalogue.Catalogue:
    return catalogue.load()


def profiles(made: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a fleet's devices and networks."""
    if "mix" in made:
        mix = _catalogue().fleet(made["mix"])
        return tuple(mix.devices), tuple(mix.networks)
    return tuple(made["devices"]), tuple(made["networks"])


def regions(made: Settings) -> int:
    """Return over how many regions a fleet is spread."""
    return 8 if made.get("availability") == "regional_outage" else int(made.get("regions", 1))


def links(draws: Draws) -> Settings:
    """Return the coordinator's own link, and how devices connect."""
    made: Settings = {}
    if draws.chance(0.25):
        made["coordinator"] = {
            "down_rate": f"{draws.between(50, 50_000):.4g} kbit/s",
            "up_rate": f"{draws.between(50, 50_000):.4g} kbit/s",
        }
    connection: Settings = {}
    if draws.chance(0.3):
        connection["tls"] = "false"
    if draws.chance(0.4):
        connection["keep_alive"] = "true"
    if draws.chance(0.3):
        connection["congestion"] = "reno"
    return {**made, **({"connection": connection} if connection else {})}
