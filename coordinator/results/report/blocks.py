"""What a report is made of: sections of tiles, tables and charts; :mod:`.html` turns them into HTML.

Positions in charts are shares of the plot's width and height in thousandths, from its top left corner: the
drawing stretches with the page, and its labels are text beside it that does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

EXTENT = 1000.0
"""Width and height of the drawing of a plot, in units of its own."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a table.

    Attributes
    ----------
    text : what people read.
    metric, number : the figure as the tables have it, with a name that tests and scripts find it by.
    strength : how strongly it is coloured, 0 to 1; None: not at all.
    mood : ``good`` or ``bad``, or nothing.
    """

    text: str
    number: float | int | None = None
    metric: str | None = None
    strength: float | None = None
    mood: str = ""


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table; the first column heads its rows, and the first ``text_columns`` are aligned left.

    ``wide``: it has a row of its own beside nothing else.
    """

    kind: ClassVar[str] = "table"
    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    text_columns: int = 1
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure."""

    name: str
    text: str
    metric: str | None = None
    number: float | int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Key figures side by side."""

    kind: ClassVar[str] = "tiles"
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """A paragraph."""

    kind: ClassVar[str] = "note"
    text: str
    mood: str = ""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A name and the style class of what it stands for."""

    name: str
    style: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its label, and where which texts stand, in percent from the left or from the bottom."""

    label: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing with axes.

    Attributes
    ----------
    title : heads it.
    description : what it shows, for those who do not see it.
    drawing : the SVG elements inside.
    tips : points that answer to the pointer and the arrow keys: x, y, text.
    table : the same in figures.
    """

    kind: ClassVar[str] = "plot"
    title: str
    description: str
    drawing: Markup
    x: Axis
    y: Axis
    legend: tuple[LegendEntry, ...]
    tips: tuple[tuple[float, float, str], ...]
    table: TableBlock | None = None
    legend_marks: str = "line"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of several pieces: style, width in percent, text."""

    name: str
    total: str
    pieces: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars below each other."""

    kind: ClassVar[str] = "bars"
    title: str
    description: str
    bars: tuple[Bar, ...]
    legend: tuple[LegendEntry, ...]
    table: TableBlock | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a lane, in percent of its width."""

    left: float
    width: float
    text: str
    style: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Spans of rounds below each other, on one axis."""

    kind: ClassVar[str] = "lanes"
    title: str
    description: str
    lanes: tuple[tuple[str, tuple[Span, ...]], ...]
    x: Axis
    table: TableBlock | None = None


Block = TableBlock | Tiles | NoteBlock | Plot | Bars | Lanes


@dataclass(frozen=True, slots=True)
class SectionBlock:
    """A part of the report under a heading; ``key`` is its anchor; ``wide``: one block a row."""

    key: str
    title: str
    blocks: tuple[Block, ...]
    intro: str = ""
    wide: bool = False
