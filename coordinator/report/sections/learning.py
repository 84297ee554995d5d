"""What the model is worth, against the time of the run and against bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from coordinator.analysis.learning_curves import FRACTIONS, Curve, time_to_accuracy
from coordinator.report.axes import Scale, around, bytes_axis, duration_axis, number_axis, show
from coordinator.report.blocks import Axis, Block, Cell, Plot, Section, Table
from coordinator.report.charts import Line, line_plot, thin
from coordinator.report.view import RunView

Floats = npt.NDArray[np.float64]


def _line(curve: Curve, against: Floats, unit: str, name: str, group: str | None) -> Line:
    kept = thin(len(curve.value))
    tips = [
        f"{name}: {value:.5g} after round {number}, {show(at, unit)}"
        for value, number, at in zip(
            curve.value[kept].tolist(), curve.round[kept].tolist(), against[kept].tolist(), strict=True
        )
    ]
    return Line(name, against[kept], curve.value[kept], tips, group=group, marks=len(kept) <= 40)


def curve_plots(
    metric: str,
    curves: Sequence[tuple[str, Curve]],
    time_name: str,
    groups: Mapping[str, str] = MappingProxyType({}),
) -> list[Plot]:
    """Return one metric of one or several runs against time and against bytes, as two charts.

    ``time_name`` is what the time of the runs is called.
    Runs that ``groups`` puts together, by name, look the same.
    """
    plots = []
    vertical = around(np.concatenate([curve.value for _, curve in curves]))
    ways: tuple[tuple[str, Callable[[Curve], Floats], str, Callable[[Scale, str], Axis]], ...] = (
        (time_name, lambda curve: curve.time_s, "s", duration_axis),
        ("bytes sent", lambda curve: curve.bytes, "B", bytes_axis),
    )
    for what, value_of, unit, axis in ways:
        highest = max(float(value_of(curve).max()) for _, curve in curves)
        horizontal = Scale(0.0, highest * 1.02 or 1.0)
        lines = [_line(curve, value_of(curve), unit, name, groups.get(name)) for name, curve in curves]
        ends = "; ".join(f"{name} {c.value[0]:.5g} to {c.value[-1]:.5g}" for name, c in curves)
        plots.append(
            line_plot(
                f"{metric} against {what}",
                f"Line chart of {metric} against {what}. First to last: {ends}.",
                lines,
                (horizontal, vertical),
                (axis(horizontal, what), number_axis(vertical, metric)),
                _values(metric, curves, time_name),
            )
        )
    return plots


def _values(metric: str, curves: Sequence[tuple[str, Curve]], time_name: str) -> Table:
    several = len(curves) > 1
    rows = []
    for name, curve in curves:
        for at in thin(len(curve.value), 100).tolist():
            cells = (
                Cell(f"{curve.round[at]}"),
                Cell(show(float(curve.time_s[at]), "s"), float(curve.time_s[at])),
                Cell(show(float(curve.bytes[at]), "B"), int(curve.bytes[at])),
                Cell(f"{curve.value[at]:.5g}", float(curve.value[at])),
            )
            rows.append((Cell(name), *cells) if several else cells)
    headers = ("after round", time_name, "bytes sent", metric)
    return Table(metric, ("run", *headers) if several else headers, tuple(rows), 1)


def reached_table(curves: Sequence[tuple[str, Curve]], time_name: str) -> Table | None:
    """Return when each curve had come how far from its first value to its best; None: none improved."""
    rows = []
    for name, curve in curves:
        reached = time_to_accuracy(curve)
        if reached:
            cells = [
                Cell(f"{show(row['time_s'], 's')}, {show(row['bytes'], 'B')}", row["time_s"])
                for row in reached
            ]
            rows.append((Cell(name), Cell(f"{curve.value[curve.best]:.5g}"), *cells))
    if not rows:
        return None
    caption = (
        f"Time to accuracy: {time_name} and bytes until an evaluation first showed this part of the way "
        "from the first value to the best."
    )
    return Table(caption, ("metric", "best", *(f"{part:.0%}" for part in FRACTIONS)), tuple(rows), wide=True)


def learning(view: RunView) -> Section | None:
    """Return every metric over time and bytes, and the times to accuracy."""
    if not view.curves:
        return None
    blocks: list[Block] = []
    for curve in view.curves:
        blocks += curve_plots(curve.name, [(curve.metric, curve)], view.time_name)
    table = reached_table([(curve.name, curve) for curve in view.curves], view.time_name)
    return Section("learning", "Learning", (*blocks, *((table,) if table else ())))
