"""Reports as HTML: one file without references to anything outside of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from coordinator.engine.run_files import REPORT, on_real_clock, write_atomically
from coordinator.results.report.html import page
from coordinator.results.report.sections import SECTIONS
from coordinator.results.report.view import RunView, chosen_runs, chosen_sweeps, view_of
from coordinator.results.tables.reader import open_run

if TYPE_CHECKING:
    from coordinator.results.report.sweep_table import SweepTable

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
    """Return what comes before any figure: how the run ended, advice, and what its summary notes."""
    ending = _ending(view)
    advice = [f"Advice: {one['text']}" for one in view.summary["advice"]]
    return [*([] if ending is None else [ending]), *advice, *view.summary["notices"]]


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


@np.errstate(over="ignore", invalid="ignore")  # figures may be huge, and what they add up to infinite
def report_of_run(view: RunView) -> str:
    """Return the report of one run as HTML; sections with nothing to say are left out."""
    sections = [section for make in SECTIONS if (section := make(view)) is not None]
    lead = str(view.scenario.get("description") or "").strip()
    return page(view.title, lead, _banners(view), list(_facts(view)), sections)


@np.errstate(over="ignore", invalid="ignore")
def report_of_runs(views: Sequence[RunView], sweeps: Sequence[SweepTable] = ()) -> str:
    """Return the report of several runs, on top of each other, as HTML; of sweeps first what they show."""
    # Not above: runs, each of which writes a report of itself, start without it.
    from coordinator.results.report.sections.comparison import COMPARISONS  # noqa: PLC0415
    from coordinator.results.report.sections.swept import swept  # noqa: PLC0415

    made = [*(swept(sweep) for sweep in sweeps), *(make(views) for make in COMPARISONS)]
    sections = [section for section in made if section is not None]
    endings = [f"{view.name}: {said}" for view in views for said in _banners(view)]
    facts = [
        (view.name, ", ".join(f"{key} {value}" for key, value in _facts(view) if key != "run"))
        for view in views
    ]
    counted = f"{len(views)} runs compared"
    title = _common(str(view.manifest.get("title") or "") for view in views)
    lead = _common(str(view.scenario.get("description") or "").strip() for view in views)
    return page(f"{title}: {counted}" if title else counted, lead, endings, facts, sections)


def _common(texts: Iterable[str]) -> str:
    """Return the text that all have; empty where they differ."""
    known = set(texts)
    return known.pop() if len(known) == 1 else ""


def report_of(paths: Sequence[Path]) -> str:
    """Return the report of one or more runs as HTML; a directory that holds runs stands for all of them.

    Raises
    ------
    RunFormatError : a directory that holds no run, or one of another version.
    """
    views = [view_of(open_run(chosen.directory), chosen.name, chosen.group) for chosen in chosen_runs(paths)]
    return report_of_run(views[0]) if len(views) == 1 else report_of_runs(views, chosen_sweeps(paths))


def write_report(view: RunView) -> None:
    """Write ``report.html`` into the directory of a run."""
    write_atomically(view.run.directory / REPORT, report_of_run(view).encode())
