"""Options that several verbs share."""

from __future__ import annotations

import click

setting_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one setting of the scenario, such as rounds.cohort=50; may be repeated.",
)
"""``--set a.b=c``, passed on as the tuple ``settings``."""
