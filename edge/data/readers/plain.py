"""Plain text of ``user item rating [timestamp]`` without a header, ids being any text."""

from __future__ import annotations

from pathlib import Path

from edge.data.build import RatingsFile
from edge.data.readers.delimited import Layout, read_bytes, read_delimited
from edge.errors import DataError

_DELIMITERS = ("\t", ",", ";", " ")
_FIELDS = ("user", "item", "rating", "timestamp")


def plain_layout(first_line: str) -> Layout | None:
    """Return the layout of ``first_line``, or None when it is not three or four fields with a rating."""
    for delimiter in _DELIMITERS:
        values = first_line.split(delimiter)
        if len(values) not in (3, 4) or not all(values):
            continue
        try:
            float(values[2])
            float(values[-1])
        except ValueError:
            continue
        return Layout(
            format="plain",
            delimiter=delimiter,
            fields=_FIELDS[: len(values)],
            header=False,
            text_ids=True,
            quoted=False,
            example=delimiter.join(("u7", "i42", "3.5", "1260759144")[: len(values)]),
        )
    return None


def read_plain(path: Path) -> RatingsFile:
    """Read ratings between tabs, commas, semicolons or single spaces; the first line decides which.

    Raises
    ------
    DataError
        also when the first line is not three or four such fields, the third a number.
    """
    first_line = read_bytes(path).split(b"\n", 1)[0].decode("utf-8", errors="replace").rstrip("\r")
    layout = plain_layout(first_line)
    if layout is None:
        raise DataError(
            f"{path}:1: {first_line[:80]!r}; expected user, item, rating and perhaps timestamp between tabs,"
            " commas, semicolons or single spaces, like 'u7,i42,3.5'"
        )
    return read_delimited(path, layout)
