"""Random populations: data that is made up in a moment, and the devices that hold it."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from coordinator.scenario.data_section import SyntheticRatingsSection
from device_profiles import catalogue
from edge.core.rng import Draws
from edge.data.synthetic import generate_ratings

Settings = dict[str, Any]
FEWEST_DEVICES: Final = 3
_AVAILABILITY: Final = {"always_on": 6, None: 4, "bernoulli_google": 3, "flash_heavy_tail": 1}
_RARELY_THERE: Final = (
    "battery_gated",
    "diurnal_charging",
    "flaky_mobile",
    "onoff_sessions",
    "regional_outage",
)


def ratings(draws: Draws, users: int, *, features: bool, timed: bool) -> Settings:
    """Return random ratings; items have features where they must, and ratings times."""
    items = draws.whole(8, 40)
    mean = draws.whole(3, min(8, items // 2))
    made: Settings = {
        "source": "synthetic-ratings",
        "users": users,
        "items": items,
        "ratings_per_user": mean,
        "min_ratings_per_user": draws.whole(1, mean),
        "taste_rank": draws.whole(2, 3),
    }
    if draws.chance(0.3):
        made["split"] = {"kind": "none"}
    if timed or draws.chance(0.15):
        made["timestamps"] = "true"
    if features:
        made["features"] = {"kind": "synthetic"}
    if draws.chance(0.25):
        made["positive"] = draws.whole(2, 4)
    return made


def drawn_items(
    draws: Draws, *, draws_items: bool, weighs_all: bool, learns_ones: bool, judged: bool, unrated: int
) -> Settings:
    """Return what devices draw beside their ratings; nothing where the values of ratings matter (``judged``).

    ``draws_items`` says whether the method draws negatives by itself, ``weighs_all`` whether it weighs all
    items, so that none is drawn for it, ``learns_ones`` whether it needs ones and zeros; ``unrated`` is how
    many items every user leaves unrated at least, from which a symmetric sampler takes candidates.
    """
    made: Settings = {}
    drawn_for = not draws_items and not weighs_all and not judged
    if learns_ones or (drawn_for and draws.chance(0.2)):
        made["negatives"] = draws.whole(1, 3)
    if (made or draws_items) and draws.chance(0.4):
        made["held_out_negatives"] = "spared"
    elif (made or draws_items) and unrated and draws.chance(0.3):
        made["held_out_negatives"] = "symmetric"
        made["split"] = {"kind": "leave-one-out"}
    return made


def unrated_items(data: Settings, seed: int) -> int:
    """Return how many items of the ``data`` every user leaves unrated at least."""
    store = generate_ratings(SyntheticRatingsSection.model_validate(data).spec(), seed=seed, workers=1)
    return store.n_items - int(store.counts.max())


def devices_of(data: Settings, seed: int) -> int:
    """Return how many devices hold any of the ``data``: who rated nothing highly enough has none."""
    if "clients" in data:
        return int(data["clients"])
    if "positive" not in data:
        return int(data["users"])
    store = generate_ratings(SyntheticRatingsSection.model_validate(data).spec(), seed=seed, workers=1)
    high = np.concatenate([[0], np.cumsum(store.decoded() >= data["positive"])])
    return int(np.count_nonzero(np.diff(high[store.indptr])))


def regression(draws: Draws, clients: int) -> Settings:
    """Return random samples of a linear model."""
    return {
        "source": "synthetic-regression",
        "clients": clients,
        "samples_per_client": draws.whole(1, 20),
        "features": draws.whole(1, 6),
        "heterogeneity": draws.one(("iid", "feature-shift", "label-shift")),
    }


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
