"""Charts: lines, stacked columns and stacked bars, drawn as SVG by hand.

Every chart has its data as a table, and no more points than a screen can show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from coordinator.results.report.axes import Scale
from coordinator.results.report.blocks import EXTENT, Axis, Bar, Bars, LegendEntry, Plot, TableBlock

Floats = npt.NDArray[np.float64]

MAX_POINTS: Final = 400
"""Points of a line, or columns, at most."""
CDF_POINTS: Final = 200
"""Quantiles of a distribution that are drawn."""
SERIES_STYLES: Final = 8
"""How many lines can be distinguished, by colour and by dashes."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line: name, float64 [n] x and y, and what to say of each point.

    ``steps`` draws it as stairs, which is what distributions are; ``thin`` as an interval is drawn. Lines of
    one ``group``, by default the name, look the same and share an entry of the legend. ``spread`` is the
    lowest and the highest y at each x, float64 [n] both: as a band, or as a bar through each point with
    ``bars``. ``dots`` are further points, as x and y.
    """

    name: str
    x: Floats
    y: Floats
    tips: Sequence[str]
    steps: bool = False
    thin: bool = False
    group: str | None = None
    marks: bool = field(default=False)
    spread: tuple[Floats, Floats] | None = None
    bars: bool = False
    dots: tuple[Floats, Floats] | None = None


def thin(n: int, most: int = MAX_POINTS) -> npt.NDArray[np.int64]:
    """Return at most ``most`` positions out of n, evenly, the first and the last among them."""
    if n <= most:
        return np.arange(n)
    return np.round(np.linspace(0, n - 1, most)).astype(np.int64)


def style_of(position: int) -> str:
    """Return the style classes of the line at a position; after the last colour they begin anew, dashed."""
    return f"s{position % SERIES_STYLES}" + (" again" if position >= SERIES_STYLES else "")


def _pairs(x: Floats, y: Floats) -> str:
    return " ".join(f"{a:.4g},{b:.4g}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _grid(x: Axis, y: Axis) -> Markup:
    across = "".join(f"M0 {EXTENT * (1 - at / 100):.1f}H{EXTENT:.0f}" for at, _ in y.ticks)
    down = "".join(f"M{EXTENT * at / 100:.1f} 0V{EXTENT:.0f}" for at, _ in x.ticks)
    return Markup('<path class="grid" d="{}"/>').format(across + down)


def _dotted(x: Floats, y: Floats, style: str) -> Markup:
    """Return points, each a line without length that has round ends."""
    dots = "".join(f"M{a:.4g} {b:.4g}h.01" for a, b in zip(x.tolist(), y.tolist(), strict=True))
    return Markup('<path class="line {} dot" d="{}"/>').format(style, dots)


def _spread(line: Line, scales: tuple[Scale, Scale], style: str) -> Iterator[Markup]:
    """Yield what lies around a line: its spread, and single points."""
    if line.spread is not None:
        x, low, high = scales[0](line.x), *(EXTENT - scales[1](side) for side in line.spread)
        if line.bars:
            each = zip(x.tolist(), low.tolist(), high.tolist(), strict=True)
            bars = "".join(f"M{at:.4g} {bottom:.4g}V{top:.4g}" for at, bottom, top in each)
            yield Markup('<path class="line {} bar" d="{}"/>').format(style, bars)
        else:
            around = _pairs(np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]]))
            yield Markup('<polygon class="band {}" points="{}"/>').format(style, around)
    if line.dots is not None:
        yield _dotted(scales[0](line.dots[0]), EXTENT - scales[1](line.dots[1]), f"{style} seed")


def line_plot(
    title: str,
    description: str,
    lines: Sequence[Line],
    scales: tuple[Scale, Scale],
    axes: tuple[Axis, Axis],
    table: TableBlock | None = None,
    order: Sequence[str] = (),
) -> Plot:
    """Return a chart of lines; a legend only where there are several groups.

    ``order`` names groups that have their looks before others, drawn here or not: so that a group looks the
    same in several charts.
    """
    drawing = [_grid(*axes)]
    tips: list[tuple[float, float, str]] = []
    groups = dict.fromkeys(line.group or line.name for line in lines)
    styles = {group: style_of(position) for position, group in enumerate(dict.fromkeys((*order, *groups)))}
    for line in lines:
        drawing += _spread(line, scales, styles[line.group or line.name])
    for line in lines:
        style = styles[line.group or line.name]
        x, y = scales[0](line.x), EXTENT - scales[1](line.y)
        drawn = _pairs(x, y)
        if line.steps and len(x) > 1:
            drawn = _pairs(np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1])
        if len(x) == 1:
            # A point alone is no line; a short one with round ends is a dot.
            drawn = f"{x[0]:.4g},{y[0]:.4g} {x[0] + 0.01:.4g},{y[0]:.4g}"
            style = f"{style} dot"
        style = f"{style} bar" if line.thin else style
        drawing.append(Markup('<polyline class="line {}" points="{}"/>').format(style, drawn))
        if line.marks:
            drawing.append(_dotted(x, y, style))
        tips += [
            (round(a, 1), round(b, 1), text)
            for a, b, text in zip(x.tolist(), y.tolist(), line.tips, strict=True)
        ]
    legend = [LegendEntry(group, styles[group]) for group in groups]
    return Plot(
        title, description, Markup("").join(drawing), *axes, tuple(legend if len(legend) > 1 else ()),
        tuple(tips), table,
    )  # fmt: skip


def stacked_columns(
    title: str,
    description: str,
    heights: Floats,
    parts: Sequence[tuple[str, str]],
    tips: Sequence[str],
    scale: Scale,
    axes: tuple[Axis, Axis],
    table: TableBlock | None = None,
) -> Plot:
    """Return columns side by side, each made of pieces on top of each other.

    Parameters
    ----------
    heights : float64 [columns, parts].
    parts : name and style of each part; those without any height are left out.
    tips : what to say of each column.
    """
    n = len(heights)
    width = EXTENT / n
    gap = width * (0.12 if n <= 100 else 0.0)
    wide = width - gap
    left = np.arange(n) * width + gap / 2
    tops = EXTENT - scale(np.cumsum(heights, axis=1))
    bottoms = np.concatenate([np.full((n, 1), EXTENT), tops[:, :-1]], axis=1)
    drawing = [_grid(Axis("", ()), axes[1])]
    legend = []
    for part, (name, style) in enumerate(parts):
        rows = np.flatnonzero(heights[:, part] > 0)
        if not len(rows):
            continue
        shapes = "".join(
            f"M{left[row]:.5g} {tops[row, part]:.5g}h{wide:.4g}V{bottoms[row, part]:.5g}h-{wide:.4g}z"
            for row in rows.tolist()
        )
        drawing.append(Markup('<path class="fill {}" d="{}"/>').format(style, shapes))
        legend.append(LegendEntry(name, style))
    at = [
        (round(float(x + width / 2), 1), round(float(y), 1), text)
        for x, y, text in zip(left - gap / 2, tops[:, -1], tips, strict=True)
    ]
    drawn = Markup("").join(drawing)
    return Plot(title, description, drawn, *axes, tuple(legend), tuple(at), table, legend_marks="fill")


def stacked_bars(
    title: str,
    description: str,
    rows: Sequence[tuple[str, Sequence[float], str]],
    parts: Sequence[tuple[str, str]],
    shown: Sequence[Sequence[str]],
    table: TableBlock | None = None,
) -> Bars:
    """Return bars below each other, each made of pieces side by side.

    Parameters
    ----------
    rows : name, value of each part, and the total as text.
    parts : name and style of each part.
    shown : the text of every value.
    """
    longest = max((sum(values) for _, values, _ in rows), default=0.0) or 1.0
    bars = tuple(
        Bar(
            name,
            total,
            tuple(
                (style, value / longest * 100, f"{name}, {part}: {text}")
                for value, (part, style), text in zip(values, parts, texts, strict=True)
                if value > 0
            ),
        )
        for (name, values, total), texts in zip(rows, shown, strict=True)
    )
    used = [any(values[part] > 0 for _, values, _ in rows) for part in range(len(parts))]
    legend = tuple(LegendEntry(*part) for part, is_used in zip(parts, used, strict=True) if is_used)
    return Bars(title, description, bars, legend, table)


def distribution(values: Floats, whole: int) -> tuple[Floats, Floats]:
    """Return x and y of a cumulative distribution, at most 200 points: y is the share of ``whole`` up to x.

    Parameters
    ----------
    values : float64 [n], n ≥ 1, without NaN.
    whole : what 100 % is; more than n when some have no value at all.
    """
    ranks = thin(len(values), CDF_POINTS)
    # The order statistics themselves: no value is shown that never was.
    found = np.partition(values, ranks)[ranks]
    return found, (ranks + 1) / whole
