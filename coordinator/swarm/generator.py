"""Scenario ``i`` of a swarm: small, quick, and a pure function of the swarm's seed and ``i``.

It comes as the mapping that a scenario file holds, and is read by the loader of scenario files like any
other. Every part is drawn from a stream of its own. A storm, in which faults strike, is followed by a quiet
phase, in which the fleet has to recover.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from coordinator.scenario.faults_section import STAGES_OF_MODE
from coordinator.scenario.schema import FORMAT
from coordinator.swarm.draws import Draws
from coordinator.swarm.storms import STORM, Stormy, fault
from device_profiles import catalogue
from edge.vocabulary import Stage, label

Document = dict[str, Any]
"""A scenario as the mapping that its file holds."""

QUIET: Final = "quiet"
"""The phase after the storm."""

_AVAILABILITY: Final = {"always_on": 6, None: 4, "bernoulli_google": 3, "flash_heavy_tail": 1}
_RARELY_THERE: Final = (
    "battery_gated",
    "diurnal_charging",
    "flaky_mobile",
    "onoff_sessions",
    "regional_outage",
)
_MOST_ROUNDS: Final = 3
_ROUND_S: Final = 5
"""About what a round without a pause takes, seconds."""


def document(seed: int, index: int) -> Document:
    """Return scenario ``index`` of the swarm under ``seed``."""

    def draws(part: str) -> Draws:
        return Draws(seed, index, part)

    made: Document = {
        "format": FORMAT,
        "title": f"swarm {seed}, scenario {index}",
        "seed": draws("seed").whole(0, 2**31 - 1),
    }
    algorithm = draws("algorithm").weighted({"fedrecon": 5, "linear-regression": 3, "fedmmf": 2})
    secure = _secure(draws("secure"))
    regression = algorithm == "linear-regression"
    privacy = None if regression else _privacy(draws("privacy"), secure)
    crowd = draws("devices")
    devices = crowd.whole(3, 12) if crowd.chance(0.7) else crowd.whole(12, 40)
    made["data"] = _regression(draws("data"), devices) if regression else _ratings(draws("data"), devices)
    if algorithm == "fedmmf":
        made["data"]["features"] = {"kind": "synthetic"}
        if secure is not None and secure["mode"] != "ckks" and privacy is None:
            secure |= _shielded(draws("shielded"))
    made["fleet"] = fleet = _fleet(draws("fleet"))
    made |= _links(draws("links"))
    shielded = secure is not None and "shielded" in secure
    hidden = (secure is not None and not shielded) or (
        privacy is not None and privacy["mechanism"] != "central-gaussian"
    )
    made["learning"] = _learning(draws("learning"), algorithm, dense=hidden, uniform=privacy is not None)
    made["rounds"] = _rounds(draws("rounds"), devices, least=3 if secure is not None else 1)
    reports_seen = secure is None and (privacy is None or privacy["mechanism"] == "central-gaussian")
    made["rounds"] |= _selection(draws("selection"), reports_seen=reports_seen)
    made["rounds"] |= _pacing(
        draws("pacing"), made, devices, clear=secure is None, private=privacy is not None
    )
    made |= _phases(draws("phases"), made["rounds"], secure, varied=_may_vary(privacy))
    if privacy is not None:
        made["privacy"] = privacy
    made["evaluation"] = _evaluation(draws("evaluation"), regression=regression)
    classes, networks = _profiles(fleet)
    sums = made["phases"][0].get("secure_aggregation", made.get("secure_aggregation", {}))
    reports = (label(Stage.REPORT),) if "shielded" in sums else ()
    storm = Stormy(
        stages=STAGES_OF_MODE[sums.get("mode", "off")] + reports,
        lasts_s=_storm_s(made),
        devices=devices,
        regions=8 if fleet.get("availability") == "regional_outage" else int(fleet.get("regions", 1)),
        classes=classes,
        networks=networks,
        buffered=_is_buffered(made["rounds"]),
    )
    count = draws("faults").weighted({0: 1, 1: 4, 2: 3, 3: 2, 5: 1})
    made["faults"] = [fault(Draws(seed, index, "fault", n), f"fault {n}", storm) for n in range(count)]
    return made


def text_of(made: Mapping[str, Any]) -> str:
    """Return a scenario as the text of its file: a line for each section, and for each fault and phase."""
    lines = []
    for key, value in made.items():
        if isinstance(value, list) and value:
            lines.append(f"{key}:")
            lines += [f"  - {json.dumps(item)}" for item in value]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _ratings(draws: Draws, users: int) -> Document:
    items = draws.whole(8, 40)
    mean = draws.whole(3, min(8, items // 2))
    made: Document = {
        "source": "synthetic-ratings",
        "users": users,
        "items": items,
        "ratings_per_user": mean,
        "min_ratings_per_user": draws.whole(1, mean),
        "taste_rank": draws.whole(2, 3),
    }
    if draws.chance(0.3):
        made["split"] = {"kind": "none"}
    return made


def _regression(draws: Draws, clients: int) -> Document:
    return {
        "source": "synthetic-regression",
        "clients": clients,
        "samples_per_client": draws.whole(1, 20),
        "features": draws.whole(1, 6),
        "heterogeneity": draws.one(("iid", "feature-shift", "label-shift")),
    }


def _shares(draws: Draws, names: tuple[str, ...]) -> dict[str, str]:
    chosen = draws.some(names, draws.whole(1, 3))
    shares = [100 // len(chosen)] * len(chosen)
    shares[0] += 100 - sum(shares)
    return {name: f"{share}%" for name, share in zip(chosen, shares, strict=True)}


@functools.cache
def _catalogue() -> catalogue.Catalogue:
    return catalogue.load()


def _fleet(draws: Draws) -> Document:
    names = _catalogue().names()
    made: Document
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


def _profiles(fleet: Document) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a fleet's devices and networks."""
    if "mix" in fleet:
        mix = _catalogue().fleet(fleet["mix"])
        return tuple(mix.devices), tuple(mix.networks)
    return tuple(fleet["devices"]), tuple(fleet["networks"])


def _links(draws: Draws) -> Document:
    made: Document = {}
    if draws.chance(0.25):
        made["coordinator"] = {
            "down_rate": f"{draws.between(50, 50_000):.4g} kbit/s",
            "up_rate": f"{draws.between(50, 50_000):.4g} kbit/s",
        }
    connection: Document = {}
    if draws.chance(0.3):
        connection["tls"] = "false"
    if draws.chance(0.4):
        connection["keep_alive"] = "true"
    if draws.chance(0.3):
        connection["congestion"] = "reno"
    return {**made, **({"connection": connection} if connection else {})}


def _learning(draws: Draws, algorithm: str, *, dense: bool, uniform: bool) -> Document:
    made: Document = {"algorithm": algorithm}
    optimizer = draws.weighted({"sgd": 6, "adam": 2, "adagrad": 1, "momentum": 1})
    made["optimizer"] = {"kind": "sgd", "momentum": "50%"} if optimizer == "momentum" else {"kind": optimizer}
    made["learning_rate"] = draws.between(0.01, 1.0)
    if algorithm == "linear-regression":
        steps = {"steps": draws.whole(1, 3), "learning_rate": 0.1}
        local = draws.one(({"method": "gradient"}, {"method": "gradient-steps", **steps}))
        return {**made, "local": local}
    if algorithm == "fedmmf":
        made["mask"] = {"kind": draws.one(("zero-order", "one-order", "two-order"))}
    made["factors"] = draws.whole(1, 4)
    if dense or draws.chance(0.3):
        made["upload"] = "dense"
    if uniform or draws.chance(0.3):
        made["weighting"] = "uniform"
    if draws.chance(0.2):
        made["item_bias"] = "false"
    if algorithm == "fedrecon" and draws.chance(0.2):
        made["reconstruction"] = {
            "method": "gradient-steps",
            "steps": draws.whole(1, 3),
            "learning_rate": 0.1,
        }
        if draws.chance(0.5):
            made["user_factors"] = "persistent"
    return made


def _rounds(draws: Draws, devices: int, *, least: int) -> Document:
    cohort = draws.whole(least, max(least, min(devices, 12)))
    made: Document = {"cohort": cohort, "deadline": f"{draws.between(1, 600):.4g} s"}
    most = devices / cohort
    if most > 1 and draws.chance(0.5):
        # Rounded down: more devices than there are must not be invited.
        made["over_select"] = f"{int(100 * min(draws.between(1.0, 3.0), most))}%"
    if draws.chance(0.7):
        made["quorum"] = draws.whole(1, cohort) if draws.chance(0.5) else f"{draws.whole(5, 100)}%"
    if draws.chance(0.3):
        made["retry"] = {
            "attempts": draws.whole(1, 5),
            "first_backoff": f"{draws.between(0.05, 20):.4g} s",
            "factor": draws.between(1, 4),
        }
    return made


def _selection(draws: Draws, *, reports_seen: bool) -> Document:
    """Return who is invited; some policies look at the losses that devices report."""
    policies = {"random": 4, "availability-aware": 3, "round-robin": 1, "deadline-aware": 1}
    if reports_seen:
        policies |= {"power-of-choice": 1, "oort": 1}
    return {"selection": draws.weighted(policies)}


def _pacing(draws: Draws, made: Document, devices: int, *, clear: bool, private: bool) -> Document:
    """Return how rounds wait for their devices."""
    rounds, learning = made["rounds"], made["learning"]
    modes = {"synchronous": 8}
    if clear and not private and learning.get("local", {}).get("method") != "gradient":
        modes["partial-work"] = 2
    quorum = rounds.get("quorum", 1)
    reports = quorum if isinstance(quorum, int) else math.ceil(int(quorum[:-1]) * rounds["cohort"] / 100)
    if devices // reports >= 2:
        modes["tiers"] = 2
    if clear and not private:
        modes["buffered"] = 1
    mode = draws.weighted(modes)
    pacing: Document = {"mode": mode}
    if mode == "buffered":
        rounds.pop("over_select", None)
        pacing |= {"concurrency": draws.whole(1, devices), "staleness_limit": draws.whole(0, 5)}
        return {"pacing": pacing}
    if mode == "tiers":
        pacing["tiers"] = draws.whole(2, min(4, devices // reports))
        pacing |= {key: draws.whole(1, 3) for key in ("profiling", "every", "credits")}
    if clear and draws.chance(0.3):
        pacing["grace"] = f"{draws.between(0.05, 60):.4g} s"
    return {} if pacing == {"mode": "synchronous"} else {"pacing": pacing}


def _secure(draws: Draws) -> Document | None:
    """Return how updates are summed in most rounds; None: in the clear."""
    mode = draws.weighted({None: 9, "secagg": 3, "secagg-plus": 2, "active": 3, "ckks": 2})
    if mode is None:
        return None
    modelled = mode == "ckks" or draws.chance(0.4)
    made: Document = {"mode": mode, "crypto": "modelled" if modelled else "real"}
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


def _shielded(draws: Draws) -> Document:
    """Return which masks let their devices report in the clear beside the sum."""
    if draws.chance(0.4):
        return {}
    if draws.chance(0.5):
        return {"shielded": {"test": "indicator", "at_most": draws.between(0.01, 2)}}
    return {"shielded": {"test": "recovery", "at_most": f"{draws.whole(5, 95)}%"}}


def _privacy(draws: Draws, secure: Document | None) -> Document | None:
    if not draws.chance(0.25):
        return None
    masked = secure is not None and secure["mode"] != "ckks"
    mechanisms = [
        "central-gaussian",
        "local-gaussian",
        *(["distributed-discrete-gaussian"] if masked else []),
    ]
    made: Document = {
        "mechanism": draws.one(mechanisms),
        "clip_norm": draws.between(0.1, 2),
        "noise_multiplier": draws.between(0.5, 8),
    }
    if not draws.chance(0.2):
        made["accounting"] = "false"
    return made


def _is_buffered(rounds: Document) -> bool:
    return "concurrency" in rounds.get("pacing", {})


def _may_vary(privacy: Document | None) -> bool:
    """Return whether phases may sum in the clear under this privacy."""
    return privacy is None or privacy["mechanism"] != "distributed-discrete-gaussian"


def _phases(draws: Draws, rounds: Document, secure: Document | None, *, varied: bool) -> Document:
    """Return the phases and how they sum, and give the rounds the pause that leaves room for the storm."""
    first, second = draws.whole(1, _MOST_ROUNDS), draws.whole(2, _MOST_ROUNDS)
    storm: Document = {"name": STORM}
    quiet: Document = {"name": QUIET}
    buffered = _is_buffered(rounds)
    if draws.chance(0.6) or buffered:
        if draws.chance(0.4) and not buffered:
            rounds["interval"] = f"{draws.whole(20, 120)} s"
        storm["rounds"], quiet["rounds"] = first, second
    else:
        pause_s = draws.whole(20, 120)
        rounds["interval"] = f"{pause_s} s"
        deadline_s = float(rounds["deadline"].removesuffix(" s"))
        storm["time"], quiet["time"] = f"{pause_s * first} s", f"{pause_s * second + deadline_s:.4g} s"
    made: Document = {}
    if secure is not None:
        in_one = draws.weighted({"": 4, STORM: 1, QUIET: 1}) if varied else ""
        if in_one:
            (storm if in_one == STORM else quiet)["secure_aggregation"] = secure
        else:
            made["secure_aggregation"] = secure
    return {**made, "phases": [storm, quiet]}


def _storm_s(made: Document) -> float:
    """Return a time at which the storm still goes on, where pauses say so, or else perhaps does."""
    storm = made["phases"][0]
    if "time" in storm:
        return float(storm["time"].removesuffix(" s"))
    pause_s = float(made["rounds"].get("interval", f"{_ROUND_S} s").removesuffix(" s"))
    return pause_s * int(storm["rounds"])


def _evaluation(draws: Draws, *, regression: bool) -> Document:
    if draws.chance(0.8):
        return {"every": 1000, "final": "false"}
    made: Document = {"every": draws.whole(1, 3)}
    if not regression and draws.chance(0.5):
        made["ranking"] = {"k": [draws.whole(1, 5)]}
    return made
