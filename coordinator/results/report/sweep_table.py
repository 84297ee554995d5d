"""The table of a sweep as a report reads it: its cells, what distinguishes them, and their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.results.figures import WORDS
from coordinator.results.intervals import Estimate
from coordinator.results.sweep import leaves, read_sweep, telling

AS_WRITTEN: Final = "as written"


@dataclass(frozen=True, slots=True)
class SweptFigure:
    """A figure of a cell: its unit, its mean over finished runs with an interval, and each run's by seed."""

    unit: str
    found: Estimate
    by_seed: Mapping[int, float]

    @property
    def values(self) -> list[float]:
        """The values of the runs."""
        return list(self.by_seed.values())


@dataclass(frozen=True, slots=True)
class SweptCell:
    """A cell of a sweep.

    Attributes
    ----------
    settings : path and value, as text; of a mapping each value on its own.
    runs : directory and seed of each run that was begun.
    figures : by name; none where no run has finished.
    thresholds : in how many of how many finished runs each held.
    """

    settings: Mapping[str, str]
    runs: tuple[tuple[str, int], ...]
    figures: Mapping[str, SweptFigure]
    thresholds: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TuningGoal:
    """What a tuning was for.

    Attributes
    ----------
    figure : its name.
    maximise : whether more of it is better.
    best : the best cell that held every threshold, counted from 0; None where none did.
    """

    figure: str
    maximise: bool
    best: int | None


@dataclass(frozen=True, slots=True)
class SweepTable:
    """A sweep, or a tuning, whose trials are the cells.

    Attributes
    ----------
    name : of its directory.
    cells : in their order.
    telling : the settings that tell cells apart.
    limited : the figures that thresholds limit.
    goal : of a tuning; None of a sweep.
    """

    name: str
    cells: tuple[SweptCell, ...]
    telling: tuple[str, ...]
    limited: frozenset[str] = frozenset()
    goal: TuningGoal | None = None

    def label(self, cell: SweptCell, *, without: str | None = None) -> str:
        """Return a cell for people, by what distinguishes it from the others, but for one setting of that."""
        last = [path.rpartition(".")[2] for path in self.telling]
        keys = [key if last.count(key) == 1 else path for key, path in zip(last, self.telling, strict=True)]
        said = [
            f"{key}={cell.settings[path]}"
            for key, path in zip(keys, self.telling, strict=True)
            if path in cell.settings and path != without
        ]
        return ", ".join(said) or ("" if without else AS_WRITTEN)

    def names(self) -> dict[str, tuple[str, str]]:
        """Return the name of each run and of its cell, by the directory of the run."""
        named: dict[str, tuple[str, str]] = {}
        for cell in self.cells:
            label = self.label(cell)
            said = "" if label == AS_WRITTEN else f"{label}, "
            named |= {directory: (f"{said}seed {seed}", label) for directory, seed in cell.runs}
        return named


def read_sweep_table(directory: Path) -> SweepTable | None:
    """Return the table of a sweep; None where there is none.

    Raises
    ------
    RunFormatError : it cannot be read.
    """
    table = read_sweep(directory)
    if table is None:
        return None
    written = table["cells"]
    cells = tuple(_cell(cell) for cell in written)
    limited = frozenset(_limited(one["threshold"]) for cell in written for one in cell.get("thresholds", ()))
    tuned = table.get("tuned")
    settings, name = [cell.settings for cell in cells], directory.resolve().name
    if tuned is None:
        return SweepTable(name, cells, telling(settings), limited)
    # Of a range each trial has another value: one key would tell them all apart, and hide the others.
    paths = dict.fromkeys(path for each in settings for path in each)
    apart = tuple(path for path in paths if len({each.get(path) for each in settings}) > 1)
    best = None if tuned["best"] is None else tuned["best"] - 1
    return SweepTable(name, cells, apart, limited, TuningGoal(tuned["figure"], tuned["maximise"], best))


def _limited(threshold: str) -> str:
    """Return the figure that a threshold limits: ``round.duration p95`` of ``round.duration: p95 < 2 s``."""
    key, _, rest = threshold.rpartition(": ")
    return f"{key} {rest.partition(' ')[0]}"


def _cell(written: Mapping[str, Any]) -> SweptCell:
    settings = leaves(written["settings"].items())
    runs = tuple((run["directory"], run["seed"]) for run in written["runs"] if run["directory"] is not None)
    figures = {name: _figure(each) for name, each in written["figures"].items()}
    held = {one["threshold"]: (one["held"], one["of"]) for one in written.get("thresholds", ())}
    return SweptCell(settings, runs, figures, held)


def _figure(written: Mapping[str, Any]) -> SweptFigure:
    half_width = written["half_width"]
    found = Estimate(
        _number(written["mean"]), None if half_width is None else _number(half_width), written["n"]
    )
    by_seed = {int(seed): _number(value) for seed, value in written["values"].items()}
    return SweptFigure(written["unit"], found, by_seed)


def _number(written: float | str | None) -> float:
    """Return a number as JSON has it: an infinite one is a word there, and none null."""
    if written is None:
        return math.nan
    return WORDS[written] if isinstance(written, str) else float(written)
