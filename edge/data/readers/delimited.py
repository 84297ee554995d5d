"""Reading delimited text of ratings: a quick pass by pyarrow, and a slow one that only finds the bad line."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from edge.data.build import LARGEST_RATING, RatingsFile, build_store
from edge.data.store import Labels
from edge.errors import DataError

_INT64_MAX = 2**63 - 1
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the lines of a ratings file look.

    Attributes
    ----------
    format : name of the format.
    delimiter : between fields; more than one character is allowed (``::``).
    fields : the columns in order; ``user``, ``item``, ``rating`` and ``timestamp`` are read, others skipped.
    header : whether the first line names the columns.
    text_ids : whether ids may be any text; otherwise they are whole numbers from 0.
    quoted : whether fields may be in double quotes.
    example : one good line, for error messages.
    """

    format: str
    delimiter: str
    fields: tuple[str, ...]
    header: bool
    text_ids: bool
    quoted: bool
    example: str


def read_bytes(path: Path) -> bytes:
    """Return a text file's bytes, without a UTF-8 byte order mark.

    Raises
    ------
    DataError
        when it cannot be opened, is empty, is UTF-16/32 or holds NUL bytes.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}:1: the file is UTF-16 or UTF-32; save it as UTF-8")
    if not data.strip():
        raise DataError(f"{path}: the file is empty; expected one rating a line")
    data = data.removeprefix(b"\xef\xbb\xbf")
    nul = data.find(b"\0")
    if nul >= 0:
        line = data.count(b"\n", 0, nul) + 1
        raise DataError(f"{path}:{line}: a NUL byte; expected lines of text, not a binary file")
    return data


def read_delimited(path: Path, layout: Layout) -> RatingsFile:
    """Read ``path`` as ``layout`` says.

    Raises
    ------
    DataError
        with ``file:line``, what is wrong and an example of a good line: wrong number of fields, an id or
        rating that is not a number, a negative id, a rating that is not finite or beyond 1e9,
        undecodable bytes, no rows.
    """
    columns = read_columns(path, layout)
    timestamps = columns.timestamps
    store, duplicates = build_store(columns.users, columns.items, columns.ratings, timestamps)
    return RatingsFile(store, path, layout.format, columns.ratings.size, duplicates)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The rows of a file in its own order: labels [N], ratings float64[N], timestamps int64[N] or None."""

    users: Labels
    items: Labels
    ratings: npt.NDArray[np.float64]
    timestamps: npt.NDArray[np.int64] | None


def read_columns(path: Path, layout: Layout) -> Columns:
    """Read the columns of ``path`` in the file's order; errors as for :func:`read_delimited`."""
    data = read_bytes(path)
    delimiter = layout.delimiter
    source = data
    if len(delimiter) > 1:
        # pyarrow takes one character only.
        if b"\t" in data:
            _raise_first_bad_line(path, data, layout, f"expected {delimiter!r} between fields, found a tab")
        source = data.replace(delimiter.encode(), b"\t")
        delimiter = "\t"
    try:
        table = pacsv.read_csv(
            pa.BufferReader(source),
            read_options=pacsv.ReadOptions(
                column_names=list(layout.fields), skip_rows=1 if layout.header else 0, block_size=8 << 20
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=delimiter, quote_char='"' if layout.quoted else False, newlines_in_values=False
            ),
            convert_options=_convert_options(layout),
        )
    except pa.ArrowInvalid as error:
        _raise_first_bad_line(path, data, layout, str(error))
    if table.num_rows == 0:
        raise DataError(f"{path}: no ratings; expected lines like {layout.example!r}")
    if any(table[name].null_count for name in table.column_names):
        _raise_first_bad_line(path, data, layout, "an empty field")
    users, items = (_labels(table[name], layout) for name in ("user", "item"))
    ratings = table["rating"].to_numpy().astype(np.float64, copy=False)
    negative = not layout.text_ids and (users.min() < 0 or items.min() < 0)
    # Not true of what is no number, either.
    if negative or not (np.abs(ratings) <= LARGEST_RATING).all():
        _raise_first_bad_line(
            path, data, layout, "a negative id or a rating that is not finite, or too large"
        )
    timestamps = None
    if "timestamp" in layout.fields:
        times = table["timestamp"].to_numpy()
        if not np.isfinite(times).all() or np.abs(times).max() > _INT64_MAX // 2:
            _raise_first_bad_line(path, data, layout, "a timestamp out of range")
        timestamps = np.floor(times).astype(np.int64)
    return Columns(users, items, ratings, timestamps)


def _convert_options(layout: Layout) -> pacsv.ConvertOptions:
    ids = pa.dictionary(pa.int32(), pa.string()) if layout.text_ids else pa.int64()
    types = {"user": ids, "item": ids, "rating": pa.float64(), "timestamp": pa.float64()}
    wanted = [name for name in layout.fields if name in types]
    return pacsv.ConvertOptions(
        column_types={name: types[name] for name in wanted},
        include_columns=wanted,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )


def _labels(column: pa.ChunkedArray, layout: Layout) -> Labels:
    if not layout.text_ids:
        return np.asarray(column.to_numpy(), dtype=np.int64)
    merged = column.unify_dictionaries().combine_chunks()
    if isinstance(merged, pa.ChunkedArray):
        merged = merged.chunk(0)
    return text_labels(merged.dictionary.to_pylist(), merged.indices.to_numpy())


def text_labels(names: list[str], codes: npt.NDArray[np.integer]) -> Labels:
    """Return the label of every row: int64 when each name is a plain whole number, text otherwise.

    "Plain" means that the number writes itself back to the same text ("7", not "007"), so that no two
    different ids fall together.
    """
    if all(_is_plain_number(name) for name in names):
        return np.array([int(name) for name in names], dtype=np.int64).take(codes)
    return np.array(names, dtype=np.str_).take(codes)


def _is_plain_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name and int(name) <= _INT64_MAX


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        text = line.removesuffix(b"\r")
        if text:
            yield number, text


def _raise_first_bad_line(path: Path, data: bytes, layout: Layout, otherwise: str) -> NoReturn:
    """Raise DataError for the first line that does not fit, or with ``otherwise`` when every line does."""
    expected = f"expected {layout.delimiter.join(layout.fields)}, like {layout.example!r}"
    for number, line in _lines(data):
        if layout.header and number == 1:
            continue
        problem = _problem(line, layout)
        if problem is not None:
            raise DataError(f"{path}:{number}: {problem}; {expected}")
    raise DataError(f"{path}: {otherwise}; {expected}")


def _problem(line: bytes, layout: Layout) -> str | None:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    if layout.quoted:
        values = next(csv.reader([text], delimiter=layout.delimiter))
    else:
        values = text.split(layout.delimiter)
    if len(values) != len(layout.fields):
        return f"{len(values)} fields instead of {len(layout.fields)}"
    for name, value in zip(layout.fields, values, strict=True):
        problem = _field_problem(name, value, layout)
        if problem is not None:
            return problem
    return None


def _field_problem(name: str, value: str, layout: Layout) -> str | None:
    if name in ("user", "item"):
        if not value:
            return f"{name} is empty"
        if layout.text_ids:
            return None
        if not _WHOLE_NUMBER.fullmatch(value.strip()):
            return f"{name} {value!r} is not a whole number"
        if not 0 <= int(value) <= _INT64_MAX:
            return f"{name} {value} is negative or too large"
    elif name in ("rating", "timestamp"):
        try:
            number = float(value)
        except ValueError:
            return f"{name} {value!r} is not a number"
        if not math.isfinite(number):
            return f"{name} {value!r} is not a finite number"
        if name == "rating" and abs(number) > LARGEST_RATING:
            return f"rating {value} is beyond {LARGEST_RATING:g}; scale ratings down"
        if name == "timestamp" and abs(number) > _INT64_MAX // 2:
            return f"timestamp {value} is out of range"
    return None
