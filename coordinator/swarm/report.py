"""What a swarm found, as a terminal and as a build server show it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group
from rich.table import Table

from coordinator.engine.progress import left_in_words
from coordinator.results.junit import Case, Suite
from coordinator.scenario.load import LoadedScenario
from coordinator.swarm.breaking import Search, SearchBounds
from coordinator.swarm.campaign import Findings
from coordinator.swarm.changes import in_words
from coordinator.swarm.failures import Kept, plugin_options, replay_command
from coordinator.swarm.invariants.registry import INVARIANTS, REPLAYS
from coordinator.swarm.verdict import KINDS, MODES, PARTS, STAGES, VALID, Coverage
from device_profiles.units import format_duration

NAMES: Final = (VALID, *(invariant.name for invariant in INVARIANTS), REPLAYS)
"""The names of all invariants, in the order in which they are looked at."""


def progress_line(found: Findings) -> str:
    """Return how far a swarm is."""
    failures = f", {len(found.failures)} failed" if found.failures else ""
    failures += f", {found.lost} workers lost" if found.lost else ""
    left = left_in_words(found.left_s)
    return f"{found.scenarios:,} scenarios, {found.per_minute:,.0f} a minute{failures}{left}"


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


def search_lines(
    loaded: LoadedScenario, search: Search, bounds: SearchBounds, kept: Sequence[Path]
) -> Iterator[str]:
    """Yield what a search around a scenario has come to; ``kept`` are the files of what breaks a promise."""
    promises = len(loaded.scenario.thresholds)
    if search.missed:
        yield f"{loaded.name} misses promises as it is; nothing is searched until it holds:"
        yield from (f"    {one}" for one in search.missed)
        return
    for found, path in zip(search.found, kept, strict=True):
        yield f"{loaded.name} breaks with {in_words(found.changes)}:"
        yield from (f"    {one}" for one in found.broken)
        for change, holds in zip(found.changes, found.holding, strict=True):
            if holds is not None:
                others = " beside the rest" if len(found.changes) > 1 else ""
                yield f"    with {holds} in place of {change.strength()}{others} all {promises} promises hold"
            elif found.least and len(change.grid) > 1:
                yield f"    {change.strength()} is the weakest that is tried"
        if not found.least:
            yield "    the search for less was ended; give it more --seconds"
        yield f"    see it again: recfleet run{plugin_options()} {shlex.quote(str(path))}"
    ended = ", ended by time" if search.over else ", interrupted" if search.interrupted else ""
    took = f"seed {bounds.seed}, {search.runs} runs, {format_duration(search.wall_s)}{ended}"
    if search.found:
        yield f"{search.candidates} random surroundings ({took})"
    else:
        where = f"in {search.candidates} random surroundings, too"
        yield f"{loaded.name}: all {promises} promises hold, {where} ({took})"


def suite_of(seed: int, found: Findings) -> Suite:
    """Return the test suite of a swarm: the scenarios, which take its time, and a test case per invariant."""
    cases = [Case(f"{found.scenarios:,} scenarios", wall_s=found.wall_s)]
    for name in NAMES:
        failures = [
            f"scenario {index}: {one.message} (replay it with: {replay_command(seed, index)})"
            for index, violations in sorted(found.failures.items())
            for one in violations
            if one.invariant == name
        ]
        cases.append(Case(name, "; ".join(failures) if failures else None))
    return Suite(f"swarm, seed {seed}", "swarm", tuple(cases))
