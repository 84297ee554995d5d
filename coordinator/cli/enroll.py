"""``enroll``: issues, lists and revokes the tokens that let devices in."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from secrets import token_bytes

import click
from rich.table import Table

from coordinator.cli.consoles import console
from coordinator.service.admission.enrolment import issue
from coordinator.service.admission.enrolment_store import EnrolmentStore, shut
from coordinator.service.admission.token_files import write_enrolled_line, write_line
from device_profiles.units import format_duration
from edge.crypto.keys import SECRET_BYTES, Identity
from edge.secagg.roster import Roster

_MOST_AT_ONCE = 1_000_000


def issue_tokens(
    directory: Path, devices: tuple[int, int], each: bool, identities: bool, lifetime_s: float
) -> None:
    """Issue tokens, print them, and keep their hashes in the directory."""
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


def list_tokens(directory: Path) -> None:
    """Print the tokens that were issued, as a table."""
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


def revoke_tokens(directory: Path, keys: tuple[str, ...]) -> None:
    """Revoke tokens by their ids."""
    with EnrolmentStore(directory, create=False) as store:
        store.revoke(list(dict.fromkeys(keys)), time.time())
    for key in dict.fromkeys(keys):
        click.echo(f"revoked {key}")


def _moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
