"""``sweep``: all cells of a scenario's sweep, in parallel, and one table of what came out."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.consoles import console
from coordinator.cli.libraries import limit_blas_threads
from coordinator.cli.refusals import Refusal
from coordinator.cli.termination import termination_interrupts
from coordinator.cli.upgrade import load_with_notes
from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.progress import left_in_words
from coordinator.engine.run_files import SWEEP_TABLE, write_atomically
from coordinator.results.junit import suite_of_cell, write_junit
from coordinator.results.sweep import Result, held_cells, sweep_tables
from coordinator.scenario import EngineName
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.sweep import Cell, load_cells
from coordinator.sweeps.execution import CSV_TABLE, run_sweep

_RUNS = Path("runs")


def sweep(
    *,
    scenario: Path,
    settings: tuple[str, ...],
    jobs: int | None,
    engine: EngineName,
    address: str | None,
    out: Path | None,
    everything: bool,
    json_file: Path | None,
    junit_file: Path | None,
) -> int:
    """Run the cells of a sweep, and print its tables; return the exit code."""
    loaded = load_with_notes(scenario, settings)
    cells = load_cells(loaded)
    if not cells:
        raise Refusal(f"{scenario}: has no section 'sweep'; add one, or use: recfleet run")
    target = _RUNS / f"{loaded.name}-sweep" if out is None else out
    total = sum(len(cell.runs) for cell in cells)
    done = 0

    def report(cell: Cell, seed: int, result: Result, left_s: float | None) -> None:
        nonlocal done
        done += 1
        how = f"{result.status}, kept" if result.kept else result.status
        said = result.error or next((one["reason"] for one in result.verdicts if one["implicit"]), None)
        why = "" if said is None else f": {said}"
        line = f"{done}/{total} cell {cell.number}, {cell.label}, seed {seed}: {how}{why}"
        click.echo(line + left_in_words(left_s), err=True)

    def report_loss(cell: Cell, seed: int, how: str) -> None:
        click.echo(
            f"cell {cell.number}, {cell.label}, seed {seed}: worker lost ({how}); tried again", err=True
        )

    # The workers inherit it; here it comes too late.
    limit_blas_threads()
    choice = ClusterChoice(engine, jobs, address)
    with termination_interrupts():
        outcome = run_sweep(cells, target=target, choice=choice, on_result=report, on_lost=report_loss)
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
