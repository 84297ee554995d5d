"""Scenarios of devices without chance, for tests of pacing."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from run_helpers import IDEAL_PROFILES

FAST_AND_SLOW = "ideal_wire: 50%, slow_wire: 50%"
"""Over the fast wire a round takes a device about 0.5 s, over the slow one about 2.9 s."""


def ideal(
    networks: str = "ideal_wire: 100%", *, users: int = 60, more: str = "", fleet: str = "", **rounds: str
) -> str:
    """Return a scenario of ideal devices behind ``networks``; ``rounds`` are settings of that section."""
    settings = {"count": "3", "cohort": "10", "deadline": "30 s", **rounds}
    return f"""
format: 2
seed: 2
data: {{source: synthetic-ratings, users: {users}, items: 400, ratings_per_user: 15}}
fleet: {{devices: {{ideal_device: 100%}}, networks: {{{networks}}}, profiles: [{IDEAL_PROFILES}]{fleet}}}
learning: {{algorithm: fedrecon, factors: 8}}
rounds: {{{", ".join(f"{name}: {value}" for name, value in settings.items())}}}
{more}"""


def ideal_regression(
    networks: str = "ideal_wire: 100%", *, clients: int = 6, more: str = "", **rounds: str
) -> str:
    """Return a scenario in which ideal devices take 300 gradient steps of 1.33 ms each."""
    settings = {"count": "3", "cohort": "6", "deadline": "30 s", **rounds}
    return f"""
format: 2
seed: 2
data: {{source: synthetic-regression, clients: {clients}, samples_per_client: 50, features: 300}}
fleet: {{devices: {{ideal_device: 100%}}, networks: {{{networks}}}, profiles: [{IDEAL_PROFILES}]}}
learning:
  algorithm: linear-regression
  local: {{method: gradient-steps, steps: 300, learning_rate: 0.0001}}
rounds: {{{", ".join(f"{name}: {value}" for name, value in settings.items())}}}
{more}"""


def by_round(rows: Iterable[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return rows of devices by the number of their round, in their order."""
    return {number: list(group) for number, group in groupby(rows, key=lambda row: row["round"])}


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """Return how many of some stretches of time, begin and end, overlap at most."""
    # At the same moment an end comes before a begin.
    moments = sorted([(end, -1) for _, end in spans] + [(begin, 1) for begin, _ in spans])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
