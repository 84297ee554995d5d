"""What a report is made of: sections of tiles, tables and charts.

:mod:`.html`, :mod:`.markdown` and :mod:`.svg` write them out.

Positions in charts are shares of the plot's width and height in thousandths, from its top left corner: the
drawing stretches with the page, and its labels are text beside it that does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    text_columns: int = 1
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure; ``mood``: ``good`` or ``bad``, or nothing."""

    name: str
    text: str
    metric: str | None = None
    number: float | int | None = None
    note: str = ""
    mood: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Key figures side by side."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """A paragraph."""

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
    legend_marks : what stands beside a name: a ``line`` or a ``fill``.
    labels : texts beside points: percent from the left and from the bottom.
    """

    title: str
    description: str
    drawing: Markup
    x: Axis
    y: Axis
    legend: tuple[LegendEntry, ...]
    tips: tuple[tuple[float, float, str], ...]
    table: TableBlock | None = None
    legend_marks: str = "line"
    labels: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of pieces: style, width in percent, text; ``limit``: where a limit stands, in percent."""

    name: str
    total: str
    pieces: tuple[tuple[str, float, str], ...]
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars below each other."""

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

    title: str
    description: str
    lanes: tuple[tuple[str, tuple[Span, ...]], ...]
    x: Axis
    table: TableBlock | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that are shown when somebody asks for them."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Views:
    """Blocks of which a control shows some at a time.

    Attributes
    ----------
    key : its name in the page.
    controls : of each control its label and its options.
    views : blocks by the position of the option of each control. The first view is what one sees at first.
    """

    key: str
    controls: tuple[tuple[str, tuple[str, ...]], ...]
    views: dict[tuple[int, ...], tuple[Block, ...]]


Block = TableBlock | Tiles | NoteBlock | Plot | Bars | Lanes | Fold | Views
Chart = Plot | Bars | Lanes


def choice(key: str, label: str, options: dict[str, tuple[Block, ...]]) -> tuple[Block, ...]:
    """Return blocks by the names of their options: under one control where there are several."""
    if len(options) < 2:
        return tuple(block for blocks in options.values() for block in blocks)
    views: dict[tuple[int, ...], tuple[Block, ...]] = {
        (at,): blocks for at, blocks in enumerate(options.values())
    }
    return (Views(key, ((label, tuple(options)),), views),)


def at_first(blocks: tuple[Block, ...]) -> Iterator[Block]:
    """Yield the blocks that one sees at first: of choices their first view, and nothing folded."""
    for block in blocks:
        if isinstance(block, Views):
            yield from at_first(next(iter(block.views.values())))
        elif not isinstance(block, Fold):
            yield block


@dataclass(frozen=True, slots=True)
class SectionBlock:
    """A part of the report under a heading.

    Attributes
    ----------
    key : its anchor.
    title : its heading.
    blocks : what it holds.
    intro : what is said first.
    wide : one block a row.
    answers : what the head of the page shows of it.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]
    intro: str = ""
    wide: bool = False
    answers: tuple[Tile, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """A report.

    Attributes
    ----------
    title, lead : what it is about.
    facts : names and values that say of which run it is.
    notices : what has to be known before any figure.
    advice : what could be done better.
    sections : in their order.
    """

    title: str
    lead: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    notices: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    sections: tuple[SectionBlock, ...] = ()
