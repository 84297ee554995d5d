"""Reports as Markdown: what charts show as their tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from coordinator.results.report.blocks import (
    Block,
    Contents,
    Fold,
    NoteBlock,
    TableBlock,
    TableCell,
    Tiles,
    Views,
)

_SPECIAL = re.compile(r"[\\`*\[\]<>|#]|(?<!\w)_|_(?!\w)")


def page(report: Contents) -> str:
    """Return a report as Markdown: its answers, then the tables of every section."""
    lines = [f"# {_text(report.title)}", ""]
    if report.lead:
        lines += [_text(report.lead), ""]
    lines += [line for notice in report.notices for line in (f"> {_text(notice)}", "")]
    answers = [tile for one in report.sections for tile in one.answers]
    lines += [
        f"- **{_text(tile.name)}**: {_text(tile.text)}{'; ' if tile.note else ''}{_text(tile.note)}"
        for tile in answers
    ]
    lines += [""] if answers else []
    lines += [line for said in report.advice for line in (f"Advice: {_text(said)}", "")]
    lines += [f"- {_text(name)}: {_text(value)}" for name, value in report.facts]
    for section in report.sections:
        lines += [*([""] if lines[-1] else []), f"## {_text(section.title)}", ""]
        lines += [_text(section.intro), ""] if section.intro else []
        lines += _blocks(section.blocks, 3)
    while lines[-1] == "":
        lines.pop()
    return "\n".join(lines) + "\n"


def _blocks(blocks: Iterable[Block], level: int) -> Iterator[str]:
    shown: set[TableBlock] = set()  # the views of a choice share their tables
    for block in blocks:
        match block:
            case NoteBlock():
                yield from (_text(block.text), "")
            case Fold():
                yield from (f"{'#' * level} {_text(block.title)}", "")
                yield from _blocks(block.blocks, level + 1)
            case Views():
                every = (inner for blocks in block.views.values() for inner in blocks)
                yield from _blocks(every, level)
            case Tiles():
                rows = (
                    (TableCell(tile.name), TableCell(tile.text), TableCell(tile.note)) for tile in block.tiles
                )
                yield from (*_table(("figure", "value", "note"), rows), "")
            case TableBlock():
                yield from _captioned(block)
            case _ if block.table is not None:
                if block.table not in shown:
                    shown.add(block.table)
                    yield from _captioned(block.table)
            case _:
                yield from (f"{_text(block.title)}. {_text(block.description)}", "")


def _captioned(table: TableBlock) -> Iterator[str]:
    yield from (_text(table.caption), "", *_table(table.headers, table.rows), "")


def _table(headers: Iterable[str], rows: Iterable[tuple[TableCell, ...]]) -> Iterator[str]:
    names = [_text(name) for name in headers]
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(_text(cell.text) for cell in row)} |"


def _text(text: str) -> str:
    """Return a text in which nothing is a mark."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))
