"""``run``: one scenario, watched while it goes on and judged at its end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from coordinator.cli.consoles import console
from coordinator.cli.options import setting_option
from coordinator.cli.refusals import refusals
from coordinator.cli.verdicts import verdict_table
from coordinator.metrics.facts import Evaluation
from coordinator.progress import PlainProgress, RoundSummary, RunObserver, TerminalProgress
from coordinator.run_directory import REPORT, SUMMARY, run_name
from coordinator.runner import RunOutcome, run_scenario
from coordinator.scenario.load import load
from coordinator.summary_tables import render, render_details

_RUNS = Path("runs")


class _SilentProgress:
    """Says nothing."""

    def on_start(self, name: str, rounds: int | None) -> None:
        """Say nothing."""

    def on_round(self, summary: RoundSummary) -> None:
        """Say nothing."""

    def on_evaluation(self, round_number: int, values: Sequence[Evaluation]) -> None:
        """Say nothing."""

    def on_end(self, status: str) -> None:
        """Say nothing."""


@click.command
@click.argument("scenario", type=click.Path(path_type=Path))
@setting_option
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the run, in place of the scenario's.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the run; by default runs/<scenario>-<seed>-<hash> in the current folder.",
)
@click.option("--quiet", is_flag=True, help="Print only the run directory, and the thresholds it missed.")
@click.option("--plain", is_flag=True, help="Show progress as lines even in a terminal.")
@click.option("--details", is_flag=True, help="Print the tables by device class, network and stage, too.")
@refusals()
def run(
    *,
    scenario: Path,
    settings: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    quiet: bool,
    plain: bool,
    details: bool,
) -> int:
    """Run a scenario and say whether its thresholds held.

    Progress goes to standard error; the summary, the verdicts and the path of the run directory go to
    standard output. Ctrl-C ends the run in order: what was finished by then stays readable.
    """
    if quiet and plain:
        raise click.UsageError("--quiet shows no progress and --plain says how to show it; leave one out")
    if quiet and details:
        raise click.UsageError("--quiet prints no figures and --details prints more; leave one out")
    overrides = settings if seed is None else (*settings, f"seed={seed}")
    loaded = load(scenario, overrides)
    target = _RUNS / run_name(loaded.name, loaded.scenario.seed, loaded.hash) if out is None else out
    with _termination_interrupts(), _progress(quiet=quiet, plain=plain) as observer:
        outcome = run_scenario(loaded, target=target, observer=observer)
    if quiet:
        _report_briefly(outcome)
    else:
        _report(outcome, details=details)
    return int(outcome.exit_code)


@contextmanager
def _progress(*, quiet: bool, plain: bool) -> Iterator[RunObserver]:
    errors = console(stderr=True)
    if quiet:
        yield _SilentProgress()
    elif plain or not errors.is_terminal or errors.is_dumb_terminal:
        yield PlainProgress(lambda line: click.echo(line, err=True))
    else:
        with TerminalProgress(errors) as progress:
            yield progress


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Let a request to terminate (SIGTERM, as CI systems send it) end a run in order, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # While the event loop runs, Ctrl-C has a handler that cancels between two steps, not within one.
        as_ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(as_ctrl_c):
            raise KeyboardInterrupt
        as_ctrl_c(signal.SIGINT, frame)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _report(outcome: RunOutcome, *, details: bool) -> None:
    output = console()
    summary = json.loads((outcome.directory / SUMMARY).read_text(encoding="utf-8"))
    output.print(render(summary))
    if details:
        output.print(render_details(summary))
    if outcome.verdicts:
        output.print(verdict_table(outcome.verdicts))
    if outcome.reason is not None:
        output.print(f"{outcome.status}: {outcome.reason}", soft_wrap=True)
    output.print(f"report: {outcome.directory / REPORT}", soft_wrap=True)
    output.print(f"run directory: {outcome.directory}", soft_wrap=True)


def _report_briefly(outcome: RunOutcome) -> None:
    for result in outcome.verdicts:
        if not result.held:
            click.echo(str(result), err=True)
    if outcome.status != "finished":
        click.echo(f"{outcome.status}: {outcome.reason}", err=True)
    click.echo(outcome.directory)
