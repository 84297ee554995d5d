"""How long rounds took, and on what."""

from __future__ import annotations

import numpy as np

from coordinator.results.analysis.critical_path import STEPS
from coordinator.results.report.axes import duration_axis, from_zero, round_axis, show
from coordinator.results.report.blocks import SectionBlock, TableBlock, TableCell
from coordinator.results.report.charts import MAX_POINTS, stacked_columns
from coordinator.results.report.view import RunView

STEP_PARTS = tuple((name, f"f-{name}") for name in STEPS)
"""The steps of critical paths with the styles of their fills."""

_LONGEST = 10


def durations(view: RunView) -> SectionBlock | None:
    """Return the durations of rounds, stacked by stage of the critical path; long runs in bins of rounds."""
    path = view.path
    n = len(path.rounds)
    if n == 0:
        return None
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
    most = STEPS[int(whole.argmax())]
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
    plot = stacked_columns(
        "Round durations by stage of the critical path",
        f"Stacked columns, one per {what}; most of the time went into {most}.",
        heights,
        STEP_PARTS,
        tips,
        scale,
        (round_axis(first), duration_axis(scale, "duration")),
        table,
    )
    intro = (
        "The critical path of a round is the path of the device whose answer ended it, or, when a deadline "
        "ended it, the stages where the missing devices were stuck."
    )
    return SectionBlock("durations", "Rounds", (plot, _longest(view)), intro, wide=True)


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
    return TableBlock("The longest rounds, who ended them, and who held them up", headers, tuple(found), 4)
