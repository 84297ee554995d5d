"""Recommendations for one history from a stateless model; ratings and titles from files for them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError, ExportError, ModelFileError
from edge.data.table.values import LARGEST_RATING
from edge.onnx.loading import LoadedModel
from edge.onnx.metadata import ModelInfo
from edge.onnx.session import OnnxSession
from edge.onnx.stateless_graph import STATELESS, is_stateless

LARGEST_FILE_BYTES: Final = 1 << 24
"""A larger file is refused before it is read: 16 MiB."""
_HEADER = ("item", "rating")


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
    places = info.places()
    items: list[int] = []
    ratings: list[float] = []
    skipped: list[str] = []
    first_lines: dict[str, int] = {}
    for number, label, text in csv_pairs(path, _HEADER):
        where = f"{path}:{number}"
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


def _rating(text: str, info: ModelInfo, where: str) -> float:
    try:
        rating = float(text)
    except ValueError:
        raise DataError(
            f"{where}: the rating {text!r} is no number; write one; a header is 'item,rating'"
        ) from None
    if not math.isfinite(rating):
        raise DataError(f"{where}: the rating {text!r} is not finite; leave the item out if it was not rated")
    if abs(rating) > LARGEST_RATING:
        raise DataError(
            f"{where}: the rating {text} is beyond {LARGEST_RATING:g}; write one of the data's scale"
        )
    if info.rating_range is not None:
        lowest, highest = info.rating_range
        if not lowest <= rating <= highest:
            raise DataError(
                f"{where}: the rating {text} is outside the scale of the data, {lowest:g} … {highest:g}"
            )
    return rating


def read_titles(path: Path, info: ModelInfo) -> tuple[str, ...]:
    """Return a title for each item of the model, [n_items]; an item that the file leaves out has its id.

    Items that the model does not know are passed over: lists of titles are often longer than the data.

    Raises
    ------
    DataError
        Naming file and line: an item that stands twice, and what
        :func:`csv_pairs` refuses; or a file that names no item of the model.
    """
    places = info.places()
    titles = list(places)
    first_lines: dict[str, int] = {}
    for number, label, title in csv_pairs(path, ("item", "title")):
        if label in first_lines:
            raise DataError(
                f"{path}:{number}: item {label!r} has a title in line {first_lines[label]} already; keep one"
            )
        first_lines[label] = number
        if label in places:
            titles[places[label]] = title
    if not first_lines.keys() & places.keys():
        raise DataError(
            f"{path}: names no item of the model; write its ids, as they are in the training data"
        )
    return tuple(titles)


class Recommendation(NamedTuple):
    """An item by its index, and its predicted rating."""

    item: int
    score: float


def check_kind(model: LoadedModel) -> None:
    """Raise ``ModelFileError`` unless the model takes a history of ratings."""
    if not is_stateless(model.kind):
        raise ModelFileError(
            f"a model of kind {model.kind!r} takes no ratings; give one of kind {STATELESS!r}"
        )


def recommend(model: LoadedModel, history: History, top: int) -> list[Recommendation]:
    """Return the best ``top`` items that the history does not hold, best first; fewer if fewer are left.

    Raises
    ------
    ExportError
        If ``top`` is longer than the list that the model makes.
    ModelFileError
        For a model of another kind, or one that cannot be run or returns what a stateless model does not.
    """
    check_kind(model)
    session = OnnxSession(model.contents)
    outputs = session.run({"items": history.items, "ratings": history.ratings}).outputs
    items, scores = outputs.get("top_items"), outputs.get("top_scores")
    if items is None or scores is None or items.ndim != 1 or items.shape != scores.shape:
        raise ModelFileError("the model returns no list of items and scores; export it again")
    if items.dtype != np.int64 or scores.dtype != np.float32:
        raise ModelFileError(
            f"the model returns {items.dtype} items and {scores.dtype} scores; export it again"
        )
    if items.size and not (items.min() >= -1 and items.max() < model.info.n_items):
        raise ModelFileError(f"the model returns items outside its {model.info.n_items}; export it again")
    if top > items.size:
        raise ExportError(
            f"the model lists {items.size} items at most; ask for no more, or export it with --top {top}"
        )
    found = zip(items[:top].tolist(), scores[:top].tolist(), strict=True)
    return [Recommendation(item, score) for item, score in found if item >= 0]
