"""``report``: runs as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.refusals import Refusal, refusals
from coordinator.report.chosen import chosen_runs
from coordinator.report.page import report_of
from coordinator.run_directory import REPORT, write_atomically
from device_profiles.units import format_bytes

_PATH = click.Path(path_type=Path)


@click.command
@click.argument("runs", metavar="RUN…", type=_PATH, nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=_PATH,
    metavar="FILE",
    help=f"The file to write; by default {REPORT} in the directory named, or, of several, in the current "
    "folder.",
)
@refusals()
def report(*, runs: tuple[Path, ...], output: Path | None) -> None:
    """Write a report of one or several runs as one HTML file.

    Every RUN is a run directory: finished, interrupted, killed or still going on; or a directory that holds
    some, which stands for all of them. Several runs are drawn on top of each other. The file needs no network
    and no other file.
    """
    if output is None:
        output = runs[0] / REPORT if len(runs) == 1 else Path(REPORT)
    contents = report_of(runs).encode()
    try:
        write_atomically(output, contents)
    except OSError as error:
        raise Refusal(
            f"error: {output}: cannot be written: {error.strerror}; give another -o FILE"
        ) from error
    n = len(chosen_runs(runs))
    click.echo(f"{output}: {n} {'run' if n == 1 else 'runs'}, {format_bytes(len(contents))}")
