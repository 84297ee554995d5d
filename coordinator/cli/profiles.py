"""``profiles list`` and ``profiles show``: the catalogue, and where each of its numbers comes from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
from rich.table import Table

from coordinator.cli.consoles import console
from device_profiles import catalogue


def list_profiles(kind: str | None, extra: tuple[Path, ...]) -> None:
    """Print the names in the catalogue, and how many of their numbers are measured."""
    known = catalogue.load(extra)
    if kind is not None:
        for name in known.names()[kind]:
            click.echo(name)
        return
    widest = max(len(name) for names in known.names().values() for name in names)
    total: Counter[str] = Counter()
    for section, names in known.names().items():
        click.echo(f"{section}:")
        for name in names:
            bases = known.bases(section, name)
            total += bases
            numbers = f"{bases['measured']} of {bases.total()} measured" if bases else "no numbers"
            click.echo(f"  {name:{widest}}  {numbers}")
    click.echo(
        f"{total['measured']} of {total.total()} numbers are measured, "
        f"{total['partly assumed']} partly assumed, {total['assumed']} assumed"
    )


def show_profile(name: str, kind: str | None, extra: tuple[Path, ...]) -> None:
    """Print the values of a profile, as a table, and their sources."""
    rows = catalogue.load(extra).describe(name, kind)
    output = console()
    table = Table(title=name, title_justify="left")
    for heading in ("field", "value", "basis", "source"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row.field, row.value, row.basis or "–", row.source or "–")
    output.print(table)
    output.print(
        "measured: measured or published by the source; assumed: no measurement stands behind it",
        soft_wrap=True,
    )
    citations = {row.source: row.citation for row in rows if row.source}
    if citations:
        output.print("sources:")
    for source, citation in sorted(citations.items()):
        output.print(f"  {source}: {citation}", soft_wrap=True)
