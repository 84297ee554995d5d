"""``compare``: runs, repeats and sweeps beside each other."""

from __future__ import annotations

from pathlib import Path

from coordinator.cli.consoles import console
from coordinator.results.comparison import compare_runs
from coordinator.results.comparison_report import comparison_record, comparison_suites, render_comparison
from coordinator.results.junit import write_junit
from coordinator.results.run_directory import write_json


def compare(runs: tuple[Path, ...], json_file: Path | None, junit_file: Path | None) -> None:
    """Compare runs, print their figures, and write the files that were asked for."""
    comparison = compare_runs(runs)
    if json_file is not None:
        write_json(json_file, comparison_record(comparison))
    if junit_file is not None:
        write_junit(junit_file, comparison_suites(comparison))
    output = console()
    for part in render_comparison(comparison, output.width):
        output.print(part, soft_wrap=isinstance(part, str))
