"""Small scenarios, each broken in one known way, and how it is seen that a change has mended it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BASE = """
format: 2
title: broken
seed: 3
data: {source: synthetic-ratings, users: 60, items: 60, ratings_per_user: 10}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 4, learning_rate: 0.05}
rounds: {count: 5, cohort: 20, deadline: 30 s}
evaluation: {every: 100}
"""

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Broken:
    """A broken scenario.

    Attributes
    ----------
    settings : what breaks it.
    key : the setting that mends it.
    worse : the figure that is the less the better.
    to : the part of that figure that is left, at most, once the advice was taken.
    """

    settings: tuple[str, ...]
    key: str
    worse: Callable[[Summary], float]
    to: float = 0.5


def p50_s(summary: Summary) -> float:
    """Return how long a round takes at the median, seconds."""
    return float(summary["rounds"]["duration_s"]["p50"])


def abandoned(summary: Summary) -> float:
    """Return how many rounds were abandoned."""
    return float(summary["rounds"]["abandoned"])


def ended(name: str) -> Callable[[Summary], float]:
    """Return what counts the share of device rounds that ended so."""
    return lambda summary: float(summary["outcomes"][name] / summary["device_rounds"])


def error(summary: Summary) -> float:
    """Return the error of the model."""
    return float(summary["accuracy"][0]["last"])


def clipped(of: str) -> Callable[[Summary], float]:
    """Return what gives the share of values or updates that were clipped."""
    return lambda summary: float(summary["clipped"][of]["mean"])


def wasted(summary: Summary) -> float:
    """Return the share of bytes that were wasted."""
    sizes = summary["bytes"]
    return float(sizes["wasted"] / (sizes["down"] + sizes["up"]))


def fault(what: str) -> str:
    """Return the setting of one fault."""
    return f"faults=[{{name: broken, {what}}}]"


VANISHING = fault("at_stage: compute, on: {fraction: 20%}, vanish: {}")
SUMS = ("secure_aggregation={mode: secagg, crypto: modelled}", "learning.upload=dense")
NOISE = "privacy={mechanism: central-gaussian, clip_norm: %s, noise_multiplier: %s, accounting: false}"

BROKEN = {
    "deadline-rounds": Broken((VANISHING,), "rounds.over_select", p50_s, 0.1),
    "asked-in-vain": Broken(
        (
            "fleet.availability={kind: diurnal, mean_available: 20%, peak_to_trough: 2, peak_local_hour: 12}",
            "rounds.selection=random",
        ),
        "rounds.selection",
        ended("unreachable"),
        0.0,
    ),
    "memory": Broken(
        (
            "learning.factors=32",
            "fleet.devices={laptop_x86_2019: 100%}",
            fault("on: {fraction: 50%}, memory_pressure: {factor: 0.0003%}"),
        ),
        "learning.factors",
        ended("failed"),
        0.0,
    ),
    "battery": Broken(
        (
            "fleet.mix=global_android_2024",
            fault("on: {fraction: 40%, fixed: true}, battery_drain: {level: 0%}"),
        ),
        "rounds.over_select",
        lambda summary: 100.0 - summary["outcomes"]["completed"],
        0.2,
    ),
    "connections": Broken(
        (
            "rounds.retry.attempts=1",
            "fleet.profiles.networks.bad={like: wifi_enterprise, connect_success: 60%, sources: assumption}",
            "fleet.networks={bad: 100%}",
        ),
        "rounds.retry.attempts",
        ended("unreachable"),
    ),
    "coordinator-link": Broken(
        ("coordinator.up_rate=1 Mbit/s", "data.items=400"), "coordinator.up_rate", p50_s
    ),
    "late-reports": Broken(
        ("rounds.deadline=2.5 s", "fleet.networks={3g_slow: 50%, wifi_enterprise: 50%}"),
        "rounds.deadline",
        ended("late"),
        0.0,
    ),
    "too-few-shares": Broken(
        (
            "secure_aggregation={mode: secagg, crypto: modelled, neighbours: 19, threshold: 18}",
            "learning.upload=dense",
            fault("at_stage: masked-input, on: {fraction: 20%}, vanish: {}"),
        ),
        "secure_aggregation.threshold",
        abandoned,
        0.0,
    ),
    "quorum": Broken(
        ("rounds.quorum=18", "rounds.deadline=10 s", VANISHING), "rounds.over_select", abandoned, 0.0
    ),
    "stage-deadlines": Broken(
        (*SUMS, fault("at_stage: masked-input, on: {fraction: 10%}, vanish: {}")),
        "secure_aggregation.stage_deadlines.masked_input",
        p50_s,
    ),
    "stragglers": Broken(
        ("fleet.networks={3g_slow: 8%, wifi_enterprise: 92%}",), "rounds.over_select", p50_s
    ),
    "over-selection": Broken(("rounds.over_select=200%",), "rounds.over_select", wasted, 0.9),
    "stale-reports": Broken(
        (
            "rounds.pacing={mode: buffered, concurrency: 40, staleness_limit: 1}",
            "rounds.cohort=5",
            "rounds.count=6",
        ),
        "rounds.pacing.concurrency",
        ended("late"),
        0.8,
    ),
    "clipped-norms": Broken(
        (NOISE % (0.15, 0.1), "learning.weighting=uniform"), "privacy.clip_norm", clipped("updates"), 0.6
    ),
    "clipped-values": Broken(
        (*SUMS, "secure_aggregation.clip=0.001"), "secure_aggregation.clip", clipped("values")
    ),
    "too-few-available": Broken(
        (
            "rounds.quorum=10",
            "rounds.interval=10 min",
            "fleet.availability={kind: diurnal, mean_available: 12%, peak_to_trough: 2, peak_local_hour: 2}",
        ),
        "rounds.quorum",
        lambda summary: summary["simulated_s"],
    ),
    "poisoned-mean": Broken(
        (
            "rounds.count=10",
            fault("on: {fraction: 20%, fixed: true}, poisoned_updates: {kind: sign-flip, scale: 1000}"),
        ),
        "aggregation",
        error,
        0.995,
    ),
    "noise": Broken(
        (NOISE % (1, 10), "learning.weighting=uniform", "rounds.count=15"),
        "privacy.noise_multiplier",
        error,
        0.995,
    ),
    "small-steps": Broken(
        ("learning.learning_rate=0.0001", "rounds.count=10"), "learning.learning_rate", error, 0.999
    ),
    "large-steps": Broken(("learning.learning_rate=2",), "learning.learning_rate", error, 0.8),
}
"""By the pattern that is to be seen."""
