"""Tables of many columns, broken into several that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from rich.table import Table

Column: TypeAlias = tuple[str, Sequence[str]]
"""A heading and the text of each row; each can have several lines."""


def fitting_tables(
    title: str,
    fixed: Sequence[Column],
    blocks: Sequence[Sequence[Column]],
    width: int,
    styles: Sequence[str | None],
) -> list[Table]:
    """Return tables of the same rows that together show all columns.

    Parameters
    ----------
    title : of each table.
    fixed : columns that each table begins with.
    blocks : columns that stay together; a table has as many blocks as fit, and at least one.
    width : columns of the terminal.
    styles : of each row.
    """
    return [_table(title, (*fixed, *columns), styles) for columns in _groups(fixed, blocks, width)]


def _width(columns: Iterable[Column]) -> int:
    """Return what columns take: their words, and three characters for padding and a border each."""
    return sum(
        max(len(line) for text in (heading, *cells) for line in text.split("\n")) + 3
        for heading, cells in columns
    )


def _groups(
    fixed: Sequence[Column], blocks: Sequence[Sequence[Column]], width: int
) -> Iterator[list[Column]]:
    group: list[Column] = []
    for block in blocks:
        if group and _width([*fixed, *group, *block]) >= width:
            yield group
            group = []
        group += block
    yield group


def _table(title: str, columns: Sequence[Column], styles: Sequence[str | None]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading, _ in columns:
        table.add_column(heading, justify="right", overflow="fold")
    for row, style in enumerate(styles):
        table.add_row(*(cells[row] for _, cells in columns), style=style)
    return table
