"""``upgrade``: scenario files in the newest format; and what other verbs say of files in an old one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coordinator.engine.run_files import write_atomically
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.formats import FORMAT
from coordinator.scenario.load import LoadedScenario, load

if TYPE_CHECKING:
    from coordinator.scenario.upgrade import Upgrade

_NOTED = "recfleet.noted"
"""Key, in the context of a command, of the files that it has said something of."""


def load_with_notes(
    path: Path, settings: Sequence[str] = (), *, references: bool = True, data_here: bool = True
) -> LoadedScenario:
    """Load a scenario as :func:`coordinator.scenario.load.load`, with a note for each file in an old format.

    Notes go to standard error, one a file and command: the old defaults that shape the scenario, and how to
    write them out.
    """
    loaded = load(path, settings, references=references, data_here=data_here)
    noted: set[str] = click.get_current_context().meta.setdefault(_NOTED, set())
    for file, defaults in loaded.old_defaults.items():
        if file in noted:
            continue
        noted.add(file)
        taken = ", ".join(str(default) for default in defaults)
        with_what = f", read with its defaults {taken};" if taken else ";"
        number = loaded.chain.formats.get(file) or defaults[0].until
        command = f"recfleet upgrade {shlex.quote(file)}"
        click.echo(f"note: {file}: format {number}{with_what} '{command}' makes it format {FORMAT}", err=True)
    return loaded


def upgrade(files: tuple[Path, ...], *, check: bool, output: Path | None) -> int:
    """Write scenario files in the newest format; return the exit code."""
    if output is not None and (check or len(files) > 1):
        raise click.UsageError("--output takes one file, and --check writes none; leave one out")
    # All before any is written: what a file means may depend on the one that it extends.
    # Not above: this module also loads the scenario of every run.
    from coordinator.scenario.upgrade import upgrade as upgraded  # noqa: PLC0415

    found = [(path, upgraded(path)) for path in files]
    for path, made in found:
        if made.text is not None and output is None and not check:
            write_atomically(Path(os.path.realpath(path)), made.text.encode())
        click.echo(f"{path}: {_what(made, check=check)}", err=output is not None)
    if output is not None:
        path, made = found[0]
        content = path.read_bytes() if made.text is None else made.text.encode()
        if str(output) == "-":
            click.echo(content, nl=False)
        else:
            write_atomically(output, content)
    behind = any(made.text is not None for _, made in found)
    return int(ExitCode.THRESHOLD_MISSED if check and behind else ExitCode.HELD)


def _what(made: Upgrade, *, check: bool) -> str:
    """Return what an upgrade changes, in words."""
    if made.text is None:
        return f"is format {FORMAT}"
    written = ", ".join(str(default) for default in made.written)
    out = f"; {'would write' if check else 'wrote'} {written}" if written else ""
    part = "" if made.whole else " (not checked: it is no scenario by itself)"
    return f"{'not yet' if check else 'now'} format {FORMAT}{out}{part}"
