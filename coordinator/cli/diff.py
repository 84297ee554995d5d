"""``diff``: whether two runs are identical."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.results.diff import diff_runs, render_diff
from coordinator.results.tables.reader import open_run
from coordinator.scenario.exit_codes import ExitCode


def diff(first: Path, second: Path) -> int:
    """Print where two runs part; return the exit code."""
    found = diff_runs(open_run(first), open_run(second))
    click.echo(render_diff(found, str(first), str(second)))
    return int(ExitCode.HELD if found.identical else ExitCode.THRESHOLD_MISSED)
