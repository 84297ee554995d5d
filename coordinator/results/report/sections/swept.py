"""A sweep: what each cell came to at the end, against the values that were swept."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.results.analysis.learning_curves import AUDIT_PREFIX
from coordinator.results.figures import show_estimate
from coordinator.results.intervals import CONFIDENCE
from coordinator.results.report.axes import Scale, around, bytes_axis, duration_axis, energy_axis, number_axis
from coordinator.results.report.blocks import Axis, Block, Plot, SectionBlock, TableBlock, TableCell
from coordinator.results.report.charts import Line, line_plot
from coordinator.results.report.sweep_table import SweepTable, SweptCell, SweptFigure
from coordinator.scenario.metric_names import MetricKind
from device_profiles.units import UnitError

Floats = npt.NDArray[np.float64]

_NUMBER: Final = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?)\s*(\S*)", re.IGNORECASE)
_MODEL, _LAST = "model.", " last"
_WIDE_RANGE: Final = 10.0
"""Values that differ by more than this factor have a logarithmic axis."""
_APART: Final = 4.5
"""Ticks closer than this, in percent of the axis, would run into each other."""
_MOST_ROWS: Final = 10
"""Cells below each other in one chart, at most."""


@dataclass(frozen=True, slots=True)
class _Swept:
    """A setting whose values are numbers in every cell, without a unit or in units of one kind."""

    path: str
    values: dict[str, float]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def _swept(sweep: SweepTable) -> list[_Swept]:
    """Return the settings that differ between cells and can be an axis."""
    found = []
    for path in sweep.telling:
        texts = [cell.settings.get(path, "") for cell in sweep.cells]
        values = _numbers(texts)
        if values is not None and len(values) > 1:
            found.append(_Swept(path, values))
    return found


def _numbers(texts: Sequence[str]) -> dict[str, float] | None:
    """Return the values that texts stand for; None where some are no numbers or of another kind."""
    matches = [_NUMBER.fullmatch(text) for text in texts]
    known = [match for match in matches if match is not None]
    if len(known) < len(texts):
        return None
    if len({match[2] for match in known}) == 1:
        return {text: float(match[1]) for text, match in zip(texts, known, strict=True)}
    for kind in (MetricKind.DURATION, MetricKind.BYTES):
        with contextlib.suppress(UnitError):
            return {text: kind.parse_limit(text) for text in texts}
    return None


def _finite(cell: SweptCell, name: str) -> SweptFigure | None:
    figure = cell.figures.get(name)
    return figure if figure is not None and np.isfinite([figure.found.mean, *figure.values]).all() else None


def _scale(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    if low > 0 and high / low >= _WIDE_RANGE:
        room = (high / low) ** 0.06
        return Scale(low / room, high * room, logarithmic=True)
    room = (high - low) * 0.06
    return Scale(low - room, high + room)


def _axis(swept: _Swept, scale: Scale) -> Axis:
    """Return an axis with a tick at each value that was swept, where there is room."""
    ticks: list[tuple[float, str]] = []
    for text, value in sorted(swept.values.items(), key=lambda each: each[1]):
        at = scale.percent(value)
        if not ticks or at - ticks[-1][0] >= _APART:
            ticks.append((at, text))
    return Axis(swept.name + (", logarithmic" if scale.logarithmic else ""), tuple(ticks))


def _half_width(figure: SweptFigure) -> float:
    """Return the half width of the interval; 0 where one run allows none."""
    half_width = figure.found.half_width
    return half_width if half_width is not None and np.isfinite(half_width) else 0.0


def _edges(figures: Sequence[SweptFigure]) -> Floats:
    """Return what a scale must hold: intervals, and the value of each run."""
    sides = [figure.found.mean + side * _half_width(figure) for figure in figures for side in (-1, 1)]
    return np.array([*sides, *(value for figure in figures for value in figure.values)])


def _against(sweep: SweepTable, name: str, swept: _Swept, table: TableBlock) -> Plot | None:
    """Return a figure against a setting, a line for each combination of the others."""
    groups: dict[str, list[tuple[float, str, SweptFigure]]] = {}
    for cell in sweep.cells:
        figure = _finite(cell, name)
        if figure is not None:
            group = sweep.label(cell, without=swept.path)
            text = f"{sweep.label(cell)}: {show_estimate(figure.found, figure.unit)}"
            groups.setdefault(group, []).append((swept.values[cell.settings[swept.path]], text, figure))
    known = [figure for points in groups.values() for _, _, figure in points]
    if len({at for points in groups.values() for at, _, _ in points}) < 2:
        return None
    horizontal, vertical = _scale(list(swept.values.values())), around(_edges(known))
    lines = []
    for group, unsorted in groups.items():
        points = sorted(unsorted, key=lambda point: point[0])
        x, figures = np.array([at for at, _, _ in points]), [figure for _, _, figure in points]
        mean = np.array([figure.found.mean for figure in figures])
        half = np.array([_half_width(figure) for figure in figures])
        counts = [len(figure.values) for figure in figures]
        dots = (np.repeat(x, counts), np.array([value for figure in figures for value in figure.values]))
        tips = [text for _, text, _ in points]
        spread = (mean - half, mean + half)
        lines.append(Line(group, x, mean, tips, marks=True, spread=spread, bars=True, dots=dots))
    said = _said(name)
    return line_plot(
        f"{said} against {swept.name}",
        f"Chart of {said} against {swept.path}. " + "; ".join(text for line in lines for text in line.tips),
        lines,
        (horizontal, vertical),
        (_axis(swept, horizontal), _figure_axis(vertical, name, known[0].unit)),
        table,
    )


def _said(name: str) -> str:
    """Return a figure as titles have it: ``rmse at the end``, ``round.duration p95``."""
    return f"{_called(name)} at the end" if _is_of_model(name) else name


def _called(name: str) -> str:
    return name.removeprefix(_MODEL).removesuffix(_LAST) if _is_of_model(name) else name


def _is_of_model(name: str) -> bool:
    return name.startswith(_MODEL) and name.endswith(_LAST)


def _figure_axis(scale: Scale, name: str, unit: str, most: int | None = None) -> Axis:
    """Return the axis of a figure by its unit; ``most`` steps at most where that is a plain number."""
    called = _called(name)
    match unit:
        case MetricKind.DURATION.value:
            return duration_axis(scale, called)
        case MetricKind.BYTES.value:
            return bytes_axis(scale, called)
        case MetricKind.ENERGY.value:
            return energy_axis(scale, called)
        case MetricKind.SHARE.value | MetricKind.EVENT.value:
            scale, called = Scale(scale.low * 100, scale.high * 100), f"{called} (%)"
    return number_axis(scale, called) if most is None else number_axis(scale, called, most=most)


def _by_cell(sweep: SweepTable, name: str, table: TableBlock) -> Plot | None:
    """Return a figure of every cell, the cells below each other."""
    known = [(cell, figure) for cell in sweep.cells if (figure := _finite(cell, name)) is not None]
    if not 2 <= len(known) <= _MOST_ROWS:
        return None
    horizontal, vertical = around(_edges([figure for _, figure in known])), Scale(0.0, float(len(known)))
    ticks, lines = [], []
    for row, (cell, figure) in enumerate(known):
        y = len(known) - row - 0.5
        label, mean, half = sweep.label(cell), figure.found.mean, _half_width(figure)
        text = f"{label}: {show_estimate(figure.found, figure.unit)}"
        ticks.append((vertical.percent(y), label))
        dots = (np.array(figure.values), np.full(len(figure.values), y))
        ends = Line(label, np.array([mean - half, mean + half]), np.array([y, y]), [text] * 2, group="cells")
        lines += [ends, Line(label, np.array([mean]), np.array([y]), [text], group="cells", dots=dots)]
    said = _said(name)
    return line_plot(
        f"{said}, by cell",
        f"Chart of {said}. " + "; ".join(line.tips[0] for line in lines[::2]),
        lines,
        (horizontal, vertical),
        # Names of cells leave a narrow chart little room.
        (_figure_axis(horizontal, name, known[0][1].unit, most=4), Axis("", tuple(ticks))),
        table,
    )


def _table(sweep: SweepTable, names: Sequence[str], caption: str) -> TableBlock:
    rows = []
    for cell in sweep.cells:
        label = sweep.label(cell)
        cells = []
        for name in names:
            figure = cell.figures.get(name)
            if figure is None:
                cells.append(TableCell("–"))
                continue
            mean = figure.found.mean
            number = mean if np.isfinite(mean) else None
            shown = show_estimate(figure.found, figure.unit)
            cells.append(TableCell(shown, number, f"{sweep.name}[{label}].{name}"))
        rows.append((TableCell(label), *cells))
    return TableBlock(caption, ("cell", *names), tuple(rows), wide=True)


def _all_settings(sweep: SweepTable) -> TableBlock | None:
    """Return the settings of each cell; None where their names say it all."""
    paths = list(dict.fromkeys(path for cell in sweep.cells for path in cell.settings))
    varying = [path for path in paths if len({cell.settings.get(path) for cell in sweep.cells}) > 1]
    if set(varying) <= set(sweep.telling):
        return None
    rows = tuple(
        (TableCell(sweep.label(cell)), *(TableCell(cell.settings.get(path, "–")) for path in varying))
        for cell in sweep.cells
    )
    caption = "All settings in which the cells differ; they are called by those that tell them apart."
    return TableBlock(caption, ("cell", *varying), rows, text_columns=1 + len(varying), wide=True)


def swept(sweep: SweepTable) -> SectionBlock | None:
    """Return what a sweep shows: all figures by cell, and those that count against the swept values.

    What counts is what the model is worth, and what thresholds limit or audits find, where it differs.
    """
    finished = [cell for cell in sweep.cells if cell.figures]
    if len(finished) < 2:
        return None
    names = list(dict.fromkeys(name for cell in finished for name in cell.figures))
    differing = [
        name
        for name in names
        if len({cell.figures[name].found for cell in finished if name in cell.figures}) > 1
    ]
    axes = _swept(sweep)
    blocks: list[Block] = []
    for name in names:
        counts = name in sweep.limited or name.startswith(AUDIT_PREFIX)
        if not _is_of_model(name) and not (counts and name in differing):
            continue
        data = _table(sweep, [name], f"{name}, mean ± {CONFIDENCE:.0%} interval")
        if axes:
            plots = [_against(sweep, name, axis, data) for axis in axes]
        else:
            plots = [_by_cell(sweep, name, data)]
        blocks += [plot for plot in plots if plot is not None]
    caption = f"Mean ± {CONFIDENCE:.0%} interval over the seeds, of all figures in which cells differ"
    blocks.append(_table(sweep, differing, caption))
    settings = _all_settings(sweep)
    blocks += [settings] if settings is not None else []
    intro = f"Bars are {CONFIDENCE:.0%} intervals of the mean over the seeds, small dots single runs."
    return SectionBlock(f"sweep-{sweep.name}", f"What was swept: {sweep.name}", tuple(blocks), intro)
