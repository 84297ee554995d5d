"""From columns of users, items and ratings, as a table holds them, to a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError
from edge.data.store import Items, Labels, RatingStore, empty_items

_CODED_STEPS = (1.0, 0.5, 0.25)
_MAX_CODE = 255
_CHUNK_ROWS = 1 << 16
_Kind = TypeVar("_Kind", bound=np.generic)
_NONE = np.empty(0, dtype=np.float32)
_NO_CODES = np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Columns:
    """The rows of a table in its own order; at least one.

    Attributes
    ----------
    user_ids, item_ids : distinct ids, ascending; each has a row.
    users, items : int32[n], indices of them.
    ratings : float32[n].
    times : int64[n], seconds, or None.
    """

    user_ids: Labels
    item_ids: Labels
    users: npt.NDArray[np.int32]
    items: npt.NDArray[np.int32]
    ratings: npt.NDArray[np.float32]
    times: npt.NDArray[np.int64] | None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.ratings.size


def build_store(
    columns: Columns, duplicates: str = "last", where: str = "ratings"
) -> tuple[RatingStore, int]:
    """Return a store of the rows and the number of duplicates dropped.

    Whole, half and quarter stars are stored as one byte each. The arrays of ``columns`` are released as they
    are used, so that at most 26 bytes a row are held, of which the store keeps 11 to 13 with times.

    Parameters
    ----------
    columns : the rows.
    duplicates : ``last`` or ``first`` (by time, then by row), ``mean`` (the last time stands) or ``error``.
    where : the table, for the message.

    Raises
    ------
    DataError
        where a user rated an item twice and ``duplicates`` is ``error``.
    """
    n_users, n_items = columns.user_ids.size, columns.item_ids.size
    values, scale, offset = compact_ratings(columns.ratings)
    columns.ratings = _NONE
    item_bits = (n_items - 1).bit_length()
    pairs = _pairs(columns.users, columns.items, item_bits)
    columns.users = columns.items = _NO_CODES
    order = _sort(pairs, (n_users - 1).bit_length() + item_bits)
    times = columns.times
    repeated = pairs[1:] == pairs[:-1]
    dropped = int(np.count_nonzero(repeated))
    means = None
    if dropped:
        if duplicates == "error":
            _refuse_duplicates(columns, pairs, order, repeated, where, item_bits)
        if times is not None:
            _sort_by_time(order, pairs, repeated, times)
        # Of every run of equal pairs one row survives.
        last = np.append(~repeated, True)
        if duplicates == "mean":
            means = _means(gathered(values, order), np.flatnonzero(last), scale, offset)
        kept = np.append(True, ~repeated) if duplicates == "first" else last
        order, pairs = _compress(order, kept), _compress(pairs, kept)
    del repeated
    indptr, items = _rows_of_users(pairs, n_users, n_items, item_bits)
    del pairs
    if means is None:
        values = gathered(values, order)
    else:
        values, scale, offset = compact_ratings(means)
    store = RatingStore(
        indptr=indptr,
        items=items,
        ratings=values,
        n_items=n_items,
        scale=scale,
        offset=offset,
        timestamps=None if times is None else gathered(times, order),
        user_ids=columns.user_ids,
        item_ids=columns.item_ids,
    )
    return store, dropped


def _refuse_duplicates(
    columns: Columns,
    pairs: npt.NDArray[np.uint64],
    order: npt.NDArray[np.unsignedinteger[Any]],
    repeated: npt.NDArray[np.bool_],
    where: str,
    item_bits: int,
) -> NoReturn:
    first = int(np.argmax(repeated))
    user, item = divmod(int(pairs[first]), 1 << item_bits)
    raise DataError(
        f"{where}: rows {order[first] + 1} and {order[first + 1] + 1} are both of user "
        f"{columns.user_ids[user]} and item {columns.item_ids[item]}, and "
        f"{np.count_nonzero(repeated)} rows repeat a pair; keep one of each, or write "
        "data.duplicates: last, first or mean"
    )


def compact_ratings(
    ratings: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint8] | npt.NDArray[np.float32], float, float]:
    """Return ``(stored, scale, offset)``: uint8 codes when whole, half or quarter steps fit, else float32.

    The codes are exact: ``offset + scale * code`` is the rating. The offset is 0 unless a rating is negative.
    ``ratings`` are float32[n], n from 1.
    """
    offset = min(0.0, float(np.floor(ratings.min())))
    highest = float(ratings.max())
    codes = np.empty(ratings.size, dtype=np.uint8)
    for step in _CODED_STEPS:
        if (highest - offset) / step > _MAX_CODE:
            break
        for first in range(0, ratings.size, _CHUNK_ROWS):
            part = slice(first, first + _CHUNK_ROWS)
            exact = (ratings[part] - np.float32(offset)) / np.float32(step)
            codes[part] = exact
            if not np.array_equal(codes[part], exact):
                break
        else:
            return codes, step, offset
    return ratings, 1.0, 0.0


def gathered(
    values: npt.NDArray[Any], places: npt.NDArray[np.integer[Any]], out: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """Return ``values[places]``, all in range; ``out``, of as many elements, may be ``places`` itself.

    By parts: numpy makes all places that are narrower than its own anew, 8 bytes each.
    """
    out = np.empty(places.size, dtype=values.dtype) if out is None else out
    for first in range(0, places.size, _CHUNK_ROWS):
        part = slice(first, first + _CHUNK_ROWS)
        np.take(values, places[part], out=out[part], mode="clip")
    return out


def _pairs(
    users: npt.NDArray[np.int32], items: npt.NDArray[np.int32], item_bits: int
) -> npt.NDArray[np.uint64]:
    """Return each row's user, and its item in the lowest ``item_bits``."""
    pairs = np.empty(users.size, dtype=np.uint64)
    for first in range(0, pairs.size, _CHUNK_ROWS):
        part = slice(first, first + _CHUNK_ROWS)
        np.left_shift(users[part], item_bits, out=pairs[part], casting="unsafe", dtype=np.uint64)
        np.bitwise_or(pairs[part], items[part], out=pairs[part], casting="unsafe", dtype=np.uint64)
    return pairs


def _sort(pairs: npt.NDArray[np.uint64], pair_bits: int) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Sort pairs of ``pair_bits`` in place; return the rows in their order, equal ones by row."""
    n_rows = pairs.size
    # Many exports are in order already; of the others the first part says so.
    parts = (pairs[first : first + _CHUNK_ROWS + 1] for first in range(0, n_rows, _CHUNK_ROWS))
    if all((part[1:] >= part[:-1]).all() for part in parts):
        return np.arange(n_rows, dtype=np.uint32 if n_rows <= 2**32 else np.uint64)
    bits = (n_rows - 1).bit_length()
    if pair_bits + bits > 64:
        order = np.argsort(pairs, kind="stable")
        pairs[:] = pairs[order]
        return order.astype(np.uint64)
    # The row in the low bits: numpy sorts plain numbers several times quicker than it finds their order.
    for first in range(0, n_rows, _CHUNK_ROWS):
        part = pairs[first : first + _CHUNK_ROWS]
        np.left_shift(part, np.uint64(bits), out=part)
        np.bitwise_or(part, np.arange(first, first + part.size, dtype=np.uint64), out=part)
    pairs.sort()
    rows: npt.NDArray[np.unsignedinteger[Any]]
    rows = np.empty(n_rows, dtype=np.uint32 if n_rows <= 2**32 else np.uint64)
    for first in range(0, n_rows, _CHUNK_ROWS):
        part = pairs[first : first + _CHUNK_ROWS]
        np.bitwise_and(part, np.uint64(2**bits - 1), out=rows[first : first + part.size], casting="unsafe")
        np.right_shift(part, np.uint64(bits), out=part)
    return rows


def _compress(array: npt.NDArray[_Kind], keep: npt.NDArray[np.bool_]) -> npt.NDArray[_Kind]:
    """Return the elements where ``keep`` holds, moved to the front of the array itself."""
    size = 0
    for first in range(0, array.size, _CHUNK_ROWS):
        part = array[first : first + _CHUNK_ROWS][keep[first : first + _CHUNK_ROWS]]
        array[size : size + part.size] = part
        size += part.size
    return array[:size]


def _sort_by_time(
    order: npt.NDArray[np.unsignedinteger[Any]],
    pairs: npt.NDArray[np.uint64],
    repeated: npt.NDArray[np.bool_],
    times: npt.NDArray[np.int64],
) -> None:
    """Bring the rows of one pair into the order of their times, in place; equal times stay as they are."""
    places = np.flatnonzero(np.append(repeated, False) | np.append(False, repeated))
    rows = order[places]
    order[places] = rows[np.lexsort((times[rows], pairs[places]))]


def _means(
    values: npt.NDArray[np.uint8] | npt.NDArray[np.float32],
    last: npt.NDArray[np.int64],
    scale: float,
    offset: float,
) -> npt.NDArray[np.float32]:
    """Return the mean rating of every run of rows; ``last`` is where each ends."""
    starts = np.append(0, last[:-1] + 1)
    sums = np.add.reduceat(offset + scale * values.astype(np.float64), starts)
    means: npt.NDArray[np.float32] = (sums / (last - starts + 1)).astype(np.float32)
    return means


def _rows_of_users(
    pairs: npt.NDArray[np.uint64], n_users: int, n_items: int, item_bits: int
) -> tuple[npt.NDArray[np.int64], Items]:
    """Return row pointers of the users and the items, from ascending pairs."""
    items = empty_items(pairs.size, n_items)
    counts = np.zeros(n_users, dtype=np.int64)
    for first in range(0, pairs.size, _CHUNK_ROWS):
        part = pairs[first : first + _CHUNK_ROWS]
        users = (part >> np.uint64(item_bits)).astype(np.int64)
        items[first : first + part.size] = part & np.uint64(2**item_bits - 1)
        counts[users[0] : users[-1] + 1] += np.bincount(users - users[0])
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)]), items
