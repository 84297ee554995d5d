"""Bytes of a ratings file into Arrow columns: delimited text, JSON and Parquet, a batch of rows at a time."""

from __future__ import annotations

import ast
import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from edge.core.errors import DataError
from edge.data.table.columns import is_header, names_known, shown
from edge.data.table.options import TableOptions

BLOCK_BYTES: Final = 16 << 20
LONGEST_LINE_BYTES: Final = 64 << 20
"""A longer line is refused: it is no table."""
SAMPLE_ROWS: Final = 200

_PARSED_BYTES: Final = 2 << 20
_HEAD_BYTES: Final = 256 << 10
_BATCH_ROWS: Final = 1 << 20
"""Rows of Parquet read at a time."""
_ENCODED_ROWS: Final = 1 << 22
"""Rows of Parquet whose text is encoded at a time: the more, the fewer dictionaries are to be merged."""
_PART_ROWS: Final = 1 << 17
"""Rows of Parquet handed on at a time: what is made of them fits the processor's cache."""
_DELIMITERS: Final = ("::", "\t", ";", "|", "\x01", ",", " ")
_COMMENT_MARKS: Final = (b"#", b"%")
_INSIDE: Final = "\x1f"
"""Stands for a delimiter of several characters: pyarrow takes one only."""
_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd", b"BZh": "bz2", b"\x04\x22M\x18": "lz4"}
_WEB_PAGE: Final = "a web page, perhaps in place of a download; save the file that it links to"
_OTHERS: Final = {
    b"PK\x03\x04": "a zip archive or an Excel workbook; unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel workbook; save the sheet as CSV",
    b"SQLite format 3": "an SQLite database; export the table as CSV",
    b"\x89HDF": "HDF5; write it as CSV or Parquet",
    b"\x93NUMPY": "a numpy array; write it as CSV or Parquet",
    b"\x80\x04": "a pickle, which is never opened; write it as CSV or Parquet",
    b"\x80\x05": "a pickle, which is never opened; write it as CSV or Parquet",
    b"ARROW1": "Arrow IPC (Feather); write it as CSV or Parquet",
    b"Obj\x01": "Avro; write it as CSV or Parquet",
    b"ORC": "ORC; write it as CSV or Parquet",
    b"\xfd7zXZ": "xz; compress it with gzip or zstd, or not at all",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"%PDF": "a PDF; export the table as CSV",
    b"<!DOCTYPE": _WEB_PAGE,
    b"<!doctype": _WEB_PAGE,
    b"<html": _WEB_PAGE,
    b"<HTML": _WEB_PAGE,
    b"<?xml": "XML; write it as CSV, JSON lines or Parquet",
}
_NUMBERS: Final = {"user": pa.int64(), "item": pa.int64(), "rating": pa.float64(), "time": pa.int64()}
"""Types that columns of delimited text are tried as, before they are read as text."""
_FAILED_CONVERSION: Final = re.compile(r"In CSV column #([0-9]+): CSV conversion error to (?:int64|double)")
_CACHED_BYTES: Final = 1 << 18
_FIELDS: Final = ("fields", "field")
_NETFLIX_HEAD: Final = re.compile(rb"^[0-9]+:\r?$", re.MULTILINE)
_NETFLIX_NAMES: Final = ("movie", "user", "rating", "date")
_JSON_TYPES: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class Batch(NamedTuple):
    """Some rows of a file: an Arrow column for each role, and the place of row n for messages."""

    columns: Mapping[str, Any]
    rows: int
    place: Callable[[int], str]


Rows: TypeAlias = Callable[[], Iterable[Any]]
"""Yields tables of Arrow or mappings of columns, for :class:`RowsFile`."""


class TableFile(Protocol):
    """An opened file.

    Attributes
    ----------
    path : of the file.
    names : of its columns, or None without a header.
    sample : its first rows, as text.
    decimal : decimal mark of its numbers.
    skipped : rows left out so far, because they have another number of fields or are no JSON.
    rows_about : number of rows, sooner too many than too few; 0 where that is open.
    """

    path: Path
    names: tuple[str, ...] | None
    sample: list[list[str]]
    decimal: str
    skipped: int
    rows_about: int

    def blocks(self, index: Mapping[str, int]) -> Generator[Iterable[Batch], None, None]:
        """Read the columns at ``index``, by role; those are places in ``names``.

        A block may be read in another thread, while batches are taken from the one before; ids are encoded as
        these are, which takes as long.
        """
        ...


def open_table(path: Path, options: TableOptions) -> TableFile:
    """Open a file by what its first bytes are.

    Raises
    ------
    DataError
        when it cannot be read, is empty, or is none of the kinds.
    """
    with _readable(path), path.open("rb") as stream:
        magic = stream.read(16)
    if magic.startswith(b"PAR1"):
        return ParquetFile(path)
    head = first_bytes(path, options.encoding)
    if head.startswith(b"PAR1"):
        raise DataError(f"{path}: compressed Parquet; unpack it, Parquet compresses its own pages")
    if is_json(head):
        return JsonFile(path, head, options)
    return DelimitedFile(path, head, options)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{path}: cannot be read: {text}") from error


def first_bytes(path: Path, encoding: str | None = None) -> bytes:
    """Return the beginning of a text file, decompressed, as UTF-8 without a byte order mark.

    Raises
    ------
    DataError
        when it cannot be read, is empty, or is a known kind of file that is no table.
    """
    head = b""
    with closing(_chunks(path, encoding, _HEAD_BYTES)) as chunks:
        for chunk in chunks:
            head += chunk
            if len(head) >= _HEAD_BYTES:
                break
    if not head.strip():
        raise DataError(f"{path}: the file is empty; expected one rating a line")
    return head


def _chunks(path: Path, encoding: str | None, size: int) -> Generator[bytes, None, None]:
    """Yield a file's text as UTF-8: decompressed, decoded, without a byte order mark."""
    with _readable(path), pa.OSFile(str(path)) as raw:
        magic = raw.read(16)
        raw.seek(0)
        codec = next((name for start, name in _COMPRESSED.items() if magic.startswith(start)), None)
        stream = raw if codec is None else pa.CompressedInputStream(raw, codec)
        chunk = stream.read(size)
        for start, what in _OTHERS.items():
            if chunk.startswith(start):
                raise DataError(f"{path}: the file is {what}")
        decoder = _decoder(path, chunk, encoding)
        while chunk:
            yield chunk.removeprefix(codecs.BOM_UTF8) if decoder is None else decoder(chunk, False)
            chunk = stream.read(size)
        if decoder is not None:
            yield decoder(b"", True)


def _rows_about(path: Path, head: bytes, newline: bytes) -> int:
    """Return about how many lines a text file has, an eighth too many for what its head does not show."""
    with path.open("rb") as stream:
        if stream.read(16).startswith(tuple(_COMPRESSED)):
            return 0
    rows = path.stat().st_size * (head.count(newline) + 1) // len(head)
    return rows + rows // 8


def _decoder(path: Path, head: bytes, encoding: str | None) -> Callable[[bytes, bool], bytes] | None:
    """Return what turns chunks into UTF-8; None where they are UTF-8 already."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        encoding = "utf-32"
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    if encoding is None or codecs.lookup(encoding).name == "utf-8":
        return None
    decoder = codecs.getincrementaldecoder(encoding)()

    def decoded(chunk: bytes, final: bool) -> bytes:
        try:
            return decoder.decode(chunk, final).encode()
        except UnicodeError as error:
            raise DataError(f"{path}: is not {encoding}: {error}; write another data.encoding") from error

    return decoded


@dataclass(frozen=True, slots=True)
class _Lines:
    """Whole lines of a file, a block at a time.

    Lines are counted where an error asks for it only: counting takes a tenth of the time that reading takes.
    """

    path: Path
    encoding: str | None
    quotes: bool
    newline: bytes

    def blocks(self) -> Generator[bytes, None, None]:
        """Yield the blocks; with ``quotes`` none ends inside a quoted field, unless quotes do not pair."""
        rest, number = b"", 0
        for chunk in _chunks(self.path, self.encoding, BLOCK_BYTES):
            cut = chunk.rfind(self.newline) + 1
            if cut and not (self.quotes and (b'"' in chunk or b'"' in rest)):
                # The usual case with one copy.
                yield self._checked(b"".join((rest, memoryview(chunk)[:cut])), number)
                number += 1
                rest = chunk[cut:]
                continue
            text = rest + chunk
            cut = _whole_lines(text, self.quotes, self.newline)
            if cut == 0 and len(text) > LONGEST_LINE_BYTES:
                raise DataError(
                    f"{self.path}:{self.line_of(number)}: a line of more than {LONGEST_LINE_BYTES >> 20} MB; "
                    "expected a table"
                )
            if cut:
                yield self._checked(text[:cut], number)
                number += 1
            rest = text[cut:]
        if rest:
            yield self._checked(rest, number)

    def line_of(self, number: int) -> int:
        """Return the line that a block begins with; reads the file again up to there."""
        with closing(self.blocks()) as blocks:
            return 1 + sum(block.count(self.newline) for _, block in zip(range(number), blocks, strict=False))

    def _checked(self, text: bytes, number: int) -> bytes:
        if b"\0" in text:
            refuse_nul(self.path, text, self.line_of(number), self.newline)
        return text


def is_utf8(text: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        return text.isascii() or text.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False


def refuse_nul(path: Path, text: bytes, line: int, newline: bytes) -> None:
    """Refuse text with a NUL byte; it begins with ``line``."""
    nul = text.find(b"\0")
    if nul >= 0:
        at = line + text.count(newline, 0, nul)
        message = "a NUL byte; expected lines of text; if it is UTF-16, write data.encoding"
        raise DataError(f"{path}:{at}: {message}")


def _whole_lines(text: bytes, quotes: bool, newline: bytes) -> int:
    """Return where the last whole line ends."""
    last = text.rfind(newline) + 1
    if not quotes:
        return last
    cut, odd = last, text.count(b'"', 0, last) % 2
    while cut and odd:
        quote = text.rfind(b'"', 0, cut)
        start = text.rfind(newline, 0, quote) + 1
        odd = (odd - text.count(b'"', start, cut)) % 2
        cut = start
    return cut or (last if len(text) > 2 * BLOCK_BYTES else 0)


class DelimitedFile:
    """Delimited text: delimiter, header, quotes and comments given or found.

    Raises
    ------
    DataError
        when no delimiter cuts the first lines into as many fields each.
    """

    def __init__(self, path: Path, head: bytes, options: TableOptions) -> None:
        self.path = path
        self.decimal = options.decimal or "."
        self.skipped = 0
        self._options = options
        self._newline = b"\n" if b"\n" in head else b"\r"
        complete = len(head) < _HEAD_BYTES
        refuse_nul(path, head, 1, self._newline)
        self.rows_about = _rows_about(path, head, self._newline)
        self._netflix = _NETFLIX_HEAD.match(head) is not None and options.delimiter is None
        lines = head.split(self._newline)
        lines = lines if complete or len(lines) < 2 else lines[:-1]
        start, comments, self._comment = self._preamble(lines)
        self._delimiter, given = options.delimiter, start.delimiter
        if self._delimiter is None:
            self._delimiter = given
        data = [line for line in lines[start.lines :] if line.strip() and not self._is_comment(line)]
        if self._netflix:
            data = _netflix(self._newline.join(data), b"")[0].split(self._newline)
            data = [line for line in data if line.strip()]
            self._delimiter = ","
        texts = [line.decode("utf-8", "replace").removesuffix("\r") for line in data[: SAMPLE_ROWS + 2]]
        if not texts:
            raise DataError(f"{path}: no ratings; expected lines like 'u7,i42,3.5'")
        if self._delimiter is None:
            self._delimiter = _find_delimiter(texts)
        if self._delimiter is None:
            raise DataError(
                f"{path}:{start.lines + 1}: {texts[0][:80]!r} is no row of a table; expected user, item "
                "and rating between commas, tabs, semicolons or spaces, like 'u7,i42,3.5'; "
                "write data.delimiter for another"
            )
        self._squeezed = self._delimiter == " " and any(re.search(r"^ |[ \t]{2}|\t", text) for text in texts)
        self._quotes = self._find_quotes(texts)
        rows = [list(row) for _, row in self._rows(self._newline.join(data[: SAMPLE_ROWS + 2]), 1)]
        self._find_names(rows, comments, start.sizes)
        at = start.lines + (1 if start.sizes else 0)
        while at < len(lines) and (not lines[at].strip() or self._is_comment(lines[at])):
            at += 1
        self._first_line = at + (2 if self._header_read else 1)
        self._as_text: set[str] = set()

    def _preamble(self, lines: Sequence[bytes]) -> tuple[_Preamble, list[bytes], bytes | None]:
        """Return what precedes the data, the comments in it, and the mark of comments."""
        at, delimiter, comments, mark = 0, None, [], None
        if lines[0].lower().startswith(b"sep=") and len(lines[0].strip()) == 5:
            delimiter, at = lines[0].strip()[4:].decode("latin-1"), 1
        first = next((line for line in lines[at:] if line.strip()), b"")
        if first.startswith(_COMMENT_MARKS):
            mark = first[:1]
            while at < len(lines) and (lines[at].startswith(mark) or not lines[at].strip()):
                comments.append(lines[at])
                at += 1
            if at == len(lines):
                return _Preamble(0, delimiter, False), [], None
        return _Preamble(at, delimiter, first.startswith(b"%%MatrixMarket")), comments, mark

    def _is_comment(self, line: bytes) -> bool:
        return self._comment is not None and line.startswith(self._comment)

    def _find_quotes(self, texts: Sequence[str]) -> bool:
        if self._options.quotes is not None:
            return self._options.quotes
        # A tab needs no quoting; a lone quote in such a file is part of a name.
        return not (self._delimiter == "\t" and any(text.count('"') % 2 for text in texts))

    def _find_names(self, rows: list[list[str]], comments: Sequence[bytes], sizes: bool) -> None:
        """Find header, names, number of columns and sample."""
        self._header_read = False
        self.names: tuple[str, ...] | None = None
        if sizes:
            rows = rows[1:]
        if not rows:
            raise DataError(f"{self.path}: no ratings; expected lines like 'u7,i42,3.5'")
        given = self._options.header
        if self._netflix:
            self.names = _NETFLIX_NAMES
        elif given or (given is None and is_header(rows[0], rows[1:])):
            self.names = tuple(name.strip() for name in rows[0])
            self._header_read = True
            rows = rows[1:]
            if not rows:
                raise DataError(f"{self.path}: a header and no ratings")
        elif given is None and comments and self._comment is not None:
            text = comments[-1].decode("utf-8", "replace").lstrip("#% ").rstrip("\r")
            named = next((list(row) for _, row in self._rows(text.encode(), 1)), [])
            if len(named) == len(rows[0]) and names_known(named) >= 2:
                self.names = tuple(name.strip() for name in named)
        widths = Counter(map(len, rows))
        usual = widths.most_common(1)[0][0]
        if self.names is not None and len(self.names) + 1 == usual and len(rows[0]) == usual:
            # A delimiter at the end of every row; or as R writes it, names of rows that have none themselves.
            ended = not any(row[-1].strip() for row in rows if len(row) == usual)
            self.names = (*self.names, "") if ended else ("", *self.names)
        self._width = self._options.width or (len(self.names) if self.names is not None else usual)
        self.sample = [row for row in rows if len(row) == self._width][:SAMPLE_ROWS] or [
            (row + [""] * self._width)[: self._width] for row in rows[:SAMPLE_ROWS]
        ]

    def _inside(self, text: bytes) -> tuple[bytes, str]:
        """Return the text with a delimiter of one character, and that."""
        assert self._delimiter is not None
        if self._squeezed:
            return re.sub(rb"(?m)^ +| +(?=\r?$)", b"", re.sub(rb"[ \t]+", b" ", text)), " "
        if len(self._delimiter) > 1:
            return text.replace(self._delimiter.encode(), _INSIDE.encode()), _INSIDE
        return text, self._delimiter

    def _rows(self, text: bytes, line: int) -> Iterator[tuple[int, list[str]]]:
        """Yield line and fields of every row that is not blank; slow, for messages and the sample."""
        inside, delimiter = self._inside(text)
        source = io.StringIO(inside.decode("utf-8", "replace"), newline="")
        if self._quotes:
            escape = "\\" if b'\\"' in text else None
            reader = csv.reader(source, delimiter=delimiter, escapechar=escape)
            try:
                for row in reader:
                    if row:
                        yield line + reader.line_num - 1, row
            except csv.Error as error:
                at = line + reader.line_num - 1
                raise DataError(
                    f"{self.path}:{at}: {error}; expected fields between {self._delimiter!r}"
                ) from error
        else:
            for number, row_text in enumerate(source.read().splitlines(), start=line):
                if row_text:
                    yield number, row_text.split(delimiter)

    def blocks(self, index: Mapping[str, int]) -> Generator[Iterable[Batch], None, None]:
        """Read the columns at ``index`` by role; see :class:`TableFile`."""
        movie = b""
        lines = _Lines(self.path, self._options.encoding, self._quotes, self._newline)
        for number, block in enumerate(lines.blocks()):
            text = block
            if number == 0:
                # All of the preamble is in it: the head that it was found in is smaller.
                start = 0
                for _ in range(self._first_line - 1):
                    start = text.find(self._newline, start) + 1 or len(text)
                text = text[start:]

            def line(number: int = number) -> int:
                return lines.line_of(number) if number else self._first_line

            if self._comment is not None:
                text = re.sub(rb"(?m)^" + self._comment + rb"[^\r\n]*", b"", text)
            if self._netflix:
                text, movie = _netflix(text, movie)
            if not text or text.isspace():
                continue
            if not self._as_text.issuperset(("user", "item")) and _has_leading_zeros(
                text, self._delimiter or "\n"
            ):
                # Numbers would lose them, and 007 is another user than 7.
                self._as_text |= {"user", "item"}
            names = {role: str(at) for role, at in index.items()}
            table = self._parse(text, line, index)
            # All of a block at once: pyarrow's reader makes a dictionary for each part of it, in twice the
            # time, and most ids are in all of them.
            ids = [names[role] for role in self._as_text & {"user", "item"}]
            yield _encoded_batches(table, names, ids, partial(self._places, text, line))

    def _places(self, text: bytes, line: Callable[[], int], rows_before: int) -> Callable[[int], str]:
        def place(row: int) -> str:
            at, first = -rows_before, line()
            for number, fields in self._rows(text, first):
                if len(fields) != self._width:
                    continue
                if at == row:
                    return f"{self.path}:{number}"
                at += 1
            return f"{self.path}: row {row + 1} of those from line {first} on"

        return place

    def _parse(self, text: bytes, line: Callable[[], int], index: Mapping[str, int]) -> Any:
        inside, delimiter = self._inside(text)
        wrong: list[str] = []
        # The handler is given text; without one such a row is an error, which names the byte.
        decodable = is_utf8(text)
        # A single byte is looked for many times quicker than two.
        escaped = self._quotes and b"\\" in text and b'\\"' in text

        def odd_row(row: Any) -> str:
            if row.text.strip(f' \t\r\n{delimiter}"'):
                wrong.append(row.text)
            return "skip"

        block_bytes = min(_PARSED_BYTES, len(inside) + 1)
        while True:
            wrong.clear()
            try:
                table = pacsv.read_csv(
                    pa.BufferReader(inside),
                    read_options=pacsv.ReadOptions(
                        column_names=[str(at) for at in range(self._width)], block_size=block_bytes
                    ),
                    parse_options=pacsv.ParseOptions(
                        delimiter=delimiter,
                        quote_char='"' if self._quotes else False,
                        escape_char="\\" if escaped else False,
                        newlines_in_values=self._quotes and b'"' in text,
                        invalid_row_handler=odd_row if decodable else None,
                    ),
                    convert_options=self._conversion(index),
                )
            except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
                message = str(error)
                found = _FAILED_CONVERSION.search(message)
                failed = {role for role, at in index.items() if found and at == int(found[1])}
                if failed - self._as_text:
                    self._as_text |= failed
                elif "straddl" in message and block_bytes <= len(inside):
                    block_bytes = len(inside) + 1
                else:
                    self._refuse(text, line(), message)
            else:
                break
        if wrong:
            if not self._options.skip_bad_rows:
                self._refuse(
                    text, line(), f"{wrong[0][:80]!r} has another number of fields than {self._width}"
                )
            self.skipped += len(wrong)
        return table

    def _conversion(self, index: Mapping[str, int]) -> Any:
        text = pa.dictionary(pa.int32(), pa.string())
        as_text = {"user": pa.string(), "item": pa.string(), "rating": text, "time": pa.string()}
        kinds = {role: as_text[role] if role in self._as_text else _NUMBERS[role] for role in index}
        return pacsv.ConvertOptions(
            column_types={str(at): kinds[role] for role, at in index.items()},
            include_columns=[str(at) for at in index.values()],
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            decimal_point=self.decimal,
        )

    def _refuse(self, text: bytes, line: int, otherwise: str) -> None:
        """Raise DataError for the first line that cannot be read, or with ``otherwise`` without one."""
        for number, raw in enumerate(text.split(self._newline), start=line):
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{self.path}:{number}: byte {error.start + 1} is not UTF-8; write data.encoding, "
                    "such as latin-1"
                ) from error
        for number, fields in self._rows(text, line):
            if len(fields) != self._width and any(field.strip() for field in fields):
                raise DataError(
                    f"{self.path}:{number}: {len(fields)} {_FIELDS[len(fields) == 1]} instead of "
                    f"{self._width}; expected lines like {self._example()!r}; "
                    "leave such rows out with data.on_bad_row: skip"
                )
        raise DataError(
            f"{self.path}: from line {line} on: {otherwise}; expected lines like {self._example()!r}"
        )

    def _example(self) -> str:
        assert self._delimiter is not None
        return self._delimiter.join(self.sample[0])[:100]


def _encoded_batches(
    table: Any, names: Mapping[str, str], ids: Sequence[str], places: Callable[[int], Callable[[int], str]]
) -> Iterator[Batch]:
    """Yield the batches of an Arrow table, ``ids`` as places in one dictionary for each of these columns.

    Parameters
    ----------
    names : of columns, by role.
    places : for a number of rows before, :attr:`Batch.place` of a batch.
    """
    for name in ids:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(at).dictionary_encode())
    first = 0
    for part in table.to_batches(max_chunksize=_PART_ROWS):
        columns = {role: part.column(name) for role, name in names.items()}
        yield Batch(columns, part.num_rows, places(first))
        first += part.num_rows


def _has_leading_zeros(text: bytes, delimiter: str) -> bool:
    """Return whether some number of a block begins with a zero and another digit."""
    letters = np.frombuffer(text, dtype=np.uint8)
    last = ord(delimiter[-1])
    if text[:1] == b"0" and text[1:2].isdigit():
        return True
    # By parts that stay in the processor's cache.
    for first in range(0, letters.size - 2, _CACHED_BYTES):
        part = letters[first : first + _CACHED_BYTES + 2]
        before = part[:-2]
        found = part[1:-1] == ord("0")
        found &= (part[2:] - np.uint8(ord("0"))) < 10
        # Line ends, spaces, quotes, commas and signs are all before the dot.
        found &= (before < ord(".")) | (before == last)
        if found.any():
            return True
    return False


class _Preamble(NamedTuple):
    lines: int
    delimiter: str | None
    sizes: bool
    """Whether the first line of data holds the sizes of a Matrix Market file."""


def _find_delimiter(texts: Sequence[str]) -> str | None:
    """Return what cuts the lines into equally many fields: with known names, else three or more, else two."""
    best: list[tuple[int, str]] = []
    for delimiter in _DELIMITERS:
        inside = delimiter if len(delimiter) == 1 else _INSIDE
        lines = [text.replace(delimiter, inside) for text in texts]
        if delimiter == " ":
            lines = [re.sub(r"[ \t]+", " ", text).strip() for text in lines]
        try:
            rows = list(csv.reader(lines, delimiter=inside))
        except csv.Error:
            continue
        if names_known(rows[0]) >= 2:
            return delimiter
        width, often = Counter(map(len, rows)).most_common(1)[0]
        if delimiter == " " and width == 2 and not all(field.isdigit() for row in rows for field in row):
            # Two words a line are prose sooner than a table.
            continue
        if width >= 2 and often >= 0.8 * len(rows):
            best.append((3 if width >= 3 else 2, delimiter))
        elif len(rows[0]) in (3, 4):
            best.append((1, delimiter))
    return max(best, key=lambda found: found[0])[1] if best else None


def _netflix(text: bytes, movie: bytes) -> tuple[bytes, bytes]:
    """Return lines ``user,rating,date`` below lines ``movie:`` with the movie in front, and the last movie.

    The number of lines stays.
    """
    made: list[bytes] = []
    parts = re.split(rb"(?m)^([0-9]+):(?=\r?$)", text)
    for at, part in enumerate(parts):
        if at % 2:
            movie = part
        else:
            made.append(re.sub(rb"(?m)^(?=[^\r\n])", movie + b",", part))
    return b"".join(made), movie


def is_json(head: bytes) -> bool:
    """Return whether text begins like JSON lines, an array of JSON objects, or Python's dictionaries."""
    start = head.lstrip()
    if start.startswith(b"["):
        return start[1:].lstrip().startswith(b"{")
    return start.startswith(b"{") and re.match(rb"\{\s*(\"|'|\}|\r?\n)", start) is not None


class JsonFile:
    """JSON lines, one array of objects, or lines of Python's dictionaries."""

    def __init__(self, path: Path, head: bytes, options: TableOptions) -> None:
        self.path = path
        self.decimal = options.decimal or "."
        self.skipped = 0
        self._options = options
        self._newline = b"\n" if b"\n" in head else b"\r"
        refuse_nul(path, head, 1, self._newline)
        self.rows_about = _rows_about(path, head, self._newline)
        self._is_array = head.lstrip().startswith(b"[")
        if self._is_array:
            self._array = self._read_array()
            first = [row for _, row in self._array[:SAMPLE_ROWS]]
        else:
            lines = head.split(self._newline)
            complete = len(head) < _HEAD_BYTES or len(lines) < 2
            text = self._newline.join(lines if complete else lines[:-1])
            first = []
            for _, row in self._objects(text, 1):
                if row is not None:
                    first.append(row)
                if len(first) == SAMPLE_ROWS:
                    break
        names = tuple(dict.fromkeys(name for row in first for name in row))
        if not names:
            raise DataError(
                f'{path}: no ratings; expected objects such as {{"user": …, "item": …, "rating": …}}'
            )
        self.names: tuple[str, ...] | None = names
        self.sample = [["" if row.get(name) is None else str(row[name]) for name in names] for row in first]
        self._kinds = {
            name: {type(row[name]) for row in first if row.get(name) is not None} for name in names
        }

    def _read_array(self) -> list[tuple[int, dict[str, Any]]]:
        text = b"".join(_chunks(self.path, self._options.encoding, BLOCK_BYTES))
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{self.path}: {error}; expected an array of JSON objects, or one object a line"
            ) from error
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict):
                raise DataError(f"{self.path}: element {number} is {str(row)[:60]!r}; expected an object")
        return list(enumerate(rows, start=1))

    def _objects(self, text: bytes, line: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield line and object of each line that is not blank; None for no object."""
        for number, raw in enumerate(text.split(self._newline), start=line):
            if not raw.strip():
                continue
            row = _object(raw)
            if row is None and not self._options.skip_bad_rows:
                hint = ", or leave such rows out with data.on_bad_row: skip"
                if raw.strip() in (b"{", b"{}"):
                    hint = ": one object a line (pandas: orient='records', lines=True)"
                raise DataError(
                    f"{self.path}:{number}: {raw[:60].decode('utf-8', 'replace')!r} is no JSON object; "
                    f"write one{hint}"
                )
            yield number, row

    def blocks(self, index: Mapping[str, int]) -> Generator[Iterable[Batch], None, None]:
        """Read the columns at ``index`` by role; see :class:`TableFile`."""
        assert self.names is not None
        names = {role: self.names[at] for role, at in index.items()}
        if self._is_array:
            rows = [row for _, row in self._array]
            columns = self._columns(rows, names)
            yield [Batch(columns, len(rows), lambda row: f"{self.path}: element {row + 1}")]
            return
        line = 1
        for text in _Lines(self.path, self._options.encoding, False, self._newline).blocks():
            first, line = line, line + text.count(self._newline)
            if not text or text.isspace():
                continue
            table = self._parse(text, names) if is_utf8(text) else None
            if table is not None:
                columns = {role: table[name] for role, name in names.items()}
                yield [Batch(columns, table.num_rows, self._places(text, first))]
                continue
            objects = list(self._objects(text, first))
            good = [(number, row) for number, row in objects if row is not None]
            self.skipped += len(objects) - len(good)
            rows, lines = [row for _, row in good], [number for number, _ in good]
            yield [Batch(self._columns(rows, names), len(rows), self._numbered(lines))]

    def _numbered(self, lines: Sequence[int]) -> Callable[[int], str]:
        return lambda row: f"{self.path}:{lines[row]}"

    def _columns(self, rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
        columns = {}
        for role, name in names.items():
            values = [_unwrapped(row.get(name)) for row in rows]
            if any(isinstance(value, dict | list) for value in values):
                raise DataError(
                    f"{self.path}: {shown(name)!r} holds objects or lists; expected a text or a number, "
                    "and one object a line (pandas: orient='records', lines=True)"
                )
            columns[role] = _array(values)
        return columns

    def _parse(self, text: bytes, names: Mapping[str, str]) -> Any:
        """Return the columns as an Arrow table, or None where types are mixed or a line is no JSON."""
        fields = []
        for name in names.values():
            kinds = self._kinds[name]
            if len(kinds) != 1 or (kind := _JSON_TYPES.get(next(iter(kinds)))) is None:
                return None
            fields.append(pa.field(name, kind))
        try:
            table = pajson.read_json(
                pa.BufferReader(text),
                read_options=pajson.ReadOptions(block_size=min(len(text) + 1, _PARSED_BYTES)),
                parse_options=pajson.ParseOptions(
                    explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            return None
        # Fewer where one line holds two objects, or an object has several lines.
        lines = sum(1 for line in text.split(self._newline) if line.strip())
        return table if table.num_rows == lines else None

    def _places(self, text: bytes, line: int) -> Callable[[int], str]:
        def place(row: int) -> str:
            numbers = [at for at, raw in enumerate(text.split(self._newline), start=line) if raw.strip()]
            return f"{self.path}:{numbers[row]}"

        return place


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        text = raw.decode("utf-8")
        row = json.loads(text)
    except (ValueError, RecursionError):
        try:
            # As the older Amazon and Steam sets were written; literals only, nothing is called.
            row = ast.literal_eval(raw.decode("utf-8").strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return None
    return row if isinstance(row, dict) and all(isinstance(name, str) for name in row) else None


def _unwrapped(value: Any) -> Any:
    """Return a value without MongoDB's wrappers: ``{"$oid": …}``, ``{"$numberInt": …}``, ``{"$date": …}``."""
    while isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith("$"):
        value = next(iter(value.values()))
    return value


def _array(values: Sequence[Any]) -> Any:
    """Return values as an Arrow array of one type, text where they are mixed."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return pa.array(values, pa.int64())
    if (
        kinds <= {float, int}
        and float in kinds
        and all(value is None or abs(value) <= 2**53 for value in values)
    ):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    texts = [None if value is None else _text(value) for value in values]
    return pa.array(texts, pa.string())


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return str(int(value))
    # A lone surrogate, which JSON can write, is no text.
    return str(value).encode("utf-8", "replace").decode("utf-8")


class ParquetFile:
    """A Parquet file, read by row groups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decimal = "."
        self.skipped = 0
        with _parquet(path):
            with pq.ParquetFile(path, pre_buffer=False) as opened:
                self.rows_about = max(0, opened.metadata.num_rows)
                schema = opened.schema_arrow
                self.names: tuple[str, ...] | None = tuple(schema.names)
                text = {
                    name
                    for name in schema.names
                    if schema.field(name).type in (pa.string(), pa.large_string())
                }
                self._coded = {name for name in text if _is_coded(opened.metadata, name)}
                self._plain = text - self._coded
                batch = next(opened.iter_batches(batch_size=SAMPLE_ROWS), None)
            rows = [] if batch is None else [batch.column(at) for at in range(batch.num_columns)]
            texts = [[str(plain_value(value)) for value in column] for column in rows]
        if not texts or not texts[0]:
            raise DataError(f"{path}: no ratings in the table")
        self.sample = [list(row) for row in zip(*texts, strict=True)]

    def blocks(self, index: Mapping[str, int]) -> Generator[Iterable[Batch], None, None]:
        """Read the columns at ``index`` by role; see :class:`TableFile`."""
        assert self.names is not None
        names = {role: self.names[at] for role, at in index.items()}
        first = 0
        ids = {names["user"], names["item"]}
        plain = list(ids & self._plain)
        # A buffer would come to hold all of the file.
        options = {"read_dictionary": list(ids & self._coded), "pre_buffer": False}
        with _parquet(self.path), pq.ParquetFile(self.path, **options) as opened:
            batches = opened.iter_batches(batch_size=_BATCH_ROWS, columns=list(names.values()))
            for table in _tables(batches, _ENCODED_ROWS if plain else 1):
                yield self._named(_encoded_batches(table, names, plain, partial(self._places, first)))
                first += table.num_rows

    def _named(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        with _parquet(self.path):
            yield from batches

    def _places(self, rows_before: int, first: int) -> Callable[[int], str]:
        return lambda row: f"{self.path}: row {rows_before + first + row + 1}"


class RowsFile:
    """Rows that the code of a reader yields, as parts of one table.

    Parameters
    ----------
    path : of what they are read from.
    parts : tables of Arrow, or mappings of columns.
    """

    def __init__(self, path: Path, parts: Iterable[Any]) -> None:
        self.path = path
        self.decimal = "."
        self.skipped = self.rows_about = 0
        self._parts = iter(parts)
        self._first = next((part for part in map(self._table, self._parts) if part.num_rows), None)
        if self._first is None:
            raise DataError(f"{path}: no ratings in the table")
        self.names: tuple[str, ...] | None = tuple(self._first.column_names)
        sample = self._first.slice(0, SAMPLE_ROWS)
        texts = [[str(plain_value(value)) for value in column] for column in sample.columns]
        self.sample = [list(row) for row in zip(*texts, strict=True)]

    def blocks(self, index: Mapping[str, int]) -> Generator[Iterable[Batch], None, None]:
        """Yield the parts, the columns at ``index`` by role; see :class:`TableFile`."""
        assert self._first is not None
        before = 0
        for table in chain((self._first,), map(self._table, self._parts)):
            if tuple(table.column_names) != self.names:
                there, here = ", ".join(self._first.column_names), ", ".join(table.column_names)
                raise DataError(f"{self.path}: a part has columns {here}, the first had {there}")
            columns = {role: table.column(at).combine_chunks() for role, at in index.items()}
            yield (Batch(columns, table.num_rows, partial(self._place, before)),)
            before += table.num_rows

    def _table(self, part: Any) -> Any:
        try:
            table = part if isinstance(part, pa.Table) else pa.table(part)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"{self.path}: its reader gives no columns of one length: {error}") from error
        missing = {"user", "item"} - {*table.column_names}
        if missing:
            raise DataError(f"{self.path}: its reader gives no column {min(missing)!r}")
        return table

    def _place(self, before: int, row: int) -> str:
        return f"{self.path}: row {before + row + 1}"


def _is_coded(metadata: Any, name: str) -> bool:
    """Return whether a column of text is in the file as places in a dictionary.

    These take fewer bytes than plain text has for its length alone, unless the dictionary was given up, as
    writers do with large ones.
    """
    places = [at for at in range(metadata.num_columns) if metadata.schema.column(at).path == name]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(at) for group in groups for at in places]
    size = sum(int(chunk.total_uncompressed_size) for chunk in chunks)
    return size < 4 * sum(int(chunk.num_values) for chunk in chunks)


def _tables(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """Yield batches put together to tables of so many rows or more; the last may have fewer.

    The first is one batch: a check looks no further.
    """
    held: list[Any] = []
    wanted = 1
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= wanted:
            yield pa.Table.from_batches(held)
            held, wanted = [], rows
    if held:
        yield pa.Table.from_batches(held)


@contextmanager
def _parquet(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        message = " ".join(shown(line) for line in str(error).splitlines())
        raise DataError(f"{path}: cannot be read as Parquet: {message}") from error


def plain_value(scalar: Any) -> Any:
    """Return an Arrow scalar as a Python value for messages, "" for none."""
    try:
        found = scalar.as_py()
    except ValueError:
        # Text that is not UTF-8, or nanoseconds, which Python's times have not.
        if not pa.types.is_timestamp(scalar.type):
            return "?"
        found = scalar.cast(pa.timestamp("us", scalar.type.tz), safe=False).as_py()
    return "" if found is None else found


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
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}:1: the file is UTF-16 or UTF-32; save it as UTF-8")
    if not data.strip():
        raise DataError(f"{path}: the file is empty; expected lines of text")
    data = data.removeprefix(codecs.BOM_UTF8)
    refuse_nul(path, data, 1, b"\n")
    return data
