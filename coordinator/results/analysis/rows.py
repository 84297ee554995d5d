"""Columns of a run's tables as numpy arrays, labels as codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coordinator.results.tables.digest import whole_columns
from coordinator.results.tables.functions import cast, filled
from coordinator.results.tables.reader import RunTables


class _Chosen(Mapping[str, npt.NDArray[Any]]):
    """The chosen rows of columns, gathered when a column is first read: of many columns few are.

    Parameters
    ----------
    columns : arrays [n] by name.
    rows : int64 [m], positions.
    """

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]], rows: npt.NDArray[np.integer]) -> None:
        self._columns, self._rows = columns, rows
        self._gathered: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._gathered:
            self._gathered[name] = self._columns[name][self._rows]
        return self._gathered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of a table: numbers as they are, labels as codes, which compare far faster than text.

    Attributes
    ----------
    numbers : arrays [n] by column; null is NaN.
    codes : positions in ``names`` [n] by column; null is the number of names.
    names : the labels behind the codes, by column.
    """

    numbers: Mapping[str, npt.NDArray[Any]]
    codes: Mapping[str, npt.NDArray[np.integer]]
    names: Mapping[str, tuple[str, ...]]

    def __len__(self) -> int:
        return len(next(iter((*self.numbers.values(), *self.codes.values()))))

    def equal(self, column: str, name: str) -> npt.NDArray[np.bool_]:
        """Return where a column of labels has this one, bool [n]."""
        if name not in self.names[column]:
            return np.zeros(len(self), dtype=np.bool_)
        return np.asarray(self.codes[column] == self.names[column].index(name))

    def among(self, column: str, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return where a column of labels has one of these, bool [n]."""
        known = np.isin(self.names[column], names) if self.names[column] else np.zeros(0, dtype=np.bool_)
        return np.asarray(np.append(known, False)[self.codes[column]])

    def counts(self, column: str) -> dict[str, int]:
        """Return how often each label occurs, those that do not left out, by name; rows without one too."""
        names = self.names[column]
        found = np.bincount(self.codes[column], minlength=len(names) + 1)[: len(names)]
        return {name: int(count) for name, count in sorted(zip(names, found, strict=True)) if count}

    def combinations(self, columns: Sequence[str]) -> Iterator[tuple[dict[str, str | None], int]]:
        """Yield the labels that rows have in columns, None where null, and how many rows have them."""
        shape = tuple(len(self.names[column]) + 1 for column in columns)
        counts = np.bincount(np.ravel_multi_index(tuple(self.codes[column] for column in columns), shape))
        labels = [(*self.names[column], None) for column in columns]
        for place in np.flatnonzero(counts):
            codes = np.unravel_index(place, shape)
            found = (names[code] for names, code in zip(labels, codes, strict=True))
            yield dict(zip(columns, found, strict=True)), int(counts[place])

    def where(self, chosen: npt.NDArray[Any]) -> Rows:
        """Return the chosen rows: bool [n], or their positions."""
        if chosen.dtype == np.bool_:
            # Once for all columns: a mask is searched through anew for each.
            chosen = np.flatnonzero(chosen)
        return Rows(_Chosen(self.numbers, chosen), _Chosen(self.codes, chosen), self.names)

    def label(self, column: str, row: int) -> str | None:
        """Return the label of one row; None where null."""
        names = self.names[column]
        code = int(self.codes[column][row])
        return names[code] if code < len(names) else None


def read_rows(run: RunTables, table: str, names: Sequence[str]) -> Rows:
    """Read columns of a table; see :class:`Rows`."""
    numbers: dict[str, npt.NDArray[Any]] = {}
    codes: dict[str, npt.NDArray[np.integer]] = {}
    labels: dict[str, tuple[str, ...]] = {}
    for name, column in whole_columns(run.read(table, names)).items():
        if pa.types.is_dictionary(column.type):
            count = len(column.dictionary)
            # Wide enough for the code of null, which no label has.
            wide = cast(column.indices, pa.int32())
            codes[name] = filled(wide, count).to_numpy()
            labels[name] = tuple(column.dictionary.to_pylist())
        else:
            numbers[name] = column.to_numpy(zero_copy_only=False)
    return Rows(numbers, codes, labels)
