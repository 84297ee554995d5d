"""How long a round takes, and what holds it up."""

from __future__ import annotations

from typing import Final

import numpy as np

from coordinator.engine.run_files import on_real_clock
from coordinator.results.analysis.critical_path import NOBODY, STEPS
from coordinator.results.report.axes import duration_axis, from_zero, round_axis
from coordinator.results.report.blocks import (
    Bars,
    Block,
    Fold,
    Plot,
    SectionBlock,
    TableBlock,
    TableCell,
    Tile,
    choice,
)
from coordinator.results.report.charts import MAX_POINTS, stacked_bars, stacked_columns
from coordinator.results.report.people import percent, show
from coordinator.results.report.sections.latency import cdf_plot, latency_by
from coordinator.results.report.view import RunView
from edge.core.vocabulary import Outcome, label

QUESTION: Final = "How long does a round take, and what holds it up?"
STEP_PARTS: Final = tuple((name, f"f-{name}") for name in STEPS)
"""The steps of critical paths with the styles of their fills."""
_LONGEST: Final = 10
_SLOWEST: Final = 15


def rounds(view: RunView) -> SectionBlock | None:
    """Return the durations of rounds by what they were spent on, and who held them up."""
    seconds = view.summary["rounds"]["duration_s"]
    if seconds is None:
        return None
    options: dict[str, tuple[Block, ...]] = {"round by round": (_by_round(view),)}
    blamed = _blame(view)
    if blamed is not None:
        options["by class of device"] = (blamed,)
    spread = cdf_plot(
        "Round durations", "round duration", [("rounds", view.rounds.numbers["duration_s"], len(view.rounds))]
    )
    options["as a distribution"] = () if spread is None else (spread,)
    for column, title in (("class", "reports by class"), ("network", "reports by network")):
        plot = latency_by(view, column)
        if plot is not None:
            options[title] = (plot,)
    more = [_longest(view), *(table for table in (_slowest(view),) if table is not None)]
    held_up = _held_up(view)
    median, late = show(seconds["p50"], "s"), show(seconds["p95"], "s")
    intro = f"Half of the rounds took {median} or less, 95 % of them {late} or less. {held_up}".strip()
    answer = Tile("Round", f"{median}", note=f"median; p95 {late}. {held_up}".strip())
    blocks = (
        *choice("rounds-by", "Show", options),
        Fold("The longest rounds, and the slowest devices", tuple(more)),
    )
    return SectionBlock("rounds", QUESTION, blocks, intro, wide=True, answers=(answer,))


def _held_up(view: RunView) -> str:
    """Return what the seconds of all rounds went to, in words."""
    by_step = view.path.blame_s.sum(axis=(0, 1))
    whole_s = float(by_step.sum())
    if not 0 < whole_s < np.inf:
        return ""
    most = int(by_step.argmax())
    said = f"{percent(float(by_step[most]) / whole_s)} of that time goes to the stage {STEPS[most]}"
    by_deadline = float(view.path.blame_s[1].sum()) / whole_s
    return f"{said}, {percent(by_deadline)} to waiting for deadlines." if by_deadline > 0 else f"{said}."


def _by_round(view: RunView) -> Plot:
    """Return the durations of rounds, stacked by stage of the critical path; long runs in bins of rounds."""
    path = view.path
    n = len(path.rounds)
    per_bin = -(-n // MAX_POINTS)
    starts = np.arange(0, n, per_bin)
    counts = np.diff(np.append(starts, n))
    heights = np.add.reduceat(path.round_seconds(), starts, axis=0) / counts[:, None]
    first, last = path.rounds[starts], path.rounds[starts + counts - 1]
    names = [f"round {a}" if a == b else f"rounds {a}–{b}" for a, b in zip(first, last, strict=True)]
    tips = [
        f"{name}: {show(float(row.sum()), 's')}: "
        + ", ".join(f"{step} {show(float(s), 's')}" for step, s in zip(STEPS, row, strict=True) if s > 0)
        for name, row in zip(names, heights, strict=True)
    ]
    scale = from_zero(float(heights.sum(axis=1).max()))
    what = "round" if per_bin == 1 else f"rounds, mean of every {per_bin}"
    whole = path.seconds.sum(axis=0)
    used = np.flatnonzero(whole > 0)
    table = TableBlock(
        f"Seconds on the critical path by stage; {what}",
        ("round", "duration", *(STEPS[step] for step in used)),
        tuple(
            (
                TableCell(name.split(" ", 1)[1]),
                TableCell(show(float(row.sum()), "s"), float(row.sum())),
                *(TableCell(show(float(row[step]), "s"), float(row[step])) for step in used),
            )
            for name, row in zip(names, heights, strict=True)
        ),
    )
    return stacked_columns(
        "Round durations by stage of the critical path",
        f"Stacked columns, one per {what}; most of the time went into {STEPS[int(whole.argmax())]}.",
        heights,
        STEP_PARTS,
        tips,
        scale,
        (round_axis(first), duration_axis(scale, "duration")),
        table,
    )


def _blame(view: RunView) -> Bars | None:
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
                TableCell(percent(total / whole_s), total / whole_s),
                TableCell(percent(deadline / whole_s), deadline / whole_s),
            )
        )
    kind = "Measured" if on_real_clock(view.summary) else "Simulated"
    table = TableBlock(
        f"{kind} seconds on critical paths, by device class and stage; all cells add up to the duration of "
        "all rounds. “By deadlines”: what passed until a deadline, shared by the devices missing then.",
        ("class", *(STEPS[step] for step in steps), "together", "share", "by deadlines"),
        tuple(rows),
    )
    return stacked_bars(
        "What held rounds up: seconds on critical paths",
        "Bars of the seconds by which each class of devices held rounds up, by stage.",
        [(names[at], by_class[at].tolist(), percent(float(by_class[at].sum()) / whole_s)) for at in order],
        STEP_PARTS,
        [[show(value, "s") for value in by_class[at].tolist()] for at in order],
        table,
    )


def _longest(view: RunView) -> TableBlock:
    path = view.path
    rows = view.read("device_rounds", ["class", "network"])
    ended, longest = path.last_segments(), path.longest_segments()

    def who(segment: int) -> str:
        if path.by_deadline[segment]:
            return f"deadline, {path.missing[segment]} missing"
        row = int(path.row[segment])
        kinds = f"{rows.label('class', row)}, {rows.label('network', row)}"
        return f"device {path.device[segment]} ({kinds})"

    found = []
    for at in np.argsort(-path.durations_s, kind="stable")[:_LONGEST].tolist():
        segment = int(longest[at])
        step = int(path.seconds[segment].argmax())
        seconds = float(path.seconds[segment, step])
        found.append(
            (
                TableCell(f"{path.rounds[at]}"),
                TableCell(who(int(ended[at]))),
                TableCell(who(segment)),
                TableCell(STEPS[step]),
                TableCell(show(seconds, "s"), seconds),
                TableCell(show(float(path.durations_s[at]), "s"), float(path.durations_s[at])),
            )
        )
    headers = ("round", "ended by", "held up most by", "in stage", "for", "duration")
    caption = (
        "The longest rounds, who ended them, and who held them up. The critical path of a round is the path "
        "of the device whose answer ended it, or, when a deadline ended it, the stages where the missing "
        "devices were stuck."
    )
    return TableBlock(caption, headers, tuple(found), 4)


def _slowest(view: RunView) -> TableBlock | None:
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
    for device in np.argsort(-mean_s, kind="stable")[: min(_SLOWEST, int((reports > 0).sum()))].tolist():
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
    return TableBlock(
        "The slowest devices, by mean latency of their reports, applied or not. “Ended” counts the rounds, "
        "or stages of secure sums, that ended with this device's answer.",
        ("device", "class", "network", "invited", "completed", "mean latency", "ended", "held up for"),
        tuple(found),
        text_columns=3,
    )
