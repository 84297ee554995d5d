"""``init``: a scenario to begin with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from coordinator.cli.data import read_with
from coordinator.cli.refusals import Refusal
from coordinator.engine.run_files import write_atomically
from coordinator.scenario.load import load_text
from coordinator.scenario.starter import starter_text


def init(*, data: Path | None, fleet: str, output: Path, settings: tuple[str, ...]) -> None:
    """Write a scenario that suits the ratings."""
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
