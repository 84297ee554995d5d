"""A user's own ratings from a CSV file: ``item,rating`` lines, checked before a model sees them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from edge.errors import DataError
from edge.serving.metadata import ModelInfo

LARGEST_RATINGS_BYTES: Final = 1 << 24
"""A larger file is refused before it is read: no user has rated 16 MiB."""
_HEADER: Final = ("item", "rating")


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """What a user rated: ``items`` int64 [r] and ``ratings`` float32 [r]; ``skipped`` are unknown items."""

    items: npt.NDArray[np.int64]
    ratings: npt.NDArray[np.float32]
    skipped: tuple[str, ...]


def read_history(path: Path, info: ModelInfo, *, skip_unknown: bool) -> History:
    """Read a ratings file.

    Parameters
    ----------
    path : CSV in UTF-8, two fields a line: the item's id in the data that the model was trained on, and the
        rating. The header ``item,rating`` may be left out; empty lines are passed over.
    info : of the model: its item labels and the range of ratings.
    skip_unknown : leave out items that the model does not know, and return their ids; otherwise refuse them.

    Raises
    ------
    DataError
        Naming file and line: another number of fields, an item that is unknown or stands twice, a rating that
        is no number, not finite or out of range; or a file that is missing, too large or not UTF-8.
    """
    places = _places(info)
    items: list[int] = []
    ratings: list[float] = []
    skipped: list[str] = []
    first_lines: dict[str, int] = {}
    for number, fields in _lines(path):
        where = f"{path}:{number}"
        if len(fields) != 2:
            raise DataError(f"{where}: {len(fields)} fields; write 'item,rating'")
        label, text = fields
        if label in first_lines:
            raise DataError(
                f"{where}: item {label!r} was rated in line {first_lines[label]} already; keep one"
            )
        first_lines[label] = number
        rating = _rating(text, info, where)
        if label in places:
            items.append(places[label])
            ratings.append(rating)
        elif skip_unknown:
            skipped.append(label)
        else:
            raise DataError(
                f"{where}: the model knows no item {label!r}; write an id of its training data, "
                "or leave unknown items out with --skip-unknown"
            )
    return History(np.array(items, np.int64), np.array(ratings, np.float32), tuple(skipped))


def _places(info: ModelInfo) -> dict[str, int]:
    labels: Sequence[int | str] = range(info.n_items) if info.item_labels is None else info.item_labels
    return {str(label): place for place, label in enumerate(labels)}


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and stripped fields of every line but the header and empty ones."""
    try:
        size = path.stat().st_size
        contents = b"" if size > LARGEST_RATINGS_BYTES else path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if size > LARGEST_RATINGS_BYTES:
        raise DataError(
            f"{path}: has {size} bytes; the ratings of one user have {LARGEST_RATINGS_BYTES} at most"
        )
    try:
        text = contents.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: no UTF-8 text; save the file as UTF-8") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    at_start = True
    try:
        for raw in reader:
            fields = [field.strip() for field in raw]
            if not any(fields):
                continue
            header = at_start and tuple(field.lower() for field in fields) == _HEADER
            at_start = False
            if not header:
                yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: no CSV: {error}") from error


def _rating(text: str, info: ModelInfo, where: str) -> float:
    try:
        rating = float(text)
    except ValueError:
        raise DataError(
            f"{where}: the rating {text!r} is no number; write one, or the header 'item,rating' in the first line"
        ) from None
    if not math.isfinite(rating):
        raise DataError(f"{where}: the rating {text!r} is not finite; leave the item out if it was not rated")
    if info.rating_range is not None:
        lowest, highest = info.rating_range
        if not lowest <= rating <= highest:
            raise DataError(
                f"{where}: the rating {text} is outside {lowest:g} … {highest:g}, the scale of the training data"
            )
    return rating
