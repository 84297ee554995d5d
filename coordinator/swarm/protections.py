"""Random protections: of users from the coordinator, and of the model from poisoned updates."""

from __future__ import annotations

import math
from typing import Any, Final

from edge.core.rng import Draws

Settings = dict[str, Any]

KRUM_REPORTS: Final = 5
"""Fewest reports among which Krum withstands a false one: more than 2·1 + 2."""
_KRUM: Final = ("krum", "multi-krum")


def secure_sums(draws: Draws) -> Settings | None:
    """Return how updates are summed in most rounds; None: in the clear."""
    mode = draws.weighted({None: 9, "secagg": 3, "secagg-plus": 2, "active": 3, "ckks": 2})
    if mode is None:
        return None
    modelled = mode == "ckks" or draws.chance(0.4)
    made: Settings = {"mode": mode, "crypto": "modelled" if modelled else "real"}
    if mode != "ckks":
        made["dropout"] = f"{draws.whole(0, 30)}%"
        made["corrupt"] = f"{draws.whole(0, 10)}%"
        if draws.chance(0.3):
            made["bits"] = 64
    if draws.chance(0.3):
        made["clip"] = draws.between(0.01, 10)
    if draws.chance(0.5):
        stages = ("share_keys", "masked_input", "consistency", "unmask")
        chosen = draws.some(stages, draws.whole(1, 4))
        made["stage_deadlines"] = {stage: f"{draws.between(0.2, 120):.4g} s" for stage in chosen}
    return made


def shielded(draws: Draws) -> Settings:
    """Return which masks let their devices report in the clear beside the sum."""
    if draws.chance(0.4):
        return {}
    if draws.chance(0.5):
        return {"shielded": {"test": "indicator", "at_most": draws.between(0.01, 2)}}
    return {"shielded": {"test": "recovery", "at_most": f"{draws.whole(5, 95)}%"}}


def privacy(draws: Draws, secure: Settings | None) -> Settings | None:
    """Return which noise hides a user; None: none does."""
    if not draws.chance(0.3):
        return None
    mechanisms = {"central-gaussian": 2, "local-gaussian": 2, "personal-gaussian": 2}
    if secure is not None and secure["mode"] != "ckks":
        mechanisms["distributed-discrete-gaussian"] = 2
    made: Settings = {"mechanism": draws.weighted(mechanisms), "clip_norm": draws.between(0.1, 2)}
    if made["mechanism"] == "personal-gaussian":
        made["tiers"] = _tiers(draws)
        if draws.chance(0.5):
            made["shrinkage"] = f"{draws.whole(1, 90)}%"
    elif draws.chance(0.25):
        made |= {"calibration": "naive", "claimed_epsilon": draws.between(0.2, 5)}
    else:
        made["noise_multiplier"] = draws.between(0.5, 8)
    if not draws.chance(0.2):
        made["accounting"] = "false"
    if made["mechanism"] != "distributed-discrete-gaussian" and draws.chance(0.3):
        made["sampler"] = "discrete"
    return made


def _tiers(draws: Draws) -> list[Settings]:
    """Return tiers of users by their few ratings, the last of them without a bound."""
    count = draws.whole(1, 3)
    bounds = draws.some(range(1, 9), count - 1)
    noiseless = draws.chance(0.1)
    tiers: list[Settings] = []
    for number in range(count):
        noise = 0 if noiseless else draws.between(0.3, 8)
        tier: Settings = {"name": f"tier {number}", "noise_multiplier": noise}
        tiers.append(tier if number == count - 1 else {**tier, "up_to": bounds[number]})
    return tiers


def aggregation(draws: Draws, *, single: bool, bounded: bool, devices: int) -> Settings | None:
    """Return what withstands poisoned updates; None: a plain mean.

    ``single`` says whether the coordinator sees single updates that a rule can compare, ``bounded`` whether
    privacy bounds them already. Of Krum's attackers see :func:`attackers`.
    """
    rules: dict[str | None, float] = {None: 5, "mean": 0 if bounded else 2}
    if single:
        rules |= {"median": 1, "trimmed-mean": 1}
        if devices >= KRUM_REPORTS:
            rules |= dict.fromkeys(_KRUM, 1)
    rule = draws.weighted(rules)
    if rule is None:
        return None
    made: Settings = {"rule": rule}
    if rule == "mean" or (not bounded and draws.chance(0.3)):
        made["norm_bound"] = draws.between(0.01, 5)
    if rule == "trimmed-mean":
        made["trim"] = f"{draws.whole(1, 49)}%"
    if rule in ("median", "trimmed-mean") and draws.chance(0.6):
        made["min_senders"] = draws.whole(1, 3)
    return made


def is_krum(made: Settings | None) -> bool:
    """Return whether updates are compared by Krum, which needs :data:`KRUM_REPORTS`."""
    return made is not None and made["rule"] in _KRUM


def attackers(draws: Draws, reports: range) -> str:
    """Return the share of false updates that Krum withstands in rounds of so many ``reports``."""
    fits = [
        percent
        for percent in range(1, 50)
        if all(count > 2 * math.ceil(percent * count / 100) + 2 for count in reports)
    ]
    return f"{draws.one(fits)}%"
