"""``device``: one or many devices that join a coordinator over sockets."""

from __future__ import annotations

import os
from pathlib import Path

import click

from coordinator.cli.admission import tokens_of
from coordinator.cli.termination import termination_interrupts
from coordinator.scenario.exit_codes import ExitCode
from coordinator.service.admission.pinning import parse_pin, require_private
from coordinator.service.local_devices import LocalDevices
from edge.clock import real as real_clock


def _default_memory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "recfleet" / "devices"


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
    """Run devices until the coordinator says goodbye; return the exit code."""
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
