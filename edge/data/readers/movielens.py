"""MovieLens as published by GroupLens: 100K (``u.data``), 1M (``ratings.dat``), latest (``ratings.csv``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edge.data.build import RatingsFile
from edge.data.readers.delimited import Columns, Layout, read_bytes, read_columns, read_delimited
from edge.errors import DataError

LAYOUT_100K = Layout(
    format="movielens-100k",
    delimiter="\t",
    fields=("user", "item", "rating", "timestamp"),
    header=False,
    text_ids=False,
    quoted=False,
    example="196\t242\t3\t881250949",
)
LAYOUT_1M = replace(LAYOUT_100K, format="movielens-1m", delimiter="::", example="1::1193::5::978300760")
LAYOUT_CSV = replace(
    LAYOUT_100K,
    format="movielens-csv",
    delimiter=",",
    header=True,
    quoted=True,
    example="1,31,2.5,1260759144",
)
_CSV_HEADER = ("userId", "movieId", "rating", "timestamp")


def read_100k(path: Path) -> RatingsFile:
    """Read ``u.data`` or one of its folds: user, item, rating and timestamp between tabs."""
    return read_delimited(path, LAYOUT_100K)


def read_1m(path: Path) -> RatingsFile:
    """Read ``ratings.dat``: user, item, rating and timestamp between double colons."""
    return read_delimited(path, LAYOUT_1M)


def columns_1m(path: Path) -> Columns:
    """Return the columns of ``ratings.dat`` in the file's order."""
    return read_columns(path, LAYOUT_1M)


def read_csv(path: Path) -> RatingsFile:
    """Read ``ratings.csv`` of the "latest" and 20M/25M/32M sets, with its header line.

    Raises
    ------
    DataError
        also when the header is not ``userId,movieId,rating,timestamp``.
    """
    first_line = read_bytes(path).split(b"\n", 1)[0].decode("utf-8", errors="replace").rstrip("\r")
    if tuple(name.strip('"') for name in first_line.split(",")) != _CSV_HEADER:
        raise DataError(f"{path}:1: header {first_line[:80]!r}; expected {','.join(_CSV_HEADER)!r}")
    return read_delimited(path, LAYOUT_CSV)
