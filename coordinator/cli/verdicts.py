"""The thresholds of a run as a table: what was promised, what it was, and by how much it held."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from coordinator.results.verdicts import shown, shown_margin
from coordinator.scenario.threshold_evaluation import ThresholdResult
from coordinator.scenario.thresholds import BASELINE


def _verdict(result: ThresholdResult) -> str:
    if result.held:
        return "held"
    # Where there is a margin, the row itself says why; how nothing was learnt is said below the table.
    return "MISSED" if result.margin is not None or result.implicit else f"MISSED: {result.reason}"


def verdict_table(results: Sequence[ThresholdResult], of: str = "thresholds") -> Table:
    """Return a table with a row per threshold.

    The margin is the distance from the limit, positive on the side that holds. The figure of the baseline is
    shown where a threshold compares with it.

    Parameters
    ----------
    results : the verdicts.
    of : what they are about, for the title.
    """
    missed = sum(not result.held for result in results)
    title = f"{of}: {missed} of {len(results)} missed" if missed else f"{of}: all held"
    compared = any(result.threshold.limit.relative_to == BASELINE for result in results)
    table = Table(title=title, title_justify="left")
    table.add_column("threshold", overflow="fold")
    for heading in ("value", "limit", *(("baseline",) if compared else ()), "margin"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for result in results:
        table.add_row(
            str(result.threshold),
            shown(result, result.value),
            shown(result, result.limit),
            *((shown(result, result.baseline),) if compared else ()),
            shown_margin(result),
            _verdict(result),
            style=None if result.held else "bold red",
        )
    return table
