"""Item features of MovieLens: genres and release year, of 100K (``u.item``) and 1M (``movies.dat``).

A genre is 1 or 0. The year is that of the release date (100K), or the one in brackets that ends the title
(1M); where there is none it is the mean year. Both files are Latin-1, as GroupLens publishes them.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from edge.core.errors import DataError
from edge.data.features import FeatureTable, ItemFeatures, align
from edge.data.store import Labels
from edge.data.table.files import read_bytes

YEAR = "year"
GENRES_100K = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
"""The flags of ``u.item`` in the order of ``u.genre``."""
GENRES_1M = GENRES_100K[1:]
"""The genres of ``movies.dat``; it has none called unknown."""

_TITLE_YEAR = re.compile(r"\((\d{4})\)\s*$")
_DATE_YEAR = re.compile(r"\d{1,2}-[A-Z][a-z]{2}-(\d{4})")
_ITEM = re.compile(r"[0-9]{1,18}")
_EXAMPLE_100K = "1|Toy Story (1995)|01-Jan-1995||http://…|0|0|0|1|1|1|0|0|0|0|0|0|0|0|0|0|0|0|0"
_EXAMPLE_1M = "1::Toy Story (1995)::Animation|Children's|Comedy"


def read_100k_features(path: Path, item_ids: Labels | None) -> ItemFeatures:
    """Read ``u.item``: 19 genre flags and the year of release, for the items of a store.

    Raises
    ------
    DataError
        with ``file:line`` for a wrong number of fields, an id, flag or date that is none, or an item twice;
        and as :func:`edge.data.features.align`.
    """
    ids: list[int] = []
    seen: set[int] = set()
    titles: list[str] = []
    rows: list[list[float]] = []
    for where, line in _lines(path):
        fields = line.split("|")
        if len(fields) != 5 + len(GENRES_100K):
            raise DataError(
                f"{where}: {len(fields)} fields instead of 24; expected a line like {_EXAMPLE_100K!r}"
            )
        flags = fields[5:]
        for genre, flag in zip(GENRES_100K, flags, strict=True):
            if flag not in ("0", "1"):
                raise DataError(f"{where}: flag {genre!r} is {flag!r}; write 0 or 1")
        date = _DATE_YEAR.fullmatch(fields[2])
        if fields[2] and date is None:
            raise DataError(f"{where}: release date {fields[2]!r}; write one like '01-Jan-1995', or nothing")
        ids.append(_item(where, fields[0], seen))
        titles.append(fields[1])
        rows.append([float(flag) for flag in flags] + [float(date[1]) if date else np.nan])
    return _aligned(path, ids, titles, rows, (*GENRES_100K, YEAR), item_ids)


def read_1m_features(path: Path, item_ids: Labels | None) -> ItemFeatures:
    """Read ``movies.dat``: 18 genres and the year in the title, for the items of a store.

    Raises
    ------
    DataError
        with ``file:line`` for a wrong number of fields, an id or genre that is none, or an item twice; and as
        :func:`edge.data.features.align`.
    """
    ids: list[int] = []
    seen: set[int] = set()
    titles: list[str] = []
    rows: list[list[float]] = []
    column = {genre: number for number, genre in enumerate(GENRES_1M)}
    for where, line in _lines(path):
        fields = line.split("::")
        if len(fields) != 3:
            raise DataError(
                f"{where}: {len(fields)} fields instead of 3; expected a line like {_EXAMPLE_1M!r}"
            )
        row = [0.0] * len(GENRES_1M)
        for genre in fields[2].split("|"):
            if genre not in column:
                raise DataError(f"{where}: unknown genre {genre!r}; write some of {', '.join(GENRES_1M)}")
            row[column[genre]] = 1.0
        year = _TITLE_YEAR.search(fields[1])
        ids.append(_item(where, fields[0], seen))
        titles.append(fields[1])
        rows.append([*row, float(year[1]) if year else np.nan])
    return _aligned(path, ids, titles, rows, (*GENRES_1M, YEAR), item_ids)


def _lines(path: Path) -> list[tuple[str, str]]:
    """Return ``file:line`` and text of every line that is not empty."""
    lines = read_bytes(path).decode("latin-1").split("\n")
    numbered = ((f"{path}:{number}", line.rstrip("\r")) for number, line in enumerate(lines, start=1))
    return [(where, line) for where, line in numbered if line]


def _item(where: str, text: str, seen: set[int]) -> int:
    """Return the item of a line, and note that it was seen."""
    if not _ITEM.fullmatch(text):
        raise DataError(f"{where}: item {text!r} is not a whole number; write one from 0 up")
    item = int(text)
    if item in seen:
        raise DataError(f"{where}: item {item} stands in the file a second time; keep one line")
    seen.add(item)
    return item


def _aligned(
    path: Path,
    ids: list[int],
    titles: list[str],
    rows: list[list[float]],
    names: tuple[str, ...],
    item_ids: Labels | None,
) -> ItemFeatures:
    return align(FeatureTable(np.array(ids), names, np.array(rows), titles, str(path)), item_ids)
