"""What held rounds up: device classes by stage, and the devices that took longest."""

from __future__ import annotations

import numpy as np

from coordinator.engine.run_files import on_real_clock
from coordinator.results.analysis.critical_path import NOBODY, STEPS
from coordinator.results.report.axes import show
from coordinator.results.report.blocks import SectionBlock, TableBlock, TableCell
from coordinator.results.report.view import RunView
from edge.core.vocabulary import Outcome, label

_SHOWN = 15


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


def slowest(view: RunView) -> SectionBlock | None:
    """Return the devices with the largest mean latency of their reports, and how often each ended a round."""
    rows = view.read("device_rounds", ["device", "class", "network", "outcome", "latency_s"])
    latency_s = rows.numbers["latency_s"]
    known = ~np.isnan(latency_s)
    if not known.any():
        return None
    devices, first, of_row = np.unique(rows.numbers["device"], return_index=True, return_inverse=True)
    n = len(devices)
    reports = np.bincount(of_row[known], minlength=n)
    sums_s = np.bincount(of_row[known], latency_s[known], minlength=n)
    mean_s = np.divide(sums_s, reports, out=np.full(n, -np.inf), where=reports > 0)
    invited = np.bincount(of_row, minlength=n)
    completed = np.bincount(of_row[rows.equal("outcome", label(Outcome.COMPLETED))], minlength=n)
    path = view.path
    arrived = ~path.by_deadline
    at = np.searchsorted(devices, path.device[arrived])
    ended = np.bincount(at, minlength=n)
    held_s = np.bincount(at, path.seconds[arrived].sum(axis=1), minlength=n)
    found = []
    for device in np.argsort(-mean_s, kind="stable")[: min(_SHOWN, int((reports > 0).sum()))].tolist():
        row = int(first[device])
        found.append(
            (
                TableCell(f"{devices[device]}"),
                TableCell(str(rows.label("class", row))),
                TableCell(str(rows.label("network", row))),
                TableCell(f"{invited[device]}", int(invited[device])),
                TableCell(f"{completed[device]}", int(completed[device])),
                TableCell(show(float(mean_s[device]), "s"), float(mean_s[device])),
                TableCell(f"{ended[device]}", int(ended[device])),
                TableCell(show(float(held_s[device]), "s"), float(held_s[device])),
            )
        )
    table = TableBlock(
        "By mean latency of their reports, applied or not. “Ended” counts the rounds, or stages of secure "
        "sums, that ended with this device's answer.",
        ("device", "class", "network", "invited", "completed", "mean latency", "ended", "held up for"),
        tuple(found),
        text_columns=3,
    )
    return SectionBlock("slowest", "Slowest devices", (table,), wide=True)
