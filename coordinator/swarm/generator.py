"""Scenario ``i`` of a swarm: small, quick, and a pure function of the swarm's seed and ``i``.

It comes as the mapping that a scenario file holds, and is read by the loader of scenario files like any
other. Every part is drawn from a stream of its own. A storm, in which faults strike, is followed by a quiet
phase, in which the fleet has to recover.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from coordinator.scenario.faults_section import STAGES_OF_MODE
from coordinator.scenario.sections import FORMAT
from coordinator.swarm import methods, populations, protections, waiting
from coordinator.swarm.storms import STORM, Stormy, fault
from edge.core.rng import Draws
from edge.core.vocabulary import Stage, label
from edge.learning.registry import METHODS

Document = dict[str, Any]
"""A scenario as the mapping that its file holds."""

QUIET: Final = "quiet"
"""The phase after the storm."""

_MOST_ROUNDS: Final = 3
_ROUND_S: Final = 5
"""About what a round without a pause takes, seconds."""


def document(seed: int, index: int) -> Document:
    """Return scenario ``index`` of the swarm under ``seed``."""
    return document_of(seed, index, methods.drawn(seed, index))


def document_of(seed: int, index: int, name: str) -> Document:
    """Return scenario ``index`` of the swarm under ``seed``, with a method in place of the one it draws."""

    def draws(part: str) -> Draws:
        return Draws(seed, index, part)

    made: Document = {
        "format": FORMAT,
        "title": f"swarm {seed}, scenario {index}",
        "seed": draws("seed").whole(0, 2**31 - 1),
    }
    method = METHODS[name]
    open_rows = methods.has_rows_of_users(name)
    summable = not open_rows and methods.able(name, methods.Asked(dense=True, uniform=False))
    secure = protections.secure_sums(draws("secure")) if summable else None
    may_hide = method.uploads and method.data == "ratings" and summable and not method.hides_values
    may_hide = may_hide and methods.able(name, methods.Asked(dense=True, uniform=True))
    privacy = protections.privacy(draws("privacy"), secure) if may_hide else None
    made["data"], devices = _data(draws, made["seed"], name)
    if name == "fedmmf" and secure is not None and secure["mode"] != "ckks" and privacy is None:
        secure |= protections.shielded(draws("shielded"))
    made["fleet"] = fleet = populations.fleet(draws("fleet"))
    made |= populations.links(draws("links"))
    hidden = secure is not None and "shielded" not in secure
    on_device = privacy is not None and privacy["mechanism"] != "central-gaussian"
    asked = methods.Asked(dense=hidden or on_device, uniform=privacy is not None)
    drawn = methods.method(draws("learning"), name, asked)
    made["learning"] = drawn.settings
    if method.data == "ratings":
        judged = method.hides_values or (secure is not None and "shielded" in secure)
        unrated = populations.unrated_items(made["data"], made["seed"])
        made["data"] |= populations.drawn_items(
            draws("items"),
            draws_items=drawn.draws_items,
            weighs_all=drawn.only_ranks and not drawn.draws_items,
            learns_ones=drawn.learns_ones,
            judged=judged,
            unrated=unrated,
        )
    local = privacy is None or privacy["mechanism"] == "local-gaussian"
    rule = protections.aggregation(
        draws("aggregation"),
        single=secure is None and local and not open_rows and method.uploads and not method.hides_values,
        bounded=privacy is not None or method.hides_values,
        devices=devices,
    )
    krum = protections.is_krum(rule)
    made["rounds"] = rounds = waiting.rounds(
        draws("rounds"),
        devices,
        least=protections.KRUM_REPORTS if krum else 3 if secure is not None else 1,
        least_quorum=protections.KRUM_REPORTS if krum else 1,
    )
    if rule is not None:
        if krum:
            reports = range(waiting.quorum_reports(rounds), rounds["cohort"] + 1)
            rule["attackers"] = protections.attackers(draws("attackers"), reports)
        made["aggregation"] = rule
    on_sums = privacy is not None and privacy["mechanism"] == "central-gaussian"
    rounds |= waiting.selection(
        draws("selection"), losses_seen=secure is None and not on_device, speeds_seen=not on_sums
    )
    free = secure is None and privacy is None
    rounds |= waiting.pacing(
        draws("pacing"),
        rounds,
        devices,
        clear=secure is None,
        in_part=free and drawn.stepwise,
        without_rounds=free and not open_rows,
        speeds_seen=not on_sums,
    )
    made |= _phases(draws("phases"), rounds, secure, varied=_may_vary(privacy))
    if privacy is not None:
        made["privacy"] = privacy
    made["evaluation"] = _evaluation(
        draws("evaluation"),
        can_rank=method.data == "ratings",
        must_rank=drawn.only_ranks or "negatives" in made["data"],
    )
    if made["data"].get("held_out_negatives") == "symmetric":
        made["evaluation"]["ranking"]["negatives"] = draws("candidates").whole(1, min(unrated, 4))
    made["faults"] = _faults(seed, index, made, fleet, devices)
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


def _data(draws: Callable[[str], Draws], seed: int, name: str) -> tuple[Document, int]:
    """Return data that a method can learn from, and how many devices hold it."""
    crowd = draws("devices")
    devices = crowd.whole(populations.FEWEST_DEVICES, 12) if crowd.chance(0.7) else crowd.whole(12, 40)
    method = METHODS[name]
    if method.data == "regression":
        return populations.regression(draws("data"), devices), devices
    data = populations.ratings(draws("data"), devices, features=method.needs_features, timed=method.timed)
    if method.hides_values:
        data.pop("positive", None)
    left = populations.devices_of(data, seed)
    if left < populations.FEWEST_DEVICES:
        del data["positive"]
        left = devices
    return data, left


def _faults(seed: int, index: int, made: Document, fleet: Document, devices: int) -> list[Document]:
    """Return what goes wrong on purpose, given all the rest of a scenario."""
    classes, networks = populations.profiles(fleet)
    sums = made["phases"][0].get("secure_aggregation", made.get("secure_aggregation", {}))
    reports = (label(Stage.REPORT),) if "shielded" in sums else ()
    method = METHODS[made["learning"]["algorithm"]]
    storm = Stormy(
        stages=STAGES_OF_MODE[sums.get("mode", "off")] + reports,
        lasts_s=_storm_s(made),
        devices=devices,
        regions=populations.regions(fleet),
        classes=classes,
        networks=networks,
        buffered=waiting.is_buffered(made["rounds"]),
        rows=method.has_item_rows(method.Settings.model_validate(made["learning"])),
        poisonous="aggregation" in made,
    )
    count = Draws(seed, index, "faults").weighted({0: 1, 1: 4, 2: 3, 3: 2, 5: 1})
    return [fault(Draws(seed, index, "fault", n), f"fault {n}", storm) for n in range(count)]


def _may_vary(privacy: Document | None) -> bool:
    """Return whether phases may sum in the clear under this privacy."""
    return privacy is None or privacy["mechanism"] != "distributed-discrete-gaussian"


def _phases(draws: Draws, rounds: Document, secure: Document | None, *, varied: bool) -> Document:
    """Return the phases and how they sum, and give the rounds the pause that leaves room for the storm."""
    first, second = draws.whole(1, _MOST_ROUNDS), draws.whole(2, _MOST_ROUNDS)
    storm: Document = {"name": STORM}
    quiet: Document = {"name": QUIET}
    buffered = waiting.is_buffered(rounds)
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


def _evaluation(draws: Draws, *, can_rank: bool, must_rank: bool) -> Document:
    made: Document = {"every": 1000, "final": "false"}
    if not draws.chance(0.8):
        made = {"every": draws.whole(1, 3)}
    if must_rank or (can_rank and "final" not in made and draws.chance(0.5)):
        made["ranking"] = {"k": [draws.whole(1, 5)]}
    return made
