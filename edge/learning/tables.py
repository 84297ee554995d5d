"""Tables of which only some rows matter: sums that are zero elsewhere, and versions that differ in few rows.

What a round costs follows from the rows that its devices touch, not from the number of items.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_LARGE_BYTES: Final = 1 << 22
"""Of an array whose memory is worth keeping."""
_MOST_SPARE: Final = 12
"""Arrays that are kept: twice those of Adam for two tables."""


def rows_as_elements(table: Array) -> Array:
    """Return a view [rows] of a contiguous table [rows, width] with a row an element.

    Rows are taken and put three times as fast so.
    """
    return table.view(np.dtype((np.void, table.shape[1] * table.dtype.itemsize))).ravel()


def rows_at(table: Array, index: npt.NDArray[np.intp]) -> Array:
    """Return ``table[index]`` of a table [rows, width]."""
    elements = rows_as_elements(np.ascontiguousarray(table))
    return elements.take(index).view(table.dtype).reshape(-1, table.shape[1])


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of a table [``n``, …]; the others are zero.

    ``index`` intp [m] increases; ``rows`` [m, …].
    """

    index: npt.NDArray[np.intp]
    rows: Array
    n: int

    def whole(self) -> Array:
        """Return the table, a new array."""
        return self.part(0, self.n)

    def part(self, first: int, end: int) -> Array:
        """Return rows ``first`` … ``end - 1`` of the table, a new array."""
        table: Array = np.zeros((end - first, *self.rows.shape[1:]), self.rows.dtype)
        given = slice(*np.searchsorted(self.index, (first, end)).tolist())
        table[self.index[given] - first] = self.rows[given]
        return table


def columns_of(table: Array | TableRows, which: int | slice) -> Array | TableRows:
    """Return some columns of a table [rows, width], by rows where it is."""
    if isinstance(table, TableRows):
        return dataclasses.replace(table, rows=table.rows[:, which])
    return table[:, which]


class SpareArrays:
    """Arrays that are made round after round, each in the memory of an earlier one that nothing refers to.

    To get fresh memory for a large table costs as much as to compute it.
    """

    def __init__(self) -> None:
        self._made: list[Array] = []

    def __reduce__(self) -> tuple[type[SpareArrays], tuple[()]]:
        return SpareArrays, ()  # what is computed elsewhere begins anew

    def like(self, array: Array) -> Array:
        """Return an array [shape of ``array``] with any numbers in it."""
        for at in range(len(self._made)):
            # Two references, that of the list and that of the call: no view of it is left either.
            if sys.getrefcount(self._made[at]) == 2 and _alike(self._made[at], array):
                return self._made[at]
        new = np.empty_like(array)
        if new.nbytes >= _LARGE_BYTES:
            self._made = [*self._made[1 - _MOST_SPARE :], new]
        return new


def _alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


class NamedSums(Mapping[str, Array]):
    """Arrays by name, of which tables that are given by rows are laid out when they are first asked for.

    Parameters
    ----------
    whole, tables : by name; no name is in both.
    """

    def __init__(self, whole: Mapping[str, Array], tables: Mapping[str, TableRows]) -> None:
        self._whole = dict(whole)
        self.tables = tables
        """The tables that are given by rows."""

    def __getitem__(self, name: str) -> Array:
        if name not in self._whole:
            self._whole[name] = self.tables[name].whole()
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.tables, **self._whole})

    def __len__(self) -> int:
        return len(self.tables.keys() | self._whole.keys())

    def beside(self, others: Mapping[str, Array]) -> NamedSums:
        """Return these arrays and ``others``."""
        whole = {name: array for name, array in self._whole.items() if name not in self.tables}
        return NamedSums({**whole, **others}, self.tables)

    def finite(self) -> bool:
        """Return whether every number is finite."""
        given = [array for name, array in self._whole.items() if name not in self.tables]
        given += [table.rows for table in self.tables.values()]
        return all(bool(np.isfinite(array).all()) for array in given)


class TableVersions:
    """The versions of an array that changes by rows: the newest, and the one before, to write the next into.

    A version is never written to while anything but this refers to it: a device that is late computes with
    the model of its round. The one before is told free by its count of references, of which every view of an
    array is one; while it is not, the next version is a copy.
    """

    def __init__(self) -> None:
        self._newest: Array | None = None
        self._before: list[Array] = []
        """The previous version, in a list of one: a local name for it would change its reference count."""
        self._index: npt.NDArray[np.intp] = np.zeros(0, np.intp)
        """Rows in which it differs from the newest."""
        self._rows: Array = np.zeros(0)
        """What the newest has there."""

    def __reduce__(self) -> tuple[type[TableVersions], tuple[()]]:
        return TableVersions, ()  # what is computed elsewhere begins anew

    def plus(self, array: Array, index: npt.NDArray[np.intp], change: Array) -> Array:
        """Return ``array`` [rows, …] plus ``change`` [m, …] in its rows at ``index``, none there twice."""
        rows = _at(array, index)
        rows += change
        return self.replaced(array, index, rows)

    def replaced(self, array: Array, index: npt.NDArray[np.intp], rows: Array) -> Array:
        """Return ``array`` [rows, …] with ``rows`` [m, …] at ``index``, none there twice; they are kept."""
        new = self._writable(array)
        _put(new, index, rows)
        self._newest, self._before = new, [array]
        self._index, self._rows = index, rows
        return new

    def changed(self, array: Array, index: npt.NDArray[np.intp]) -> Array:
        """Return ``array[index]``, without looking it up where it is what the newest version has changed."""
        known = array is self._newest and index is self._index
        return self._rows if known else _at(array, index)

    def _writable(self, array: Array) -> Array:
        """Return an array equal to ``array`` that nothing else refers to."""
        if array is self._newest and sys.getrefcount(self._before[0]) == 2:
            before = self._before.pop()
            _put(before, self._index, self._rows)
            return before
        return array.copy()


def _at(array: Array, index: npt.NDArray[np.intp]) -> Array:
    """Return ``array[index]``, a new array."""
    return rows_at(array, index) if array.ndim == 2 else array.take(index, axis=0)


def _put(array: Array, index: npt.NDArray[np.intp], rows: Array) -> None:
    """Set ``array[index]`` of a contiguous array."""
    if array.ndim == 2:
        np.put(rows_as_elements(array), index, rows_as_elements(np.ascontiguousarray(rows)))
    else:
        array[index] = rows
