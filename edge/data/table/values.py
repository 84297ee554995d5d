"""Values of a table's columns: Arrow arrays of any type into ids, ratings and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from edge.core.errors import DataError
from edge.data.build import gathered
from edge.data.store import Labels

LARGEST_RATING: Final = 1e9
"""Ratings beyond it, up or down, are refused: sums of their squares would leave float32."""
LARGEST_TIME: Final = 2**62
"""Times beyond it, up or down, are refused."""
MISSING: Final = ("", "NULL", "null", "NaN", "nan", "None", "<NA>", "\\N")
"""Text that stands for no value, in every column."""
NO_RATING: Final = (*MISSING, "NA", "N/A", "n/a", "#N/A", "-", "?", "None", "NAN")
"""Text that stands for no rating and no time; as an id, some of it may be somebody's name."""

_MERGED_IDS: Final = 1 << 20
_MOST_RESERVED_ROWS: Final = 1 << 27
_MARKED_ROWS: Final = 1 << 16
_LARGEST_CODE: Final = 2**31 - 1
_PLAIN_NUMBER: Final = r"^(0|-?[1-9][0-9]{0,18})$"
_WHOLE_FLOAT: Final = r"^(0|-?[1-9][0-9]{0,17})(\.0+)?$"
_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_ISO: Final = (
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(:[0-9]{2})?)([.,][0-9]+)?"
    r" ?(Z|UTC|[+-][0-9:]{2,5})?$"
)
_DAY_S: Final = 86_400
_EARLIEST_EPOCH_S: Final = 100_000_000
_FORMATS: Final = (
    "%Y/%m/%d %H:%M:%S",
    "%Y/%m/%d %H:%M",
    "%Y/%m/%d",
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %I:%M:%S %p",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%m/%d/%y %H:%M",
    "%d/%m/%y %H:%M",
    "%m/%d/%y",
    "%d/%m/%y",
    "%b %d, %Y",
    "%B %d, %Y",
    "%d %b %Y",
    "%d %B %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%m %d, %Y",
    "%a %b %d %H:%M:%S %z %Y",
    "%a, %d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%Y-%m-%d %I:%M:%S %p",
)

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]


def flat(column: Any) -> Any:
    """Return a column as one Arrow array, without MongoDB's wrappers (``{"$oid": …}``)."""
    if isinstance(column, pa.ChunkedArray):
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    while pa.types.is_struct(column.type) and column.type.num_fields == 1:
        if not column.type.field(0).name.startswith("$"):
            break
        column = column.flatten()[0]
    return column


def _is_same(array: Any, other: Any) -> bool:
    """Return whether two Arrow arrays are the same memory; both are held."""
    if (array.type, len(array), array.offset) != (other.type, len(other), other.offset):
        return False
    return _addresses(array) == _addresses(other)


def _addresses(array: Any) -> list[int | None]:
    return [None if buffer is None else buffer.address for buffer in array.buffers()]


def _codes(array: Any) -> Codes:
    """Return the places of a dictionary array, -1 where there is none; they may be written to."""
    indices = array.indices.cast(pa.int32())
    if indices.null_count:
        indices = indices.fill_null(-1)
    return np.array(indices, dtype=np.int32)


def _uuids(array: Any) -> Any:
    texts = [value.hex() for value in array.to_pylist()]
    return pa.array([f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in texts], pa.string())


def _plain_ids(distinct: Any, name: str) -> Any:
    """Return distinct ids as int64, uint64 or string, null where there is none."""
    kind = distinct.type
    if pa.types.is_integer(kind):
        return distinct if kind == pa.uint64() else distinct.cast(pa.int64())
    if pa.types.is_floating(kind):
        values = np.asarray(distinct.cast(pa.float64()), dtype=np.float64)
        known = np.isfinite(values)
        if (values[known] != np.floor(values[known])).any() or (np.abs(values[known]) > 2**53).any():
            raise DataError(f"column {name!r} is {kind}; ids are whole numbers or text")
        whole = np.where(known, values, 0.0).astype(np.int64)
        return pa.array(whole, mask=~known)
    if pa.types.is_decimal(kind):
        return pc.replace_substring_regex(distinct.cast(pa.string()), r"\.0+$", "")
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            distinct = distinct.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([None if v is None else v.hex() for v in distinct.to_pylist()], pa.string())
    elif pa.types.is_null(kind):
        return distinct.cast(pa.string())
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_view(kind)):
        raise DataError(f"column {name!r} is {kind}; ids are whole numbers or text")
    texts = _text(distinct)
    if _has_edges(texts):
        texts = pc.utf8_trim_whitespace(texts)
        quoted = pc.match_substring_regex(texts, r'^".*"$')
        if pc.any(quoted).as_py():
            texts = pc.if_else(quoted, pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(texts, 1, -1)), texts)
    missing = pc.is_in(texts, pa.array(MISSING))
    if not pc.any(missing).as_py():
        return texts
    return pc.if_else(missing, pa.scalar(None, pa.string()), texts)


def _has_edges(texts: Any) -> bool:
    """Return whether some text may begin or end with a space or a quote; quicker than to strip them all."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return False
    places = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    starts, ends = places[:-1], places[1:]
    filled = ends > starts
    letters = np.frombuffer(data, dtype=np.uint8)
    edges = np.concatenate([letters[starts[filled]], letters[ends[filled] - 1]])
    # ASCII's spaces and quotes are below "#"; other spaces are not ASCII.
    return bool(((edges < ord("#")) | (edges > ord("~"))).any())


def _text(array: Any) -> Any:
    """Return text as strings that are UTF-8; pyarrow's readers need not have checked that."""
    array = array.cast(pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"text that is not UTF-8: {error}") from error
    return array


def _is_view(kind: Any) -> bool:
    return hasattr(pa.types, "is_string_view") and bool(pa.types.is_string_view(kind))


def mapped(file: Path, dtype: npt.DTypeLike, size: int) -> npt.NDArray[Any]:
    """Return so many elements of a file, at least one, to be read and written; it is made that large."""
    with file.open("ab") as stream:
        stream.truncate(size * np.dtype(dtype).itemsize)
    return np.memmap(file, dtype, "r+", shape=(size,))


class Growing:
    """An array that grows at its end.

    Memory that was never written is not taken, so that too much is better reserved than too little: growing
    beyond it costs more than all else that is done with a number. A view from :meth:`part` must not outlive
    the next :meth:`append`.

    Parameters
    ----------
    dtype : of the elements.
    file : where they are kept, mapped, in place of memory; one that is not there yet. None: in memory.
    """

    def __init__(self, dtype: type[np.generic], file: Path | None = None) -> None:
        self._whole: npt.NDArray[Any] = np.empty(0, dtype=dtype)
        self._file = file
        self.size = 0

    def reserve(self, rows: int) -> None:
        """Make room for about that many elements; there are none yet."""
        if self._file is None:
            self._whole = np.empty(min(rows, _MOST_RESERVED_ROWS), dtype=self._whole.dtype)

    def append(self, part: npt.NDArray[Any]) -> None:
        """Add elements."""
        size = self.size + part.size
        if size > self._whole.size:
            # By a quarter at a time: new elements are written with zeros. Large arrays are moved, not copied.
            self._resize(size + size // 4)
        self._whole[self.size : size] = part
        self.size = size

    def part(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return a view of some elements."""
        return self._whole[first:last]

    def finish(self) -> npt.NDArray[Any]:
        """Return the elements; afterwards nothing is left here."""
        whole = self._whole[: self.size]
        self._whole, self.size = np.empty(0, dtype=whole.dtype), 0
        return whole

    def _resize(self, size: int) -> None:
        if self._file is None:
            self._whole.resize(size, refcheck=False)
        else:
            self._whole = mapped(self._file, self._whole.dtype, size)


@dataclass(eq=False)
class Ids:
    """Ids of all batches of a table, numbered as they come.

    Batches have codes into dictionaries of their own. These are merged once they hold four times as many ids
    as are known, so that memory follows the number of distinct ids, not of rows. While all ids are numbers
    that are their own codes there is no dictionary.
    """

    _codes: Growing = field(default_factory=lambda: Growing(np.int32))
    _are_numbers: bool = True
    _dictionary: Any = None
    _distinct: Any = None
    """The last batch's dictionary, and what became of it: several batches may share one."""
    _known: Any = None
    _pending: list[tuple[Any, int]] = field(default_factory=list)
    """Dictionaries, and where the codes of each end."""
    _merged_rows: int = 0
    _size: int = 0

    def reserve(self, rows: int) -> None:
        """Make room for about that many rows; there are none yet."""
        self._codes.reserve(rows)

    def encode(self, column: Any, name: str) -> tuple[Any, Codes]:
        """Return the distinct ids of a column, and the place of each row's in them, -1 where it has none.

        Ids are stripped of spaces and of quotes around them. Whole numbers of any width, decimals and floats
        without a fraction are whole numbers; binary is text where it is UTF-8, a UUID where it is one, else
        hexadecimal.

        Returns
        -------
        A pyarrow array of int64, uint64 or string, which may hold an id twice, and int32[N]. None in place of
        the array where every row has a whole number from 0 to 2³¹ - 1: these are their own codes.

        Raises
        ------
        DataError
            for a type that is no id.
        """
        array = flat(column)
        if pa.types.is_integer(array.type) and len(array) and not array.null_count:
            numbers = np.asarray(array)
            if numbers.min() >= 0 and numbers.max() <= _LARGEST_CODE:
                return None, numbers.astype(np.int32, copy=False)
        is_uuid = isinstance(array, pa.ExtensionArray) and array.type.extension_name == "arrow.uuid"
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_nested(array.type):
            raise DataError(f"column {name!r} is {array.type}; ids are whole numbers or text")
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        if self._dictionary is None or not _is_same(array.dictionary, self._dictionary):
            self._dictionary = array.dictionary
            self._distinct = _uuids(array.dictionary) if is_uuid else _plain_ids(array.dictionary, name)
        codes = _codes(array)
        if self._distinct.null_count:
            none = np.asarray(self._distinct.is_null())
            codes[none[codes] & (codes >= 0)] = -1
        return self._distinct, codes

    def add(self, distinct: Any, codes: Codes) -> None:
        """Take a batch as :meth:`encode` returns it, without codes below 0."""
        if distinct is not None and self._are_numbers:
            self._encode_numbers()
        if distinct is None and not self._are_numbers:
            distinct, codes = _encoded(codes)
        self._codes.append(codes)
        if distinct is None:
            return
        if self._pending and self._pending[-1][0] is distinct:
            self._pending[-1] = (distinct, self._codes.size)
            return
        self._pending.append((distinct, self._codes.size))
        self._size += len(distinct)
        if self._size > max(_MERGED_IDS, 4 * (0 if self._known is None else len(self._known))):
            self._merge()

    def finish(self) -> tuple[Labels, Codes]:
        """Return the ids, ascending, and each row's place in them, int32[rows]; nothing is left here.

        Ids are int64 where every one is a whole number that writes itself back to the same text ("7", not
        "007"), or such a number with a fraction of zeros; otherwise text. Numbers ascend numerically, text by
        code point. Only ids of rows are there.
        """
        largest = self._codes.part(0, self._codes.size).max()
        if self._are_numbers and largest > max(_MERGED_IDS, self._codes.size):
            # A table of every number up to the largest would be mostly empty.
            self._encode_numbers()
        distinct: Labels
        if self._are_numbers:
            codes = self._codes.finish()
            used = _used(codes, int(largest) + 1)
            distinct = np.flatnonzero(used)
            place = np.arange(distinct.size)
        else:
            self._merge()
            codes = self._codes.finish()
            used = _used(codes, len(self._known))
            labels = _labels(self._known.filter(pa.array(used)))
            self._known = self._dictionary = self._distinct = None
            distinct, place = np.unique(labels, return_inverse=True)  # type: ignore[assignment]
        mapping = np.zeros(used.size, dtype=np.int32)
        mapping[used] = place
        return distinct, gathered(mapping, codes, out=codes)

    def _encode_numbers(self) -> None:
        """Replace the numbers of the rows so far by codes into a dictionary."""
        self._are_numbers = False
        codes = self._codes.part(0, self._codes.size)
        if codes.size:
            self._known, codes[:] = _encoded(codes)
            self._merged_rows = codes.size

    def _merge(self) -> None:
        parts = [part for part, _ in self._pending]
        if self._known is not None:
            parts.insert(0, self._known)
        kinds = {part.type for part in parts}
        if len(kinds) > 1:
            parts = [part.cast(pa.string()) for part in parts]
        merged = pa.chunked_array(parts).combine_chunks()
        merged = (merged.chunk(0) if isinstance(merged, pa.ChunkedArray) else merged).dictionary_encode()
        mapping = _codes(merged)
        start = 0 if self._known is None else len(self._known)
        for part, end in self._pending:
            own = mapping[start : start + len(part)]
            codes = self._codes.part(self._merged_rows, end)
            gathered(own, codes, out=codes)
            start += len(part)
            self._merged_rows = end
        self._known, self._pending, self._size = merged.dictionary, [], 0


def _used(codes: Codes, size: int) -> Bools:
    """Return which of ``size`` codes are there; by parts, as :func:`~edge.data.build.gathered`."""
    used = np.zeros(size, dtype=np.bool_)
    for first in range(0, codes.size, _MARKED_ROWS):
        used[codes[first : first + _MARKED_ROWS]] = True
    return used


def _encoded(numbers: Codes) -> tuple[Any, Codes]:
    """Return the distinct ones of numbers, an Arrow array of int64, and each number's place in them."""
    encoded = pa.array(numbers).dictionary_encode()
    return encoded.dictionary.cast(pa.int64()), _codes(encoded)


def _labels(known: Any) -> Labels:
    if pa.types.is_integer(known.type):
        try:
            return np.asarray(known.cast(pa.int64()), dtype=np.int64)
        except pa.ArrowInvalid:
            known = known.cast(pa.string())
    for pattern in (_PLAIN_NUMBER, _WHOLE_FLOAT):
        if pc.all(pc.match_substring_regex(known, pattern)).as_py():
            whole = pc.replace_substring_regex(known, r"\.0+$", "")
            try:
                return np.asarray(whole.cast(pa.int64()), dtype=np.int64)
            except pa.ArrowInvalid:
                break
    return np.array(known.to_pylist(), dtype=np.str_)


def text_labels(names: Sequence[str]) -> Labels:
    """Return distinct ids as :meth:`Ids.finish` does, in their order: int64 where all are plain numbers."""
    return _labels(pa.array(names, pa.string()))


def changed_when_read(labels: Labels) -> str | None:
    """Return the first of some ids that a table would give another name; None where there is none."""
    if labels.dtype.kind != "U":
        return None
    texts = pa.array(labels.tolist(), pa.string())
    again = _plain_ids(texts, "id")
    same = np.asarray(pc.equal(again, texts).fill_null(fill_value=False))
    return None if same.all() else str(labels[int(np.argmin(same))])


class Numbers(NamedTuple):
    """Numbers of a batch: float64[N], and bool[N] where there is none and where there is something else."""

    values: Floats
    missing: Bools
    bad: Bools


def read_ratings_column(column: Any, name: str, decimal: str = ".") -> Numbers:
    """Read ratings from a column of numbers, decimals, booleans or text.

    Raises
    ------
    DataError
        for a type that is no number.
    """
    array = flat(column)
    kind = array.type
    if _is_text(kind):
        return _numbers_of_text(array, decimal)
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise DataError(f"column {name!r} is {kind}; expected numbers")
    missing = np.asarray(array.is_null())
    array = array.cast(pa.float64(), safe=False)
    values = np.asarray(array.fill_null(0.0) if array.null_count else array, dtype=np.float64)
    nan = np.isnan(values)
    return Numbers(values, missing | nan, ~(np.abs(values) <= LARGEST_RATING) & ~nan)


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_view(kind)


def _numbers_of_text(array: Any, decimal: str) -> Numbers:
    distinct, codes = _distinct_texts(array)
    if decimal == ",":
        distinct = pc.replace_substring(distinct, ",", ".")
    is_number = pc.match_substring_regex(distinct, _NUMBER).fill_null(fill_value=False)
    values = np.array(pc.if_else(is_number, distinct, "0").cast(pa.float64()), dtype=np.float64)
    bad = ~np.asarray(is_number) | (np.abs(values) > LARGEST_RATING)
    return _taken(values, bad, codes)


def _distinct_texts(array: Any) -> tuple[Any, Codes]:
    """Return the distinct texts, stripped, and each row's place in them; -1 where there is no value."""
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    texts = pc.utf8_trim_whitespace(_text(array.dictionary))
    texts = pc.replace_substring_regex(texts, r'^"\s*(.*?)\s*"$', r"\1")
    codes = _codes(array)
    none = np.asarray(pc.is_in(texts, pa.array(NO_RATING)))
    if none.any():
        codes[none[codes] & (codes >= 0)] = -1
    return texts, codes


def _taken(values: Floats, bad: Bools, codes: Codes) -> Numbers:
    missing = codes < 0
    if values.size == 0:
        return Numbers(np.zeros(codes.size), missing, np.zeros(codes.size, dtype=np.bool_))
    return Numbers(values[codes], missing, bad[codes] & ~missing)


class Times(NamedTuple):
    """Times of a batch.

    Attributes
    ----------
    values : int64[N]; seconds since 1970, or in a unit that all batches decide together (``raw``).
    raw : whether they are numbers whose unit is open.
    missing, bad : bool[N], no time and something else.
    """

    values: Ints
    raw: bool
    missing: Bools
    bad: Bools


@dataclass
class TimeReader:
    """Times of a table: numbers, ISO 8601, dates, or one of a few other forms, found in the first batch.

    Attributes
    ----------
    form : ``number``, ``iso`` or a format of :meth:`datetime.strptime`; None before text was seen.
    ambiguous : two forms of dates that fit everything seen, such as day first and month first.
    """

    form: str | None = None
    ambiguous: tuple[str, str] | None = None

    def read(self, column: Any, name: str) -> Times:
        """Read the times of a batch.

        Raises
        ------
        DataError
            for a type that is no time.
        """
        array = flat(column)
        kind = array.type
        if pa.types.is_dictionary(kind) and not _is_text(kind):
            array = array.dictionary_decode()
            kind = array.type
        if _is_text(kind):
            return self._text(array)
        missing = np.asarray(array.is_null())
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return _dated(array, missing)
        if pa.types.is_null(kind):
            return Times(np.zeros(len(array), dtype=np.int64), True, missing, ~missing)
        if pa.types.is_decimal(kind):
            array = array.cast(pa.float64())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise DataError(f"column {name!r} is {kind}; expected times: numbers, dates or timestamps")
        return _raw_times(array, missing)

    def _text(self, array: Any) -> Times:
        distinct, codes = _distinct_texts(array)
        asked = np.zeros(len(distinct), dtype=np.bool_)
        asked[codes[codes >= 0]] = True
        if self.form is None and asked.any():
            self._find_form(distinct.filter(pa.array(asked)))
        values, bad = _parsed(distinct, self.form or "number")
        missing = codes < 0
        if values.size == 0:
            values, bad = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
        return Times(values[codes], self.form == "number", missing, bad[codes] & ~missing)

    def _find_form(self, texts: Any) -> None:
        """Choose the form that fits most; the first of equals."""
        best, wrong = "number", len(texts) + 1
        for form in ("number", "iso", *_FORMATS):
            bad = int(np.count_nonzero(_parsed(texts, form)[1]))
            if bad < wrong:
                best, wrong = form, bad
                self.ambiguous = None
            elif bad == wrong == 0 and {form[:2], best[:2]} == {"%d", "%m"} and "/" in form:
                self.ambiguous = (best, form)
        self.form = best


def _dated(array: Any, missing: Bools) -> Times:
    kind = array.type
    if pa.types.is_timestamp(kind):
        # By way of seconds: the unit of an Arrow timestamp is part of its type.
        per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        values = np.asarray(array.cast(pa.int64()).fill_null(0), dtype=np.int64) // per_s
    else:
        days = array.cast(pa.date32()).cast(pa.int32())
        values = np.array(days.fill_null(0), dtype=np.int64) * _DAY_S
    return Times(values, False, missing, np.zeros(values.size, dtype=np.bool_))


def _raw_times(array: Any, missing: Bools) -> Times:
    array = array.fill_null(0) if array.null_count else array
    numbers = np.asarray(array)
    if numbers.dtype.kind == "f":
        missing = missing | np.isnan(numbers)
        bad = ~(np.abs(numbers) <= LARGEST_TIME) & ~np.isnan(numbers)
        numbers = np.floor(np.where(bad | missing, 0.0, numbers))
    else:
        bad = numbers > LARGEST_TIME
        if numbers.dtype.kind == "i":
            bad |= numbers < -LARGEST_TIME
    return Times(numbers.astype(np.int64), True, missing, bad)


def _parsed(texts: Any, form: str) -> tuple[Ints, Bools]:
    """Return distinct texts as int64[n] by a form, and bool[n] where they do not have it."""
    if form == "number":
        return _parsed_numbers(texts)
    if form == "iso":
        return _parsed_iso(texts)
    values = np.zeros(len(texts), dtype=np.int64)
    bad = np.zeros(len(texts), dtype=np.bool_)
    for at, text in enumerate(texts.to_pylist()):
        try:
            moment = datetime.strptime(text or "", form)
        except ValueError:
            bad[at] = True
        else:
            values[at] = _seconds(moment)
    return values, bad


def _seconds(moment: datetime) -> int:
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() // 1)


def _parsed_numbers(texts: Any) -> tuple[Ints, Bools]:
    whole = pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$").fill_null(fill_value=False)
    values = np.array(pc.if_else(whole, texts, "0").cast(pa.int64()), dtype=np.int64)
    rest = ~np.asarray(whole)
    if not rest.any():
        return values, np.zeros(values.size, dtype=np.bool_)
    texts = pc.replace_substring(texts, ",", ".")
    is_number = np.asarray(pc.match_substring_regex(texts, _NUMBER).fill_null(fill_value=False)) & rest
    floats = np.array(pc.if_else(pa.array(is_number), texts, "0").cast(pa.float64()), dtype=np.float64)
    is_number &= np.abs(floats) <= LARGEST_TIME
    values[is_number] = np.floor(floats[is_number]).astype(np.int64)
    return values, rest & ~is_number


def _parsed_iso(texts: Any) -> tuple[Ints, Bools]:
    days = pc.match_substring_regex(texts, _DATE).fill_null(fill_value=False)
    fits = pc.or_(pc.match_substring_regex(texts, _ISO).fill_null(fill_value=False), days)
    whole = pc.if_else(days, pc.binary_join_element_wise(texts, "00:00:00", "T"), texts)
    whole = pc.replace_substring_regex(whole, _ISO, r"\1T\2|\5")
    whole = pc.replace_substring_regex(whole, r"\|(Z|UTC)?$", "|+00")
    whole = pc.replace_substring_regex(whole, r"\|([+-][0-9]{2})$", r"|\1:00")
    whole = pc.replace_substring(pc.if_else(fits, whole, "1970-01-01T00:00:00|+00:00"), "|", "")
    bad = ~np.asarray(fits)
    try:
        moments = whole.cast(pa.timestamp("s", "UTC"))
    except pa.ArrowInvalid:
        # The form fits, and some value is no time, such as a month 13.
        values = np.zeros(len(whole), dtype=np.int64)
        for at, text in enumerate(whole.to_pylist()):
            try:
                values[at] = _seconds(datetime.fromisoformat(text))
            except ValueError:
                bad[at] = True
        return values, bad
    return np.array(moments.cast(pa.int64()), dtype=np.int64), bad


def in_seconds(times: Ints, raw: Sequence[tuple[int, int]]) -> str:
    """Bring numbers of an open unit to seconds, in place; return the unit they had.

    The unit follows from the largest: seconds below 10¹¹ (the year 5138), then milli-, micro- and
    nanoseconds. Numbers of eight digits that are all dates, such as 20080330, are days.

    Parameters
    ----------
    times : int64[n].
    raw : where the unit is open: first and last row, exclusive.
    """
    parts = [times[first:last] for first, last in raw if last > first]
    if not parts:
        return "s"
    largest = max(max(int(part.max()), -int(part.min())) for part in parts)
    if largest < 10**11:
        if _EARLIEST_EPOCH_S > largest >= 19_000_101 and all(map(_are_dates, parts)):
            for part in parts:
                part[:] = _days_of_dates(part)
            return "dates"
        return "s"
    unit, divisor = "ms", 10**3
    if largest >= 10**17:
        unit, divisor = "ns", 10**9
    elif largest >= 10**14:
        unit, divisor = "us", 10**6
    for part in parts:
        np.floor_divide(part, divisor, out=part)
    return unit


def _are_dates(batch: Ints) -> bool:
    year, month, day = batch // 10_000, batch // 100 % 100, batch % 100
    whole = (year >= 1900) & (year <= 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    return bool((whole | (batch == 0)).all())


def _days_of_dates(batch: Ints) -> Ints:
    months = (batch // 10_000 - 1970) * 12 + batch // 100 % 100 - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + batch % 100 - 1
    return np.where(batch == 0, 0, days * _DAY_S)


def looks_like_time(values: Sequence[str]) -> bool:
    """Return whether all of the texts, at least one, look like times: seconds since 1973, or dates."""
    return bool(values) and all(
        _is_epoch(value) or re.match(r"^\d{4}-\d{2}-\d{2}", value) for value in values
    )


def _is_epoch(value: str) -> bool:
    try:
        return _EARLIEST_EPOCH_S <= float(value) < 10**20
    except ValueError:
        return False
