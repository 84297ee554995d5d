"""``log``: a run that is over, given to sinks."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.run.feeding import feeding
from coordinator.scenario.exit_codes import ExitCode


def log(*, run: Path, sinks: tuple[str, ...]) -> int:
    """Give a run to sinks; return the exit code, which says whether all took it."""
    with feeding(sinks, run) as given:
        troubles = given.replay(run)
    for sink, feed in zip(sinks, given.feeds, strict=True):
        if feed.trouble is None:
            click.echo(f"{run}: given to {sink}")
    for trouble in troubles:
        click.echo(trouble, err=True)
    return int(ExitCode.INTERNAL_ERROR if troubles else ExitCode.HELD)
