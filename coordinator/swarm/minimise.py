"""Making a failing scenario small: greedy removal and shrinking, as long as the same invariant fails.

A plain form of delta debugging (Zeller & Hildebrandt 2002, "Simplifying and Isolating Failure-Inducing
Input"): every change is tried, the first that still fails is kept, and that is repeated until none does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

from coordinator.swarm.generator import Document

Fails = Callable[[Document], bool]
"""Says whether the invariant in question fails in a scenario; False, too, for one that is not valid."""

MOST_TRIALS: Final = 400
"""Runs after which a scenario is small enough."""

_SIZES: Final = (
    ("rounds", "cohort", 1),
    ("data", "users", 2),
    ("data", "clients", 2),
    ("data", "items", 2),
    ("data", "ratings_per_user", 1),
    ("data", "min_ratings_per_user", 1),
    ("data", "samples_per_client", 1),
    ("data", "features", 1),
    ("learning", "factors", 1),
)
"""Whole numbers that may shrink, by section and key, with the least that is tried."""

_NEEDED: Final = frozenset(
    {
        *("format", "seed", "title", "data", "fleet", "learning", "rounds", "phases"),
        *("source", "users", "clients", "items", "devices", "networks", "algorithm", "mask", "cohort"),
        *("mode", "mechanism", "clip_norm", "noise_multiplier", "name", "kind", "method", "steps"),
        *("base", "model", "rule", "trim", "attackers", "tiers", "up_to", "batch_size"),
    }
)
"""Keys that are not tried without."""


def minimise(document: Document, fails: Fails, *, most: int = MOST_TRIALS) -> Document:
    """Return the smallest scenario found in which the same invariant fails.

    Parameters
    ----------
    document : a scenario in which it fails.
    fails : whether it does in another.
    most : runs that may be spent.
    """
    current = copy.deepcopy(document)
    tried = 0
    found = True
    while found:
        found = False
        for candidate in _smaller(current):
            tried += 1
            if tried > most:
                return current
            if fails(candidate):
                current, found = candidate, True
                break
    return current


def _smaller(document: Document) -> Iterator[Document]:
    """Yield scenarios that are a little smaller, those with the largest part gone first."""
    yield from _without_faults(document)
    yield from _fewer_rounds(document)
    for section, key, least in _SIZES:
        yield from _less(document, section, key, least)
    yield from _without_settings(document)
    yield from _plainer_fleet(document)


def _without_faults(document: Document) -> Iterator[Document]:
    faults = document.get("faults", [])
    if len(faults) > 1:
        yield {**document, "faults": []}
    for index in range(len(faults)):
        yield {**document, "faults": faults[:index] + faults[index + 1 :]}


def _fewer_rounds(document: Document) -> Iterator[Document]:
    phases = document.get("phases", [])
    if any("time" in phase for phase in phases):
        # Time without a pause is full of rounds: it is left behind before pauses are.
        yield {**document, "phases": [{**_without(phase, "time"), "rounds": 2} for phase in phases]}
    for index, phase in enumerate(phases):
        if len(phases) > 1:
            rest = phases[:index] + phases[index + 1 :]
            gone = phase["name"]
            faults = [fault for fault in document.get("faults", []) if fault.get("during") != gone]
            yield {**document, "phases": rest, "faults": faults}
        if isinstance(phase.get("rounds"), int) and phase["rounds"] > 1:
            less = {**phase, "rounds": phase["rounds"] - 1}
            yield {**document, "phases": [*phases[:index], less, *phases[index + 1 :]]}


def _less(document: Document, section: str, key: str, least: int) -> Iterator[Document]:
    value = document.get(section, {}).get(key)
    if not isinstance(value, int):
        return
    for smaller in dict.fromkeys((least, (least + value) // 2, value - 1)):
        if least <= smaller < value:
            yield {**document, section: {**document[section], key: smaller}}


def _without_settings(document: Document) -> Iterator[Document]:
    """Yield scenarios in which a setting is left to its default."""
    for key, value in document.items():
        if key in _NEEDED:
            pass
        elif key != "faults":
            yield _without(document, key)
        if isinstance(value, dict):
            for smaller in _sections_without(value):
                yield {**document, key: smaller}
        elif isinstance(value, list):
            for index, item in enumerate(value):
                for smaller in _sections_without(item):
                    yield {**document, key: [*value[:index], smaller, *value[index + 1 :]]}


def _sections_without(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key, value in section.items():
        if key not in _NEEDED:
            yield _without(section, key)
        if isinstance(value, dict):
            for smaller in _sections_without(value):
                yield {**section, key: smaller}


def _without(section: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: setting for name, setting in section.items() if name != key}


def _plainer_fleet(document: Document) -> Iterator[Document]:
    fleet = document["fleet"]
    for key in ("devices", "networks"):
        shares = fleet.get(key, {})
        if isinstance(shares, dict) and len(shares) > 1:
            for name in shares:
                yield {**document, "fleet": {**fleet, key: {name: "100%"}}}
