"""``sweep``: all cells of a scenario's sweep, in parallel, and one table of what came out."""

from __future__ import annotations

import os
from pathlib import Path

import click

from coordinator.cli.consoles import console
from coordinator.cli.entry import limit_blas_threads
from coordinator.cli.options import (
    json_option,
    junit_option,
    plugin_option,
    scenario_file,
    setting_option,
    worker_count,
)
from coordinator.cli.refusals import Refusal, refusals
from coordinator.cli.termination import termination_interrupts
from coordinator.cli.upgrade import load_with_notes
from coordinator.exit_codes import ExitCode
from coordinator.junit import suite_of_cell, write_junit
from coordinator.run_directory import SWEEP_TABLE, write_atomically
from coordinator.scenario.sweep import Cell, load_cells
from coordinator.sweeps.execution import CSV_TABLE, run_sweep
from coordinator.sweeps.results import held_cells, sweep_tables
from coordinator.sweeps.workers import Result

_RUNS = Path("runs")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@click.command
@click.argument("scenario", type=scenario_file)
@setting_option
@click.option("--jobs", type=worker_count, metavar="N", help="Runs at a time; by default one a processor.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the sweep; by default runs/<scenario>-sweep in the current folder.",
)
@click.option("--all", "everything", is_flag=True, help="Print every figure, not only those of thresholds.")
@json_option
@junit_option
@plugin_option
@refusals()
def sweep(
    *,
    scenario: Path,
    settings: tuple[str, ...],
    jobs: int | None,
    out: Path | None,
    everything: bool,
    json_file: Path | None,
    junit_file: Path | None,
) -> int:
    """Run every cell of a scenario's sweep, and print one table.

    All cells are checked before the first is run. Finished runs in DIR are kept, so the same command goes on
    where an earlier one was stopped. The table has a row per cell and a column per threshold; sweep.json and
    sweep.csv in DIR have every figure.
    """
    loaded = load_with_notes(scenario, settings)
    cells = load_cells(loaded)
    if not cells:
        raise Refusal(f"{scenario}: has no section 'sweep'; add one, or use: recfleet run")
    target = _RUNS / f"{loaded.name}-sweep" if out is None else out
    total = sum(len(cell.runs) for cell in cells)
    done = 0

    def report(cell: Cell, seed: int, result: Result) -> None:
        nonlocal done
        done += 1
        how = f"{result.status}, kept" if result.kept else result.status
        said = result.error or next((one["reason"] for one in result.verdicts if one["implicit"]), None)
        why = "" if said is None else f": {said}"
        click.echo(f"{done}/{total} cell {cell.number}, {cell.label}, seed {seed}: {how}{why}", err=True)

    # The workers inherit it; here it comes too late.
    limit_blas_threads()
    with termination_interrupts():
        outcome = run_sweep(cells, target=target, jobs=jobs or _processors(), on_result=report)
    if json_file is not None:
        write_atomically(json_file, (target / SWEEP_TABLE).read_bytes())
    if junit_file is not None:
        write_junit(junit_file, [suite_of_cell(loaded.name, result) for result in outcome.cells])
    output = console()
    for table in sweep_tables(outcome.cells, output.width, everything=everything):
        output.print(table)
    output.print(held_cells(outcome.cells), markup=False, soft_wrap=True)
    more = "" if everything else " (--all prints them)"
    output.print(f"every figure: {target / SWEEP_TABLE}, {target / CSV_TABLE}{more}", soft_wrap=True)
    if outcome.exit_code is ExitCode.INTERRUPTED:
        click.echo("interrupted; the same command goes on from here", err=True)
    return int(outcome.exit_code)
