"""HetRec 2011 LastFM: ``user_artists.dat``, listening counts turned into ratings of 1 to 5."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.data.build import RatingsFile, build_store
from edge.data.readers.delimited import Layout, read_bytes, read_columns
from edge.errors import DataError

LAYOUT = Layout(
    format="lastfm",
    delimiter="\t",
    fields=("user", "item", "rating"),
    header=True,
    text_ids=False,
    quoted=False,
    example="2\t51\t13883",
)
_HEADER = "userID\tartistID\tweight"
_BINS = 5


def read_user_artists(path: Path) -> RatingsFile:
    """Read ``user_artists.dat`` and bin the counts into 1–5 (:func:`quantile_bins`).

    Raises
    ------
    DataError
        also when the header is not ``userID artistID weight`` (tabs) or a count is negative.
    """
    first_line = read_bytes(path).split(b"\n", 1)[0].decode("utf-8", errors="replace").rstrip("\r")
    if first_line != _HEADER:
        raise DataError(f"{path}:1: header {first_line[:80]!r}; expected {_HEADER!r}")
    columns = read_columns(path, LAYOUT)
    if columns.ratings.min() < 0:
        raise DataError(f"{path}: a listening count is negative ({columns.ratings.min():g})")
    ratings = quantile_bins(columns.ratings, _BINS)
    store, duplicates = build_store(columns.users, columns.items, ratings, None)
    return RatingsFile(store, path, LAYOUT.format, ratings.size, duplicates)


def quantile_bins(values: npt.NDArray[np.float64], bins: int) -> npt.NDArray[np.float64]:
    """Return 1 … ``bins`` for each value (float64[N]), by the quantiles of all values together.

    Value v is in bin 1 + #{edges < v}, the edges being the 1/bins, 2/bins, … quantiles (linear
    interpolation) over the whole file, not over one user: a device then knows its bin from four public
    numbers, and a heavy listener's ratings are high. Equal values share a bin, so bins are only about equally
    full.
    """
    edges = np.quantile(values, np.arange(1, bins) / bins)
    return 1.0 + np.searchsorted(edges, values, side="left").astype(np.float64)
