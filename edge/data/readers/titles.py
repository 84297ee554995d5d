"""Titles of items, by their original ids, for people who read recommendations."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from edge.errors import DataError

_ENCODINGS = {"u.item": "latin-1", "movies.dat": "latin-1", "artists.dat": "utf-8", "movies.csv": "utf-8-sig"}
_DELIMITERS = {"u.item": "|", "movies.dat": "::", "artists.dat": "\t"}
_HEADERS = ("artists.dat", "movies.csv")


def read_titles(path: str | Path) -> dict[str, str]:
    """Return ``{original item id as text: title}``.

    Parameters
    ----------
    path : ``u.item``, ``movies.dat`` (both latin-1), ``artists.dat``, ``movies.csv`` (UTF-8), or a folder or
        ratings file beside one of them. A folder without any gives an empty dictionary.

    Raises
    ------
    DataError
        with ``file:line`` when a line has no id and title, or the bytes do not decode.
    """
    given = Path(path)
    if given.name in _ENCODINGS:
        return _read(given)
    folder = given if given.is_dir() else given.parent
    for name in _ENCODINGS:
        if (folder / name).is_file():
            return _read(folder / name)
    return {}


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_bytes().decode(_ENCODINGS[path.name])
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not {_ENCODINGS[path.name]}") from error
    titles: dict[str, str] = {}
    if path.name in _DELIMITERS:
        delimiter = _DELIMITERS[path.name]
        rows = ((number, line.split(delimiter)) for number, line in enumerate(text.split("\n"), start=1))
    else:
        reader = csv.reader(io.StringIO(text, newline=""))
        rows = ((reader.line_num, row) for row in reader)
    for number, row in rows:
        if not any(row) or (number == 1 and path.name in _HEADERS):
            continue
        if len(row) < 2 or not row[0]:
            raise DataError(f"{path}:{number}: expected an item id and a title, got {row[0][:60]!r}")
        titles[row[0].strip()] = row[1].strip()
    return titles
