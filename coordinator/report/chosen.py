"""Which runs a report is about: those named, and those in directories that hold runs, such as a sweep's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from coordinator.metrics.reader import RunFormatError
from coordinator.run_directory import MANIFEST

_SWEEP: Final = "sweep.json"
"""The table of a sweep: a list ``cells`` of settings and the runs that have them."""


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run to report on.

    Attributes
    ----------
    directory : where it lies.
    name : tells it from the others: its directory, or what a sweep varied and the seed.
    group : what it has in common with its repeats: what a sweep varied; else its name.
    """

    directory: Path
    name: str
    group: str


def chosen_runs(paths: Sequence[Path]) -> list[ChosenRun]:
    """Return the runs that paths stand for, in their order; runs of equal names are called after their paths.

    Raises
    ------
    RunFormatError : the table of a sweep cannot be read.
    """
    found = [run for path in paths for run in _runs_at(path)]
    names = [run.name for run in found]
    return [
        run if names.count(run.name) == 1 else replace(run, name=str(run.directory), group=str(run.directory))
        for run in found
    ]


def _runs_at(path: Path) -> Iterator[ChosenRun]:
    inside = [] if (path / MANIFEST).is_file() or not path.is_dir() else _runs_in(path)
    if not inside:
        name = path.resolve().name  # of a run, or of what will be refused as none
        yield ChosenRun(path, name, name)
        return
    settings = _settings_of_runs(path)
    rank = {name: at for at, name in enumerate(settings)}
    for run in sorted(inside, key=lambda run: (rank.get(run.name, len(rank)), run.name)):
        name, group = settings.get(run.name, (run.name, run.name))
        yield ChosenRun(run, name, group)


def _runs_in(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if (entry / MANIFEST).is_file()]


def _settings_of_runs(path: Path) -> dict[str, tuple[str, str]]:
    """Return name and group of each run of a sweep, by its directory and in the order of the sweep's table.

    Empty where there is no such table.
    """
    table = path / _SWEEP
    if not table.is_file():
        return {}
    try:
        cells = json.loads(table.read_text(encoding="utf-8"))["cells"]
        return {
            run["directory"]: (", ".join([*said, f"seed {run['seed']}"]), ", ".join(said) or "as written")
            for cell, said in [(cell, _said(cell["settings"])) for cell in cells]
            for run in cell["runs"]
            if run["directory"] is not None
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFormatError(
            f"{table}: not the table of a sweep: {error!r}; run the sweep again, or name its runs one by one"
        ) from error


def _said(settings: Mapping[str, Any]) -> list[str]:
    """Return settings for people, each by the last key of its path where that is enough."""
    last = [path.rpartition(".")[2] for path in settings]
    keys = [key if last.count(key) == 1 else path for key, path in zip(last, settings, strict=True)]
    return [f"{key}={value}" for key, value in zip(keys, settings.values(), strict=True)]
