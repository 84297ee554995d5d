"""Random data: ratings or samples that are made up in a moment."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from coordinator.scenario.data_section import SyntheticRatingsSection
from edge.core.draws import Draws
from edge.data.synthetic import generate_ratings

Settings = dict[str, Any]

FEWEST_DEVICES: Final = 3


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


def drawn_items(draws: Draws, *, only_ranks: bool, judged: bool) -> Settings:
    """Return what devices draw beside their ratings; nothing where ratings are what masks are ``judged`` by.

    ``only_ranks`` says whether the method draws negatives by itself.
    """
    made: Settings = {}
    if not only_ranks and not judged and draws.chance(0.2):
        made["negatives"] = draws.whole(1, 3)
    if (made or only_ranks) and draws.chance(0.4):
        made["held_out_negatives"] = "spared"
    return made


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
