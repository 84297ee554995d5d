"""Several runs beside and on top of each other: the questions about one run, asked of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from coordinator.engine.run_files import time_name
from coordinator.results.analysis.critical_path import STEPS
from coordinator.results.analysis.learning_curves import TRAINING_LOSS, Curve, mean_curve
from coordinator.results.report.blocks import (
    Block,
    Fold,
    SectionBlock,
    TableBlock,
    TableCell,
    Tile,
    choice,
)
from coordinator.results.report.charts import stacked_bars
from coordinator.results.report.people import figure, percent, show, shown, verdict_texts
from coordinator.results.report.sections.drops import QUESTION as WHO_DROPS
from coordinator.results.report.sections.drops import outcome_bars
from coordinator.results.report.sections.key_figures import figures
from coordinator.results.report.sections.latency import cdf_plot
from coordinator.results.report.sections.learning import QUESTION as WHAT_WORTH
from coordinator.results.report.sections.learning import Spread, curves_choice, reached_table
from coordinator.results.report.sections.promises import QUESTION as WHAT_HELD
from coordinator.results.report.sections.rounds import QUESTION as HOW_LONG
from coordinator.results.report.sections.rounds import STEP_PARTS
from coordinator.results.report.sections.traffic import QUESTION as WHICH_BYTES
from coordinator.results.report.view import RunView
from edge.core.vocabulary import Outcome, label


def _groups(views: Sequence[RunView]) -> dict[str, str]:
    return {view.name: view.group for view in views}


def _promises(views: Sequence[RunView]) -> SectionBlock | None:
    by_run = [{row["threshold"]: row for row in view.verdicts} for view in views]
    names = list(dict.fromkeys(name for rows in by_run for name in rows))
    if not names:
        return None

    def cell(row: Mapping[str, Any] | None, name: str, run: str) -> TableCell:
        if row is None:
            return TableCell("–")
        held = bool(row["held"])
        value, _, margin = verdict_texts(row)
        mood = "good" if held else "bad"
        text = f"{'✓' if held else '✗'} {value} ({margin})"
        return TableCell(text, figure(row["value"]), f"{run}:threshold[{name}].value", mood=mood)

    cells = [
        [cell(found.get(name), name, view.name) for name in names]
        for found, view in zip(by_run, views, strict=True)
    ]
    missed = sum(not row["held"] for found in by_run for row in found.values())
    whole = sum(map(len, by_run))
    intro = f"{missed} of {whole} verdicts missed." if missed else f"All {whole} verdicts held."
    table = _crossed("Value and margin of every threshold", "threshold", names, views, cells)
    text = f"{missed} of {whole} missed" if missed else f"all {whole} held"
    tile = Tile("Promises", text, mood="bad" if missed else "good")
    return SectionBlock("promises", WHAT_HELD, (table,), intro, wide=True, answers=(tile,))


def _crossed(
    caption: str,
    what: str,
    names: Sequence[str],
    views: Sequence[RunView],
    cells: Sequence[Sequence[TableCell]],
) -> TableBlock:
    """Return a table of cells by run and name: the fewer of the two are its columns.

    Parameters
    ----------
    caption : of the table.
    what : the names are.
    names : of what stands in the cells.
    views : the runs.
    cells : a row for each run.
    """
    runs: Sequence[str] = [view.name for view in views]
    if len(names) > len(runs):
        corner, heads, columns, rows = what, names, runs, list(zip(*cells, strict=True))
    else:
        corner, heads, columns, rows = "run", runs, names, [tuple(row) for row in cells]
    shown = tuple((TableCell(head), *row) for head, row in zip(heads, rows, strict=True))
    return TableBlock(caption, (corner, *columns), shown, wide=True)


def _range(name: str, found: Mapping[str, float], unit: str) -> tuple[Tile, ...]:
    """Return from where to where a figure of runs goes, and which they are; nothing where it is unknown."""
    known = {run: value for run, value in found.items() if not np.isnan(value)}
    if not known:
        return ()
    least, most = min(known, key=lambda run: known[run]), max(known, key=lambda run: known[run])
    texts = show(known[least], unit), show(known[most], unit)
    if texts[0] == texts[1]:
        return (Tile(name, texts[0], note="in all runs"),)
    return (Tile(name, f"{texts[0]} to {texts[1]}", note=f"{least} to {most}"),)


def key_figures(views: Sequence[RunView]) -> Fold:
    """Return the key figures of runs, a run a row."""
    called = time_name(view.summary for view in views)
    by_run = [
        {path: (name, value, unit) for name, path, value, unit in figures(view.summary, called)}
        for view in views
    ]
    paths = list(dict.fromkeys(path for found in by_run for path in found))
    names = [next(found[path][0] for found in by_run if path in found) for path in paths]
    cells = [
        [
            TableCell(shown(found[path][1], found[path][2]), found[path][1], f"{view.name}:{path}")
            if path in found
            else TableCell("–")
            for path in paths
        ]
        for found, view in zip(by_run, views, strict=True)
    ]
    return Fold("Key figures", (_crossed("Key figures of the runs", "figure", names, views, cells),))


def _learning(views: Sequence[RunView]) -> SectionBlock | None:
    by_metric: dict[str, list[tuple[RunView, Curve]]] = {}
    for view in views:
        for curve in view.curves:
            by_metric.setdefault(curve.name, []).append((view, curve))
    if not by_metric:
        return None
    called = time_name(view.summary for view in views)
    metrics = {
        metric: _over_seeds(by_metric[metric])
        for metric in sorted(by_metric, key=lambda name: name == TRAINING_LOSS)
    }
    blocks = curves_choice(metrics, called, _groups(views))
    reached: list[Block] = []
    for metric, (curves, _) in metrics.items():
        table = reached_table(curves, called)
        if table is not None:
            caption = f"{metric}. {table.caption}"
            reached.append(TableBlock(caption, ("run", *table.headers[1:]), table.rows, wide=True))
    more: tuple[Block, ...] = (Fold("How soon they got there", tuple(reached)),) if reached else ()
    averaged = any(spreads for _, spreads in metrics.values())
    intro = "Repeats are drawn as their mean, round by round; the band is from their lowest to their highest."
    answers: tuple[Tile, ...] = ()
    measured = [curve.name for view in views for curve in view.curves if curve.metric != TRAINING_LOSS]
    if measured:
        last = {view.name: float(curve.value[curve.chosen]) for view, curve in by_metric[measured[0]]}
        answers = _range(measured[0], last, "")
    intro = intro if averaged else ""
    return SectionBlock("model", WHAT_WORTH, (*blocks, *more), intro, wide=True, answers=answers)


def _over_seeds(
    found: Sequence[tuple[RunView, Curve]],
) -> tuple[list[tuple[str, Curve]], dict[str, Spread]]:
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


def _rounds(views: Sequence[RunView]) -> SectionBlock | None:
    known = [view for view in views if len(view.rounds)]
    if not known:
        return None
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
    options: dict[str, tuple[Block, ...]] = {"mean by stage": (bars,)}
    durations = [(view.name, view.rounds.numbers["duration_s"], len(view.rounds)) for view in known]
    latencies = []
    for view in views:
        values = view.read("device_rounds", ["latency_s"]).numbers["latency_s"]
        if len(values):
            latencies.append((view.name, values[~np.isnan(values)], len(values)))
    for title, what, series in (
        ("Round durations", "round duration", durations),
        ("Report latency", "report latency", latencies),
    ):
        plot = cdf_plot(title, what, series, _groups(views))
        if plot is not None:
            options[title.lower()] = (plot,)
    medians = {view.name: float(np.median(view.rounds.numbers["duration_s"])) for view in known}
    blocks, answers = choice("rounds-by", "Show", options), _range("Round, median", medians, "s")
    return SectionBlock("rounds", HOW_LONG, blocks, wide=True, answers=answers)


def _bytes(views: Sequence[RunView]) -> SectionBlock | None:
    sizes = {view.name: view.summary["bytes"] for view in views}
    parts = {
        name: [found["down"] + found["up"] - found["wasted"], found["wasted"]]
        for name, found in sizes.items()
    }
    if not any(map(sum, parts.values())):
        return None
    texts = [[show(size, "B") for size in each] for each in parts.values()]
    rows = tuple(
        (
            TableCell(name),
            *(TableCell(show(found[key], "B"), found[key]) for key in ("down", "up", "wasted")),
            TableCell(percent(found["wasted"] / max(found["down"] + found["up"], 1))),
        )
        for name, found in sizes.items()
    )
    bars = stacked_bars(
        "Bytes sent, used and wasted",
        "Bars of bytes sent either way, those that were used and those that were wasted.",
        [(name, each, show(sum(each), "B")) for name, each in parts.items()],
        (("used", "p0"), ("wasted", "p4")),
        texts,
        TableBlock("Bytes", ("run", "down", "up", "wasted", "share"), rows),
    )
    answers = _range("Bytes", {name: float(sum(each)) for name, each in parts.items()}, "B")
    return SectionBlock("bytes", WHICH_BYTES, (bars,), wide=True, answers=answers)


def _drops(views: Sequence[RunView]) -> SectionBlock | None:
    found = {view.name: view.summary["outcomes"] for view in views if view.summary["device_rounds"]}
    if not found:
        return None
    bars = outcome_bars("How device rounds ended", found)
    dropped = {
        view.name: view.summary["outcomes"][label(Outcome.DROPPED)] / view.summary["device_rounds"]
        for view in views
        if view.name in found
    }
    answers = _range("Dropped", dropped, "%")
    return SectionBlock("drops", WHO_DROPS, (bars,), wide=True, answers=answers)


COMPARISONS: Final[tuple[Callable[[Sequence[RunView]], SectionBlock | None], ...]] = (
    _promises,
    _rounds,
    _bytes,
    _drops,
    _learning,
)
"""The questions that the report of several runs answers, in their order."""
