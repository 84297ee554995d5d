"""Comparing runs: grouped by what they ran, their figures with intervals, and differences to the first group.

Runs of one scenario with the same settings are repeats: they form a group, whatever their seeds. Two runs of
the same scenario, settings and seed (of two versions, say) fall into two groups, in the order given.

Methods are compared at equal accuracy, too: simulated time, bytes, energy and ε until a common value. That is
the least good of what the runs came to (at their best on validation ratings, at their last on test ratings),
so that all of them have reached it; whoever is better sooner takes less, and who was there at its first
evaluation took nothing. Where all were, there is no race.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.engine.run_files import ENDED, MANIFEST, RESOLVED_SCENARIO, SWEEP_TABLE
from coordinator.results.analysis.learning_curves import TRAINING_LOSS, Curve, learning_curves
from coordinator.results.figures import Figure, run_figures
from coordinator.results.intervals import Difference, Estimate, difference, estimate
from coordinator.results.run_directory import run_status
from coordinator.results.sweep import read_cells
from coordinator.results.tables.reader import RunFormatError, open_run, read_manifest
from coordinator.results.verdicts import read_verdicts
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.formats import FORMAT, written_format
from coordinator.scenario.load import load
from coordinator.scenario.metric_names import MetricKind, higher_is_better, is_accuracy
from device_profiles.documents import Node, parse_document, read_document
from device_profiles.errors import DocumentError, format_path
from edge.core.errors import RecfleetError
from edge.core.plugins import editions

_NOT_SETTINGS = ("seed", "title", "description", "compute", "sweep", "thresholds", "baseline", "expect")
"""Keys of a scenario that do not make a run another method."""


def costs_to_equal_accuracy(runs: Sequence[Sequence[Curve]]) -> tuple[list[dict[str, Figure]], list[str]]:
    """Return figures of each run by name, such as ``bytes to rmse ≤ 0.931``, and metrics without any.

    Only metrics that every run has are compared; training losses, which methods define as they like, are not.

    Parameters
    ----------
    runs : the curves of each run, one or more.
    """
    found: list[dict[str, Figure]] = [{} for _ in runs]
    without: list[str] = []
    by_run: list[Mapping[str, Curve]] = [
        {curve.name: curve for curve in curves if curve.metric != TRAINING_LOSS and is_accuracy(curve.metric)}
        for curves in runs
    ]
    for name in by_run[0]:
        curves = [known[name] for known in by_run if name in known]
        if len(curves) < len(runs) or max(len(curve.value) for curve in curves) == 1:
            continue
        several = sum(curve.metric == curves[0].metric for curve in by_run[0].values()) > 1
        called = name if several else curves[0].metric
        costs = list(_costs(called, curves))
        if not costs:
            without.append(called)
            continue
        for figures, more in zip(found, costs, strict=True):
            figures.update(more)
    return found, without


def _costs(name: str, curves: Sequence[Curve]) -> Iterator[dict[str, Figure]]:
    """Yield what each run had spent when it reached what all reached; nothing where there is no race."""
    higher = higher_is_better(curves[0].metric)
    came_to = [float(curve.value[curve.chosen]) for curve in curves]
    goal = min(came_to) if higher else max(came_to)
    reached = [int(np.argmax(curve.value >= goal if higher else curve.value <= goal)) for curve in curves]
    if not any(reached):
        return
    what = f"{name} {'≥' if higher else '≤'} {goal:.4g}"
    for curve, at in zip(curves, reached, strict=True):
        costs = {
            f"simulated time to {what}": Figure(float(curve.time_s[at]), MetricKind.DURATION.value),
            f"bytes to {what}": Figure(float(curve.bytes[at]), MetricKind.BYTES.value),
        }
        if not np.isnan(curve.energy_j[at]):
            costs[f"energy to {what}"] = Figure(float(curve.energy_j[at]), MetricKind.ENERGY.value)
        if not np.isnan(curve.epsilon[at]):
            costs[f"epsilon zero-out to {what}"] = Figure(float(curve.epsilon[at]), MetricKind.NUMBER.value)
        yield costs


class ComparisonError(RecfleetError):
    """Runs that cannot be compared; the message says why."""


@dataclass(frozen=True)
class ComparedRun:
    """A finished run.

    Attributes
    ----------
    directory : where it lies.
    scenario : its name.
    seed : of the run.
    settings : path and value of everything that its scenario asks for, the seed aside.
    figures : by name.
    curves : what its model was worth as it went on.
    verdicts : records of the verdicts on its thresholds.
    status : ``finished``, or how it learnt nothing.
    leaky : whether what is held out shaped its model: its sampler never draws that as a negative.
    """

    directory: Path
    scenario: str
    seed: int
    settings: Mapping[str, str]
    figures: Mapping[str, Figure]
    curves: Sequence[Curve]
    verdicts: tuple[dict[str, Any], ...]
    status: str
    leaky: bool = False


@dataclass
class Group:
    """Repeats of one method: runs by seed, and a letter by which tables call it.

    ``differing`` holds the settings in which it is unlike another group, by path; None where it has none.
    """

    letter: str
    runs: dict[int, ComparedRun] = field(default_factory=dict)
    differing: dict[str, str | None] = field(default_factory=dict)

    @property
    def scenario(self) -> str:
        """The name of its scenario."""
        return next(iter(self.runs.values())).scenario

    @property
    def settings(self) -> Mapping[str, str]:
        """What its scenario asks for."""
        return next(iter(self.runs.values())).settings

    def values(self, name: str) -> dict[int, float]:
        """Return a figure of every run that has it, by seed."""
        return {
            seed: run.figures[name].value for seed, run in sorted(self.runs.items()) if name in run.figures
        }


@dataclass(frozen=True)
class Row:
    """A figure in every group: its estimates, and the differences to the first; None where it is unknown."""

    name: str
    unit: str
    estimates: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Comparison:
    """The groups, a row per figure that the first and another have, and what the reader should know."""

    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def runs_below(directory: Path, notes: list[str]) -> Iterator[Path]:
    """Yield the finished runs that a directory is or holds; what is left out goes to ``notes``.

    Those of a sweep come in the order of its cells, others by name.

    Raises
    ------
    ComparisonError : it is no run and holds none.
    """
    if not directory.is_dir():
        raise ComparisonError(f"{directory}: no such directory; give one that recfleet has written")
    if (directory / MANIFEST).is_file():
        status = _status(directory)
        if status not in ENDED:
            raise ComparisonError(f"{directory}: the run is {status}; only finished runs can be compared")
        yield directory
        return
    # What a killed process was about to move or to delete has a name that begins with a dot.
    inside = sorted(entry for entry in directory.glob("[!.]*") if (entry / MANIFEST).is_file())
    finished = [entry for entry in inside if _status(entry) in ENDED]
    if not finished:
        raise ComparisonError(f"{directory}: is no finished run and holds none")
    _note_left_out(directory, "not finished", (entry for entry in inside if entry not in finished), notes)
    of_sweep = _runs_of_sweep(directory)
    if of_sweep is not None:
        others = (entry for entry in finished if entry.name not in of_sweep)
        _note_left_out(directory, f"not in {SWEEP_TABLE}", others, notes)
        finished = [directory / name for name in of_sweep if directory / name in finished]
    yield from finished


def _note_left_out(directory: Path, why: str, entries: Iterable[Path], notes: list[str]) -> None:
    names = [entry.name for entry in entries]
    if names:
        shown = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
        notes.append(f"{directory}: {len(names)} left out, {why}: {shown}")


def _runs_of_sweep(directory: Path) -> list[str] | None:
    """Return the names of the runs in a sweep's table, in the order of its cells; None without a table."""
    cells = read_cells(directory)
    if cells is None:
        return None
    return [run["directory"] for cell in cells for run in cell["runs"] if run["directory"] is not None]


def _status(directory: Path) -> str:
    return run_status(directory, read_manifest(directory))


def read_run(directory: Path) -> ComparedRun:
    """Return what is compared of a finished run."""
    manifest = read_manifest(directory)
    try:
        document = read_document(directory / RESOLVED_SCENARIO)
        if written_format(document) != FORMAT:
            # As it would be written today: what changes nothing must not tell runs apart.
            document = parse_document(load(directory / RESOLVED_SCENARIO, references=False).resolved, "")
    except (DocumentError, ScenarioError) as error:
        raise RunFormatError(str(error)) from None
    verdicts = tuple(read_verdicts(directory))
    settings = {key: node for key, node in document.root.items() if key not in _NOT_SETTINGS}
    run = open_run(directory)
    return ComparedRun(
        directory,
        str(manifest.get("scenario", directory.name)),
        int(manifest.get("seed", 0)),
        dict(_flat(settings, ())) | editions(manifest, directory),
        run_figures(run, verdicts),
        learning_curves(run),
        verdicts,
        str(manifest["status"]),
        bool((manifest.get("negatives") or {}).get("leaky_protocol")),
    )


def _flat(node: Node, path: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
    """Yield every value of a document with its path."""
    if isinstance(node, dict):
        for key, inner in node.items():
            yield from _flat(inner, (*path, key))
    elif isinstance(node, list):
        for index, inner in enumerate(node):
            yield from _flat(inner, (*path, index))
    else:
        yield format_path(path), "null" if node is None else node


@np.errstate(over="ignore", invalid="ignore")  # figures may be huge, and what they add up to infinite
def compare_runs(directories: Sequence[Path]) -> Comparison:
    """Compare runs, and the runs in directories of repeats or sweeps.

    Raises
    ------
    ComparisonError : fewer than two groups, or the same directory twice.
    """
    notes: list[str] = []
    paths = [path for directory in directories for path in runs_below(directory, notes)]
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise ComparisonError(f"{path}: is given twice; a run does not differ from itself")
        seen.add(path.resolve())
    runs = [read_run(path) for path in paths]
    costs, without = costs_to_equal_accuracy([run.curves for run in runs])
    if without:
        notes.append(
            f"no costs to an equal {', '.join(without)}: all runs were there at their first evaluation"
        )
    groups = _grouped(
        [replace(run, figures={**run.figures, **more}) for run, more in zip(runs, costs, strict=True)]
    )
    if len(groups) < 2:
        given = ", ".join(map(str, directories))
        what = "one run" if len(paths) == 1 else f"{len(paths)} runs of one scenario with the same settings"
        raise ComparisonError(f"{given}: {what}; give runs that differ in something else than the seed")
    _note_differing(groups)
    leaky = [group.letter for group in groups if any(run.leaky for run in group.runs.values())]
    if leaky:
        notes.append(
            f"leaky protocol: held-out items are never drawn as negatives in {', '.join(leaky)}"
            " (data.held_out_negatives: spared), which tells a model what will be asked; rankings of such"
            " runs are no comparison with others"
        )
    rows, left_out = [], []
    for name in dict.fromkeys(
        name for group in groups for run in group.runs.values() for name in run.figures
    ):
        row = _row(name, groups)
        if row is None:
            left_out.append(name)
        else:
            rows.append(row)
    if left_out:
        notes.append(f"not in {groups[0].letter} and another: {', '.join(left_out)}")
    return Comparison(tuple(groups), tuple(rows), tuple(notes))


def _grouped(runs: Sequence[ComparedRun]) -> list[Group]:
    """Return the groups in the order of their first runs."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...], int], Group] = {}
    times: dict[tuple[str, tuple[tuple[str, str], ...], int], int] = {}
    for run in runs:
        method = (run.scenario, tuple(run.settings.items()))
        again = times[(*method, run.seed)] = times.get((*method, run.seed), -1) + 1
        group = groups.setdefault((*method, again), Group(_letter(len(groups))))
        group.runs[run.seed] = run
    return list(groups.values())


def _letter(number: int) -> str:
    """Return A to Z, then AA, AB and so on."""
    letters = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters


def _note_differing(groups: Sequence[Group]) -> None:
    names = dict.fromkeys(name for group in groups for name in group.settings)
    for name in names:
        values = [group.settings.get(name) for group in groups]
        if len(set(values)) > 1:
            for group, value in zip(groups, values, strict=True):
                group.differing[name] = value


def _row(name: str, groups: Sequence[Group]) -> Row | None:
    values = [group.values(name) for group in groups]
    first, *others = values
    if not first or not any(others):
        return None
    unit = next(run.figures[name].unit for run in groups[0].runs.values() if name in run.figures)
    return Row(
        name,
        unit,
        tuple(estimate(list(each.values())) if each else None for each in values),
        (None, *(difference(first, each) if each else None for each in others)),
    )
