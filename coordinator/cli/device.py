"""``device``: one or many devices that join a coordinator over sockets."""

from __future__ import annotations

import os
from pathlib import Path

import click

from coordinator.cli.admission_options import device_options, tokens_of
from coordinator.cli.options import plugin_option, worker_count
from coordinator.cli.refusals import refusals
from coordinator.cli.termination import termination_interrupts
from coordinator.exit_codes import ExitCode
from device_profiles.units import UnitError, parse_duration_s


def _patience(context: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        return parse_duration_s(text)
    except UnitError as error:
        raise click.BadParameter(str(error)) from error


def _default_memory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "recfleet" / "devices"


@click.command
@click.argument("url", metavar="URL")
@click.option(
    "--id",
    "first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Which device of the fleet this is; the first of several.",
)
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Devices in this process."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Where the device's ratings are, in place of the path that the scenario names.",
)
@click.option(
    "--no-shape",
    "shaped",
    flag_value=False,
    default=True,
    help="Be as fast as this machine and its network, not as the device's profile.",
)
@device_options
@click.option(
    "--workers",
    type=worker_count,
    default=1,
    show_default=True,
    help="Threads that compute for the devices of this process.",
)
@click.option(
    "--patience",
    "patience_s",
    default="60 s",
    show_default=True,
    callback=_patience,
    metavar="TIME",
    help="How long to try to reach a coordinator that is not there, or not any more: '60 s', '10 min'.",
)
@click.option(
    "--memory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the devices keep which rounds they have answered; else recfleet/devices below "
    "$XDG_STATE_HOME or ~/.local/state.",
)
@click.option(
    "--max-epsilon",
    type=click.FloatRange(min=0, min_open=True),
    metavar="EPSILON",
    help="Most ε (replace-one) that a device spends in the run by the noise that it adds itself; else what "
    "all rounds of the scenario spend.",
)
@plugin_option
@refusals()
def device(
    *,
    url: str,
    first: int,
    count: int,
    data: Path | None,
    shaped: bool,
    token: str,
    token_file: Path | None,
    pin: str | None,
    insecure: bool,
    workers: int,
    patience_s: float,
    memory: Path | None,
    max_epsilon: float | None,
) -> int:
    """Join a coordinator as one device, or as many.

    They take part in the rounds of the coordinator at URL until it says goodbye. It sends the scenario; each
    device makes or reads its own ratings as that says, and they never leave it.
    """
    # Not before: what every verb imports, 'recfleet --help' waits for.
    from coordinator.service.admission.pinning import parse_pin, require_private  # noqa: PLC0415
    from coordinator.service.local_devices import LocalDevices  # noqa: PLC0415
    from edge import real_clock  # noqa: PLC0415

    require_private(url, pinned=pin is not None, insecure=insecure)
    tokens = tokens_of(token, token_file)
    devices = LocalDevices(
        url,
        range(first, first + count),
        token_of=tokens.token_of,
        enrolled=tokens.enrolled,
        pin=None if pin is None else parse_pin(pin),
        data=data,
        shaped=shaped,
        workers=workers,
        patience_s=patience_s,
        memory=_default_memory() if memory is None else memory,
        max_epsilon=max_epsilon,
    )
    try:
        with termination_interrupts():
            real_clock.run(devices.run())
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return int(ExitCode.INTERRUPTED)
    finally:
        for name, number in sorted(devices.tally.participations.items()):
            click.echo(f"{number} × {name}")
        if (spent := devices.spent()) is not None:
            click.echo(f"ε of a device here, replace-one: {spent[0]:.3g} at most, after {spent[1]} rounds")
    for why, number in sorted(devices.tally.goodbyes.items()):
        click.echo(f"{number} of {count} devices: goodbye ({why})")
    return int(ExitCode.HELD)
