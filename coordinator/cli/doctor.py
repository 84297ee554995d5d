"""``doctor``: whether this installation is sound, and what this machine is."""

from __future__ import annotations

import click

from coordinator.doctor import Severity, examine
from coordinator.exit_codes import ExitCode

_MARKS = {Severity.FINE: "ok   ", Severity.NOTE: "note ", Severity.WRONG: "WRONG"}


@click.command
def doctor() -> int:
    """Check this installation and this machine.

    Versions of Python and of every dependency, what each extra gives and how to install it, whether
    recfleet's packages are its own, processors, what the last bits of figures depend on, whether the virtual
    clock goes right on this Python, memory, disk and clock. Exits with 1 if something is wrong.
    """
    findings = examine()
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        click.echo(f"{_MARKS[finding.severity]} {finding.subject:<{width}}  {finding.fact}")
        if finding.advice:
            click.echo(f"      {'':<{width}}  {finding.advice}")
    wrong = sum(finding.severity is Severity.WRONG for finding in findings)
    click.echo(f"{wrong} wrong" if wrong else "nothing is wrong")
    return int(ExitCode.INTERNAL_ERROR if wrong else ExitCode.HELD)
