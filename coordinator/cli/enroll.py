"""``enroll``: issues, lists and revokes the tokens that let devices in."""

from __future__ import annotations

import datetime
import re
import time
from pathlib import Path
from secrets import token_bytes

import click
from rich.table import Table

from coordinator.cli.consoles import console
from coordinator.cli.refusals import refusals
from coordinator.service.admission.enrolment import issue
from coordinator.service.admission.enrolment_store import EnrolmentStore, shut
from coordinator.service.admission.token_files import write_enrolled_line, write_line
from device_profiles.units import UnitError, format_duration, parse_duration_s
from edge.secagg.keys import SECRET_BYTES, Identity
from edge.secagg.roster import Roster

_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_directory_argument = click.argument("directory", metavar="DIR", type=_DIRECTORY)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)
_MOST_AT_ONCE = 1_000_000


@click.group
def enroll() -> None:
    """Issue, list and revoke the tokens that let devices in.

    DIR is a directory that 'recfleet serve --enrolment DIR' reads. A service that runs sees at once what is
    issued, and within seconds what is revoked.
    """


def _devices(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} names no devices; write 17, or 0-499")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise click.BadParameter(f"{text!r} ends before it begins; write {last}-{first}")
    return first, last


def _lifetime(context: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        seconds = parse_duration_s(text)
    except UnitError as error:
        raise click.BadParameter(str(error)) from error
    if seconds <= 0.0:
        raise click.BadParameter("a token that has expired lets nobody in; write a time above 0")
    return seconds


@enroll.command("issue")
@_directory_argument
@click.option(
    "--devices",
    required=True,
    callback=_devices,
    metavar="ID|FIRST-LAST",
    help="The devices that may come in: 17, or 0-499.",
)
@click.option("--each", is_flag=True, help="A token for each device, in place of one that they share.")
@click.option(
    "--identities",
    is_flag=True,
    help="With --each: an identity for each device, which secure sums in mode 'active' need.",
)
@click.option(
    "--expires",
    "lifetime_s",
    default="30 d",
    show_default=True,
    callback=_lifetime,
    metavar="TIME",
    help="How long the token is valid: '12 h', '30 d'.",
)
@refusals()
def issue_tokens(
    directory: Path, devices: tuple[int, int], each: bool, identities: bool, lifetime_s: float
) -> None:
    """Issue a token, and print it: once, for DIR only holds its hash.

    What is printed is a file for 'recfleet device --token-file'.

    With --identities each line holds a private key, too, and the hash of the roster of all devices. DIR holds
    the roster. Do it on another computer than the coordinator's, give each device its own line, and the
    coordinator DIR: so it cannot pass for a device.
    """
    first, last = devices
    if identities and not (each and first == 0):
        raise click.UsageError(
            "--identities are for all devices of a fleet, each its own; write --devices 0-LAST --each"
        )
    if each and last - first >= _MOST_AT_ONCE:
        raise click.UsageError(f"--each makes at most {_MOST_AT_ONCE} tokens at once; write a smaller range")
    ranges = [(device, device) for device in range(first, last + 1)] if each else [devices]
    now_s = time.time()
    issued = [issue(*one, now_s, lifetime_s) for one in ranges]
    secrets = [token_bytes(SECRET_BYTES) for _ in issued] if identities else []
    roster = Roster.of(Identity(secret).public for secret in secrets) if identities else None
    with EnrolmentStore(directory, create=True) as store:
        for line in shut(directory):
            click.echo(line, err=True)
        store.add([record for _, record in issued], roster)
    for place, ((device, _), (token, _)) in enumerate(zip(ranges, issued, strict=True)):
        if roster is not None:
            click.echo(write_enrolled_line(device, token, secrets[place], roster.hash))
        else:
            click.echo(write_line(device if each else None, token))
    what = "a token" if len(issued) == 1 else f"{len(issued)} tokens"
    whom = f"device {first}" if first == last else f"devices {first} to {last}"
    until = format_duration(lifetime_s)
    and_more = "" if roster is None else f" and identities, roster {roster.hash.hex()[:16]}…,"
    click.echo(
        f"issued {what}{and_more} for {whom}, valid for {until}; "
        "keep what is printed above: it is not shown again",
        err=True,
    )


@enroll.command("list")
@_directory_argument
@refusals()
def list_tokens(directory: Path) -> None:
    """List what was issued: for whom, until when, and whether it is valid. Tokens themselves are not kept."""
    with EnrolmentStore(directory, create=False) as store:
        records = store.all()
    output = console()
    table = Table()
    for heading in ("id", "devices", "state", "issued", "expires", "revoked"):
        table.add_column(heading)
    now_s = time.time()
    for one in records:
        devices = str(one.first) if one.first == one.last else f"{one.first}-{one.last}"
        revoked = "–" if one.revoked_s is None else _moment(one.revoked_s)
        table.add_row(
            one.key, devices, one.state(now_s), _moment(one.issued_s), _moment(one.expires_s), revoked
        )
    output.print(table)


@enroll.command("revoke")
@_directory_argument
@click.argument("keys", metavar="ID…", nargs=-1, required=True)
@refusals()
def revoke_tokens(directory: Path, keys: tuple[str, ...]) -> None:
    """Revoke tokens by the ids that 'list' shows: whoever came in with one has to leave within seconds."""
    with EnrolmentStore(directory, create=False) as store:
        store.revoke(list(dict.fromkeys(keys)), time.time())
    for key in dict.fromkeys(keys):
        click.echo(f"revoked {key}")


def _moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
