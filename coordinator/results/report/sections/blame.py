"""What held rounds up: device class by stage."""

from __future__ import annotations

import numpy as np

from coordinator.results.analysis.critical_path import NOBODY, STEPS
from coordinator.results.report.axes import show
from coordinator.results.report.blocks import SectionBlock, TableBlock, TableCell
from coordinator.results.report.view import RunView
from coordinator.scenario.clock_words import on_real_clock


def blame(view: RunView) -> SectionBlock | None:
    """Return the seconds by which each class of devices held rounds up, by stage, and by what ended them."""
    path = view.path
    whole_s = float(path.blame_s.sum())
    if whole_s == 0:
        return None
    by_class = path.blame_s.sum(axis=0)
    steps = np.flatnonzero(by_class.sum(axis=0) > 0)
    order = [at for at in np.argsort(-by_class.sum(axis=1), kind="stable").tolist() if by_class[at].sum() > 0]
    names = (*path.classes, NOBODY)
    peak = float(by_class.max())
    rows = []
    for at in order:
        cells = []
        for step in steps.tolist():
            seconds = float(by_class[at, step])
            name = f"held_up[{names[at]},{STEPS[step]}]"
            strength = seconds / peak
            cells.append(TableCell(show(seconds, "s") if seconds else "", seconds, name, strength=strength))
        total = float(by_class[at].sum())
        deadline = float(path.blame_s[1, at].sum())
        rows.append(
            (
                TableCell(names[at]),
                *cells,
                TableCell(show(total, "s"), total),
                TableCell(f"{total / whole_s:.1%}", total / whole_s),
                TableCell(f"{deadline / whole_s:.1%}", deadline / whole_s),
            )
        )
    kind = "Measured" if on_real_clock(view.summary) else "Simulated"
    table = TableBlock(
        f"{kind} seconds on critical paths, by device class and stage; all cells add up to the duration of "
        "all rounds. “By deadlines”: what passed until a deadline, shared by the devices missing then.",
        ("class", *(STEPS[step] for step in steps), "together", "share", "by deadlines"),
        tuple(rows),
    )
    return SectionBlock("held-up", "What held rounds up", (table,), wide=True)
