"""``check-plugin``: whether plug-ins keep the rules of their kind."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.refusals import Refusal
from coordinator.scenario.errors import did_you_mean
from coordinator.scenario.exit_codes import ExitCode
from coordinator.swarm.conformance import conform
from edge.core import plugins as registry


def check_plugin(what: str) -> int:
    """Run the conformance checks of what is meant; return the exit code."""
    code = ExitCode.HELD
    with registry.scope():
        for entry in _meant(what):
            label = f"{registry.kind_of(entry.kind).noun} {entry.name}"
            for finding in conform(entry):
                problem = "ok" if finding.problem is None else f"WRONG: {finding.problem}"
                click.echo(f"{label}: {finding.rule}: {problem}")
                if finding.problem is not None:
                    code = ExitCode.INVALID_SCENARIO
    return int(code)


def _meant(what: str) -> list[registry.Entry]:
    """Return the entries of a name, of all kinds that have it, or of a file that is loaded now."""
    known = [entry for kind in registry.KINDS for entry in registry.entries(kind).values()]
    named = [entry for entry in known if entry.name == what]
    if named:
        return named
    if Path(what).suffix != ".py":
        close = did_you_mean(what, (entry.name for entry in known))
        advice = f"{close} " if close else ""
        raise Refusal(f"error: there is no plug-in {what!r}; {advice}see them all with: recfleet plugins")
    return list(registry.load(what))
