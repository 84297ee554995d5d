"""What a swarm found, as a terminal and as a build server show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from rich.console import Group
from rich.table import Table

from coordinator.swarm.campaign import Findings
from coordinator.swarm.coverage import KINDS, MODES, PARTS, STAGES, Coverage
from coordinator.swarm.failures import Kept, replay_command
from coordinator.swarm.invariants.registry import INVARIANTS, REPLAYS
from coordinator.swarm.verdict import VALID
from device_profiles.units import format_duration

NAMES: Final = (VALID, *(invariant.name for invariant in INVARIANTS), REPLAYS)
"""The names of all invariants, in the order in which they are looked at."""


def progress_line(found: Findings) -> str:
    """Return how far a swarm is."""
    failures = f", {len(found.failures)} failed" if found.failures else ""
    return f"{found.scenarios:,} scenarios, {found.per_minute:,.0f} a minute{failures}"


def render(found: Findings) -> Group:
    """Return the tables of what was covered, and the last line."""
    parts = [_matrix(found.coverage, section) for section in (MODES, KINDS, STAGES)]
    parts.append(_parts(found.coverage))
    last = (
        f"{found.scenarios:,} scenarios in {format_duration(found.wall_s)}, {found.per_minute:,.0f} a minute "
        f"({found.repeated:,} of them repeated in another process): {len(found.failures)} failed"
    )
    return Group(*parts, last)


def _matrix(coverage: Coverage, section: str) -> Table:
    counts = {(row, column): n for (name, row, column), n in coverage.items() if name == section}
    columns = sorted({column for _, column in counts})
    table = Table(title=section, title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    for row in sorted({row for row, _ in counts}):
        table.add_row(row, *(f"{counts.get((row, column), 0):,}" for column in columns))
    return table


def _parts(coverage: Coverage) -> Table:
    table = Table(title=PARTS, title_justify="left")
    table.add_column("")
    table.add_column("", overflow="fold")
    for row in sorted({row for name, row, _ in coverage if name == PARTS}):
        values = sorted(
            ((n, column) for (name, of, column), n in coverage.items() if (name, of) == (PARTS, row)),
            reverse=True,
        )
        table.add_row(row, ", ".join(f"{column} {n:,}" for n, column in values))
    return table


def failure_lines(seed: int, kept: Sequence[Kept]) -> Iterator[str]:
    """Yield, for every failure that was kept, what does not hold and how to see it again."""
    for one in kept:
        yield f"scenario {one.index}: {one.violation.invariant} does not hold: {one.violation.message}"
        yield f"    as it was: {replay_command(seed, one.index)}"
        yield f"    {'minimised' if one.minimised else 'its scenario'}: {one.command}"


def junit(seed: int, found: Findings) -> str:
    """Return the findings as JUnit XML: a test case for each invariant."""
    cases = []
    for name in NAMES:
        failures = [
            f"scenario {index}: {one.message}\n{replay_command(seed, index)}"
            for index, violations in sorted(found.failures.items())
            for one in violations
            if one.invariant == name
        ]
        inside = ""
        if failures:
            first = quoteattr(failures[0].partition("\n")[0])
            inside = f"<failure message={first}>{escape(chr(10).join(failures))}</failure>"
        cases.append(f'  <testcase classname="swarm" name="{name}">{inside}</testcase>\n')
    failed = sum("<failure" in case for case in cases)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<testsuite name="swarm seed {seed}" tests="{len(cases)}" failures="{failed}" '
        f'time="{found.wall_s:.3f}">\n{"".join(cases)}</testsuite>\n'
    )
