"""Messages for internal errors and for failures of the operating system."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import traceback
from collections.abc import Sequence

import click

from edge.core.errors import ParityError


def report_failure(error: Exception, arguments: Sequence[str], *, show_traceback: bool) -> None:
    """Say in one line what failed; file the traceback of an internal error.

    Parameters
    ----------
    error : what nobody caught.
    arguments : what follows ``recfleet`` on the command line.
    show_traceback : write the traceback to standard error instead of to a file.
    """
    from coordinator.engine.host import system_trouble  # noqa: PLC0415 - numpy, which 'recfleet --help' does without

    text = "".join(traceback.format_exception(error))
    trouble = system_trouble(error)
    # Nobody's bug either is a runtime whose scores are not numpy's.
    kind = "error" if isinstance(error, OSError | ParityError) else f"internal error: {type(error).__name__}"
    first_line = str(error).partition("\n")[0] or "no message"
    line = f"{kind}: {first_line}" if trouble is None else f"error: {trouble}"
    if show_traceback:
        click.echo(text, err=True, nl=False)
    click.echo(line, err=True)
    if show_traceback or trouble is not None:
        return
    try:
        where = _file_traceback(text, arguments)
    except OSError as refusal:
        click.echo(
            f"    its traceback could not be filed ({refusal}); show it with: recfleet --debug", err=True
        )
        return
    click.echo(f"    its traceback is in {where}; recfleet --debug shows it here", err=True)


def _file_traceback(text: str, arguments: Sequence[str]) -> str:
    """Write the traceback to a new file in the folder for temporary files and return its path."""
    import tempfile  # noqa: PLC0415 - a dozen modules, of compression and random numbers

    descriptor, path = tempfile.mkstemp(prefix="recfleet-error-", suffix=".txt", text=True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"command: recfleet {shlex.join(_without_secrets(arguments))}\n")
        file.write(f"python: {platform.python_version()} on {sys.platform}\n\n")
        file.write(text)
    return path


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which no token can be read: the file may be sent to somebody."""
    shown, hide = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        shown.append("…" if hide else "--token=…" if name == "--token" and equals else argument)
        hide = argument == "--token"
    return shown
