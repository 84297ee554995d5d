"""How a table of ratings is read, as far as it is given."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

LONGEST_DELIMITER: Final = 8
"""Characters."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How a table is read; what is None is found from the file.

    Attributes
    ----------
    columns : by role (``user``, ``item``, ``rating``, ``time``), a column's name or its number from 1.
    delimiter : between the fields of delimited text; more than one character is allowed.
    header : whether the first line names the columns.
    quotes : whether fields may be in double quotes.
    encoding : of text, a name of Python's.
    decimal : ``.`` or ``,``, the decimal mark of ratings.
    skip_bad_rows : leave out rows that cannot be read and count them, in place of an error.
    duplicates : what becomes of a user's ratings of one item: ``last`` (by time, then by row), ``first``,
        ``mean`` (with the last time), or ``error``.
    scale : lowest and highest rating; others are bad rows.
    width : number of columns, where the format fixes it.
    whole_ids : whether ids must be whole numbers from 0, as the format has it.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None
    header: bool | None = None
    quotes: bool | None = None
    encoding: str | None = None
    decimal: str | None = None
    skip_bad_rows: bool = False
    duplicates: str = "last"
    scale: tuple[float, float] | None = None
    width: int | None = None
    whole_ids: bool = False


def is_text_encoding(name: str) -> bool:
    """Return whether text of an encoding can be read."""
    try:
        "".encode(name)
        return codecs.getincrementaldecoder(name) is not None
    except (LookupError, UnicodeError, ValueError):
        return False
