"""``swarm``: random scenarios with random faults, each checked by invariants."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import click

from coordinator.cli.consoles import console
from coordinator.cli.options import junit_option, plugin_option, scenario_file, worker_count
from coordinator.cli.refusals import refusals
from coordinator.cli.termination import termination_interrupts
from coordinator.cli.upgrade import load_with_notes
from coordinator.exit_codes import ExitCode
from coordinator.junit import write_junit
from coordinator.swarm.campaign import Findings, Plan, run_campaign
from coordinator.swarm.failures import PROCESSES, Kept, judge_file, keep
from coordinator.swarm.report import failure_lines, progress_line, render, suite_of
from coordinator.swarm.workers import started

_SCENARIOS: Final = 500
_SECONDS_BETWEEN_LINES: Final = 5.0
_MOST_KEPT: Final = 5
"""Failures that are kept and made small; of each invariant the first."""


@click.command
@click.option("--scenarios", type=click.IntRange(min=1), help=f"How many to run; {_SCENARIOS} by default.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the swarm.")
@click.option(
    "--only",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="I",
    help="Run scenario I of the swarm alone; may be repeated.",
)
@click.option("--replay", type=scenario_file, metavar="SCENARIO", help="Run and check one scenario.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Begin no scenario after that.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="The same, in seconds.")
@click.option("--workers", type=worker_count, help="Processes; by default one a processor.")
@click.option("--keep-going", is_flag=True, help="Go on after a scenario has failed.")
@click.option("--minimise/--no-minimise", default=True, help="Make failing scenarios small; done by default.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("swarm-failures"),
    show_default=True,
    metavar="DIR",
    help="Folder for the scenario files of failures; made when there is one.",
)
@junit_option
@plugin_option
@refusals()
def swarm(
    *,
    scenarios: int | None,
    seed: int,
    only: tuple[int, ...],
    replay: Path | None,
    minutes: float | None,
    seconds: float | None,
    workers: int | None,
    keep_going: bool,
    minimise: bool,
    out: Path,
    junit_file: Path | None,
) -> int:
    """Make random scenarios with random faults, run them, and check that what must hold does.

    Scenario I of a seed is always the same. A failure is shown with the command that replays it, and kept as
    a scenario file, as small as it gets. Without --scenarios, a limit of time is the only one.
    """
    if minutes is not None and seconds is not None:
        raise click.UsageError("--minutes and --seconds say the same; leave one out")
    if only and scenarios is not None:
        raise click.UsageError("--only says which scenarios to run; leave --scenarios out")
    if replay is not None:
        if only or scenarios is not None or junit_file is not None:
            raise click.UsageError("--replay runs one file; leave --only, --scenarios and --junit out")
        return _replay(replay)
    limit_s = seconds if minutes is None else 60.0 * minutes
    indices: Iterable[int] = range(scenarios or _SCENARIOS)
    if only:
        indices = only
    elif scenarios is None and limit_s is not None:
        indices = itertools.count()
    plan = Plan(
        seed=seed,
        indices=indices,
        seconds=limit_s,
        workers=min(workers or os.cpu_count() or 1, len(only) or 1 << 10),
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
    for line in failure_lines(seed, _kept(seed, found, out, small=minimise)):
        click.echo(line)
    return int(ExitCode.THRESHOLD_MISSED)


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


def _kept(seed: int, found: Findings, out: Path, *, small: bool) -> list[Kept]:
    """Keep the first failure of each invariant, and a few more."""
    failures = [
        (index, violation) for index, violations in sorted(found.failures.items()) for violation in violations
    ]
    firsts = {violation.invariant: (index, violation) for index, violation in reversed(failures)}
    chosen = sorted(firsts.values(), key=failures.index)[:_MOST_KEPT]
    with started(PROCESSES) as workers:
        return [keep(seed, index, violation, out, workers, small=small) for index, violation in chosen]


def _replay(path: Path) -> int:
    load_with_notes(path)
    with started(PROCESSES) as workers:
        violations = judge_file(path, workers)
    for violation in violations:
        click.echo(f"{path}: {violation.invariant} does not hold: {violation.message}")
    if violations:
        return int(ExitCode.THRESHOLD_MISSED)
    click.echo(f"{path}: every invariant holds")
    return int(ExitCode.HELD)
