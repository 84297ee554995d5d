"""What secure aggregation comes to under a scenario, in words: graph, threshold, why no sum wraps around."""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.scenario.schema import Scenario
from coordinator.scenario.secure_section import Ckks, Masking, NoSecureAggregation
from edge.secagg.config import SecAggConfig


def plan_lines(scenario: Scenario) -> list[str]:
    """Return the plan, a line each; nothing where every device reports in the clear.

    It does not depend on the data: every element of an update has the same clip.
    """
    section = scenario.secure_aggregation
    if isinstance(section, NoSecureAggregation):
        return []
    if isinstance(section, Ckks):
        return list(_ckks_lines(section, scenario))
    return list(_masking_lines(scenario.masking_config(section, section.parts([("update", 1)])), section))


def _masking_lines(config: SecAggConfig, section: Masking) -> Iterator[str]:
    n = config.n_max
    k, t = config.graph(n)
    needed = config.contributors_needed(n)
    quantizer = config.quantizers["update"]
    steps, weight_max, largest = quantizer.levels, config.weight_max, config.ring.largest
    yield f"secure aggregation: {section.mode}, {section.crypto} cryptography, up to {n} devices a round"
    yield (
        f"  graph: k = {k} neighbours each, t = {t} of {k + 1} shares rebuild a secret "
        f"({section.corrupt:.0%} corrupt, {section.dropout:.0%} dropping out)"
    )
    yield f"  a sum needs {needed} contributors of {n}; fewer are never revealed"
    yield (
        f"  ring of {config.bits} bits: {steps} steps up to the clip of {quantizer.clip:g}, weights up to "
        f"{weight_max}"
    )
    yield (
        f"  no sum can wrap around: {n} · {weight_max} · {steps} = {n * weight_max * steps}, "
        f"of {largest} at most"
    )
    yield f"  rounding errs by less than {quantizer.error_bound:.3g} on an element of a sum"


def _ckks_lines(section: Ckks, scenario: Scenario) -> Iterator[str]:
    needed = max(section.min_contributors, scenario.rounds.quorum_reports)
    yield f"secure aggregation: ckks, {section.crypto} cryptography, one key that all devices share"
    yield f"  a sum needs {needed} contributors; nobody's dropping out costs it"
