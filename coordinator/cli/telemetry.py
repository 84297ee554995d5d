"""``telemetry``: a run as the table of telemetry that a real fleet would have left."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.refusals import Refusal
from coordinator.engine.run_files import RESOLVED_SCENARIO, write_atomically
from coordinator.results.tables.reader import open_run
from coordinator.results.telemetry import telemetry_bytes, telemetry_table
from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from device_profiles.units import format_bytes


def telemetry(*, run: Path, output: Path, work: bool, settings: tuple[str, ...]) -> None:
    """Write the telemetry of a run."""
    tables = open_run(run)
    work_of = None
    if work:
        work_of = assemble(load(run / RESOLVED_SCENARIO, overrides=settings)).workload.work
    table = telemetry_table(tables, work_of)
    contents = telemetry_bytes(table, csv=output.suffix.lower() == ".csv")
    try:
        write_atomically(output, contents)
    except OSError as error:
        raise Refusal(
            f"error: {output}: cannot be written: {error.strerror}; give another -o FILE"
        ) from error
    kinds = table["kind"].value_counts().to_pylist()
    counted = ", ".join(f"{one['counts']:,} {one['values']} rows" for one in kinds)
    click.echo(f"{output}: {counted}; {format_bytes(len(contents))}")
