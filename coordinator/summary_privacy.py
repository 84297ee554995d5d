"""What a run says of its privacy in words, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def privacy_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a summary says of the ε spent, of what was claimed, and of each tier; nothing without ε."""
    epsilon = summary["epsilon"]
    if epsilon is None:
        return
    facts = summary.get("privacy") or {}
    tiers = facts.get("tiers", {})
    whom = "a user of the tier that spent most" if tiers else "each user"
    yield f"epsilon {_shown(epsilon)} spent on {whom}"
    claimed = facts.get("claimed_epsilon")
    if claimed is not None:
        yield (
            f"epsilon {claimed:g} claimed, by σ = Δ/ε, which is no calibration of Gaussian noise; "
            f"the true one is {_shown(epsilon)} at δ = {facts['delta']:g}"
        )
    for name, tier in tiers.items():
        details = (
            f"{tier['devices']} devices",
            f"noise {tier['noise_multiplier']:g}",
            f"weight {tier['weight']:.3g}",
            f"up to {tier['most_reports']} reports",
        )
        yield f"tier {name}: epsilon {_shown(tier['epsilon'])} ({', '.join(details)})"


def _shown(epsilon: float | str) -> str:
    return epsilon if isinstance(epsilon, str) else f"{epsilon:.4g}"
