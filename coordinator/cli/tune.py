"""``tune``: settings that make one figure best and hold all thresholds, searched for in parallel."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from coordinator.cli.consoles import console
from coordinator.cli.libraries import limit_blas_threads
from coordinator.cli.termination import termination_interrupts
from coordinator.cli.upgrade import load_with_notes
from coordinator.cluster.opening import ClusterChoice
from coordinator.engine.progress import left_in_words
from coordinator.engine.run_files import REPORT, SWEEP_TABLE, write_atomically
from coordinator.results.figures import show
from coordinator.results.report.page import report_of
from coordinator.results.wide_tables import Column, fitting_tables
from coordinator.scenario import EngineName
from coordinator.scenario.exit_codes import ExitCode
from coordinator.sweeps.execution import CSV_TABLE
from coordinator.tuning.request import read_request
from coordinator.tuning.tuning import BEST, EndedTrial, TuningOutcome, TuningPlan, ranked, run_tuning

_RUNS = Path("runs")
_MOST_ROWS = 10
"""Trials that are printed, without --all."""


def tune(
    *,
    scenario: Path,
    settings: tuple[str, ...],
    minimise: str | None,
    maximise: str | None,
    vary: tuple[str, ...],
    space_file: Path | None,
    trials: int,
    repeat: int,
    seed: int,
    jobs: int | None,
    engine: EngineName,
    address: str | None,
    out: Path | None,
    everything: bool,
    json_file: Path | None,
) -> int:
    """Search for settings, print the best, and write the scenario; return the exit code."""
    loaded = load_with_notes(scenario, settings)
    space, goal = read_request(space_file, vary, minimise, maximise)
    plan = TuningPlan(loaded, space, goal, trials, repeat, seed)
    target = _RUNS / f"{loaded.name}-tune" if out is None else out

    def report(trial: EndedTrial, left_s: float | None) -> None:
        if not trial.kept:
            said = f": {trial.ended.error}" if trial.ended.error else ""
            figure = "" if trial.ended.value is None else f", {goal.name} {_shown(trial)}"
            line = f"{trial.number}/{trials} {trial.cell.label}: {trial.ended.how}{figure}{said}"
            click.echo(line + left_in_words(left_s), err=True)

    def report_loss(settings: str, how: str) -> None:
        click.echo(f"{settings}: worker lost ({how}); tried again", err=True)

    # The workers inherit it; here it comes too late.
    limit_blas_threads()
    choice = ClusterChoice(engine, jobs, address)
    with termination_interrupts():
        outcome = run_tuning(plan, target=target, choice=choice, on_trial=report, on_lost=report_loss)
    if json_file is not None:
        write_atomically(json_file, (target / SWEEP_TABLE).read_bytes())
    output = console()
    for table in _tables(plan, outcome, output.width, everything=everything):
        output.print(table)
    for line in _lines(plan, outcome, target):
        output.print(line, markup=False, soft_wrap=True)
    if sum(bool(trial.results) for trial in outcome.trials) > 1:
        write_atomically(target / REPORT, report_of([target]).encode())
        output.print(f"report: {target / REPORT}", markup=False, soft_wrap=True)
    output.print(f"every figure: {target / SWEEP_TABLE}, {target / CSV_TABLE}", markup=False, soft_wrap=True)
    for label, error in outcome.failed.items():
        click.echo(f"failed {label}: {error}; the same command tries it again", err=True)
    if outcome.exit_code is ExitCode.INTERRUPTED:
        click.echo("interrupted; the same command goes on from here", err=True)
    return int(outcome.exit_code)


def _shown(trial: EndedTrial) -> str:
    """Return the figure of a trial for people; a dash where it has none."""
    value = trial.ended.value
    return "–" if value is None else show(value, trial.unit or "number")


def _tables(plan: TuningPlan, outcome: TuningOutcome, width: int, *, everything: bool) -> list[Table]:
    """Return the trials: all in their order, or the best, those that missed nothing first."""
    trials: Sequence[EndedTrial] = outcome.trials
    if not everything:
        trials = ranked(trials, plan.goal)[:_MOST_ROWS]
    title = f"{len(outcome.trials)} trials to {plan.goal}"
    if len(trials) < len(outcome.trials):
        title += f", the best {len(trials)}"
    fixed: list[Column] = [("trial", [str(trial.number) for trial in trials])]
    for at, axis in enumerate(plan.space.axes):
        fixed.append((axis.name, [trial.cell.settings[at][1] for trial in trials]))
    fixed += [
        (plan.goal.name, [_shown(trial) for trial in trials]),
        ("thresholds", [trial.ended.how for trial in trials]),
    ]
    styles = ["bold green" if trial is outcome.best else None if trial.held else "dim" for trial in trials]
    return fitting_tables(title, fixed, [[]], width, styles)


def _lines(plan: TuningPlan, outcome: TuningOutcome, target: Path) -> list[str]:
    """Return what the search came to, in words."""
    lines = []
    best = outcome.best
    if best is not None:
        lines.append(f"best: trial {best.number}, {best.cell.label}: {plan.goal.name} {_shown(best)}")
        file = target / BEST
        lines.append(f"scenario: {file}; run it with: recfleet run {shlex.quote(str(file))}")
    elif outcome.trials:
        nearest = ranked(outcome.trials, plan.goal)[0]
        missed = [name for name, distance in nearest.ended.distances.items() if distance < 0]
        lines.append(f"no trial held every threshold; nearest: trial {nearest.number}, {nearest.cell.label}")
        lines += [f"  missed {name}" for name in missed if name != "ran"]
    if outcome.exhausted:
        lines.append("every setting has been tried")
    return lines
