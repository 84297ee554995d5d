"""``serve``: the coordinator as a service, which devices join over sockets."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from coordinator.cli.admission_options import open_gate, serve_options
from coordinator.cli.options import json_option, junit_option, plugin_option, scenario_file, setting_option
from coordinator.cli.refusals import refusals
from coordinator.cli.run import deliver, out_option, overwrite_option, progress, seed_option, target_of
from coordinator.cli.termination import termination_interrupts
from coordinator.cli.upgrade import load_with_notes
from coordinator.clock_words import REAL
from coordinator.progress import Observers
from coordinator.run_directory import private_files, require_no_finished_run
from coordinator.runner import run_assembled

if TYPE_CHECKING:
    from aiohttp import web


_HOLDS_DATA: Final = (
    "note: this process has read the data of all {} devices, to plan and to evaluate; docs/threat-model.md "
    "is about a coordinator without it"
)


@click.command
@click.argument("scenario", type=scenario_file)
@setting_option
@seed_option
@out_option
@overwrite_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 lets the system choose.",
)
@click.option(
    "--wait-for",
    type=click.IntRange(min=1),
    metavar="N",
    help="Devices that have joined before the first round; by default as many as a round invites.",
)
@click.option("--quiet", is_flag=True, help="Print only the URL, the run directory, and missed thresholds.")
@click.option("--details", is_flag=True, help="Print the tables by device class, network and stage, too.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the run of this scenario that was stopped or killed; begin it if there is none.",
)
@serve_options
@json_option
@junit_option
@plugin_option
@refusals()
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
    resume: bool,
    json_file: Path | None,
    junit_file: Path | None,
    **admission: Any,
) -> int:
    """Run a scenario with the devices that join over sockets.

    Devices join with 'recfleet device URL', from other hosts with a token (--enrolment) over TLS. The run
    begins once enough are there, and leaves the same files as a simulated one; every time in them is
    measured. The first Ctrl-C (or SIGTERM) ends it after the round under way, the second at once; --resume
    goes on with it, even if it was killed.
    """
    # Not before: what every run imports, every run waits for.
    from coordinator.service.conducting import RealTime, assembled  # noqa: PLC0415
    from coordinator.service.dashboard.live_state import LiveState  # noqa: PLC0415
    from coordinator.service.dashboard.routes import DASHBOARD, Dashboard  # noqa: PLC0415
    from coordinator.service.dashboard.watchers import LiveService  # noqa: PLC0415
    from coordinator.service.identities import add_roster_route, enrol  # noqa: PLC0415
    from coordinator.service.refusals import refuse_without_roster  # noqa: PLC0415
    from coordinator.service.survival.survivor import Survivor  # noqa: PLC0415

    loaded = load_with_notes(scenario, settings if seed is None else (*settings, f"seed={seed}"))
    target = target_of(loaded, out)
    if not overwrite and not resume:
        require_no_finished_run(target)
    live = LiveState(service=True)
    dashboard = Dashboard(live)
    with private_files(), open_gate(host, **admission) as opened:
        assembly = assembled(loaded, wait_for)
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
            click.echo(_HOLDS_DATA.format(assembly.fleet.n), err=True)
            # What is there by now stays: the service would stop while it is looked through for garbage. How
            # often that is done stays as it is, for connections that end leave cycles.
            gc.collect()
            gc.freeze()

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
        ):
            outcome = run_assembled(
                loaded,
                assembly,
                target=target,
                observer=Observers(observer, live),
                conductor=conductor,
                feed=live,
            )
    return deliver(loaded, outcome, quiet=quiet, details=details, json_file=json_file, junit_file=junit_file)
