"""A user's own ratings from a CSV file: ``item,rating`` lines, checked before a model sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError
from edge.data.table.values import LARGEST_RATING
from edge.onnx.csv_lines import csv_pairs
from edge.onnx.metadata import ModelInfo

_HEADER = ("item", "rating")


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
