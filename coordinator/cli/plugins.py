"""``plugins``: what is registered at the extension points, and its origin."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from coordinator.cli.consoles import console
from coordinator.engine.host import host_facts
from coordinator.results.run_directory import write_json
from edge.core import plugins as registry

_DIGITS = 12
"""Digits of a hash that a table shows."""


def plugins(json_file: Path | None) -> None:
    """Print the registered plug-ins, as a table."""
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
