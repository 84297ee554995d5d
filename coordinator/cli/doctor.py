"""``doctor``: whether this installation is sound, and what this machine is."""

from __future__ import annotations

import click

from coordinator.cli.installation import Severity, examine
from coordinator.scenario.exit_codes import ExitCode

_MARKS = {Severity.FINE: "ok   ", Severity.NOTE: "note ", Severity.WRONG: "WRONG"}


def doctor() -> int:
    """Print what was found; return the exit code."""
    findings = examine()
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        click.echo(f"{_MARKS[finding.severity]} {finding.subject:<{width}}  {finding.fact}")
        if finding.advice:
            click.echo(f"      {'':<{width}}  {finding.advice}")
    wrong = sum(finding.severity is Severity.WRONG for finding in findings)
    click.echo(f"{wrong} wrong" if wrong else "nothing is wrong")
    return int(ExitCode.INTERNAL_ERROR if wrong else ExitCode.HELD)
