"""Reports as one SVG file: the charts that answer each question, below each other, without script or font.

Widths of texts are estimated: what draws the file chooses its own font.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from markupsafe import escape

from coordinator.results.report.blocks import (
    Axis,
    Bars,
    Block,
    Contents,
    Lanes,
    LegendEntry,
    Plot,
    at_first,
)
from coordinator.results.report.html import asset

WIDTH: Final = 900
_MARGIN: Final = 24
_INNER: Final = WIDTH - 2 * _MARGIN
_AREA: Final = 220
"""Height of a drawing with axes."""
_CHARTS: Final = 3
"""Charts of a section, at most."""
_LETTER: Final = 0.56
"""Width of a letter at most, as a part of the size of its font."""
_ROOT: Final = re.compile(r":root \{(.*?)\}", re.DOTALL)
_VARIABLE: Final = re.compile(r"(--[\w-]+): ([^;]+);")


def style_sheet() -> str:
    """Return the rules of drawings in their light colours, without variables: not all that draw know them."""
    text = asset("drawing.css")
    light = _ROOT.search(text)
    assert light is not None
    colours = dict(_VARIABLE.findall(light[1]))
    rules = text[text.index(".grid") :]
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], rules)


class _Sheet:
    """What has been drawn so far, and how far down that reaches."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = float(_MARGIN)

    def text(
        self, text: str, x: float, y: float, *, size: int = 13, style: str = "", anchor: str = "start"
    ) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" class="{style}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def paragraph(self, text: str, *, size: int = 13, style: str = "") -> None:
        for line in textwrap.wrap(text, int(_INNER / (size * _LETTER))):
            self.y += size * 1.4
            self.text(line, _MARGIN, self.y, size=size, style=style)

    def drawing(self, inner: str, box: str, x: float, width: float, height: float) -> None:
        self.parts.append(
            f'<svg x="{x:.1f}" y="{self.y:.1f}" width="{width:.1f}" height="{height:.1f}" viewBox="{box}" '
            f'preserveAspectRatio="none">{inner}</svg>'
        )

    def legend(self, entries: Sequence[LegendEntry], mark: str) -> None:
        if not entries:
            return
        x, self.y = float(_MARGIN), self.y + 20
        for entry in entries:
            wide = 46 + len(entry.name) * 12 * _LETTER
            if x + wide > WIDTH - _MARGIN and x > _MARGIN:
                x, self.y = float(_MARGIN), self.y + 18
            drawn = (
                f'<path class="line {escape(entry.style)}" d="M{x:.1f} {self.y - 4:.1f}h22"/>'
                if mark == "line"
                else f'<rect class="fill {escape(entry.style)}" x="{x:.1f}" y="{self.y - 10:.1f}" '
                'width="12" height="12"/>'
            )
            self.parts.append(drawn)
            self.text(entry.name, x + 28, self.y, size=12)
            x += wide

    def x_axis(self, axis: Axis, x: float, width: float) -> None:
        for at, text in axis.ticks:
            self.text(text, x + at / 100 * width, self.y + 16, size=11, style="soft", anchor="middle")
        self.text(axis.label, x + width / 2, self.y + 32, size=12, style="soft", anchor="middle")
        self.y += 38


def page(report: Contents) -> str:
    """Return the charts that one sees at first in each section of a report, three at most."""
    sheet = _Sheet()
    sheet.paragraph(report.title, size=22, style="head")
    for notice in report.notices:
        sheet.paragraph(notice, style="bad")
    for said in report.advice:
        sheet.paragraph(f"Advice: {said}")
    sheet.paragraph(" · ".join(f"{name} {value}" for name, value in report.facts), size=12, style="soft")
    for section in report.sections:
        charts = [one for one in at_first(section.blocks) if isinstance(one, Plot | Bars | Lanes)]
        if not charts:
            continue
        sheet.y += 22
        sheet.paragraph(section.title, size=17, style="head")
        sheet.paragraph(section.intro)
        for chart in charts[:_CHARTS]:
            sheet.y += 6
            sheet.paragraph(chart.title, style="head")
            _draw(chart, sheet)
    height = sheet.y + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif" role="img">\n'
        f"<title>{escape(report.title)}</title>\n<style>\n{style_sheet()}"
        "text { fill: #1b1f24; } text.soft { fill: #57606a; } text.head { font-weight: 600; } "
        "text.bad { fill: #b3261e; }\n"
        f'</style>\n<rect width="100%" height="100%" fill="#ffffff"/>\n{_lines(sheet.parts)}\n</svg>\n'
    )


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def _draw(chart: Block, sheet: _Sheet) -> None:
    match chart:
        case Plot():
            _plot(chart, sheet)
        case Bars():
            _bars(chart, sheet)
        case Lanes():
            _lanes(chart, sheet)


def _room(texts: Iterable[str], size: int, most: float) -> float:
    return min(max((len(text) for text in texts), default=0) * size * _LETTER, most)


def _plot(plot: Plot, sheet: _Sheet) -> None:
    sheet.legend(plot.legend, plot.legend_marks)
    sheet.y += 18
    sheet.text(plot.y.label, _MARGIN, sheet.y, size=12, style="soft")
    sheet.y += 10
    room = _room((text for _, text in plot.y.ticks), 11, 220) + 8
    x, width = _MARGIN + room, _INNER - room
    for at, text in plot.y.ticks:
        sheet.text(text, x - 8, sheet.y + _AREA * (1 - at / 100) + 4, size=11, style="soft", anchor="end")
    sheet.drawing(str(plot.drawing), "0 0 1000 1000", x, width, _AREA)
    for left, bottom, text in plot.labels:
        sheet.text(text, x + left / 100 * width + 7, sheet.y + _AREA * (1 - bottom / 100) - 5, size=11)
    edge = f"M{x:.1f} {sheet.y:.1f}v{_AREA}h{width:.1f}"
    sheet.parts.append(f'<path d="{edge}" fill="none" stroke="#57606a"/>')
    sheet.y += _AREA
    sheet.x_axis(plot.x, x, width)


def _bars(bars: Bars, sheet: _Sheet) -> None:
    sheet.legend(bars.legend, "fill")
    sheet.y += 8
    room = _room((bar.name for bar in bars.bars), 12, 330) + 10
    after = _room((bar.total for bar in bars.bars), 12, 330) + 10
    width = _INNER - room - after
    for bar in bars.bars:
        at, pieces = 0.0, []
        for style, wide, _ in bar.pieces:
            pieces.append(f'<rect class="fill {escape(style)}" x="{at:.3f}" width="{wide:.3f}" height="10"/>')
            at += wide
        if bar.limit is not None:
            pieces.append(f'<path class="limit" d="M{bar.limit:.3f} 0V10"/>')
        sheet.text(bar.name, _MARGIN, sheet.y + 15, size=12)
        sheet.drawing("".join(pieces), "0 0 100 10", _MARGIN + room, width, 20)
        sheet.text(bar.total, WIDTH - _MARGIN, sheet.y + 15, size=12, anchor="end")
        sheet.y += 26


def _lanes(lanes: Lanes, sheet: _Sheet) -> None:
    room = _room((name for name, _ in lanes.lanes), 12, 220) + 10
    x, width = _MARGIN + room, _INNER - room
    for name, spans in lanes.lanes:
        sheet.text(name, _MARGIN, sheet.y + 18, size=12)
        for span in spans:
            left, wide = x + span.left / 100 * width, max(span.width / 100 * width, 2)
            sheet.parts.append(
                f'<rect class="{escape(span.style)}" x="{left:.1f}" y="{sheet.y + 3:.1f}" '
                f'width="{wide:.1f}" height="20"/>'
            )
            if span.style.startswith("phase"):
                sheet.text(span.text, left + 4, sheet.y + 18, size=12)
        sheet.y += 26
    sheet.x_axis(lanes.x, x, width)
