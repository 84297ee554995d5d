"""A comparison as tables for a terminal, as JSON and as test suites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from coordinator.engine.run_files import ENDED
from coordinator.results.comparison import Comparison, Group, Row
from coordinator.results.figures import show_estimate
from coordinator.results.intervals import CONFIDENCE, Difference
from coordinator.results.junit import Suite, cases_of_repeats, wall_s_of
from coordinator.results.sweep import json_estimate
from coordinator.results.verdicts import json_number
from coordinator.results.wide_tables import Column, fitting_tables

_MOST_SETTINGS = 12
"""Differing settings that the terminal shows of a group; JSON has all."""


def _seeds(group: Group) -> str:
    seeds = ", ".join(str(seed) for seed in sorted(group.runs))
    shown = [f"seed {seeds}, n = 1" if len(group.runs) == 1 else f"seeds {seeds}"]
    for status in ENDED[1:]:
        found = [str(seed) for seed, run in sorted(group.runs.items()) if run.status == status]
        if found:
            shown.append(f"{status}: seed {', '.join(found)}")
    return "\n".join(shown)


def _groups_table(comparison: Comparison) -> Table:
    table = Table(title="compared", title_justify="left")
    for heading in ("", "scenario", "runs", "settings that differ"):
        table.add_column(heading, overflow="fold")
    for group in comparison.groups:
        settings = [f"{name}: {'–' if value is None else value}" for name, value in group.differing.items()]
        if len(settings) > _MOST_SETTINGS:
            more = len(settings) - _MOST_SETTINGS
            settings = [*settings[:_MOST_SETTINGS], f"and {more} more (see --json)"]
        table.add_row(group.letter, group.scenario, _seeds(group), "\n".join(settings))
    return table


def _how(row: Row) -> str:
    known = [change for change in row.differences if change is not None]
    kinds = {_kind(change) for change in known}
    return " / ".join(sorted(kinds))


def _kind(change: Difference) -> str:
    if change.estimate.half_width is None:
        return "no interval, n = 1"
    return "paired by seed" if change.paired else "unpaired"


def _figures_tables(comparison: Comparison, width: int) -> list[Table]:
    first, *others = comparison.groups
    rows = comparison.rows
    fixed: list[Column] = [
        ("figure", [row.name for row in rows]),
        ("difference", [_how(row) for row in rows]),
        (first.letter, [_shown_estimate(row, 0) for row in rows]),
    ]
    blocks: list[list[Column]] = [
        [
            (group.letter, [_shown_estimate(row, index) for row in rows]),
            (f"{group.letter} − {first.letter}", [_shown_difference(row, index) for row in rows]),
        ]
        for index, group in enumerate(others, start=1)
    ]
    title = f"mean ± {CONFIDENCE:.0%} interval, and differences to A"
    return fitting_tables(title, fixed, blocks, width, [None] * len(rows))


def _shown_estimate(row: Row, index: int) -> str:
    found = row.estimates[index]
    return "–" if found is None else show_estimate(found, row.unit)


def _shown_difference(row: Row, index: int) -> str:
    found = row.differences[index]
    return "–" if found is None else show_estimate(found.estimate, row.unit, signed=True)


def render_comparison(comparison: Comparison, width: int) -> Iterator[RenderableType]:
    """Yield what a terminal of so many columns shows: who is compared, the figures, and notes."""
    yield _groups_table(comparison)
    yield from _figures_tables(comparison, width)
    for note in comparison.notes:
        yield f"note: {note}"


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON types, figures in base units."""
    return {
        "confidence": CONFIDENCE,
        "groups": [
            {
                "group": group.letter,
                "scenario": group.scenario,
                "settings": group.differing,
                "runs": [
                    {"seed": seed, "directory": str(run.directory), "status": run.status}
                    for seed, run in sorted(group.runs.items())
                ],
            }
            for group in comparison.groups
        ],
        "figures": [
            {
                "figure": row.name,
                "unit": row.unit,
                "groups": {
                    group.letter: _figure_record(row, index, group)
                    for index, group in enumerate(comparison.groups)
                    if row.estimates[index] is not None
                },
            }
            for row in comparison.rows
        ],
        "notes": list(comparison.notes),
    }


def _figure_record(row: Row, index: int, group: Group) -> dict[str, Any]:
    found, change = row.estimates[index], row.differences[index]
    assert found is not None
    values = {str(seed): json_number(value) for seed, value in group.values(row.name).items()}
    record: dict[str, Any] = {**json_estimate(found), "values": values}
    if change is not None:
        record["difference"] = {**json_estimate(change.estimate), "paired": change.paired}
    return record


def comparison_suites(comparison: Comparison) -> list[Suite]:
    """Return a test suite a group: its thresholds, each failed if any of its runs missed it."""
    return [
        Suite(
            f"{group.letter}: {group.scenario}",
            group.scenario,
            cases_of_repeats(
                {seed: run.verdicts for seed, run in group.runs.items()},
                {},
                {seed: wall_s_of(run.directory) for seed, run in group.runs.items()},
            ),
        )
        for group in comparison.groups
    ]
