"""The verbs about scenario files: ``validate``, ``show`` and ``schema``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from coordinator.cli.upgrade import load_with_notes
from coordinator.engine.run_files import write_atomically
from coordinator.scenario import reference
from coordinator.scenario.data_section import FileRatings
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.exit_codes import ExitCode
from coordinator.scenario.json_schema import SCHEMA_FILE, schema_text
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.sweep import Cell, load_cells
from coordinator.secure.plan import plan_lines
from edge.core.errors import DataError


def validate(files: tuple[Path, ...], data: str, settings: tuple[str, ...]) -> int:
    """Print the errors of scenario files; return the exit code."""
    code = ExitCode.HELD
    for path in files:
        try:
            loaded = load_with_notes(path, settings)
            load_cells(loaded)
            read = _read(loaded, full=data == "full")
        except ScenarioError as error:
            click.echo(str(error), err=True)
            code = ExitCode.INVALID_SCENARIO
        except DataError as error:
            click.echo(f"{path}: data: {error}", err=True)
            code = ExitCode.INVALID_SCENARIO
        else:
            click.echo(f"{path}: ok" if read is None else f"{path}: ok; data: {read}")
    return int(code)


def _read(loaded: LoadedScenario, *, full: bool) -> str | None:
    """Read ratings that are in files, or their first rows; return what was read if it is all of them."""
    if not isinstance(loaded.scenario.data, FileRatings):
        return None
    from coordinator.scenario.ratings import check_data  # noqa: PLC0415 - pyarrow, which other scenarios do without

    return check_data(loaded, loaded.scenario.data, full=full)


def show(file: Path, settings: tuple[str, ...]) -> None:
    """Print a scenario with all of its defaults, its secure plan and its cells."""
    loaded = load_with_notes(file, settings, references=False)
    click.echo(loaded.resolved, nl=False)
    cells = load_cells(loaded, references=False)
    for line in (*plan_lines(loaded.scenario), *_cell_lines(cells)):
        click.echo(f"# {line}")


def _cell_lines(cells: Sequence[Cell]) -> Iterator[str]:
    if cells:
        repeat = len(cells[0].runs)
        each = f"{repeat} run each" if repeat == 1 else f"{repeat} runs each"
        yield f"sweep: {len(cells)} cells, {each}: {len(cells) * repeat} runs"
    for cell in cells:
        yield f"  cell {cell.number}: {cell.label}"


def schema(page: str | None) -> None:
    """Print the JSON Schema of scenario files, or a page of the reference."""
    if page is None:
        click.echo(schema_text(), nl=False)
        return
    # Tables bring pyarrow, which no other verb of this module needs.
    if page == "metrics":
        from coordinator.results.tables import reference as metrics  # noqa: PLC0415

        text = metrics.render()
    else:
        text = reference.render()
    click.echo(text, nl=False)


def write_schema(folder: Path) -> None:
    """Write the file that scenarios in a folder name as their schema, unless it is there."""
    file = folder / SCHEMA_FILE
    if not os.path.lexists(file):
        write_atomically(file, schema_text().encode())
        click.echo(f"wrote {file}: editors complete and check scenarios by it", err=True)
