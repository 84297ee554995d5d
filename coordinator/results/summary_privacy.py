"""What a run says of its privacy in words, for the terminal and the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_FLOATING_POINT_NOTE = (
    "noise is drawn in floating point, whose low bits may give away what it was added to (Mironov 2012); "
    "epsilon does not count that, 'sampler: discrete' avoids it"
)


def privacy_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a summary says of the ε spent and whose it is, of what was claimed, of tiers and sampling.

    Nothing without ε.
    """
    facts = summary["privacy"]
    if facts is not None and "counted_for" not in facts:
        yield "epsilon is not shown: the version that wrote this run counted it by another rule; run it again"
        return
    if summary["epsilon"] is None or facts is None:
        return
    whose = facts["counted_for"]
    if facts["most_releases"] is not None:
        whose += f", {facts['most_releases']} times"
    yield f"epsilon {_both(summary)} at δ = {facts['delta']:g}, of {whose}"
    claimed = facts["claimed_epsilon"]
    if claimed is not None:
        yield (
            f"epsilon {claimed:g} claimed, by σ = Δ/ε, which is no calibration of Gaussian noise; "
            f"the true one is {_both(summary)}"
        )
    for name, tier in facts["tiers"].items():
        details = (
            f"{tier['devices']} devices",
            f"noise {tier['noise_multiplier']:g}",
            f"weight {tier['weight']:.3g}",
            f"up to {tier['most_reports']} reports",
        )
        yield f"tier {name}: epsilon {_both(tier)} ({', '.join(details)})"
    if facts["sampler"] == "floating-point" and summary["epsilon"] != "infinite":
        yield _FLOATING_POINT_NOTE


def clipping_line(summary: Mapping[str, Any]) -> str | None:
    """Return what a summary says of clipped values and updates; None where nothing is clipped, or unseen."""
    named = (("values", "of the values other than zero"), ("updates", "of the updates"))
    said = [
        f"{found['mean']:.2%} {what} (a round up to {found['max']:.2%})"
        for name, what in named
        if (found := summary["clipped"][name]) is not None
    ]
    return ", ".join(said) or None


def _both(facts: Mapping[str, Any]) -> str:
    """Return ε under both relations between neighbours, each with its name."""
    return f"{_shown(facts['epsilon'])} zero-out, {_shown(facts['epsilon_replace_one'])} replace-one"


def _shown(epsilon: float | str) -> str:
    return epsilon if isinstance(epsilon, str) else "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"
