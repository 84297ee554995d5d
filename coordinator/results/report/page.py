"""The report of one run or of several: what it holds, in which order, and in which form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from coordinator.engine.run_files import REPORT, on_real_clock, write_atomically
from coordinator.results.report import html
from coordinator.results.report.blocks import Contents, Fold, SectionBlock, TableBlock, TableCell
from coordinator.results.report.sections import ELSE, QUESTIONS
from coordinator.results.report.view import RunView, chosen_runs, chosen_sweeps, view_of
from coordinator.results.tables.reader import open_run

if TYPE_CHECKING:
    from coordinator.results.report.sweep_table import SweepTable

FORMS: Final = ("html", "md", "svg")
"""The forms of a report, called as their files end."""
_NAMED: Final = 3
"""Runs that a notice names, at most."""
_IN_HEAD: Final = ("scenario", "seed", "clients", "clock")
"""The facts about a run that its head shows."""

_ENDED: Final = {
    "killed": "This run was killed. The report covers the {} rounds that it had finished.",
    "running": "This run is still going on. The report covers the {} rounds that it has finished.",
    "interrupted": "This run was interrupted. The report covers the {} rounds that it had finished.",
    "failed": "This run failed. The report covers the {} rounds that it had finished.",
    "unknown": "This directory has no manifest, so how the run ended is unknown. It has {} finished rounds.",
}


def _facts(view: RunView) -> Iterator[tuple[str, str]]:
    manifest = view.manifest
    yield "run", view.name
    for key in ("scenario", "seed", "digest"):
        if manifest.get(key) is not None:
            yield key, str(manifest[key])
    if on_real_clock(view.summary):
        yield "clock", "real: every time is measured"
    data = manifest.get("data") or {}
    if data.get("clients") is not None:
        yield "clients", f"{data['clients']:,}"
    version = (manifest.get("host") or {}).get("recfleet")
    if version is not None:
        yield "recfleet", str(version)


def _banners(view: RunView) -> list[str]:
    """Return what has to be known before any figure: how the run ended, and what its summary notes."""
    ending = _ending(view)
    return [*([] if ending is None else [ending]), *view.summary["notices"]]


def _advice(view: RunView) -> tuple[str, ...]:
    return tuple(str(one["text"]) for one in view.summary["advice"])


def _all_advice(views: Sequence[RunView]) -> Fold | None:
    """Return the advice on each of several runs; None where there is none."""
    rows = tuple((TableCell(view.name), TableCell(said)) for view in views for said in _advice(view))
    table = TableBlock("Advice on single runs", ("run", "advice"), rows, 2)
    return Fold(table.caption, (table,)) if rows else None


def _said_of_all(views: Sequence[RunView]) -> tuple[str, ...]:
    """Return what has to be known of several runs: once where it is said of several."""
    found: dict[str, list[str]] = {}
    for view in views:
        for said in _banners(view):
            found.setdefault(said, []).append(view.name)
    said_of_all = []
    for said, names in found.items():
        named = ", ".join(names[:_NAMED])
        if len(names) > _NAMED:
            named = f"{named} and {len(names) - _NAMED} more"
        said_of_all.append(said if len(names) == len(views) else f"{named}: {said}")
    return tuple(said_of_all)


def _ending(view: RunView) -> str | None:
    status = view.summary["status"]
    rounds = view.summary["rounds"]["finished"]
    said = _ENDED.get(status)
    if said is not None:
        return said.format(rounds)
    found = []
    ending, stopped = view.manifest.get("ending"), view.manifest.get("stopped_by")
    if ending:
        expected = ", as the scenario expects" if view.scenario.get("expect") == status else ""
        found.append(f"Nothing was learnt ({status}){expected}: {ending}.")
    if stopped:
        found.append(f"It ended early: {stopped}.")
    if view.summary.get("unscored"):
        found.append(f"The model was not evaluated: {view.summary['unscored']}.")
    return " ".join(found) or None


def _about(views: Sequence[RunView]) -> Fold:
    """Return which runs these are: one a row where there are several."""
    facts = [dict(_facts(view)) for view in views]
    names = list(dict.fromkeys(name for found in facts for name in found))
    if len(views) == 1:
        about = tuple((TableCell(name), TableCell(facts[0][name])) for name in names)
        return Fold("About this run", (TableBlock("About this run", ("fact", "value"), about, 2),))
    rows = tuple(tuple(TableCell(found.get(name, "–")) for name in names) for found in facts)
    return Fold("About these runs", (TableBlock("The runs", tuple(names), rows, len(names)),))


def _rest(folds: Iterable[Fold | None]) -> SectionBlock:
    return SectionBlock("else", "Everything else", tuple(one for one in folds if one is not None), wide=True)


@np.errstate(over="ignore", invalid="ignore")  # figures may be huge, and what they add up to infinite
def contents_of_run(view: RunView) -> Contents:
    """Return the report of one run; sections with nothing to say are left out."""
    sections = [section for make in QUESTIONS if (section := make(view)) is not None]
    rest = _rest((*(make(view) for make in ELSE), _about([view])))
    lead = str(view.scenario.get("description") or "").strip()
    facts = tuple((name, value) for name, value in _facts(view) if name in _IN_HEAD)
    return Contents(view.title, lead, facts, tuple(_banners(view)), _advice(view), (*sections, rest))


@np.errstate(over="ignore", invalid="ignore")
def contents_of_runs(views: Sequence[RunView], sweeps: Sequence[SweepTable] = ()) -> Contents:
    """Return the report of several runs, on top of each other; of sweeps first what they show."""
    # Not above: runs, each of which writes a report of itself, start without it.
    from coordinator.results.report.sections.comparison import COMPARISONS, key_figures  # noqa: PLC0415
    from coordinator.results.report.sections.swept import swept  # noqa: PLC0415

    found = [section for make in COMPARISONS if (section := make(views)) is not None]
    first = [section for sweep in sweeps for section in swept(sweep)]
    folds: list[Fold] = []
    if first:
        # What single runs did is looked up: the sweep is the answer.
        folds = [Fold(one.title, one.blocks) for one in found]
        found = first
    rest = _rest((*folds, _all_advice(views), key_figures(views), _about(views)))
    title = _common(str(view.manifest.get("title") or "") for view in views)
    lead = _common(str(view.scenario.get("description") or "").strip() for view in views)
    counted = f"{len(views)} runs compared"
    headed = f"{title}: {counted}" if title else counted
    return Contents(headed, lead, notices=_said_of_all(views), sections=(*found, rest))


def _common(texts: Iterable[str]) -> str:
    """Return the text that all have; empty where they differ."""
    known = set(texts)
    return known.pop() if len(known) == 1 else ""


def report_of(paths: Sequence[Path], form: str = "html") -> str:
    """Return the report of one or more runs; a directory that holds runs stands for all of them.

    Parameters
    ----------
    paths : of runs, or of directories that hold some.
    form : one of :data:`FORMS`.

    Raises
    ------
    RunFormatError : a directory that holds no run, or one of another version.
    """
    views = [view_of(open_run(chosen.directory), chosen.name, chosen.group) for chosen in chosen_runs(paths)]
    found = contents_of_run(views[0]) if len(views) == 1 else contents_of_runs(views, chosen_sweeps(paths))
    return _writer(form)(found)


def _writer(form: str) -> Callable[[Contents], str]:
    # Not above: most runs write HTML.
    if form == "md":
        from coordinator.results.report import markdown  # noqa: PLC0415

        return markdown.page
    if form == "svg":
        from coordinator.results.report import svg  # noqa: PLC0415

        return svg.page
    return html.page


def write_report(view: RunView) -> None:
    """Write ``report.html`` into the directory of a run."""
    write_atomically(view.run.directory / REPORT, html.page(contents_of_run(view)).encode())
