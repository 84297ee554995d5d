"""``profiles list``, ``show`` and ``fit``: the catalogue, its sources, and profiles from telemetry."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
from rich.table import Table

from coordinator.cli.consoles import console
from coordinator.cli.refusals import Refusal
from coordinator.engine.run_files import write_atomically
from coordinator.results.fit_report import fit_contents, match_rows, parameter_tables
from coordinator.results.report import html, markdown
from device_profiles import catalogue
from edge.fitting.fitted import Fitted, fit_telemetry, written
from edge.fitting.importers import read_telemetry


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


def fit_profiles(
    *,
    tables: tuple[Path, ...],
    output: Path,
    report: Path | None,
    source: str | None,
    device: str | None,
    device_class: str | None,
    network: str | None,
    extra: tuple[Path, ...],
) -> None:
    """Fit profiles to telemetry, write them, and print what was found."""
    given = {"device": device, "class": device_class, "network": network}
    fitted = fit_telemetry(read_telemetry(tables, source, given), catalogue.load(extra))
    _write(output, written(fitted))
    # What was written is what a scenario reads.
    catalogue.load((*extra, output))
    if report is not None:
        form = markdown if report.suffix.lower() in (".md", ".markdown") else html
        _write(report, form.page(fit_contents(fitted)))
    _print_fitted(fitted)
    click.echo(
        f"{output}: {_counted(fitted)}; in a scenario: fleet: {{mix: fitted, profiles: [{output.name}]}}"
    )


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise Refusal(f"error: {path}: cannot be written: {error.strerror}; give another FILE") from error


def _counted(fitted: Fitted) -> str:
    parts = [(len(fitted.networks), "networks"), (len(fitted.classes), "classes of devices")]
    return ", ".join(f"{count} {name}" for count, name in parts)


def _print_fitted(fitted: Fitted) -> None:
    output = console()
    for title, rows in parameter_tables(fitted):
        table = Table(title=title, title_justify="left")
        for heading in ("value", "found", "95% interval", "basis"):
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*row)
        output.print(table)
    for network in fitted.networks:
        table = Table(
            title=f"{network.label}: simulated at the fit, against what was measured", title_justify="left"
        )
        for heading in ("transfers", "n", "p50", "fitted", "p95", "fitted", "KS", "by chance"):
            table.add_column(heading, overflow="fold", justify="left" if heading == "transfers" else "right")
        for cells in match_rows(network):
            table.add_row(*cells)
        output.print(table)
    for note in fitted.notes:
        output.print(f"note: {note}", soft_wrap=True)
