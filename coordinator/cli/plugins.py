"""The verbs about extension points: ``plugins`` and ``check-plugin``."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from coordinator.cli.consoles import console
from coordinator.cli.options import json_option, plugin_option
from coordinator.cli.refusals import Refusal, refusals
from coordinator.exit_codes import ExitCode
from coordinator.host import host_facts
from coordinator.run_directory import write_json
from coordinator.scenario.errors import did_you_mean
from edge import plugins as registry

_DIGITS = 12
"""Digits of a hash that a table shows."""


@click.command
@plugin_option
@json_option
@refusals()
def plugins(json_file: Path | None) -> None:
    """List methods, faults and selectors, and their origin.

    Built-in ones come from recfleet, others from installed packages (entry points) or from --plugin. The hash
    is of the source; that of a plug-in which a run uses counts for the run's own.
    """
    ours = str(host_facts()["recfleet"])
    entries = [entry for kind in registry.KINDS for entry in registry.entries(kind).values()]
    found = [{**entry.facts(), **({"version": ours} if entry.built_in else {})} for entry in entries]
    if json_file is not None:
        write_json(json_file, {"plugins": found})
    table = Table("kind", "name", "origin", "version", "hash")
    for one in found:
        noun = registry.kind_of(str(one["kind"])).noun
        table.add_row(noun, one["name"], one["origin"], one["version"] or "–", str(one["hash"])[:_DIGITS])
    console().print(table)


@click.command
@click.argument("what", metavar="NAME|FILE")
@plugin_option
@refusals()
def check_plugin(what: str) -> int:
    """Check that a method, fault or selector keeps the rules.

    NAME is one that 'recfleet plugins' lists; of a FILE everything in it is checked. Faults are run in small
    scenarios, selectors draw from a small fleet, methods are given the data of single clients and of many.
    Exits with 2 if anything is wrong.
    """
    from coordinator.swarm.conformance import conform  # noqa: PLC0415 - the whole engine

    code = ExitCode.HELD
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
