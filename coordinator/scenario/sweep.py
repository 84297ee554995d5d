"""The cells of a sweep: each a scenario of its own, all of them checked before any is run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario, checked
from coordinator.scenario.merge import with_setting
from coordinator.scenario.sweep_section import SweptSetting
from device_profiles.documents import Document
from device_profiles.errors import DocumentError, Position


@dataclass(frozen=True)
class Cell:
    """One combination of the settings that a sweep varies.

    Attributes
    ----------
    number : counted from 1, in the order of the sweep.
    settings : pairs of path and value, as text.
    runs : the scenarios to run, one a seed.
    """

    number: int
    settings: tuple[tuple[str, str], ...]
    runs: tuple[LoadedScenario, ...]

    @property
    def label(self) -> str:
        """Its settings for people."""
        return ", ".join(f"{name}={value}" for name, value in self.settings) or "as written"


def load_cells(loaded: LoadedScenario, *, references: bool = True) -> tuple[Cell, ...]:
    """Return the cells of a scenario's sweep; none where it has none.

    Parameters
    ----------
    loaded : the scenario.
    references : check that the profiles and files that a cell names exist, too.

    Raises
    ------
    ScenarioError : with every error of every cell, at the place of the value that is wrong; an error
        elsewhere names the cell.
    """
    sweep = loaded.scenario.sweep
    if sweep is None:
        return ()
    problems: dict[tuple[Position, str], DocumentError] = {}
    cells: list[Cell] = []
    first_of_hash: dict[str, tuple[SweptSetting, ...]] = {}
    for number, settings in enumerate(sweep.cells(), start=1):
        try:
            cell = _cell(loaded, number, settings, sweep.repeat, references=references)
        except ScenarioError as error:
            for problem in error.problems:
                problems.setdefault((problem.position, problem.message), _named(problem, loaded, settings))
            continue
        cells.append(cell)
        twin = first_of_hash.setdefault(cell.runs[0].hash, settings)
        if twin is not settings:
            again = _same_run(loaded.document, settings, twin)
            problems.setdefault((again.position, again.message), again)
    if problems:
        raise ScenarioError(list(problems.values()))
    return tuple(cells)


def _cell(
    loaded: LoadedScenario, number: int, settings: Sequence[SweptSetting], repeat: int, *, references: bool
) -> Cell:
    document = loaded.document
    try:
        for setting in settings:
            place = ("sweep", *setting.place)
            document = with_setting(document, setting.path, copy.deepcopy(setting.value), place)
    except DocumentError as error:
        raise ScenarioError([error]) from None
    shown = tuple((setting.name, setting.shown) for setting in settings)
    return Cell(number, shown, repeats(loaded, document, repeat, references=references))


def repeats(
    loaded: LoadedScenario, document: Document, repeat: int, *, references: bool = True
) -> tuple[LoadedScenario, ...]:
    """Return the scenarios of a cell, one for each of the seeds seed, seed + 1 and so on.

    Parameters
    ----------
    loaded : the scenario as it was read.
    document : what was written, with the settings of the cell laid over it; its section ``sweep`` is dropped.
    repeat : how many.
    references : check that the profiles and files that it names exist, too.

    Raises
    ------
    ScenarioError : with every error.
    """
    root = {key: value for key, value in document.root.items() if key != "sweep"}
    chain = loaded.chain._replace(document=replace(document, root=root))
    first = checked(chain, loaded.name, [], references=references)
    seeds = range(first.scenario.seed, first.scenario.seed + repeat)
    return tuple(replace(first, scenario=first.scenario.model_copy(update={"seed": seed})) for seed in seeds)


def _named(problem: DocumentError, loaded: LoadedScenario, settings: Sequence[SweptSetting]) -> DocumentError:
    """Return a problem with its cell, unless it already stands at a value of the sweep."""
    document = loaded.document
    of_sweep = (table for table in (document.keys, document.values))
    inside = any(
        problem.position == position
        for table in of_sweep
        for path, position in table.items()
        if len(path) > 1 and path[0] == "sweep"
    )
    if inside:
        return problem
    cell = ", ".join(f"{setting.name}={setting.shown}" for setting in settings)
    message = f"{problem.message} (in the sweep, with {cell})"
    return DocumentError(problem.position, problem.path, message, problem.suggestion)


def _same_run(
    document: Document, settings: Sequence[SweptSetting], twin: Sequence[SweptSetting]
) -> DocumentError:
    places = [("sweep", *one.place) for one, other in zip(settings, twin, strict=False) if one != other]
    place = places[-1] if places else ("sweep",)
    return DocumentError(
        document.position(place), place, "asks for the same run as an earlier cell of the sweep; keep one"
    )
