"""``compare``: runs, repeats and sweeps beside each other."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.consoles import console
from coordinator.cli.options import json_option, junit_option, plugin_option
from coordinator.cli.refusals import refusals
from coordinator.comparison import compare_runs
from coordinator.comparison_report import comparison_record, comparison_suites, render_comparison
from coordinator.junit import write_junit
from coordinator.run_directory import write_json


@click.command
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", type=click.Path(path_type=Path))
@json_option
@junit_option
@plugin_option
@refusals()
def compare(runs: tuple[Path, ...], json_file: Path | None, junit_file: Path | None) -> None:
    """Compare the figures of runs, with intervals.

    Differences are to the first. RUN is a run directory, or a directory of runs: repeats, or a sweep. Runs
    that differ in their seeds alone are repeats of one method and give intervals; with the same seeds on both
    sides, differences are paired. Exits with 0 whatever the differences are.
    """
    comparison = compare_runs(runs)
    if json_file is not None:
        write_json(json_file, comparison_record(comparison))
    if junit_file is not None:
        write_junit(junit_file, comparison_suites(comparison))
    output = console()
    for part in render_comparison(comparison, output.width):
        output.print(part, soft_wrap=isinstance(part, str))
