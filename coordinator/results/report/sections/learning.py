"""What the model is worth, against rounds, the time of the run, bytes, energy and ε."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from coordinator.results.analysis.learning_curves import FRACTIONS, Curve, time_to_accuracy
from coordinator.results.report.axes import (
    Scale,
    around,
    bytes_axis,
    duration_axis,
    energy_axis,
    number_axis,
    show,
)
from coordinator.results.report.blocks import Axis, Block, Plot, SectionBlock, TableBlock, TableCell
from coordinator.results.report.charts import Line, line_plot, thin
from coordinator.results.report.view import RunView

Floats = npt.NDArray[np.float64]


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
        f"{name}: {value:.5g} after round {number}{way.say(at)}"
        for value, number, at in zip(
            curve.value[kept].tolist(), curve.round[kept].tolist(), against.tolist(), strict=True
        )
    ]
    around = None if spread is None else (spread[0][kept], spread[1][kept])
    marks = len(kept) <= 40
    return Line(name, against, curve.value[kept], tips, group=group, marks=marks, spread=around)


def curve_plots(
    metric: str,
    curves: Sequence[tuple[str, Curve]],
    time_name: str,
    groups: Mapping[str, str] = MappingProxyType({}),
    spreads: Mapping[str, Spread] = MappingProxyType({}),
) -> list[Plot]:
    """Return one metric of one or several runs against rounds, time, bytes and energy, as charts.

    ``time_name`` is what the time of the runs is called.
    And against ε, of those runs that have spent a finite one. Runs that ``groups`` puts together, by name,
    look the same. ``spreads`` are drawn around curves, by name.
    """
    plots = []
    edges = [edge for spread in spreads.values() for edge in spread]
    vertical = around(np.concatenate([*(curve.value for _, curve in curves), *edges]))
    order = [groups.get(name, name) for name, _ in curves]
    for way in _ways(time_name):
        known = [(name, curve) for name, curve in curves if np.isfinite(way.of(curve)).all()]
        if not known:
            continue
        highest = max(float(way.of(curve).max()) for _, curve in known)
        horizontal = Scale(0.0, highest * 1.02 or 1.0)
        lines = [_line(curve, way, name, groups.get(name), spreads.get(name)) for name, curve in known]
        ends = "; ".join(f"{name} {c.value[0]:.5g} to {c.value[-1]:.5g}" for name, c in known)
        plots.append(
            line_plot(
                f"{metric} against {way.name}",
                f"Line chart of {metric} against {way.name}. First to last: {ends}.",
                lines,
                (horizontal, vertical),
                (way.axis(horizontal, way.name), number_axis(vertical, metric)),
                _values(metric, curves, time_name),
                order,
            )
        )
    return plots


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
                TableCell(f"{curve.value[at]:.5g}", float(curve.value[at])),
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
            rows.append((TableCell(name), TableCell(f"{curve.value[curve.chosen]:.5g}"), *cells))
    if not rows:
        return None
    caption = (
        f"Time to accuracy: {time_name} and bytes until an evaluation first showed this part of the way "
        "from the first value to the last on test ratings, to the best on others."
    )
    return TableBlock(
        caption, ("metric", "came to", *(f"{part:.0%}" for part in FRACTIONS)), tuple(rows), wide=True
    )


def learning(view: RunView) -> SectionBlock | None:
    """Return every metric over rounds and what they cost, and the times to accuracy."""
    if not view.curves:
        return None
    blocks: list[Block] = []
    for curve in (curve for curve in view.curves if len(curve.value) > 1):
        blocks += curve_plots(curve.name, [(curve.metric, curve)], view.time_name)
    table = reached_table([(curve.name, curve) for curve in view.curves], view.time_name)
    return SectionBlock("learning", "Learning", (*blocks, *((table,) if table else ())))
