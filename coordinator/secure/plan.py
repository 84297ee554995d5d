"""What secure aggregation comes to under a scenario, in words: graph, threshold, why no sum wraps around."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coordinator.scenario.privacy_section import (
    CentralGaussian,
    DistributedDiscreteGaussian,
    LocalGaussian,
    PersonalGaussian,
)
from coordinator.scenario.protection import ckks_config, masking_config, secure_sections
from coordinator.scenario.schema import ScenarioSettings
from coordinator.scenario.secure_section import Ckks, Masking, NoSecureAggregation, SecureAggregation
from edge.homomorphic.config import CkksConfig
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.states import Mode

_SAMPLING: Final = {
    "discrete": "noise is discrete, on a grid, on both clocks",
    "floating-point": "noise is drawn in floating point, whose low bits may give away what it was added to",
    None: "noise is discrete, on a grid, on the real clock, and drawn in floating point on the virtual one",
}


def plan_lines(scenario: ScenarioSettings) -> list[str]:
    """Return the plan, a line each; nothing where every device reports in the clear.

    It does not depend on the data: every element of an update has the same clip.
    """
    plans: dict[tuple[str, ...], None] = {}
    for _, section in secure_sections(scenario):
        if isinstance(section, Ckks):
            found = _ckks_lines(section, ckks_config(scenario, section, [("update", 1)]))
        elif isinstance(section, Masking):
            found = _masking_lines(masking_config(scenario, section, [("update", 1)]), section)
        else:
            continue
        plans[tuple(found)] = None  # phases may sum alike
    lines = [line for plan in plans for line in plan]
    if scenario.privacy is not None:
        lines += dict.fromkeys(_privacy_lines(scenario))
    return lines


def modes(scenario: ScenarioSettings) -> dict[str, str]:
    """Return how updates are summed and with what cryptography, by phase; ``run`` where there are none."""
    found = {}
    for phase in [phase.name for phase in scenario.phases] or [""]:
        section = scenario.secure_in(phase)
        crypto = "" if isinstance(section, NoSecureAggregation) else f", {section.crypto} cryptography"
        found[phase or "run"] = section.mode + crypto + _unsafe(section) + _shielded(section)
    return found


def _unsafe(section: SecureAggregation) -> str:
    return ", UNSAFE graph" if isinstance(section, Masking) and section.unsafe else ""


def _shielded(section: SecureAggregation) -> str:
    shielded = section.shielded if isinstance(section, Masking) else None
    return "" if shielded is None else f", shielded devices in the clear ({shielded})"


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
    if section.unsafe:
        yield "  UNSAFE: the graph is not held against the corrupt devices, which may expose others"
    yield f"  a sum needs {needed} contributors of {n}; fewer are never revealed"
    if section.shielded is not None:
        yield f"  beside it, devices whose mask passes report in the clear: {section.shielded}"
    yield (
        f"  ring of {config.bits} bits: {steps} steps up to the clip of {quantizer.clip:g}, weights up to "
        f"{weight_max}"
    )
    noise = quantizer.noise_levels
    one = f"{weight_max} · {steps}" if noise == 0 else f"({weight_max} · {steps} + {noise} of noise)"
    whole = n * (weight_max * steps + noise)
    yield f"  no sum can wrap around: {n} · {one} = {whole}, of {largest} at most"
    yield f"  rounding errs by less than {quantizer.error_bound:.3g} on an element of a sum"
    if config.mode is Mode.ACTIVE:
        yield (
            f"  holds against a coordinator that lies, with up to {section.corrupt:.0%} of a round's devices "
            f"corrupt"
        )
    else:
        yield "  gives nothing against a coordinator that lies; `mode: active` does"


def _ckks_lines(section: Ckks, config: CkksConfig) -> Iterator[str]:
    yield f"secure aggregation: ckks, {section.crypto} cryptography, one key that all devices share"
    yield f"  a sum needs {config.min_contributors} contributors; nobody's dropping out costs it"
    yield (
        f"  real values are rounded to {config.levels} steps up to the clip; "
        f"weights up to {config.weight_max}, up to {config.n_max} devices: every sum is exact"
    )


def _privacy_lines(scenario: ScenarioSettings) -> Iterator[str]:
    privacy = scenario.privacy
    assert privacy is not None
    yield f"privacy: {privacy.mechanism}, updates clipped to a norm of {privacy.clip_norm:g}"
    if not isinstance(privacy, DistributedDiscreteGaussian):
        yield f"  {_SAMPLING[privacy.sampler]}"
    if isinstance(privacy, PersonalGaussian):
        for tier, weight in zip(privacy.tiers, privacy.weights, strict=True):
            noise = tier.noise_multiplier * privacy.clip_norm
            yield (
                f"  tier {tier.name}: every device adds noise of {noise:g} to every element of its update, "
                f"which then weighs {weight:.4g}"
            )
        return
    noise = privacy.multiplier * privacy.clip_norm
    if privacy.claimed_epsilon is not None:
        yield f"  noise by σ = Δ/ε of a claimed epsilon of {privacy.claimed_epsilon:g}: the true one differs"
    if isinstance(privacy, CentralGaussian):
        yield f"  the coordinator adds noise of {noise:g} to every element of a sum"
    elif isinstance(privacy, LocalGaussian):
        yield f"  every device adds noise of {noise:g} to every element of its update"
    else:
        for _, section in secure_sections(scenario):
            if isinstance(section, Masking):
                config = masking_config(scenario, section, [("update", 1)])
                share = config.parts[0].noise_sd if isinstance(config.parts[0], RealPart) else 0.0
                yield (
                    f"  every device adds noise of {share:.4g}, so that {config.honest_contributors} honest "
                    f"ones, the fewest in a sum, add {noise:g}"
                )
