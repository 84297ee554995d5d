"""Whether the promises of the scenario were kept: the first thing that a report says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.results.report.blocks import SectionBlock, TableBlock, TableCell
from coordinator.results.report.view import RunView


def figure(value: float | str | None) -> float | None:
    """Return a figure of a verdict as a number; None for none and for what is infinite."""
    return None if isinstance(value, str) else value


def verdict_row(verdict: Mapping[str, Any]) -> tuple[TableCell, ...]:
    """Return the cells of one verdict: threshold, verdict, value, margin, limit."""
    key = f"threshold[{verdict['threshold']}]"
    shown = verdict["shown"]
    held = bool(verdict["held"])
    word = "✓ held" if held else "✗ missed"
    if not held and (verdict["margin"] is None or verdict["implicit"]):
        word = f"{word}: {verdict['reason']}"
    return (
        TableCell(verdict["threshold"]),
        TableCell(word, int(held), f"{key}.held", mood="good" if held else "bad"),
        TableCell(shown["value"], figure(verdict["value"]), f"{key}.value"),
        TableCell(
            shown["margin"], figure(verdict["margin"]), f"{key}.margin", mood="good" if held else "bad"
        ),
        TableCell(shown["limit"], figure(verdict["limit"]), f"{key}.limit"),
    )


def verdicts(view: RunView) -> SectionBlock | None:
    """Return the verdict on each threshold with its value and margin."""
    found = view.verdicts
    if not found:
        return None
    missed = sum(not verdict["held"] for verdict in found)
    title = f"{missed} of {len(found)} thresholds missed" if missed else f"All {len(found)} thresholds held"
    # What was missed comes first.
    rows = [verdict_row(verdict) for verdict in sorted(found, key=lambda verdict: verdict["held"])]
    table = TableBlock(
        "The margin is the distance from the limit, positive on the side that holds.",
        ("threshold", "verdict", "value", "margin", "limit"),
        tuple(rows),
        text_columns=2,
    )
    return SectionBlock("verdicts", title, (table,), wide=True)
