"""Entry of the command: the verb is run, and errors turned into exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from coordinator.cli.failures import report_failure
from coordinator.cli.verbs import Settings, cli
from coordinator.scenario.exit_codes import ExitCode


def execute(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; every error has been reported when it returns.

    Parameters
    ----------
    arguments : what follows ``recfleet`` on the command line.
    """
    settings = Settings()
    try:
        code: Any = cli.main(list(arguments), prog_name="recfleet", standalone_mode=False, obj=settings)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        # Click's name for Ctrl-C.
        click.echo("interrupted", err=True)
        return int(ExitCode.INTERRUPTED)
    except Exception as error:  # the last place at which a bug can become a message and an exit code
        report_failure(error, arguments, show_traceback=settings.debug)
        return int(ExitCode.INTERNAL_ERROR)
    return int(code) if isinstance(code, int) else int(ExitCode.HELD)
