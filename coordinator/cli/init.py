"""``init``: a scenario to begin with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

import click

from coordinator.cli.data import read_with
from coordinator.cli.options import KnownName
from coordinator.cli.refusals import Refusal, refusals
from coordinator.run_directory import write_atomically
from coordinator.scenario.load import load_text
from coordinator.scenario.starter import DEFAULT_FLEET, starter_text
from device_profiles import catalogue

_OUTPUT: Final = Path("scenario.yaml")


@click.command
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="The ratings: a file or folder that 'recfleet data' can read; made up by default.",
)
@click.option(
    "--fleet",
    type=KnownName("fleet", lambda: catalogue.load().names()["fleets"]),
    default=DEFAULT_FLEET,
    show_default=True,
    metavar="MIX",
    help="The fleet; 'recfleet profiles list fleets' shows them.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=_OUTPUT,
    show_default=True,
    metavar="FILE",
    help="Write there; a file that is there is never replaced.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="How the ratings are read, as for 'recfleet data', such as data.columns.user=2; may be repeated.",
)
@refusals()
def init(*, data: Path | None, fleet: str, output: Path, settings: tuple[str, ...]) -> None:
    """Write a scenario to begin with, for your ratings or without.

    It runs as it is, and its comments say what to change. The ratings are read, so that the size of a round
    suits the number of users.
    """
    if settings and data is None:
        raise click.UsageError("--set says how ratings are read; name them with --data")
    if os.path.lexists(output):
        raise Refusal(f"error: {output} is there; name another file with -o, or move it")
    if not output.parent.is_dir():
        raise Refusal(f"error: there is no folder '{output.parent}'; make it first")
    if data is None:
        text = starter_text(fleet)
        load_text(text, str(output))
    else:
        read, section = read_with(data, settings)
        store = read.store
        section = {key: value for key, value in section.items() if (key, value) != ("source", "auto")}
        del section["path"]
        text = starter_text(
            fleet,
            path=_as_named_in(output, data),
            users=store.n_users,
            items=store.n_items,
            ratings=store.n_ratings,
            implicit=read.implicit,
            section=section,
        )
        load_text(text, str(output), {("data", "path"): data})
        click.echo(read.line())
        for warning in read.warnings:
            click.echo(f"warning: {warning}")
    write_atomically(output, text.encode())
    click.echo(f"wrote {output}; run it: recfleet run {shlex.quote(_argument(output))}")


def _as_named_in(scenario: Path, data: Path) -> str:
    """Return the path of the data as a scenario names it: from its own folder on, or as it is if absolute."""
    if data.is_absolute():
        return str(data)
    return os.path.relpath(data.resolve(), scenario.parent.resolve())


def _argument(output: Path) -> str:
    """Return a path so that it is never taken for the name of a shipped scenario or for an option."""
    return str(output) if output.suffix and not str(output).startswith("-") else f".{os.sep}{output}"
