"""``report``: runs as one file."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.refusals import Refusal
from coordinator.engine.run_files import REPORT, write_atomically
from coordinator.results.report.page import report_of
from coordinator.results.report.view import chosen_runs
from device_profiles.units import format_bytes


def report(*, runs: tuple[Path, ...], form: str, output: Path | None) -> None:
    """Write the report of runs."""
    if output is None:
        name = Path(REPORT).with_suffix(f".{form}")
        output = runs[0] / name if len(runs) == 1 else name
    contents = report_of(runs, form).encode()
    try:
        write_atomically(output, contents)
    except OSError as error:
        raise Refusal(
            f"error: {output}: cannot be written: {error.strerror}; give another -o FILE"
        ) from error
    n = len(chosen_runs(runs))
    click.echo(f"{output}: {n} {'run' if n == 1 else 'runs'}, {format_bytes(len(contents))}")
