"""Several runs beside and on top of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from coordinator.engine.run_files import time_name
from coordinator.results.analysis.critical_path import STEPS
from coordinator.results.analysis.learning_curves import Curve, mean_curve
from coordinator.results.report.axes import show
from coordinator.results.report.blocks import Block, SectionBlock, TableBlock, TableCell
from coordinator.results.report.charts import stacked_bars
from coordinator.results.report.sections.durations import STEP_PARTS
from coordinator.results.report.sections.key_figures import figure, figures, shown
from coordinator.results.report.sections.latency import cdf_plot
from coordinator.results.report.sections.learning import Spread, curve_plots, reached_table
from coordinator.results.report.view import RunView


def _groups(views: Sequence[RunView]) -> dict[str, str]:
    return {view.name: view.group for view in views}


def _verdicts(views: Sequence[RunView]) -> SectionBlock | None:
    by_run = [{row["threshold"]: row for row in view.verdicts} for view in views]
    names = list(dict.fromkeys(name for rows in by_run for name in rows))
    if not names:
        return None

    def cell(row: Mapping[str, Any] | None, name: str, run: str) -> TableCell:
        if row is None:
            return TableCell("–")
        held = bool(row["held"])
        text = f"{'✓' if held else '✗'} {row['shown']['value']} ({row['shown']['margin']})"
        return TableCell(
            text, figure(row["value"]), f"{run}:threshold[{name}].value", mood="good" if held else "bad"
        )

    rows = tuple(
        (
            TableCell(name),
            *(cell(rows.get(name), name, view.name) for rows, view in zip(by_run, views, strict=True)),
        )
        for name in names
    )
    missed = sum(not row["held"] for rows in by_run for row in rows.values())
    title = f"{missed} verdicts missed" if missed else "All thresholds held"
    caption = "Value and margin of every threshold; the margin is positive on the side that holds."
    headers = ("threshold", *(view.name for view in views))
    return SectionBlock("verdicts", title, (TableBlock(caption, headers, rows),), wide=True)


def _figures(views: Sequence[RunView]) -> SectionBlock:
    called = time_name(view.summary for view in views)
    by_run = [
        {path: (name, value, unit) for name, path, value, unit in figures(view.summary, called)}
        for view in views
    ]
    paths = list(dict.fromkeys(path for found in by_run for path in found))
    rows = []
    for path in paths:
        name = next(found[path][0] for found in by_run if path in found)
        cells = [
            TableCell(shown(found[path][1], found[path][2]), found[path][1], f"{view.name}:{path}")
            if path in found
            else TableCell("–")
            for found, view in zip(by_run, views, strict=True)
        ]
        rows.append((TableCell(name), *cells))
    table = TableBlock("Key figures of the runs", ("figure", *(view.name for view in views)), tuple(rows))
    return SectionBlock("figures", "Comparison", (table,), wide=True)


def _learning(views: Sequence[RunView]) -> SectionBlock | None:
    by_metric: dict[str, list[tuple[RunView, Curve]]] = {}
    for view in views:
        for curve in view.curves:
            by_metric.setdefault(curve.name, []).append((view, curve))
    blocks: list[Block] = []
    called = time_name(view.summary for view in views)
    averaged = False
    for metric, found in by_metric.items():
        curves, spreads = _over_seeds(found)
        averaged = averaged or bool(spreads)
        blocks += curve_plots(metric, curves, called, _groups(views), spreads)
        table = reached_table(curves, called)
        if table is not None:
            blocks.append(
                TableBlock(f"{metric}. {table.caption}", ("run", *table.headers[1:]), table.rows, wide=True)
            )
    intro = "Repeats are drawn as their mean, round by round; the band is from their lowest to their highest."
    return SectionBlock("learning", "Learning", tuple(blocks), intro if averaged else "") if blocks else None


def _over_seeds(found: Sequence[tuple[RunView, Curve]]) -> tuple[list[tuple[str, Curve]], dict[str, Spread]]:
    """Return curves by name, those of repeats as their mean with its spread.

    Repeats that have no round in common stay what they are.
    """
    groups: dict[str, list[tuple[RunView, Curve]]] = {}
    for view, curve in found:
        groups.setdefault(view.group, []).append((view, curve))
    curves: list[tuple[str, Curve]] = []
    spreads: dict[str, Spread] = {}
    for group, repeats in groups.items():
        mean = mean_curve([curve for _, curve in repeats]) if len(repeats) > 1 else None
        if mean is None:
            curves += [(view.name, curve) for view, curve in repeats]
        else:
            curves.append((group, mean.curve))
            spreads[group] = (mean.low, mean.high)
    return curves, spreads


def _durations(views: Sequence[RunView]) -> SectionBlock | None:
    known = [view for view in views if len(view.rounds)]
    if not known:
        return None
    series = [(view.name, view.rounds.numbers["duration_s"], len(view.rounds)) for view in known]
    plot = cdf_plot("Round durations", "round duration", series, _groups(views))
    seconds = [view.path.seconds.sum(axis=0) / len(view.rounds) for view in known]
    used = np.flatnonzero(np.sum(seconds, axis=0) > 0)
    bars = stacked_bars(
        "Mean round, by stage of the critical path",
        "Bars of the mean duration of a round, by stage of the critical path.",
        [
            (view.name, row.tolist(), show(float(row.sum()), "s"))
            for view, row in zip(known, seconds, strict=True)
        ],
        STEP_PARTS,
        [[show(value, "s") for value in row.tolist()] for row in seconds],
        TableBlock(
            "Mean seconds per round on the critical path, by stage",
            ("run", *(STEPS[step] for step in used)),
            tuple(
                (
                    TableCell(view.name),
                    *(TableCell(show(float(row[step]), "s"), float(row[step])) for step in used),
                )
                for view, row in zip(known, seconds, strict=True)
            ),
        ),
    )
    return SectionBlock("durations", "Rounds", (*((plot,) if plot else ()), bars))


def _latency(views: Sequence[RunView]) -> SectionBlock | None:
    series = []
    for view in views:
        values = view.read("device_rounds", ["latency_s"]).numbers["latency_s"]
        if len(values):
            series.append((view.name, values[~np.isnan(values)], len(values)))
    plot = cdf_plot("Report latency", "report latency", series, _groups(views))
    return None if plot is None else SectionBlock("latency", "Report latency", (plot,), wide=True)


COMPARISONS: Final[tuple[Callable[[Sequence[RunView]], SectionBlock | None], ...]] = (
    _verdicts,
    _figures,
    _learning,
    _durations,
    _latency,
)
"""The sections of the report of several runs, in their order."""
