"""The verbs about scenario files: ``validate``, ``show`` and ``schema``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from coordinator.cli.options import plugin_option, scenario_file, setting_option
from coordinator.cli.refusals import refusals
from coordinator.cli.upgrade import load_with_notes
from coordinator.exit_codes import ExitCode
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.json_schema import json_schema
from coordinator.scenario.sweep import Cell, load_cells
from coordinator.secure_plan import plan_lines
from edge.errors import DataError


@click.command
@click.argument("files", nargs=-1, required=True, metavar="SCENARIO…", type=scenario_file)
@click.option(
    "--data",
    type=click.Choice(["first", "full"]),
    default="first",
    show_default=True,
    help="How much of the ratings to read: the first rows of every file, or all.",
)
@setting_option
@plugin_option
@refusals()
def validate(files: tuple[Path, ...], data: str, settings: tuple[str, ...]) -> int:
    """Check scenario files and show every error.

    Each error is shown as file:line:column, the path of the key, and what to write instead. Profiles and
    files that a scenario names are looked up, too, ratings are opened, and every cell of a sweep is checked.
    Exits with 2 if anything is wrong.
    """
    from coordinator.ratings import check_data  # noqa: PLC0415 - pyarrow, which 'show' does without

    code = ExitCode.HELD
    for path in files:
        try:
            loaded = load_with_notes(path, settings)
            load_cells(loaded)
            read = check_data(loaded, full=data == "full")
        except ScenarioError as error:
            click.echo(str(error), err=True)
            code = ExitCode.INVALID_SCENARIO
        except DataError as error:
            click.echo(f"{path}: data: {error}", err=True)
            code = ExitCode.INVALID_SCENARIO
        else:
            click.echo(f"{path}: ok" if read is None else f"{path}: ok; data: {read}")
    return int(code)


@click.command
@click.argument("file", metavar="SCENARIO", type=scenario_file)
@setting_option
@plugin_option
@refusals()
def show(file: Path, settings: tuple[str, ...]) -> None:
    """Print a scenario with all of its defaults, as YAML.

    What it extends is merged into it, and every value has its unit. The output is a scenario that asks for
    the same run. Whether the files that it names exist is not checked. With secure aggregation, what it comes
    to (graph, threshold, ring) follows as comments, and so do the cells of a sweep.
    """
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


@click.command
@plugin_option
@refusals()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
