"""Options that several verbs share."""

from __future__ import annotations

import os
from pathlib import Path

import click

from coordinator.scenario.rounds_section import MAX_WORKERS

worker_count = click.IntRange(1, MAX_WORKERS)
"""Type of an option that says how many processes or threads."""

setting_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one setting of the scenario, such as rounds.cohort=50; may be repeated.",
)
"""``--set a.b=c``, passed on as the tuple ``settings``."""


def _in_a_folder(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    """Refuse a file that could not be written before a long run, not after it."""
    if file is not None and not file.parent.is_dir():
        raise click.BadParameter(f"there is no folder '{file.parent}'; make it first")
    if file is not None and not os.access(file.parent, os.W_OK | os.X_OK):
        raise click.BadParameter(f"the folder '{file.parent}' cannot be written to; name another")
    return file


json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_in_a_folder,
    metavar="FILE",
    help="Write the result as JSON, too.",
)
"""``--json FILE``, passed on as ``json_file``."""

junit_option = click.option(
    "--junit",
    "junit_file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_in_a_folder,
    metavar="FILE",
    help="Write the verdicts as JUnit XML, too, for CI systems.",
)
"""``--junit FILE``, passed on as ``junit_file``."""
