"""``run``: one scenario, watched while it goes on and judged at its end."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from coordinator.cli.consoles import console
from coordinator.cli.termination import termination_interrupts
from coordinator.cli.upgrade import load_with_notes
from coordinator.cli.verdicts import verdict_table
from coordinator.engine.progress import PlainProgress, RunObserver, TerminalProgress
from coordinator.engine.run_files import MANIFEST, REAL, REPORT, SIMULATED, SUMMARY
from coordinator.results.answers import answers
from coordinator.results.figures import of_json
from coordinator.results.run_directory import require_no_finished_run, run_name, write_json
from coordinator.results.summary_tables import render, render_details
from coordinator.results.verdicts import verdict_records
from coordinator.run.feeding import feeding
from coordinator.run.runner import RunOutcome, outcome_record, run_scenario, suites_of_run
from coordinator.scenario import EngineName
from coordinator.scenario.load import LoadedScenario

_RUNS = Path("runs")
_LABEL = 10
"""Columns before an answer."""


def run(
    *,
    scenario: Path,
    settings: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    overwrite: bool,
    clock: str,
    shards: int | None,
    engine: EngineName,
    address: str | None,
    watch: bool,
    watch_port: int | None,
    watch_exit: bool,
    quiet: bool,
    plain: bool,
    details: bool,
    json_file: Path | None,
    junit_file: Path | None,
    sink: tuple[str, ...],
) -> int:
    """Run a scenario on the chosen clock, and deliver its results; return the exit code."""
    if not watch and (watch_exit or watch_port is not None):
        raise click.UsageError("--watch-port and --watch-exit say how to watch; add --watch")
    if quiet and plain:
        raise click.UsageError("--quiet shows no progress and --plain says how to show it; leave one out")
    if quiet and details:
        raise click.UsageError("--quiet prints no figures and --details prints more; leave one out")
    if shards == 1 and (engine != "local" or address is not None):
        raise click.UsageError("--engine and --address say where shards live; add --shards")
    if shards != 1 and (watch or clock == "real"):
        raise click.UsageError(
            "--shards is for runs on the virtual clock, not watched; leave out --watch and --clock real"
        )
    overrides = settings if seed is None else (*settings, f"seed={seed}")
    loaded = load_with_notes(scenario, overrides)
    if loaded.scenario.sweep is not None and not quiet:
        command = f"recfleet sweep {shlex.quote(str(scenario))}"
        click.echo(f"note: one run, without the scenario's section sweep; {command} runs its cells", err=True)
    count = shards_of(loaded, shards)
    target = target_of(loaded, out)
    # Without --out the name says all that a simulated run depends on: what it replaces is the same run.
    if not overwrite and (out is not None or clock == "real"):
        require_no_finished_run(target)
    time_is = REAL if clock == "real" else SIMULATED
    with termination_interrupts(), contextlib.ExitStack() as stack:
        # Not before: what every run imports, every run waits for.
        if watch:
            from coordinator.cli.watching import stay, watched  # noqa: PLC0415

            live = stack.enter_context(watched(watch_port or 0))
        else:
            live = None
        sinks = stack.enter_context(feeding(sink, target))
        with progress(quiet=quiet, plain=plain, time_is=time_is) as observer:
            if clock == "real":
                from coordinator.service.local_run import run_here  # noqa: PLC0415

                outcome = run_here(loaded, target=target, observer=observer, live=live, feeds=sinks.feeds)
            elif live is not None:
                from coordinator.service.local_run import run_watched  # noqa: PLC0415

                outcome = run_watched(loaded, target=target, observer=observer, live=live, feeds=sinks.feeds)
            else:
                conductor = None
                if count > 1:
                    from coordinator.cluster.opening import ClusterChoice  # noqa: PLC0415
                    from coordinator.run.on_cluster import sharded  # noqa: PLC0415

                    conductor = stack.enter_context(sharded(loaded, ClusterChoice(engine, count, address)))
                outcome = run_scenario(
                    loaded,
                    target=target,
                    observer=observer,
                    conductor=conductor,
                    feeds=sinks.feeds,
                    on_judged=None if quiet else partial(_report, details=details),
                )
        code = deliver(
            loaded,
            outcome,
            quiet=quiet,
            said=clock != "real" and live is None,
            details=details,
            json_file=json_file,
            junit_file=junit_file,
            troubles=sinks.end(outcome),
        )
        if watch and not watch_exit and outcome.status != "interrupted":
            stay()
    return code


def shards_of(loaded: LoadedScenario, wanted: int | None) -> int:
    """Return how many shards simulate the devices of a run.

    ``wanted`` None: one a processor if the scenario can be run in shards, else one.

    Raises
    ------
    ScenarioError : more than one are wanted, and it cannot be.
    """
    if wanted == 1:
        return 1
    from coordinator.engine.host import processors  # noqa: PLC0415
    from coordinator.scenario.sharding import can_be_sharded, check_sharding  # noqa: PLC0415

    if wanted is None:
        return min(processors(), loaded.scenario.compute.sum_groups) if can_be_sharded(loaded) else 1
    check_sharding(loaded, wanted)
    return wanted


def target_of(loaded: LoadedScenario, out: Path | None) -> Path:
    """Return where a run goes: to ``out``, or to a folder of its own below ``runs``."""
    return _RUNS / run_name(loaded.name, loaded.scenario.seed, loaded.hash) if out is None else out


def deliver(
    loaded: LoadedScenario,
    outcome: RunOutcome,
    *,
    quiet: bool,
    details: bool,
    json_file: Path | None,
    junit_file: Path | None,
    troubles: Sequence[str],
    said: bool = False,
) -> int:
    """Write and print what has become of a run, and of its sinks; return the exit code.

    ``said``: its figures and verdicts have been printed.
    """
    for trouble in troubles:
        click.echo(f"{trouble}; the run is whole", err=True)
    if json_file is not None:
        write_json(json_file, outcome_record(loaded, outcome))
    if junit_file is not None:
        from coordinator.results.junit import write_junit  # noqa: PLC0415

        write_junit(junit_file, suites_of_run(loaded, outcome))
    if quiet:
        _report_briefly(outcome)
    else:
        if not said:
            summary = of_json(json.loads((outcome.directory / SUMMARY).read_text(encoding="utf-8")))
            manifest = json.loads((outcome.directory / MANIFEST).read_text(encoding="utf-8"))
            _report(outcome, summary, manifest["data"], details=details)
        _report_files(outcome)
    return int(outcome.exit_code)


@contextmanager
def progress(*, quiet: bool, plain: bool, time_is: str = SIMULATED) -> Iterator[RunObserver]:
    """Give the observer that shows progress on standard error."""
    errors = console(stderr=True)
    if quiet:
        yield RunObserver()
    elif plain or not errors.is_terminal or errors.is_dumb_terminal:
        yield PlainProgress(lambda line: click.echo(line, err=True), time_is=time_is)
    else:
        with TerminalProgress(errors, time_is) as progress:
            yield progress


def _report(
    outcome: RunOutcome, summary: Mapping[str, Any], data: Mapping[str, Any], *, details: bool
) -> None:
    output = console()
    for question, answer in answers(summary, verdict_records(outcome.verdicts)):
        output.print(f"{question + ':':<{_LABEL}}{answer}", soft_wrap=True)
    if "read" in data:
        output.print(f"data: {data['read']}", soft_wrap=True, markup=False, highlight=False)
    for warning in data.get("warnings", ()):
        output.print(f"warning: {warning}", soft_wrap=True, markup=False, highlight=False)
    output.print(render(summary))
    for notice in summary["notices"]:
        output.print(f"note: {notice}", soft_wrap=True)
    if details:
        output.print(render_details(summary))
    if outcome.baseline_verdicts:
        output.print(verdict_table(outcome.baseline_verdicts, "thresholds of the baseline"))
    if outcome.verdicts:
        output.print(verdict_table(outcome.verdicts))
    for threshold in outcome.unseen:
        output.print(f"not judged, because only a simulation sees it: {threshold}", soft_wrap=True)
    for line in _endings(outcome):
        output.print(line, soft_wrap=True)


def _report_files(outcome: RunOutcome) -> None:
    output = console()
    for line in _unwritten(outcome):
        output.print(line, soft_wrap=True)
    if REPORT not in outcome.unwritten:
        output.print(f"report: {outcome.directory / REPORT}", soft_wrap=True)
    output.print(f"run directory: {outcome.directory}", soft_wrap=True)


def _report_briefly(outcome: RunOutcome) -> None:
    for result in (*outcome.baseline_verdicts, *outcome.verdicts):
        if not result.held:
            said_below = result.implicit and outcome.ending is not None
            click.echo(f"MISSED {result.threshold}" if said_below else str(result), err=True)
    if outcome.status != "finished":
        for line in _endings(outcome):
            click.echo(line, err=True)
    for line in _unwritten(outcome):
        click.echo(line, err=True)
    click.echo(outcome.directory)


def _unwritten(outcome: RunOutcome) -> Iterator[str]:
    """Yield what could not be written, and what to do about it."""
    for name, why in outcome.unwritten.items():
        again = f"; write it with: recfleet report {outcome.directory}" if name == REPORT else ""
        yield f"{name} was not written ({why}); the run is whole{again}"


def _endings(outcome: RunOutcome) -> Iterator[str]:
    """Yield why nothing was learnt, and why a run ended before its last round."""
    if outcome.ending is not None:
        expected = ", as the scenario expects" if outcome.verdicts[0].held else ""
        yield f"{outcome.status}{expected}: {outcome.ending}"
        if outcome.reason is not None:
            yield f"ended early: {outcome.reason}"
    elif outcome.reason is not None:
        yield f"{outcome.status}: {outcome.reason}"
