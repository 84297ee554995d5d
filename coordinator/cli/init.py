"""``init``: a scenario to begin with, or a plug-in."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from coordinator.cli.data import read_with
from coordinator.cli.refusals import Refusal
from coordinator.cli.scenarios import write_schema
from coordinator.engine.run_files import write_atomically
from coordinator.scenario import DEFAULT_FLEET
from coordinator.scenario.json_schema import SCHEMA_FILE
from coordinator.scenario.load import load_text
from coordinator.scenario.starter import module_of, starter_files, starter_text


def init(
    *,
    data: Path | None,
    fleet: str | None,
    output: Path | None,
    settings: tuple[str, ...],
    **plugin: str | None,
) -> None:
    """Write a scenario that suits the ratings; or a plug-in, whose name ``plugin`` has by its kind."""
    wanted = [(kind, name) for kind, name in plugin.items() if name is not None]
    if wanted:
        if len(wanted) > 1 or data is not None or fleet is not None or settings:
            raise click.UsageError(f"--{wanted[0][0]} writes one plug-in; it goes with -o FILE.py alone")
        _write_plugin(*wanted[0], output)
        return
    _write_scenario(data, fleet or DEFAULT_FLEET, output or Path("scenario.yaml"), settings)


def _write_plugin(kind: str, name: str, output: Path | None) -> None:
    python = Path(f"{module_of(name)}.py") if output is None else output
    if python.suffix != ".py":
        raise click.UsageError(
            f"-o {output}: a plug-in is a Python file; write -o {python.with_suffix('.py')}"
        )
    written = [
        (python.with_suffix(Path(file).suffix), text) for file, text in starter_files(kind, name).items()
    ]
    for file, _ in written:
        _refuse_to_replace(file)
    for file, text in written:
        write_atomically(file, text.encode())
    click.echo(f"wrote {', '.join(str(file) for file, _ in written)}")
    plugin, scenario = (shlex.quote(_argument(python.with_suffix(ending))) for ending in (".py", ".yaml"))
    click.echo(f"check it: recfleet check-plugin {plugin}")
    given = f" --sink {name}=rounds.csv" if kind == "sink" else ""
    click.echo(f"run it: recfleet run {scenario} --plugin {plugin}{given}")
    schema = shlex.quote(_argument(python.with_name(SCHEMA_FILE)))
    click.echo(f"for your editor: recfleet schema --plugin {plugin} > {schema}")


def _refuse_to_replace(output: Path) -> None:
    if os.path.lexists(output):
        raise Refusal(f"error: {output} is there; name another file with -o, or move it")
    if not output.parent.is_dir():
        raise Refusal(f"error: there is no folder '{output.parent}'; make it first")


def _write_scenario(data: Path | None, fleet: str, output: Path, settings: tuple[str, ...]) -> None:
    if settings and data is None:
        raise click.UsageError("--set says how ratings are read; name them with --data")
    _refuse_to_replace(output)
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
    write_schema(output.parent)
    click.echo(f"wrote {output}; run it: recfleet run {shlex.quote(_argument(output))}")


def _as_named_in(scenario: Path, data: Path) -> str:
    """Return the path of the data as a scenario names it: from its own folder on, or as it is if absolute."""
    if data.is_absolute():
        return str(data)
    return os.path.relpath(data.resolve(), scenario.parent.resolve())


def _argument(output: Path) -> str:
    """Return a path so that it is never taken for the name of a shipped scenario or for an option."""
    return str(output) if output.suffix and not str(output).startswith("-") else f".{os.sep}{output}"
