"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path

import click

setting_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one setting of the scenario, such as rounds.cohort=50; may be repeated.",
)
"""``--set a.b=c``, passed on as the tuple ``settings``."""

json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the result as JSON, too.",
)
"""``--json FILE``, passed on as ``json_file``."""

junit_option = click.option(
    "--junit",
    "junit_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the verdicts on thresholds as JUnit XML, too, for CI systems.",
)
"""``--junit FILE``, passed on as ``junit_file``."""
