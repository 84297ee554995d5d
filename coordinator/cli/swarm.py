"""``swarm``: random scenarios, each checked by invariants; or random faults around one, by its promises."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import click

from coordinator.cli.consoles import console
from coordinator.cli.options import SWARM_SCENARIOS
from coordinator.cli.termination import termination_interrupts
from coordinator.cli.upgrade import load_with_notes
from coordinator.cluster.opening import ClusterChoice
from coordinator.results.junit import write_junit
from coordinator.scenario import EngineName
from coordinator.scenario.exit_codes import ExitCode
from coordinator.swarm.breaking import SearchBounds, break_promises, breaking_file
from coordinator.swarm.campaign import Findings, Plan, run_campaign
from coordinator.swarm.failures import Kept, judge_file, keep
from coordinator.swarm.report import failure_lines, progress_line, render, search_lines, suite_of
from coordinator.swarm.workers import digests_elsewhere

_SECONDS_BETWEEN_LINES: Final = 5.0
_MOST_KEPT: Final = 5
"""Failures that are kept and made small; of each invariant the first."""


def swarm(
    *,
    scenario: Path | None,
    settings: tuple[str, ...],
    scenarios: int | None,
    seed: int,
    only: tuple[int, ...],
    replay: Path | None,
    minutes: float | None,
    seconds: float | None,
    workers: int | None,
    engine: EngineName,
    address: str | None,
    keep_going: bool,
    minimise: bool,
    out: Path,
    junit_file: Path | None,
) -> int:
    """Run a swarm of scenarios, replay one, or search around one; return the exit code."""
    if minutes is not None and seconds is not None:
        raise click.UsageError("--minutes and --seconds say the same; leave one out")
    if scenario is not None:
        given = {"--only": only, "--replay": replay, "--workers": workers, "--address": address}
        given |= {"--engine": engine if engine != "local" else None}
        given |= {"--no-minimise": not minimise, "--junit": junit_file}
        unfit = [name for name, value in given.items() if value]
        if unfit:
            raise click.UsageError(f"{unfit[0]} is for swarms without SCENARIO; leave one of the two out")
        seconds = seconds if minutes is None else 60.0 * minutes
        limit = scenarios if scenarios or seconds is not None else SWARM_SCENARIOS
        return _around(scenario, settings, SearchBounds(seed, limit, seconds, keep_going), out)
    if settings:
        raise click.UsageError("--set changes a scenario; name the SCENARIO")
    if only and scenarios is not None:
        raise click.UsageError("--only says which scenarios to run; leave --scenarios out")
    choice = ClusterChoice(engine, workers, address)
    if replay is not None:
        if only or scenarios is not None or junit_file is not None:
            raise click.UsageError("--replay runs one file; leave --only, --scenarios and --junit out")
        return _replay(replay, choice)
    limit_s = seconds if minutes is None else 60.0 * minutes
    indices: Iterable[int] = range(scenarios or SWARM_SCENARIOS)
    if only:
        indices = only
    elif scenarios is None and limit_s is not None:
        indices = itertools.count()
    plan = Plan(
        seed=seed,
        indices=indices,
        seconds=limit_s,
        choice=choice,
        keep_going=keep_going or bool(only),
        thorough=bool(only),
    )
    with termination_interrupts():
        found = run_campaign(plan, _progress())
    console().print(render(found))
    if junit_file is not None:
        write_junit(junit_file, [suite_of(seed, found)])
    if found.interrupted:
        return int(ExitCode.INTERRUPTED)
    if not found.failures:
        return int(ExitCode.HELD)
    for line in failure_lines(seed, _kept(seed, found, out, choice, small=minimise)):
        click.echo(line)
    return int(ExitCode.THRESHOLD_MISSED)


def _around(path: Path, settings: tuple[str, ...], bounds: SearchBounds, out: Path) -> int:
    """Search for what breaks a promise of a scenario."""
    loaded = load_with_notes(path, settings)
    if not loaded.scenario.thresholds:
        raise click.UsageError(f"{path} promises nothing; write 'thresholds', which are what may break")
    with termination_interrupts():
        search = break_promises(loaded, bounds, lambda line: click.echo(line, err=True))
    kept = [breaking_file(loaded, found, bounds.seed, out) for found in search.found]
    for line in search_lines(loaded, search, bounds, kept):
        click.echo(line)
    if search.interrupted:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.THRESHOLD_MISSED if search.missed or kept else ExitCode.HELD)


def _progress() -> Callable[[Findings], None]:
    """Return what writes how far the swarm is to standard error, every few seconds."""
    shown_s = time.monotonic()

    def show(found: Findings) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s >= _SECONDS_BETWEEN_LINES:
            shown_s = now_s
            click.echo(progress_line(found), err=True)

    return show


def _kept(seed: int, found: Findings, out: Path, choice: ClusterChoice, *, small: bool) -> list[Kept]:
    """Keep the first failure of each invariant, and a few more."""
    failures = [
        (index, violation) for index, violations in sorted(found.failures.items()) for violation in violations
    ]
    firsts = {violation.invariant: (index, violation) for index, violation in reversed(failures)}
    chosen = sorted(firsts.values(), key=failures.index)[:_MOST_KEPT]
    with digests_elsewhere(choice) as digests:
        return [keep(seed, index, violation, out, digests, small=small) for index, violation in chosen]


def _replay(path: Path, choice: ClusterChoice) -> int:
    load_with_notes(path)
    with digests_elsewhere(choice) as digests:
        violations = judge_file(path, digests)
    for violation in violations:
        click.echo(f"{path}: {violation.invariant} does not hold: {violation.message}")
    if violations:
        return int(ExitCode.THRESHOLD_MISSED)
    click.echo(f"{path}: every invariant holds")
    return int(ExitCode.HELD)
