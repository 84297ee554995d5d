"""What the model is worth, against rounds, the time of the run, bytes, energy and ε."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.results.analysis.learning_curves import FRACTIONS, TRAINING_LOSS, Curve, time_to_accuracy
from coordinator.results.report.axes import (
    Scale,
    around,
    bytes_axis,
    duration_axis,
    energy_axis,
    number_axis,
)
from coordinator.results.report.blocks import (
    Axis,
    Block,
    Fold,
    Plot,
    SectionBlock,
    TableBlock,
    TableCell,
    Tile,
    choice,
)
from coordinator.results.report.charts import Line, line_plot, thin
from coordinator.results.report.people import number, percent, show
from coordinator.results.report.view import RunView

Floats = npt.NDArray[np.float64]


QUESTION: Final = "What is the model worth for it?"

Spread = tuple[Floats, Floats]
"""The lowest and the highest value at each point of a curve, float64 [n] both."""


@dataclass(frozen=True, slots=True)
class _Way:
    """What curves are drawn against: its name, where a curve has it, how to say it, and its axis."""

    name: str
    of: Callable[[Curve], Floats]
    say: Callable[[float], str]
    axis: Callable[[Scale, str], Axis]


def _ways(time_name: str) -> list[_Way]:
    return [
        _Way("rounds", _rounds, lambda _: "", partial(number_axis, whole=True)),
        _Way(time_name, lambda curve: curve.time_s, lambda at: f", {show(at, 's')}", duration_axis),
        _Way("bytes sent", lambda curve: curve.bytes, lambda at: f", {show(at, 'B')}", bytes_axis),
        _Way("energy", lambda curve: curve.energy_j, lambda at: f", {show(at, 'J')}", energy_axis),
        _Way("ε (zero-out)", lambda curve: curve.epsilon, lambda at: f", ε {show(at, '')}", number_axis),
    ]


def _rounds(curve: Curve) -> Floats:
    return curve.round.astype(np.float64)


def _line(curve: Curve, way: _Way, name: str, group: str | None, spread: Spread | None) -> Line:
    kept = thin(len(curve.value))
    against = way.of(curve)[kept]
    tips = [
        f"{name}: {number(value)} after round {after}{way.say(at)}"
        for value, after, at in zip(
            curve.value[kept].tolist(), curve.round[kept].tolist(), against.tolist(), strict=True
        )
    ]
    around = None if spread is None else (spread[0][kept], spread[1][kept])
    marks = len(kept) <= 40
    return Line(name, against, curve.value[kept], tips, group=group, marks=marks, spread=around)


def _curve_plot(
    metric: str,
    curves: Sequence[tuple[str, Curve]],
    way: _Way,
    groups: Mapping[str, str],
    spreads: Mapping[str, Spread],
    table: TableBlock,
) -> Plot | None:
    """Return one metric of one or several runs against one thing; None where no run knows it."""
    known = [(name, curve) for name, curve in curves if np.isfinite(way.of(curve)).all()]
    if not known:
        return None
    edges = [edge for spread in spreads.values() for edge in spread]
    vertical = around(np.concatenate([*(curve.value for _, curve in curves), *edges]))
    highest = max(float(way.of(curve).max()) for _, curve in known)
    horizontal = Scale(0.0, highest * 1.02 or 1.0)
    ends = "; ".join(
        f"{name} {number(float(c.value[0]))} to {number(float(c.value[-1]))}" for name, c in known
    )
    return line_plot(
        metric,
        f"Line chart of {metric} against {way.name}. First to last: {ends}.",
        [_line(curve, way, name, groups.get(name), spreads.get(name)) for name, curve in known],
        (horizontal, vertical),
        (way.axis(horizontal, way.name), number_axis(vertical, "", most=4)),
        table,
        [groups.get(name, name) for name, _ in curves],
    )


def curves_choice(
    metrics: Mapping[str, tuple[Sequence[tuple[str, Curve]], Mapping[str, Spread]]],
    time_name: str,
    groups: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Block, ...]:
    """Return a small chart of every metric, all of them against what a control says.

    That is rounds, time, bytes, energy, or ε of those runs that have spent a finite one.

    Parameters
    ----------
    metrics : by name: its curves by run, and around which of them a spread is drawn.
    time_name : what the time of the runs is called.
    groups : runs that it puts together, by name, look the same.
    """
    tables = {metric: _values(metric, curves, time_name) for metric, (curves, _) in metrics.items()}
    options: dict[str, tuple[Block, ...]] = {}
    for way in _ways(time_name):
        plots = [
            _curve_plot(metric, curves, way, groups, spreads, tables[metric])
            for metric, (curves, spreads) in metrics.items()
        ]
        if any(plot is not None for plot in plots):
            options[way.name] = tuple(plot for plot in plots if plot is not None)
    return choice("model-against", "Against", options)


def _energy_cell(energy_j: float) -> TableCell:
    return TableCell("–") if math.isnan(energy_j) else TableCell(show(energy_j, "J"), energy_j)


def _values(metric: str, curves: Sequence[tuple[str, Curve]], time_name: str) -> TableBlock:
    several = len(curves) > 1
    rows = []
    for name, curve in curves:
        for at in thin(len(curve.value), 100).tolist():
            cells = (
                TableCell(f"{curve.round[at]}"),
                TableCell(show(float(curve.time_s[at]), "s"), float(curve.time_s[at])),
                TableCell(show(float(curve.bytes[at]), "B"), int(curve.bytes[at])),
                _energy_cell(float(curve.energy_j[at])),
                TableCell(number(float(curve.value[at])), float(curve.value[at])),
            )
            rows.append((TableCell(name), *cells) if several else cells)
    headers = ("after round", time_name, "bytes sent", "energy", metric)
    return TableBlock(metric, ("run", *headers) if several else headers, tuple(rows), 1)


def reached_table(curves: Sequence[tuple[str, Curve]], time_name: str) -> TableBlock | None:
    """Return when each curve had come how far from its first value to what it comes to; None: nowhere."""
    rows = []
    for name, curve in curves:
        reached = time_to_accuracy(curve)
        if reached:
            cells = [
                TableCell(f"{show(row['time_s'], 's')}, {show(row['bytes'], 'B')}", row["time_s"])
                for row in reached
            ]
            rows.append((TableCell(name), TableCell(number(float(curve.value[curve.chosen]))), *cells))
    if not rows:
        return None
    caption = (
        f"Time to accuracy: {time_name} and bytes until an evaluation first showed this part of the way "
        "from the first value to the last on test ratings, to the best on others."
    )
    return TableBlock(
        caption, ("metric", "came to", *(percent(part) for part in FRACTIONS)), tuple(rows), wide=True
    )


def learning(view: RunView) -> SectionBlock | None:
    """Return every metric over rounds and what they cost, and the times to accuracy."""
    if not view.curves:
        return None
    metrics: dict[str, tuple[Sequence[tuple[str, Curve]], Mapping[str, Spread]]] = {
        curve.name: ([(curve.metric, curve)], {})
        # The training loss is what a method defines as it likes: it comes last.
        for curve in sorted(view.curves, key=lambda curve: curve.metric == TRAINING_LOSS)
        if len(curve.value) > 1
    }
    blocks = curves_choice(metrics, view.time_name)
    table = reached_table([(curve.name, curve) for curve in view.curves], view.time_name)
    more: tuple[Block, ...] = () if table is None else (Fold("How soon it got there", (table,)),)
    answer = _answer(view)
    intro = "" if answer is None else f"{answer.text}, {answer.note}."
    return SectionBlock(
        "model", QUESTION, (*blocks, *more), intro, wide=True, answers=() if answer is None else (answer,)
    )


def _answer(view: RunView) -> Tile | None:
    """Return what the first metric of a run came to, and what that took; None where none was computed."""
    if not view.summary["accuracy"]:
        return None
    row = view.summary["accuracy"][0]
    key = (row["metric"], row["split"], row["population"])
    curve = next(
        (curve for curve in view.curves if (curve.metric, curve.split, curve.population) == key), None
    )
    name = f"{row['metric']} on {row['split']} ratings of {row['population']} users"
    if row["last"] is None or curve is None:
        return Tile("Model", f"{row['metric']} is no number", note=f"{name}: it diverged", mood="bad")
    at = int(np.flatnonzero(curve.round == row["last_round"])[-1]) if row["last_round"] in curve.round else -1
    spent = f"{show(float(curve.time_s[at]), 's')} and {show(float(curve.bytes[at]), 'B')}"
    before = "" if row["first"] is None else f"from {number(row['first'])} "
    note = f"{before}after {row['last_round']} rounds, {spent}"
    epsilon = float(curve.epsilon[at])
    note += f", ε {number(epsilon)}" if not math.isnan(epsilon) else ""
    return Tile("Model", f"{row['metric']} {number(row['last'])}", note=note)
