"""Small CSV files that people write by hand: two fields a line, the header optional."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edge.core.errors import DataError

LARGEST_FILE_BYTES: Final = 1 << 24
"""A larger file is refused before it is read: 16 MiB."""


def csv_pairs(path: Path, header: tuple[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yield line number and both fields, stripped, of every line but the header and empty ones.

    Parameters
    ----------
    path : CSV in UTF-8.
    header : names of the fields; passed over where it is the first line, in whatever case.

    Raises
    ------
    DataError
        Naming file and line: another number of fields, broken quoting, no UTF-8; or a file that is missing or
        larger than :data:`LARGEST_FILE_BYTES`.
    """
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    at_start = True
    try:
        for raw in reader:
            fields = tuple(field.strip() for field in raw)
            if not any(fields):
                continue
            is_header = at_start and tuple(field.lower() for field in fields) == header
            at_start = False
            if is_header:
                continue
            if len(fields) != 2:
                raise DataError(f"{path}:{reader.line_num}: {len(fields)} fields; write {','.join(header)!r}")
            yield reader.line_num, fields[0], fields[1]
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: no CSV: {error}") from error


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        contents = b"" if size > LARGEST_FILE_BYTES else path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if size > LARGEST_FILE_BYTES:
        raise DataError(f"{path}: has {size} bytes; {LARGEST_FILE_BYTES} are read at most")
    try:
        return contents.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: no UTF-8 text; save the file as UTF-8") from error
