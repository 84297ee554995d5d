"""Reading ratings: a file or a folder of parts into a store, with what was made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from edge.core.errors import DataError
from edge.data.build import Columns, build_store
from edge.data.store import RatingStore
from edge.data.table.columns import Chosen, choose
from edge.data.table.files import Batch, DelimitedFile, Rows, RowsFile, TableFile, open_table, plain_value
from edge.data.table.formats import FORMATS, TABLE, Format, find
from edge.data.table.options import TableOptions
from edge.data.table.values import (
    LARGEST_RATING,
    Growing,
    Ids,
    Numbers,
    TimeReader,
    Times,
    in_seconds,
    looks_like_time,
    read_ratings_column,
)

_SCALES: Final = (
    (0.0, 1.0),
    (1.0, 5.0),
    (0.5, 5.0),
    (0.0, 5.0),
    (1.0, 10.0),
    (0.0, 10.0),
    (1.0, 100.0),
    (0.0, 100.0),
)
DUPLICATES_KEPT: Final = {"last": "the last kept", "first": "the first kept", "mean": "their mean taken"}
"""What became of duplicates, in words, by the rule."""

_OUTLIER_SHARE: Final = 0.01
_BINS: Final = 5
_SKIP: Final = "leave such rows out with data.on_bad_row: skip"

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a reader found in a file or folder, the ratings themselves aside.

    Attributes
    ----------
    path : the file read, the first of several.
    format : name of the format, as accepted by ``read_ratings``.
    rows : ratings in the files, those that were skipped aside.
    ratings, users, items : how many there are, without duplicates.
    duplicates : rows dropped because the same user rated the same item again.
    files : number of files.
    columns : by role, what its column is called; without ``rating`` the feedback is implicit and all ratings
        are 1.
    by_position : whether the columns were guessed from their order.
    left_out : the other columns.
    skipped : bad rows left out.
    notes : what else should be said, a sentence each.
    warnings : what is likely wrong, a sentence each.
    duplicates_rule : what became of duplicates.
    """

    path: Path
    format: str
    rows: int
    ratings: int
    users: int
    items: int
    duplicates: int
    files: int
    columns: Mapping[str, str]
    by_position: bool
    left_out: tuple[str, ...]
    skipped: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    duplicates_rule: str

    @property
    def implicit(self) -> bool:
        """Whether there is no rating, only who took to what."""
        return "rating" not in self.columns

    def line(self) -> str:
        """Return what was read in one line, warnings aside."""
        name = self.path.name if self.files == 1 else f"{self.files} files of {self.path.parent.name}"
        taken = ", ".join(
            role if role == column else f"{role} = {column}" for role, column in self.columns.items()
        )
        counts = (
            (self.ratings, "pair" if self.implicit else "rating"),
            (self.users, "user"),
            (self.items, "item"),
        )
        ratings, users, items = (f"{count:,} {what}{'' if count == 1 else 's'}" for count, what in counts)
        said = [
            f"{name} ({self.format}): {ratings} of {users} and {items}",
            f"columns {taken}" + (", guessed by position" if self.by_position else ""),
        ]
        if self.left_out:
            said.append(f"left out {', '.join(self.left_out[:8])}" + (" …" if len(self.left_out) > 8 else ""))
        if self.skipped:
            said.append(f"{self.skipped:,} bad {'row' if self.skipped == 1 else 'rows'} skipped")
        if self.duplicates:
            many = "duplicate" if self.duplicates == 1 else "duplicates"
            said.append(f"{self.duplicates:,} {many}, {DUPLICATES_KEPT[self.duplicates_rule]}")
        if self.implicit:
            said.append("no rating column: implicit feedback")
        return "; ".join((*said, *self.notes))


@dataclass(frozen=True, slots=True)
class RatingsFile(TableFacts):
    """What a reader made of a file or folder.

    Attributes
    ----------
    store : the ratings; users and items are indexed in ascending order of their original ids (numerically
        when every id is a whole number, otherwise by code point).
    """

    store: RatingStore


def read_ratings(
    path: str | Path,
    format: str = "auto",  # noqa: A002 - the field's own name
    options: TableOptions | None = None,
    rows: Rows | None = None,
) -> RatingsFile:
    """Read a ratings file, or those of a folder.

    Parameters
    ----------
    path : file or folder.
    format : one of :data:`~edge.data.table.formats.FORMATS`, or ``auto`` to look at names and first lines.
    options : how to read it; what is not given is found.
    rows : yields the rows, for a format of somebody else, which ``format`` then is the name of.

    Raises
    ------
    DataError
        naming file, line or row, and what was expected.
    """
    reader = _TableReader(Path(path), format, options or TableOptions(), rows)
    reader.take_all()
    return reader.file(reader.columns())


def check_ratings(
    path: str | Path,
    format: str,  # noqa: A002
    options: TableOptions,
    rows: Rows | None = None,
) -> Chosen:
    """Read the first rows of every file; return the columns. Errors as for :func:`read_ratings`."""
    reader = _TableReader(Path(path), format, options, rows)
    reader.take_all(first_rows=True)
    assert reader.chosen is not None
    return reader.chosen


def read_columns(
    path: Path,
    format: str,  # noqa: A002
    options: TableOptions,
    rows: Rows | None,
    folder: Path,
) -> tuple[Columns, dict[str, Any]]:
    """Read ratings into files of a folder, which are mapped, in place of memory.

    What takes memory is a block of the file, and the distinct ids. Parameters and errors as for
    :func:`read_ratings`; ``folder`` is empty.

    Returns
    -------
    The columns, and the fields of :class:`TableFacts` that are known before duplicates are dropped.
    """
    reader = _TableReader(path, format, options, rows, folder)
    reader.take_all()
    columns = reader.columns()
    return columns, reader.facts(columns)


def read_in_order(path: Path, format: str) -> tuple[RatingsFile, npt.NDArray[np.int32]]:  # noqa: A002
    """Read ratings, and return the index of each row's item, int32[rows], in the order of the file, too.

    Errors as for :func:`read_ratings`.
    """
    reader = _TableReader(path, format, TableOptions())
    reader.take_all()
    columns = reader.columns()
    items = columns.items
    return reader.file(columns), items


class _Taken(NamedTuple):
    """A batch: where it stands in its file, how many rows were kept, and which were left out."""

    file: Path
    first_row: int
    kept: int
    left_out: npt.NDArray[np.int64]


@dataclass(eq=False)
class _TableReader:
    """Reading of one table: what was taken so far, and what is to be said of it."""

    path: Path
    format: str
    options: TableOptions
    rows: Rows | None = None
    folder: Path | None = None
    """Where rows are kept in place of memory."""
    users: Ids = field(init=False)
    items: Ids = field(init=False)
    ratings: Growing = field(init=False)
    times: Growing = field(init=False)
    raw_times: list[tuple[int, int]] = field(default_factory=list)
    chosen: Chosen | None = None
    skipped: int = 0
    unknown_times: int = 0
    time_reader: TimeReader = field(default_factory=TimeReader)
    without_time: str | None = None
    notes: list[str] = field(default_factory=list)
    batches: list[_Taken] = field(default_factory=list)
    row: Format = field(init=False)

    def __post_init__(self) -> None:
        self.users, self.items = (Ids(self._growing(np.int32, role)) for role in ("user", "item"))
        self.ratings, self.times = self._growing(np.float32, "rating"), self._growing(np.int64, "time")
        if self.rows is not None:
            self.name, self.files, self.row = self.format, [self.path], FORMATS[TABLE]
            return
        self.name, self.files = find(self.path, self.format, self.options)
        self.row = FORMATS[self.name]
        own, given = self.row.options, self.options
        if self.name not in (TABLE, "parquet"):
            given = dataclasses.replace(
                own, skip_bad_rows=given.skip_bad_rows, duplicates=given.duplicates, scale=given.scale
            )
        self.options = given

    def _growing(self, dtype: type[np.generic], role: str) -> Growing:
        return Growing(dtype, None if self.folder is None else self.folder / role)

    def file(self, columns: Columns) -> RatingsFile:
        """Return the ratings as a store, with what is to be said of them; uses up ``columns``."""
        facts = self.facts(columns)
        store, duplicates = build_store(columns, self.options.duplicates, str(self.path))
        return RatingsFile(**facts, ratings=store.n_ratings, duplicates=duplicates, store=store)

    def facts(self, columns: Columns) -> dict[str, Any]:
        """Return the fields of :class:`TableFacts`, without ``ratings`` and ``duplicates``."""
        assert self.chosen is not None
        warnings = self._outliers(columns.ratings)
        names = dict(self.chosen.names)
        left_out = self.chosen.left_out
        if self.without_time is not None:
            left_out = (*left_out, f"{names.pop('time')} ({self.without_time})")
        if self.unknown_times and "time" in names:
            self.notes.append(f"{self.unknown_times:,} rows without a time")
        return {
            "path": self.files[0],
            "format": self.name,
            "rows": columns.rows,
            "users": columns.user_ids.size,
            "items": columns.item_ids.size,
            "files": len(self.files),
            "columns": names,
            "by_position": self.chosen.by_position,
            "left_out": left_out,
            "skipped": self.skipped,
            "notes": tuple(self.notes),
            "warnings": warnings,
            "duplicates_rule": self.options.duplicates,
        }

    def take_all(self, *, first_rows: bool = False) -> None:
        """Read the files, or the first rows of each."""
        for path in self.files:
            file = open_table(path, self.options) if self.rows is None else RowsFile(path, self.rows())
            self._choose(file)
            assert self.chosen is not None
            if path == self.files[0]:
                self._reserve(file)
            first_row = 0
            found = file.blocks(self.chosen.index)
            with closing(found if first_rows else _ahead(found)) as blocks:
                for batch in chain.from_iterable(blocks):
                    self._take(file, batch, first_row)
                    first_row += batch.rows
                    if first_rows:
                        break
            self.skipped += file.skipped
        if not self.ratings.size:
            rest = f"; {self.skipped:,} rows were left out as bad ones" if self.skipped else ""
            raise DataError(f"{self.path}: no ratings{rest}")

    def _reserve(self, first: TableFile) -> None:
        """Make room for the rows of all files, as many for a byte as the first one has."""
        rows = first.rows_about
        if len(self.files) > 1:
            rows = rows * sum(path.stat().st_size for path in self.files) // first.path.stat().st_size
            rows += rows // 8
        for growing in (self.users, self.items, self.ratings, self.times):
            growing.reserve(rows)

    def columns(self) -> Columns:
        """Return what was read, in seconds and by distinct ids; afterwards the reader is empty."""
        user_ids, users = self.users.finish()
        item_ids, items = self.items.finish()
        timed = self.chosen is not None and "time" in self.chosen.index and self.without_time is None
        times = self.times.finish() if timed else None
        if times is not None:
            unit = in_seconds(times, self.raw_times)
            if unit != "s":
                self.notes.append(f"times are {unit}" if unit == "dates" else f"times in {unit}")
        ratings = self.ratings.finish()
        if self.row.binned:
            counts = ratings.astype(np.float64)
            if counts.min() < 0:
                raise DataError(f"{self.path}: a listening count is negative ({counts.min():g})")
            ratings = quantile_bins(counts, _BINS).astype(np.float32)
        return Columns(user_ids, item_ids, users, items, ratings, times)

    def _choose(self, file: TableFile) -> None:
        chosen = choose(str(file.path), file.names, file.sample, self.options.columns)
        if self.chosen is not None and chosen.index != self.chosen.index:
            there = ", ".join(chosen.names.values())
            raise DataError(
                f"{file.path}: its columns are {there}, others than "
                f"{', '.join(self.chosen.names.values())} in "
                f"{self.files[0].name}; write the path of the file meant, or data.columns"
            )
        self.chosen = chosen if self.chosen is None else self.chosen
        at = chosen.index.get("rating")
        if self.options.decimal is None and at is not None and isinstance(file, DelimitedFile):
            file.decimal = _decimal_mark(str(file.path), [row[at].strip() for row in file.sample])
            if file.decimal == "," and file.path == self.files[0]:
                self.notes.append("decimal comma")

    def _take(self, file: TableFile, batch: Batch, first_row: int) -> None:
        """Take the rows of a batch that are good."""
        assert self.chosen is not None
        names, found = self.chosen.names, batch.columns
        with _named(file.path):
            users, user_codes = self.users.encode(found["user"], names["user"])
            items, item_codes = self.items.encode(found["item"], names["item"])
        problems = {"user is empty": user_codes < 0, "item is empty": item_codes < 0}
        blank = problems["user is empty"] & problems["item is empty"]
        if self.options.whole_ids:
            for role, distinct, codes in (("user", users, user_codes), ("item", items, item_codes)):
                problems |= _ids_not_whole(role, distinct, codes)
        ratings = self._ratings_of(found, names, file, problems)
        if ratings is not None:
            blank &= ratings.missing
        times = self._times_of(found, file, problems, batch.rows)
        bad = np.zeros(batch.rows, dtype=np.bool_)
        for problem in problems.values():
            bad |= problem
        wrong = bad & ~blank
        if wrong.any():
            if not self.options.skip_bad_rows:
                self._refuse(batch, problems, int(np.argmax(wrong)))
            self.skipped += int(np.count_nonzero(wrong))
        keep = None if not bad.any() else ~bad
        kept = batch.rows if keep is None else int(np.count_nonzero(keep))
        if kept == 0:
            return
        self.users.add(users, user_codes if keep is None else user_codes[keep])
        self.items.add(items, item_codes if keep is None else item_codes[keep])
        if ratings is None:
            self.ratings.append(np.ones(kept, dtype=np.float32))
        else:
            self.ratings.append(ratings.values if keep is None else ratings.values[keep])
        if times is not None:
            missing = times.missing if keep is None else times.missing[keep]
            values = times.values if keep is None else times.values[keep]
            if missing.any():
                values[missing] = 0
                self.unknown_times += int(np.count_nonzero(missing))
            if times.raw:
                self.raw_times.append((self.times.size, self.times.size + values.size))
            self.times.append(values)
        self.batches.append(_Taken(file.path, first_row, kept, np.flatnonzero(bad)))

    def _ratings_of(
        self, found: Mapping[str, Any], names: Mapping[str, str], file: TableFile, problems: dict[str, Bools]
    ) -> Numbers | None:
        if "rating" not in found:
            return None
        with _named(file.path):
            ratings = read_ratings_column(found["rating"], names["rating"], file.decimal)
        problems["rating is missing"] = ratings.missing
        problems["rating {} is not a number"] = ratings.bad
        if self.options.scale is not None:
            low, high = self.options.scale
            outside = ((ratings.values < low) | (ratings.values > high)) & ~ratings.missing & ~ratings.bad
            problems[f"rating {{}} is outside data.scale, {low:g} to {high:g}"] = outside
        return ratings

    def _times_of(
        self, found: Mapping[str, Any], file: TableFile, problems: dict[str, Bools], rows: int
    ) -> Times | None:
        if "time" not in found or self.without_time is not None:
            return None
        assert self.chosen is not None
        asked_for = "time" in self.options.columns
        first = self.times.size == 0
        try:
            with _named(file.path):
                times = self.time_reader.read(found["time"], self.chosen.names["time"])
        except DataError:
            if asked_for or not first:
                raise
            self.without_time = "no times"
            return None
        ambiguous = self.time_reader.ambiguous
        if first and ambiguous is not None:
            if asked_for:
                raise DataError(
                    f"{self.path}: the dates of column {self.chosen.names['time']!r} fit both "
                    f"{ambiguous[0]} and {ambiguous[1]}; write them as 2008-03-30, or "
                    "data.columns: {time: none}"
                )
            self.without_time = f"its dates fit both {ambiguous[0]} and {ambiguous[1]}"
            return None
        if (
            first
            and not asked_for
            and 2 * np.count_nonzero(times.bad) > rows - np.count_nonzero(times.missing)
        ):
            self.without_time = "not understood as times"
            return None
        problems["time {} is not a time"] = times.bad
        return times

    def _refuse(self, batch: Batch, problems: Mapping[str, Bools], row: int) -> NoReturn:
        problem = next(text for text, bad in problems.items() if bad[row])
        role = problem.split(" ", 1)[0]
        value = plain_value(batch.columns[role][row])
        text = problem.format(repr(value)) if "{}" in problem else problem
        hint = _SKIP
        if role == "rating" and "not a number" in problem:
            text, hint = _number_problem(value, text, hint)
        elif role == "time" and _beyond(value):
            text = f"time {value} is out of range"
        raise DataError(f"{batch.place(row)}: {text}; {hint}")

    def _outliers(self, ratings: npt.NDArray[np.float32]) -> tuple[str, ...]:
        """Return a warning of ratings outside a scale that nearly all of them fit."""
        assert self.chosen is not None
        if "rating" not in self.chosen.index or self.options.scale is not None or self.row.binned:
            return ()
        low, high = ratings.min(), ratings.max()
        for scale in _SCALES:
            if scale[0] <= low and high <= scale[1]:
                return ()
            outside = (ratings < scale[0]) | (ratings > scale[1])
            count = int(np.count_nonzero(outside))
            if count <= _OUTLIER_SHARE * ratings.size:
                first = int(np.argmax(outside))
                few = "1 rating is" if count == 1 else f"{count:,} ratings are"
                return (
                    f"{few} outside {scale[0]:g} to {scale[1]:g}, where all others are: {ratings[first]:g} "
                    f"in {self._place(first)}"
                    + (" first" if count > 1 else "")
                    + f"; if it is wrong, write data.scale: [{scale[0]:g}, {scale[1]:g}] and "
                    "on_bad_row: skip",
                )
        return ()

    def _place(self, kept: int) -> str:
        """Return where the rating stands that is the ``kept``-th of those that were kept."""
        for batch in self.batches:
            if kept < batch.kept:
                break
            kept -= batch.kept
        # Those left out before it: the n-th of them has left_out[n] - n kept rows before it.
        before = batch.left_out - np.arange(batch.left_out.size)
        row = kept + int(np.searchsorted(before, kept, side="right"))
        where = "" if len(self.files) == 1 else f" of {batch.file.name}"
        return f"row {batch.first_row + row + 1}{where}"


def _ahead(blocks: Generator[Iterable[Batch], None, None]) -> Generator[Iterable[Batch], None, None]:
    """Yield blocks, each read in a thread while the one before is taken; no thread is left when it is closed.

    What is wrong with a block is raised in its turn. Only one is read ahead: each takes memory.
    """
    with closing(blocks), ThreadPoolExecutor(1, thread_name_prefix="table") as reader:
        coming = reader.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = reader.submit(next, blocks, None)
            yield block


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the file in front of what is wrong with a column."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _ids_not_whole(role: str, distinct: Any, codes: npt.NDArray[np.int32]) -> dict[str, Bools]:
    """Return problems of a format whose ids are whole numbers from 0."""
    if distinct is None:
        return {}
    texts = distinct.to_pylist() if pa.types.is_string(distinct.type) else []
    no_number = np.array([text is not None and not text.lstrip("+-").isdigit() for text in texts], dtype=bool)
    if texts:
        numbers = [0 if no or text is None else int(text) for no, text in zip(no_number, texts, strict=True)]
        beyond = np.array([not 0 <= number < 2**63 for number in numbers], dtype=np.bool_)
    else:
        beyond = np.asarray(pc.less(distinct, 0).fill_null(fill_value=False))
        no_number = np.zeros(beyond.size, dtype=np.bool_)
    if not (no_number.any() or beyond.any()):
        return {}
    there = codes >= 0
    return {
        f"{role} {{}} is not a whole number": no_number[codes] & there,
        f"{role} {{}} is negative or too large": beyond[codes] & there,
    }


def _beyond(value: Any) -> bool:
    try:
        return abs(float(value)) > LARGEST_RATING
    except (TypeError, ValueError):
        return False


def _number_problem(value: Any, text: str, hint: str) -> tuple[str, str]:
    if isinstance(value, str) and looks_like_time([value.strip()]) and not _beyond(value):
        return f"{text} but looks like a time", "write data.columns: {rating: …, time: …}, or " + hint
    if isinstance(value, str) and value.count(",") == 1 and value.replace(",", "").strip().isdigit():
        return text, "write data.decimal: ',' where the comma is the decimal mark, or " + hint
    if str(value).strip().lstrip("+-").lower() in ("inf", "infinity", "nan"):
        return f"rating {value!r} is not a finite number", hint
    if _beyond(value):
        return f"rating {value} is beyond {LARGEST_RATING:g}; scale ratings down", hint
    return text, hint


def _decimal_mark(where: str, values: Sequence[str]) -> str:
    """Return the decimal mark of ratings: a comma where it is certain.

    Raises
    ------
    DataError
        where a comma could stand between thousands as well.
    """
    with_comma = [value for value in values if "," in value]
    if not with_comma or any("." in value for value in values):
        return "."
    fractions = [value.rsplit(",", 1)[1] for value in with_comma]
    if any(value.count(",") > 1 or not value.replace(",", "").lstrip("+-").isdigit() for value in with_comma):
        return "."
    if all(len(fraction) == 3 for fraction in fractions):
        raise DataError(
            f"{where}: ratings such as {with_comma[0]!r}: the comma is a decimal mark or stands between "
            "thousands; write data.decimal: ',' or data.decimal: '.'"
        )
    return ","


def quantile_bins(values: npt.NDArray[np.float64], bins: int) -> npt.NDArray[np.float64]:
    """Return 1 … ``bins`` for each value (float64[N]), by the quantiles of all values together.

    Value v is in bin 1 + #{edges < v}, the edges being the 1/bins, 2/bins, … quantiles (linear
    interpolation) over the whole file, not over one user: a device then knows its bin from four public
    numbers, and a heavy listener's ratings are high. Equal values share a bin, so bins are only about equally
    full.
    """
    edges = np.quantile(values, np.arange(1, bins) / bins)
    return 1.0 + np.searchsorted(edges, values, side="left").astype(np.float64)
