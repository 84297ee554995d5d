"""The table of a sweep as ``sweep.json`` has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.engine.run_files import SWEEP_TABLE
from coordinator.results.tables.reader import JsonShape, read_json
from coordinator.results.verdicts import JsonNumber


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


class _Sweep(JsonShape):
    cells: list[_Cell]


def read_cells(directory: Path) -> list[dict[str, Any]] | None:
    """Return the cells of the sweep in a directory; None where there is no table of one.

    Raises
    ------
    RunFormatError : the table is damaged.
    """
    try:
        cells: list[dict[str, Any]] = read_json(directory / SWEEP_TABLE, _Sweep)["cells"]
    except FileNotFoundError:
        return None
    return cells
