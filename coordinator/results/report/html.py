"""HTML of the blocks of a report.

Functions instead of templates: an engine of templates takes longer to start than a report to write.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup, escape

from coordinator.results.report.blocks import (
    Axis,
    Bars,
    Block,
    Contents,
    Fold,
    Lanes,
    LegendEntry,
    NoteBlock,
    Plot,
    SectionBlock,
    Span,
    TableBlock,
    TableCell,
    Tile,
    Tiles,
    Views,
)

_BREAKS: Final = re.compile(r"(?<=\.)(?=[a-z])|(?=\{)|(?<=[,_])(?=\S)")
_UNITS: Final = re.compile(r"(?<=\d) (?=[A-Za-z%]{1,3}\b)")
_HOTTEST: Final = 55.0
"""Percent of the colour of heat at most: what is written on it can be read."""
_LONG: Final = 26
"""Characters of the head of a row above which it may break."""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(report: Contents) -> str:
    """Return a report as one page without references to anything outside of it."""
    shown = escape(report.title)
    empty = "<p>There is nothing to report: the run has no finished round.</p>"
    facts = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in report.facts)
    head = [
        f"<h1>{shown}</h1>",
        *([f'<p class="lead">{escape(report.lead)}</p>'] if report.lead else []),
        *(f'<p class="banner" role="note">{escape(said)}</p>' for said in report.notices),
        _answers(report.sections),
        *(f'<p class="banner advice" role="note">Advice: {escape(said)}</p>' for said in report.advice),
        *(['<dl class="facts">', *facts, "</dl>"] if report.facts else []),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<title>{shown} – recfleet report</title>
<link rel="icon" href="data:,">
<style>
{asset("report.css")}{asset("drawing.css")}
</style>
</head>
<body>
<a class="skip" href="#content">Skip to the report</a>
<header>
<p class="brand">recfleet report</p>
{_lines(head)}
</header>
<main id="content">
{_lines(_section(one) for one in report.sections) if report.sections else empty}
</main>
<div id="tip" role="status" hidden></div>
<script>
{asset("report.js")}
</script>
</body>
</html>
"""


def _answers(sections: Sequence[SectionBlock]) -> str:
    """Return what the sections say in short, each a link to its section."""
    tiles = [
        f'<li><a href="#{escape(one.key)}"><span class="name">{escape(answer.name)}</span>'
        f'<strong class="{escape(answer.mood)}">{escape(answer.text)}</strong>'
        f'<span class="note">{breakable(answer.note)}</span></a></li>'
        for one in sections
        for answer in one.answers
    ]
    if not tiles:
        return ""
    return f'<nav aria-label="Answers">\n<ul class="answers">\n{_lines(tiles)}\n</ul>\n</nav>'


def asset(name: str) -> str:
    """Return a file of the package as it stands; only our own style sheet and script are."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)


def _section(section: SectionBlock) -> str:
    key = escape(section.key)
    return _lines(
        [
            f'<section id="{key}" aria-labelledby="{key}-title">',
            f'<h2 id="{key}-title">{escape(section.title)}</h2>',
            f'<p class="intro">{_unbroken(section.intro)}</p>' if section.intro else "",
            _blocks(section.blocks, "wide" if section.wide else ""),
            "</section>",
        ]
    )


def _blocks(parts: Sequence[Block], style: str = "") -> str:
    many = sum(isinstance(part, Plot) for part in parts) > 2
    style = f"{style} multiples" if many else style
    return _lines([f'<div class="blocks {style}">', *(_MAKERS[type(part)](part) for part in parts), "</div>"])


def _fold(part: Fold) -> str:
    title = f'<details class="fold"><summary>{escape(part.title)}</summary>'
    return _lines([title, _blocks(part.blocks), "</details>"])


def _choice(part: Views) -> str:
    """Return views of which all but the first are hidden, and the controls, which a script brings to life."""
    key = escape(part.key)
    lines = [f'<div class="choice" id="{key}">']
    for number, (label, options) in enumerate(part.controls):
        name = f"{key}-{number}"
        lines += [f"<fieldset><legend>{escape(label)}</legend>"]
        lines += [
            f'<label><input type="radio" name="{name}" value="{at}"{" checked" if at == 0 else ""}>'
            f"<span>{escape(option)}</span></label>"
            for at, option in enumerate(options)
        ]
        lines.append("</fieldset>")
    for at, (view, blocks) in enumerate(part.views.items()):
        lines.append(f'<div data-view="{" ".join(map(str, view))}"{" hidden" if at else ""}>')
        lines += [_blocks(blocks), "</div>"]
    return _lines([*lines, "</div>"])


def _note(part: NoteBlock) -> str:
    return f'<p class="{escape(part.mood)}">{escape(part.text)}</p>'


def breakable(text: str) -> str:
    """Return a text that may break within the path of a metric and around its tags, not before a unit."""
    return _BREAKS.sub("<wbr>", _unbroken(text))


def _unbroken(text: str) -> str:
    return _UNITS.sub("\N{NO-BREAK SPACE}", escape(text))


def _figure_attributes(metric: str | None, number: float | None) -> str:
    if metric is None or number is None:
        return ""
    return f' data-metric="{escape(metric)}" data-value="{escape(number)}"'


def _cell(cell: TableCell, *, text: bool) -> str:
    style, heat = f"{'text ' if text else ''}{escape(cell.mood)}", ""
    if cell.strength is not None:
        style += " heat"
        heat = f' style="--heat:{cell.strength * _HOTTEST:.1f}%"'
    attributes = _figure_attributes(cell.metric, cell.number)
    return f'<td class="{style}"{heat}{attributes}>{escape(cell.text)}</td>'


def _row(row: Sequence[TableCell], text_columns: int) -> str:
    head, *cells = row
    long = ' class="long"' if len(head.text) > _LONG else ""
    attributes = _figure_attributes(head.metric, head.number)
    rest = "".join(_cell(cell, text=at < text_columns) for at, cell in enumerate(cells, start=1))
    return f'<tr><th scope="row"{long}{attributes}>{breakable(head.text)}</th>{rest}</tr>'


def _table(part: TableBlock) -> str:
    caption, left = escape(part.caption), ' class="text"'
    heads = (
        f'<th scope="col"{left if at < part.text_columns else ""}>{breakable(name)}</th>'
        for at, name in enumerate(part.headers)
    )
    return _lines(
        [
            f'<div class="scroll{" wide" if part.wide else ""}" tabindex="0" role="region"'
            f' aria-label="{caption}">',
            '<table class="cards">' if len(part.headers) > 2 else "<table>",
            f"<caption><span>{caption}</span></caption>",
            "<thead><tr>",
            *heads,
            "</tr></thead>",
            "<tbody>",
            *(_row(row, part.text_columns) for row in part.rows),
            "</tbody>",
            "</table>",
            "</div>",
        ]
    )


def _legend(entries: Sequence[LegendEntry], mark: str) -> str:
    if not entries:
        return ""
    items = []
    for entry in entries:
        style = escape(entry.style)
        line, fill = (
            f'<path class="line {style}" d="M1 6H23"/>',
            f'<rect class="fill {style}" x="6" width="12" height="12"/>',
        )
        drawn = line if mark == "line" else fill
        key = f'<svg class="key" viewBox="0 0 24 12" aria-hidden="true">{drawn}</svg>'
        items.append(f"<li>{key}{escape(entry.name)}</li>")
    return _lines(['<ul class="legend" aria-label="Legend">', *items, "</ul>"])


def _data(table: TableBlock | None) -> str:
    if table is None:
        return ""
    return f"<details><summary>Data</summary>\n{_table(table)}\n</details>"


def _x_axis(axis: Axis) -> str:
    ticks = "".join(f'<span style="left:{at:.2f}%">{escape(text)}</span>' for at, text in axis.ticks)
    label = f'<div class="x-label" aria-hidden="true">{escape(axis.label)}</div>'
    return f'<div class="x-ticks" aria-hidden="true">{ticks}</div>\n{label}'


def _figure(title: str, parts: Iterable[str]) -> str:
    return _lines(
        ['<figure class="chart">', f"<figcaption>{escape(title)}</figcaption>", *parts, "</figure>"]
    )


def _plot(part: Plot) -> str:
    strut = "".join(f"<i>{escape(text)}</i>" for _, text in part.y.ticks)
    ticks = "".join(f'<span style="bottom:{at:.2f}%">{breakable(text)}</span>' for at, text in part.y.ticks)
    return _figure(
        part.title,
        [
            _legend(part.legend, part.legend_marks),
            '<div class="plot">',
            f'<div class="y-label" aria-hidden="true">{escape(part.y.label)}</div>',
            '<div class="y-ticks" aria-hidden="true">',
            f'<span class="strut">{strut}</span>{ticks}</div>',
            f'<div class="area" tabindex="0" role="img" aria-label="{escape(part.description)}">',
            '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
            f"<title>{escape(part.title)}</title>{escape(part.drawing)}</svg>",
            '<span class="marker" hidden></span>',
            *(_label(*one) for one in part.labels),
            f'<script type="application/json">{script_json(part.tips)}</script>',
            "</div>",
            _x_axis(part.x),
            "</div>",
            _data(part.table),
        ],
    )


def _label(left: float, bottom: float, text: str) -> str:
    place = f"left:{left:.2f}%;bottom:{bottom:.2f}%"
    return f'<span class="label" style="{place}" aria-hidden="true">{escape(text)}</span>'


def _bars(part: Bars) -> str:
    lines = [_legend(part.legend, "fill")]
    limits = " limits" if any(bar.limit is not None for bar in part.bars) else ""
    lines.append(f'<div class="bars{limits}" role="img" aria-label="{escape(part.description)}">')
    for bar in part.bars:
        at, pieces = 0.0, []
        for style, width, text in bar.pieces:
            said = escape(text)
            pieces.append(
                f'<rect class="fill {escape(style)}" x="{at:.3f}" width="{width:.3f}" height="10"'
                f' data-tip="{said}"><title>{said}</title></rect>'
            )
            at += width
        if bar.limit is not None:
            pieces.append(f'<path class="limit" d="M{bar.limit:.3f} 0V10"/>')
        lines += [
            f'<div class="bar-name" aria-hidden="true">{breakable(bar.name)}</div>',
            '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
            f"{''.join(pieces)}</svg>",
            f'<div class="bar-total" aria-hidden="true">{escape(bar.total)}</div>',
        ]
    return _figure(part.title, [*lines, "</div>", _data(part.table)])


def _span(span: Span) -> str:
    said = escape(span.text)
    shown = said if span.style.startswith("phase") else ""
    place = f"left:{span.left:.3f}%;width:{span.width:.3f}%"
    style = f"span {escape(span.style)}"
    return f'<span class="{style}" style="{place}" data-tip="{said}" title="{said}">{shown}</span>'


def _lanes(part: Lanes) -> str:
    lines = [f'<div class="lanes" role="img" aria-label="{escape(part.description)}">']
    for name, spans in part.lanes:
        shown = escape(name)
        lines += [
            f'<div class="lane-name" aria-hidden="true" title="{shown}">{shown}</div>',
            '<div class="lane" aria-hidden="true">',
            *(_span(span) for span in spans),
            "</div>",
        ]
    lines += ["<div></div>", f'<div class="lane-axis">{_x_axis(part.x)}</div>', "</div>"]
    return _figure(part.title, [*lines, _data(part.table)])


def _tile(tile: Tile) -> str:
    attributes = _figure_attributes(tile.metric, tile.number)
    note = f'<dd class="note">{escape(tile.note)}</dd>' if tile.note else ""
    return f"<div><dt>{escape(tile.name)}</dt><dd{attributes}>{escape(tile.text)}</dd>{note}</div>"


def _tiles(part: Tiles) -> str:
    return _lines(['<dl class="tiles">', *(_tile(tile) for tile in part.tiles), "</dl>"])


_MAKERS: Final[dict[type, Callable[[Any], str]]] = {
    TableBlock: _table,
    Plot: _plot,
    Bars: _bars,
    Lanes: _lanes,
    Tiles: _tiles,
    NoteBlock: _note,
    Fold: _fold,
    Views: _choice,
}


_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def script_json(value: object) -> Markup:
    """Return JSON that may stand in a script element: nothing in it ends the element."""
    try:
        text = _JSON.encode(value)
    except ValueError:
        text = _JSON.encode(_finite(value))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _finite(value: Any) -> Any:
    """Return what a script draws: nothing where a number is infinite."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
