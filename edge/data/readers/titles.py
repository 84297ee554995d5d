"""What items are called, from the file that a data set publishes beside its ratings."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from edge.core.errors import DataError
from edge.data.table.files import read_bytes
from edge.data.table.reading import RatingsFile


class _TitleFile(NamedTuple):
    name: str
    encoding: str
    header: bool
    fields: Callable[[str], list[str]]
    """Cuts a line."""


def _split(delimiter: str) -> Callable[[str], list[str]]:
    return lambda line: line.split(delimiter)


def _quoted(line: str) -> list[str]:
    return next(csv.reader([line], strict=True), [])


_FILES: Final = {
    "movielens-100k": _TitleFile("u.item", "latin-1", False, _split("|")),
    "movielens-1m": _TitleFile("movies.dat", "latin-1", False, _split("::")),
    "movielens-csv": _TitleFile("movies.csv", "utf-8", True, _quoted),
    "lastfm": _TitleFile("artists.dat", "utf-8", True, _split("\t")),
}
"""By the format of the ratings: a line begins with an item's id and its title."""


def read_item_titles(ratings: RatingsFile) -> tuple[str, ...] | None:
    """Return a title for each item of the ratings; an item without one has its id.

    None where the format has no file of titles, or it does not lie beside the ratings.

    Raises
    ------
    DataError
        with ``file:line`` for a line without a title, or an item that stands twice.
    """
    layout = _FILES.get(ratings.format)
    ids = ratings.store.item_ids
    if layout is None or ids is None:
        return None
    path = ratings.path.parent / layout.name
    if not path.is_file():
        return None
    titles: dict[str, str] = {}
    for number, item, title in _titles(path, layout):
        if item in titles:
            raise DataError(f"{path}:{number}: item {item!r} has a title already; keep one line")
        titles[item] = title
    return tuple(titles.get(label, label) for label in map(str, ids.tolist()))


def _titles(path: Path, layout: _TitleFile) -> Iterator[tuple[int, str, str]]:
    """Yield number, item and title of every line that is not empty."""
    # Names have a few stray bytes; a title need not be perfect to be shown.
    lines = read_bytes(path).decode(layout.encoding, errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r")
        if not text or (layout.header and number == 1):
            continue
        try:
            fields = layout.fields(text)
        except csv.Error as error:
            raise DataError(f"{path}:{number}: {error}") from error
        if len(fields) < 2:
            raise DataError(f"{path}:{number}: {text[:80]!r} has no title after an item's id")
        yield number, fields[0], fields[1]
