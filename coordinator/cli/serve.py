"""``serve``: the coordinator as a service, which devices join over sockets."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import Any, Final

import click
from aiohttp import web

from coordinator.cli.admission import open_gate
from coordinator.cli.run import deliver, progress, target_of
from coordinator.cli.termination import termination_interrupts
from coordinator.cli.upgrade import load_with_notes
from coordinator.engine.progress import Observers
from coordinator.engine.run_files import REAL
from coordinator.results.run_directory import private_files, require_no_finished_run
from coordinator.run.feeding import feeding
from coordinator.run.runner import run_assembled
from coordinator.service.conducting import RealTime, assembled
from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.routes import DASHBOARD, Dashboard
from coordinator.service.dashboard.watchers import LiveService
from coordinator.service.identities import add_roster_route, enrol
from coordinator.service.refusals import refuse_without_roster
from coordinator.service.survival.survivor import Survivor

_HOLDS_DATA: Final = (
    "note: this process has read the data of all {} devices, to plan and to evaluate (--with-data); "
    "docs/threat-model.md is about a coordinator without it"
)
_HOLDS_NONE: Final = (
    "note: this process reads no ratings; its {} devices bring theirs, and measure the model on them"
)
_SWITCHED: Final = (
    "note: served as with evaluation.on: devices, for there are no ratings here; --with-data reads them"
)
_ON_DEVICES: Final = ("evaluation.on=devices", "evaluation.users=all")


def serve(
    *,
    scenario: Path,
    settings: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    overwrite: bool,
    host: str,
    port: int,
    wait_for: int | None,
    quiet: bool,
    details: bool,
    with_data: bool,
    resume: bool,
    json_file: Path | None,
    junit_file: Path | None,
    sink: tuple[str, ...],
    **admission: Any,
) -> int:
    """Run a scenario with real devices, and deliver its results; return the exit code."""
    settings = settings if seed is None else (*settings, f"seed={seed}")
    loaded = load_with_notes(scenario, settings, data_here=with_data)
    if not with_data and not loaded.scenario.evaluation.on_devices:
        click.echo(_SWITCHED, err=True)
        loaded = load_with_notes(scenario, (*settings, *_ON_DEVICES), data_here=False)
    target = target_of(loaded, out)
    if not overwrite and not resume:
        require_no_finished_run(target)
    live = LiveState(service=True)
    dashboard = Dashboard(live)
    with private_files(), open_gate(host, **admission) as opened:
        assembly = assembled(loaded, wait_for, with_data=with_data)
        refuse_without_roster(loaded, assembly.fleet.n, opened.roster)
        if opened.roster is not None:
            enrol(assembly, opened.roster, None)

        def routes(app: web.Application) -> None:
            dashboard.add_to(app)
            if opened.roster is not None:
                add_roster_route(app, opened.roster, opened.gate)

        def listening(url: str) -> None:
            for line in opened.announcement(url):
                click.echo(line, err=True)
            click.echo(f"dashboard: {url}{DASHBOARD}", err=True)
            note = _HOLDS_DATA if with_data else _HOLDS_NONE
            click.echo(note.format(assembly.fleet.n), err=True)
            # What is there by now stays: the service would stop while it is looked through for garbage. What
            # comes is looked through more often than before, for connections that end leave cycles.
            gc.collect()
            gc.freeze()
            gc.set_threshold(100_000, 20, 100)

        def tell(line: str) -> None:
            click.echo(line, err=True)

        conductor = RealTime(
            host=host,
            port=port,
            wait_for=wait_for,
            listening=listening,
            admission=opened.gate,
            observer=LiveService(live),
            routes=routes,
            survival=Survivor(resume=resume, tell=tell),
            stopping=tell,
            stays=dashboard.settle,
        )
        with (
            termination_interrupts(),
            contextlib.closing(conductor),
            progress(quiet=quiet, plain=True, time_is=REAL) as observer,
            feeding(sink, target) as sinks,
        ):
            outcome = run_assembled(
                loaded,
                assembly,
                target=target,
                observer=Observers(observer, live),
                conductor=conductor,
                feeds=(live, *sinks.feeds),
            )
    return deliver(
        loaded,
        outcome,
        quiet=quiet,
        details=details,
        json_file=json_file,
        junit_file=junit_file,
        troubles=sinks.end(outcome),
    )
