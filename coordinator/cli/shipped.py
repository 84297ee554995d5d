"""``scenarios``: what is shipped to be run by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from coordinator.cli.refusals import Refusal
from coordinator.cli.scenarios import write_schema
from coordinator.engine.run_files import write_atomically
from coordinator.scenario.extends import read_chain
from coordinator.scenario.shipped import shipped_files
from coordinator.scenario.shipped_needs import ShippedScenario, shipped_scenarios


def scenarios(copied: tuple[str, ...]) -> None:
    """Print the shipped scenarios, or copy the files of some."""
    if copied:
        _copy(copied)
        return
    listed = list(shipped_scenarios())
    width = max(len(one.name) for one in listed)
    for one in listed:
        needs = "".join(f"; needs {need}" for need in _needs(one))
        click.echo(f"{one.name:<{width}}  {one.run_s:>3} s  {one.title}{needs}")
    click.echo("run one: recfleet run NAME; copy it to change it: recfleet scenarios --copy NAME")


def _needs(one: ShippedScenario) -> Iterator[str]:
    if one.source is not None:
        yield f"data of {one.source} (--set data.path=FOLDER)"
    for extra in one.extras:
        yield f"pip install 'recfleet[{extra}]'"


def _copy(copied: tuple[str, ...]) -> None:
    """Write the files of scenarios to the current folder, or none of them if one is there."""
    shipped = shipped_files()
    files = {file.name: file for name in copied for file in read_chain(shipped[name], []).files.values()}
    there = [name for name in files if os.path.lexists(name)]
    if there:
        raise Refusal(f"error: there is already {', '.join(there)} here; move it, or go to another folder")
    for name, file in files.items():
        write_atomically(Path(name), file.read_bytes())
        click.echo(f"wrote {name}")
    write_schema(Path())
