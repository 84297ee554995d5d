"""What items are called, from a CSV file of ``item,title`` lines."""

from __future__ import annotations

from pathlib import Path

from edge.core.errors import DataError
from edge.onnx.csv_lines import csv_pairs
from edge.onnx.metadata import ModelInfo


def read_titles(path: Path, info: ModelInfo) -> tuple[str, ...]:
    """Return a title for each item of the model, [n_items]; an item that the file leaves out has its id.

    Items that the model does not know are passed over: lists of titles are often longer than the data.

    Raises
    ------
    DataError
        Naming file and line: an item that stands twice, and what
        :func:`edge.onnx.csv_lines.csv_pairs` refuses; or a file that names no item of the model.
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
