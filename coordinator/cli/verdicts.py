"""The thresholds of a run as a table: what was promised, what it was, and by how much it held."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from coordinator.scenario.threshold_evaluation import ThresholdResult
from coordinator.verdicts import shown, shown_margin


def _verdict(result: ThresholdResult) -> str:
    if result.held:
        return "held"
    # Where there is a margin, the row itself says why.
    return "MISSED" if result.margin is not None else f"MISSED: {result.reason}"


def verdict_table(results: Sequence[ThresholdResult]) -> Table:
    """Return a table with a row per threshold.

    The margin is the distance from the limit, positive on the side that holds.
    """
    missed = sum(not result.held for result in results)
    title = f"thresholds: {missed} of {len(results)} missed" if missed else "thresholds: all held"
    table = Table(title=title, title_justify="left")
    table.add_column("threshold", overflow="fold")
    for heading in ("value", "limit", "margin"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for result in results:
        table.add_row(
            str(result.threshold),
            shown(result, result.value),
            shown(result, result.limit),
            shown_margin(result),
            _verdict(result),
            style=None if result.held else "bold red",
        )
    return table
