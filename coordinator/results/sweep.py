"""The table of a sweep: a row per cell, for people, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rich.table import Table

from coordinator.engine.run_files import ENDED, SWEEP_TABLE
from coordinator.results.figures import Figure, show_estimate
from coordinator.results.intervals import CONFIDENCE, Estimate, estimate
from coordinator.results.tables.reader import JsonShape, read_json
from coordinator.results.verdicts import JsonNumber, json_number
from coordinator.results.wide_tables import Column, fitting_tables
from coordinator.scenario.sweep import Cell

RunStatus = Literal["held", "missed", "no-round-completed", "diverged", "failed", "refused", "interrupted"]
UNHELD: Final = ("missed", "no-round-completed", "diverged")
"""What became of a run that went to its end and did not hold what it promised."""
_MISSED: Final = "✗"
"""Marks a figure whose threshold a run missed."""


def leaves(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return settings, pairs of path and text, with each value of a mapping on its own.

    A mapping is written as JSON.
    """
    return {path: text for name, value in settings for path, text in _inside(name, value)}


def _inside(path: str, text: str) -> Iterator[tuple[str, str]]:
    try:
        value = json.loads(text) if text.startswith("{") else text
    except ValueError:
        value = text
    if not isinstance(value, dict) or not value:
        yield path, text
        return
    for key, inner in value.items():
        written = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        yield from _inside(f"{path}.{key}", written)


def telling(cells: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return settings that differ between cells: each splits a group that those before it have left whole.

    All settings where there is but one cell.
    """
    names = dict.fromkeys(name for cell in cells for name in cell)
    if len(cells) < 2:
        return tuple(names)
    found: list[str] = []
    groups: list[tuple[str | None, ...]] = [() for _ in cells]
    for name in names:
        split = [(*group, cell.get(name)) for group, cell in zip(groups, cells, strict=True)]
        if len(set(split)) > len(set(groups)):
            found.append(name)
            groups = split
    return tuple(found)


@dataclass(frozen=True)
class Result:
    """What became of a run.

    Attributes
    ----------
    status : ``held`` or ``missed`` when it went to its end; ``no-round-completed`` or ``diverged`` when it
        learnt nothing and its scenario does not expect that; ``failed`` by a bug, the system, or a process
        that died again and again; ``refused`` for an error that the scenario or its data are to blame for;
        ``interrupted``.
    directory : where it lies; None when nothing is known to lie anywhere.
    kept : it was there already, finished.
    verdicts : records of the verdicts on its thresholds.
    figures : of a finished run, by name.
    error : why it did not finish, in one line; None for a finished run.
    trace : the traceback of a bug; None otherwise.
    """

    status: RunStatus
    directory: Path | None = None
    kept: bool = False
    verdicts: tuple[dict[str, Any], ...] = ()
    figures: dict[str, Figure] | None = None
    error: str | None = None
    trace: str | None = None


@dataclass(frozen=True)
class CellResult:
    """A cell and the results of its runs, by seed; a run that was never begun has none."""

    cell: Cell
    results: Mapping[int, Result]

    @property
    def finished(self) -> dict[int, Mapping[str, Figure]]:
        """The figures of the runs that finished, by seed."""
        return {
            seed: result.figures
            for seed, result in sorted(self.results.items())
            if result.figures is not None
        }

    @property
    def held(self) -> int:
        """Runs in which every threshold held."""
        return sum(result.status == "held" for result in self.results.values())

    def estimates(self) -> dict[str, tuple[str, Estimate]]:
        """Return the unit of each figure, its mean over the finished runs and its interval."""
        values: dict[str, list[Figure]] = {}
        for figures in self.finished.values():
            for name, figure in figures.items():
                values.setdefault(name, []).append(figure)
        return {
            name: (known[0].unit, estimate([figure.value for figure in known]))
            for name, known in values.items()
        }

    def thresholds(self) -> list[dict[str, Any]]:
        """Return each threshold with the number of finished runs in which it held."""
        held: dict[str, list[bool]] = {}
        for _, result in sorted(self.results.items()):
            for record in result.verdicts:
                held.setdefault(record["threshold"], []).append(record["held"])
        return [{"threshold": name, "held": sum(each), "of": len(each)} for name, each in held.items()]


def _names(results: Sequence[CellResult]) -> list[str]:
    """Return the names of all figures, in the order in which cells have them."""
    return list(dict.fromkeys(name for result in results for name in result.estimates()))


def _paths(results: Sequence[CellResult]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name, _ in result.cell.settings))


def json_estimate(found: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON types; ``half_width`` is null where one run allows no interval."""
    return {"mean": json_number(found.mean), "half_width": json_number(found.half_width), "n": found.n}


def json_table(name: str, repeat: int, results: Sequence[CellResult], target: Path) -> dict[str, Any]:
    """Return the contents of ``sweep.json``; they do not depend on how many processes did the runs."""
    return {
        "scenario": name,
        "confidence": CONFIDENCE,
        "repeat": repeat,
        "cells": [_json_cell(result, target) for result in results],
    }


def _json_cell(result: CellResult, target: Path) -> dict[str, Any]:
    values: dict[str, dict[str, Any]] = {}
    for seed, figures in result.finished.items():
        for name, figure in figures.items():
            values.setdefault(name, {})[str(seed)] = json_number(figure.value)
    return {
        "cell": result.cell.number,
        "settings": dict(result.cell.settings),
        "held": result.held,
        "finished": len(result.finished),
        "runs": [
            _json_run(loaded.scenario.seed, result.results.get(loaded.scenario.seed), target)
            for loaded in result.cell.runs
        ],
        "thresholds": result.thresholds(),
        "figures": {
            name: {"unit": unit, **json_estimate(found), "values": values[name]}
            for name, (unit, found) in result.estimates().items()
        },
    }


def _json_run(seed: int, result: Result | None, target: Path) -> dict[str, Any]:
    if result is None:
        return {"seed": seed, "status": "not run", "directory": None, "error": None}
    directory = None if result.directory is None else os.path.relpath(result.directory, target)
    return {"seed": seed, "status": result.status, "directory": directory, "error": result.error}


def csv_text(results: Sequence[CellResult]) -> str:
    """Return the contents of ``sweep.csv``: per figure the columns mean, half width and n, in base units."""
    names, paths = _names(results), _paths(results)
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    of_figures = [f"{name} {what}" for name in names for what in ("mean", "half_width", "n")]
    rows.writerow(["cell", *paths, "runs", "finished", "held", *of_figures])
    for result in results:
        settings, found = dict(result.cell.settings), result.estimates()
        counts = (len(result.cell.runs), len(result.finished), result.held)
        row: list[Any] = [result.cell.number, *(settings.get(path, "") for path in paths), *counts]
        for name in names:
            row += _csv_estimate(found[name][1]) if name in found else ["", "", 0]
        rows.writerow(row)
    return written.getvalue()


def _csv_estimate(found: Estimate) -> Iterable[Any]:
    return [repr(found.mean), "" if found.half_width is None else repr(found.half_width), found.n]


def _held(result: CellResult) -> str:
    """Return how many runs of a cell held, and how many learnt nothing."""
    counts = Counter(one.status for one in result.results.values())
    unlearnt = [f"{counts[name]} {name}" for name in ENDED[1:] if counts[name]]
    return ", ".join([f"{result.held} of {len(result.cell.runs)}", *unlearnt])


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class _Promise(NamedTuple):
    """A threshold of a cell: the metric that it limits, its tags included, and whether a run missed it."""

    key: str
    aggregation: str
    missed: bool


def sweep_tables(results: Sequence[CellResult], width: int, *, everything: bool = False) -> list[Table]:
    """Return what a terminal shows of a sweep: the thresholds of each cell, or every figure.

    Of the settings it shows those that tell cells apart; ``sweep.csv`` has all. Thresholds have a column each
    where these fit, intervals on lines of their own if need be, and otherwise a row each within their cell.

    Parameters
    ----------
    results : of the cells.
    width : columns of the terminal.
    everything : show all figures, on as many tables as they need. Otherwise it is one table: the thresholds,
        and where there are none the first figures.
    """
    settings = [leaves(result.cell.settings) for result in results]
    runs = sum(len(result.results) for result in results)
    title = f"{_counted(len(results), 'cell')}, {_counted(runs, 'run')}: mean ± {CONFIDENCE:.0%} interval"
    styles = [None if result.held == len(result.cell.runs) else "bold red" for result in results]
    fixed: list[Column] = [("cell", [str(result.cell.number) for result in results])]
    fixed += [(_heading(path), [each.get(path, "") for each in settings]) for path in telling(settings)]
    fixed.append(("held", [_held(result) for result in results]))
    promises = [{} if everything else _promises(result) for result in results]
    if not any(promises):
        found = [result.estimates() for result in results]
        figures = [[(_heading(name), [_shown(each, name) for each in found])] for name in _names(results)]
        tables = fitting_tables(title, fixed, figures, width, styles)
        return tables if everything else tables[:1]
    if any(one.missed for each in promises for one in each.values()):
        title += f", {_MISSED} missed by a run"
    for stacked in (False, True):
        columns = _threshold_columns(results, promises, stacked=stacked)
        tables = fitting_tables(title, fixed, [[column] for column in columns], width, styles)
        if len(tables) == 1:
            return tables
    return [_long_table(title, results, promises, styles)]


def _heading(name: str) -> str:
    """Return the name of a figure or setting on several lines: a wide heading wastes the terminal."""
    return re.sub(r" |(?<=\.)|(?=\{)", "\n", name)


def _shown(found: Mapping[str, tuple[str, Estimate]], name: str) -> str:
    return show_estimate(found[name][1], found[name][0]) if name in found else "–"


def _promises(result: CellResult) -> dict[str, _Promise]:
    """Return the thresholds of a cell by their text, without those that nobody wrote."""
    promises: dict[str, _Promise] = {}
    for run in result.results.values():
        for record in (record for record in run.verdicts if not record["implicit"]):
            text = record["threshold"]
            missed = not record["held"] or (text in promises and promises[text].missed)
            promises[text] = _Promise(record["key"], record["aggregation"], missed)
    return promises


def _threshold_columns(
    results: Sequence[CellResult], promises: Sequence[Mapping[str, _Promise]], *, stacked: bool
) -> list[Column]:
    """Return a column per figure that thresholds limit; the heading has the limits that all cells share.

    One that depends on this host has no figure, only a verdict. ``stacked`` puts intervals below their means.
    """
    named = dict.fromkeys((one.key, one.aggregation) for each in promises for one in each.values())
    found = [result.estimates() for result in results]
    columns: list[Column] = []
    for key, aggregation in named:
        of_cells = [
            {text: one.missed for text, one in each.items() if one[:2] == (key, aggregation)}
            for each in promises
        ]
        common = sorted(set.intersection(*(set(each) for each in of_cells if each)))
        limits = [text.removeprefix(f"{key}: ") for text in common] or [aggregation]
        shown = [_shown(each, f"{key} {aggregation}") for each in found]
        missed = [any(each.values()) for each in of_cells]
        columns.append(("\n".join([_heading(key), *limits]), _marked(shown, missed, stacked=stacked)))
    return columns


def _marked(figures: Sequence[str], missed: Sequence[bool], *, stacked: bool) -> list[str]:
    """Return figures with marks beside those that were missed, and room for a mark beside the others."""
    broken = [figure.replace(" ±", "\n±") if stacked else figure for figure in figures]
    if not any(missed):
        return broken
    texts = []
    for text, mark in zip(broken, missed, strict=True):
        mean, *interval = text.split("\n")
        texts.append("\n".join([f"{mean} {_MISSED if mark else ' '}", *(f"{line}  " for line in interval)]))
    return texts


def _long_table(
    title: str,
    results: Sequence[CellResult],
    promises: Sequence[Mapping[str, _Promise]],
    styles: Sequence[str | None],
) -> Table:
    """Return a table with a row per threshold of each cell, and the settings of the cell beside them."""
    table = Table(title=title, title_justify="left")
    for heading in ("cell", "setting", "held", "threshold"):
        table.add_column(heading, overflow="fold")
    table.add_column("figure", justify="right", no_wrap=True)
    settings = [leaves(result.cell.settings) for result in results]
    paths = telling(settings)
    for result, each, promised, style in zip(results, settings, promises, styles, strict=True):
        found = result.estimates()
        said = [f"{path}={each[path]}" for path in paths if path in each]
        begun = [[str(result.cell.number)], said, [_held(result)]]
        judged = [
            (text, f"{_shown(found, f'{one.key} {one.aggregation}')} {_MISSED if one.missed else ' '}")
            for text, one in promised.items()
        ]
        for *cells, one in zip_longest(*begun, judged, fillvalue=""):
            table.add_row(*map(str, cells), *(one or ("", "")), style=style)
        table.add_section()
    return table


def held_cells(results: Sequence[CellResult]) -> str:
    """Return the line that names the cells in whose every run all thresholds held, with their settings."""
    settings = [leaves(result.cell.settings) for result in results]
    paths = telling(settings)
    named = [
        ", ".join([f"cell {result.cell.number}", *(f"{path}={each[path]}" for path in paths if path in each)])
        for result, each in zip(results, settings, strict=True)
        if result.held == len(result.cell.runs)
    ]
    return f"thresholds held in every run of: {'; '.join(named) or 'no cell'}"


class _Run(JsonShape):
    seed: int
    directory: str | None


class _Figure(JsonShape):
    unit: str
    mean: JsonNumber
    half_width: JsonNumber
    n: int
    values: dict[str, JsonNumber]


class _Threshold(JsonShape):
    threshold: str


class _Cell(JsonShape):
    settings: dict[str, str]
    runs: list[_Run]
    thresholds: Sequence[_Threshold] = ()
    figures: dict[str, _Figure]


class _TuningTable(JsonShape):
    figure: str
    maximise: bool
    best: int | None


class _Sweep(JsonShape):
    cells: list[_Cell]
    tuned: _TuningTable | None = None


def read_sweep(directory: Path) -> dict[str, Any] | None:
    """Return the table of the sweep in a directory; None where there is none.

    That of a tuning, whose trials are the cells, has ``tuned``: the ``figure`` that was to be small, or large
    with ``maximise``, and the number of the ``best`` trial.

    Raises
    ------
    RunFormatError : the table is damaged.
    """
    try:
        table: dict[str, Any] = read_json(directory / SWEEP_TABLE, _Sweep)
    except FileNotFoundError:
        return None
    return table


def read_cells(directory: Path) -> list[dict[str, Any]] | None:
    """Return the cells of the sweep in a directory; None where there is no table of one.

    Raises
    ------
    RunFormatError : the table is damaged.
    """
    table = read_sweep(directory)
    return None if table is None else table["cells"]
