"""What the run took on this computer: measured, and no part of any simulated figure."""

from __future__ import annotations

import numpy as np

from coordinator.engine.run_files import on_real_clock
from coordinator.results.report.axes import bytes_axis, duration_axis, from_zero, number_axis
from coordinator.results.report.blocks import Axis, Block, Fold, NoteBlock, TableBlock, TableCell
from coordinator.results.report.charts import Line, line_plot, thin
from coordinator.results.report.people import show
from coordinator.results.report.view import RunView


def host(view: RunView) -> Fold | None:
    """Return wall time and memory of the process over the rounds, and what it ran on."""
    numbers = view.rounds.numbers
    blocks: list[Block] = []
    if len(view.rounds):
        kept = thin(len(view.rounds))
        number = numbers["round"][kept].astype(np.float64)
        wall_s, rss = np.cumsum(numbers["wall_s"])[kept], numbers["host_rss_bytes"][kept].astype(np.float64)
        across = from_zero(float(number.max()))
        for title, values, unit, make in (
            ("Wall time, measured", wall_s, "s", duration_axis),
            ("Resident memory, measured", rss, "B", bytes_axis),
        ):
            scale = from_zero(float(values.max()))
            tips = [
                f"after round {at:.0f}: {show(value, unit)}"
                for at, value in zip(number.tolist(), values.tolist(), strict=True)
            ]
            axes: tuple[Axis, Axis] = (
                number_axis(across, "round", whole=True),
                make(scale, "wall time" if unit == "s" else "memory"),
            )
            blocks.append(
                line_plot(
                    title,
                    f"Line chart over the rounds, up to {show(float(values.max()), unit)}.",
                    [Line(title, number, values, tips)],
                    (across, scale),
                    axes,
                    TableBlock(
                        title,
                        ("after round", title.lower()),
                        tuple(
                            (
                                TableCell(f"{number[at]:.0f}"),
                                TableCell(show(float(values[at]), unit), float(values[at])),
                            )
                            for at in thin(len(number), 50).tolist()
                        ),
                    ),
                )
            )
    rows = _facts(view)
    if rows:
        blocks.append(TableBlock("Measured on this computer", ("fact", "value"), tuple(rows)))
    if not blocks:
        return None
    intro = "Measured here, different from run to run; it says nothing about the fleet."
    if on_real_clock(view.summary):
        intro = "Measured on the computer of the coordinator."
    return Fold("The computer it ran on", (NoteBlock(intro), *blocks))


def _facts(view: RunView) -> list[tuple[TableCell, ...]]:
    measured, manifest = view.summary["measured"], view.manifest
    rows: list[tuple[TableCell, ...]] = [
        (
            TableCell("wall time of all rounds"),
            TableCell(show(measured["wall_s"], "s"), measured["wall_s"], "measured.wall_s"),
        )
    ]
    if measured["device_rounds_per_s"] is not None:
        speed = measured["device_rounds_per_s"]
        rows.append((TableCell("device rounds per second"), TableCell(f"{speed:,.0f}", speed)))
    peak = manifest.get("measured", {}).get("peak_rss_bytes")
    if isinstance(peak, int):
        rows.append((TableCell("largest resident memory"), TableCell(show(peak, "B"), peak)))
    facts = manifest.get("host", {})
    for key in ("processors", "memory_bytes", "platform", "python", "numpy", "recfleet"):
        if key in facts:
            value = facts[key]
            text = show(value, "B") if key == "memory_bytes" else str(value)
            rows.append((TableCell(key.replace("_bytes", "")), TableCell(text)))
    for key, value in facts.get("numerics", {}).items():
        rows.append((TableCell(key.replace("_", " ")), TableCell(str(value))))
    return rows
