"""Sums of client updates: one buffer the size of the model, whatever the number of clients.

Contributions are added one after the other in the order in which they arrive, in the updates' own dtype, so
the bits of the sum depend on that order and on nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge.core.errors import RemoteProtocolError
from edge.learning.updates import Accumulator, Aggregate, Array, ClientUpdate, Layout, RowTable

VALUE_MAX: Final = 2.0**30
"""Largest absolute value of a real number in an update: sums of as many as there are devices stay finite."""
OUT_OF_RANGE: Final = "out-of-range"
"""The reason for which an update is refused that is well-formed but for the size of a number."""


class _Totals:
    """The scalars every accumulator keeps."""

    __slots__ = ("clients", "examples", "loss_sum", "weight")

    def __init__(self) -> None:
        self.clients = 0
        self.examples = 0
        self.weight = 0.0
        self.loss_sum = 0.0

    def add(self, update: ClientUpdate) -> None:
        self.clients += 1
        self.examples += update.examples
        self.weight += update.weight
        self.loss_sum += update.loss * update.examples

    def aggregate(self, sums: dict[str, Array]) -> Aggregate:
        loss = self.loss_sum / self.examples if self.examples else float("nan")
        return Aggregate(sums, self.weight, self.clients, self.examples, loss)


def _malformed(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError("malformed-update", detail)


def _check_names(arrays: Mapping[str, Array], expected: Set[str]) -> None:
    if arrays.keys() != expected:
        wanted = ", ".join(sorted(expected))
        raise _malformed(f"an update has the arrays {wanted}, not {', '.join(sorted(arrays))}")


def _check_array(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise _malformed(f"'{name}' is {dtype}{list(shape)}, not {array.dtype}{list(array.shape)}")
    if array.dtype.kind == "f":
        _check_values(name, array)


def _check_values(name: str, array: Array) -> None:
    # One pass without a temporary: a sum of squares bounds every value. Where it is too large, or no number,
    # and only there, every value is looked at.
    flat = array.ravel()
    with np.errstate(over="ignore"):
        if float(flat.dot(flat)) < VALUE_MAX**2 / 2:
            return
    if not np.isfinite(flat).all():
        raise _malformed(f"'{name}' holds a value that is not finite")
    if np.abs(flat).max() > VALUE_MAX:
        raise RemoteProtocolError(OUT_OF_RANGE, f"'{name}' holds a value beyond ±{VALUE_MAX:g}")


class DenseAccumulator:
    """Adds whole arrays.

    Parameters
    ----------
    shapes : dtype and shape of every array of an update, by name.
    """

    def __init__(self, shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self._shapes = dict(shapes)
        self._sums: dict[str, Array] = {
            name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()
        }
        self._totals = _Totals()

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return Layout(self._shapes)

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        _check_names(arrays, self._shapes.keys())
        for name, (dtype, shape) in self._shapes.items():
            _check_array(name, arrays[name], dtype, shape)

    def add(self, update: ClientUpdate) -> None:
        """Add one update."""
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # a sum that overflows is noticed when it is applied
            for name, total in self._sums.items():
                np.add(total, update.arrays[name], out=total)
        self._totals.add(update)

    def result(self) -> Aggregate:
        """Return the sum so far."""
        return self._totals.aggregate({name: array.copy() for name, array in self._sums.items()})


class RowAccumulator:
    """Adds a few rows of one table, each update naming the rows it changes.

    Parameters
    ----------
    name : the array that holds an update's rows, [n, width], and the name of the sum.
    index_name : the array that holds the row numbers, [n], increasing.
    index_dtype, dtype : of the two arrays.
    rows, width : shape of the table.
    """

    def __init__(
        self,
        name: str,
        index_name: str,
        *,
        index_dtype: np.dtype[Any],
        dtype: np.dtype[Any],
        rows: int,
        width: int,
    ) -> None:
        self._name = name
        self._index_name = index_name
        self._names = frozenset((name, index_name))
        self._index_dtype = index_dtype
        self._sum: npt.NDArray[Any] = np.zeros((rows, width), dtype)
        self._opaque_rows = self._sum.view(np.dtype((np.void, width * dtype.itemsize))).ravel()
        """A view of the sum with a row an element."""
        self._totals = _Totals()

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        rows, width = self._sum.shape
        return Layout({}, (RowTable(self._index_name, self._name, self._sum.dtype, rows, width),))

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        _check_names(arrays, self._names)
        index, rows = arrays[self._index_name], arrays[self._name]
        if index.ndim != 1:
            raise _malformed(f"'{self._index_name}' has {index.ndim} dimensions; it has 1")
        n = len(index)
        _check_array(self._index_name, index, self._index_dtype, (n,))
        _check_array(self._name, rows, self._sum.dtype, (n, self._sum.shape[1]))
        if n == 0:
            return
        if np.count_nonzero(index[1:] > index[:-1]) != n - 1:
            raise _malformed(f"'{self._index_name}' does not increase from row to row")
        if int(index[0]) < 0 or int(index[-1]) >= len(self._sum):
            raise _malformed(f"'{self._index_name}' names a row outside 0..{len(self._sum) - 1}")

    def add(self, update: ClientUpdate) -> None:
        """Add one update."""
        # Take, add, put back, each row as one opaque element: three times as fast as `sum[index] += rows`.
        # Right because an index never repeats.
        index = update.arrays[self._index_name].astype(np.intp)
        rows = self._opaque_rows.take(index)
        values = rows.view(self._sum.dtype).reshape(len(index), self._sum.shape[1])
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # a sum that overflows is noticed when it is applied
            values += update.arrays[self._name]
        np.put(self._opaque_rows, index, rows)
        self._totals.add(update)

    def result(self) -> Aggregate:
        """Return the sum so far."""
        return self._totals.aggregate({self._name: self._sum.copy()})


class RowsAndWholeAccumulator:
    """Adds a few rows of one table, each update naming the rows it changes, and some whole arrays beside it.

    Parameters
    ----------
    name, index_name, index_dtype, dtype, rows, width : as for :class:`RowAccumulator`.
    whole : dtype and shape of every other array of an update, by name.
    """

    def __init__(
        self,
        name: str,
        index_name: str,
        *,
        index_dtype: np.dtype[Any],
        dtype: np.dtype[Any],
        rows: int,
        width: int,
        whole: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
    ) -> None:
        self._of_rows = frozenset((name, index_name))
        self._of_whole = frozenset(whole)
        self._rows = RowAccumulator(
            name, index_name, index_dtype=index_dtype, dtype=dtype, rows=rows, width=width
        )
        self._whole = DenseAccumulator(whole)

    @property
    def layout(self) -> Layout:
        """How an update is laid out."""
        return Layout(self._whole.layout.dense, self._rows.layout.tables)

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        _check_names(arrays, self._of_rows | self._of_whole)
        self._rows.check({name: arrays[name] for name in self._of_rows})
        self._whole.check({name: arrays[name] for name in self._of_whole})

    def add(self, update: ClientUpdate) -> None:
        """Add one update."""
        self._rows.add(update)
        self._whole.add(update)

    def result(self) -> Aggregate:
        """Return the sum so far."""
        rows, whole = self._rows.result(), self._whole.result()
        return dataclasses.replace(rows, sums={**rows.sums, **whole.sums})


class UserRowsAccumulator:
    """Adds what all clients share, and keeps a row of each client's user apart: nobody else changes it.

    Parameters
    ----------
    shared : takes the arrays that all clients change.
    row_name : the array that holds the change of a user's row, [width].
    user_name : the array that says whose row it is, int64 [1]; no row is changed twice.
    dtype, width : of a row.
    """

    def __init__(
        self, shared: Accumulator, row_name: str, user_name: str, *, dtype: np.dtype[Any], width: int
    ) -> None:
        self._shared = shared
        self._row_name, self._user_name = row_name, user_name
        self._dtype, self._width = dtype, width
        self._users: list[int] = []
        self._rows: list[Array] = []

    @property
    def layout(self) -> Layout:
        """How that part of an update is laid out that all clients change."""
        return self._shared.layout

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update (``malformed-update``)."""
        if self._row_name not in arrays:
            raise _malformed(f"an update has the array '{self._row_name}'")
        _check_array(self._row_name, arrays[self._row_name], self._dtype, (self._width,))
        self._shared.check(self._of_all(arrays))

    def add(self, update: ClientUpdate) -> None:
        """Add one update."""
        self._users.append(int(update.arrays[self._user_name][0]))
        self._rows.append(update.arrays[self._row_name])
        self._shared.add(update._replace(arrays=self._of_all(update.arrays)))

    def result(self) -> Aggregate:
        """Return the sum so far, and the users' rows beside it: [m] and [m, width]."""
        aggregate = self._shared.result()
        own = {
            self._user_name: np.array(self._users, np.int64),
            self._row_name: np.array(self._rows, self._dtype).reshape(-1, self._width),
        }
        return dataclasses.replace(aggregate, sums={**aggregate.sums, **own})

    def _of_all(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        own = (self._row_name, self._user_name)
        return {name: array for name, array in arrays.items() if name not in own}
