"""The verbs about finished runs: ``diff``."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.refusals import refusals
from coordinator.diff import diff_runs, render_diff
from coordinator.exit_codes import ExitCode
from coordinator.metrics.reader import open_run

_DIRECTORY = click.Path(path_type=Path)


@click.command
@click.argument("first", metavar="A", type=_DIRECTORY)
@click.argument("second", metavar="B", type=_DIRECTORY)
@refusals()
def diff(first: Path, second: Path) -> int:
    """Say whether two runs are identical, or where they part.

    A and B are run directories. What was measured on the host, such as wall time, is not compared. Exits
    with 0 if the runs are identical, with 3 if they differ.
    """
    found = diff_runs(open_run(first), open_run(second))
    click.echo(render_diff(found, str(first), str(second)))
    return int(ExitCode.HELD if found.identical else ExitCode.THRESHOLD_MISSED)
