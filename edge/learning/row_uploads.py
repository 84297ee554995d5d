"""Uploads of one table's rows, and of whole arrays beside it: sparse, or as the whole table.

:class:`RowRecommender` is the base of recommenders that upload so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.learning.accumulators import DenseAccumulator, RowAccumulator, RowsAndWholeAccumulator
from edge.learning.base import Recommender, State
from edge.learning.updates import ITEMS, ROWS, Accumulator, ArraySpec, DenseUpdateBatch, UpdateBatch

Ints = npt.NDArray[np.int64]


class RowUploads:
    """The layout of uploads: of the whole table if ``dense``, else of the changed rows and their numbers.

    Parameters
    ----------
    n_items, width : shape of the table.
    dtype : of its rows, and of the whole arrays.
    dense : whether the whole table is uploaded.
    whole : length of each further array, by name.
    """

    def __init__(
        self,
        n_items: int,
        width: int,
        dtype: np.dtype[Any],
        *,
        dense: bool,
        whole: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.n_items = n_items
        self.width = width
        self.dtype = dtype
        self.item_dtype = np.dtype(np.uint16 if n_items < 65_536 else np.int32)
        self.dense = dense
        self.whole = dict(whole)

    def specs(self, rows: Ints) -> Sequence[ArraySpec]:
        """Return the arrays uploaded by users that change so many rows, int64 [n]."""
        n = len(rows)
        others = [
            ArraySpec(name, self.dtype, (), np.full(n, length, np.int64))
            for name, length in self.whole.items()
        ]
        if self.dense:
            rows = np.full(n, self.n_items, np.int64)
            return (ArraySpec(ROWS, self.dtype, (self.width,), rows), *others)
        rows = np.minimum(rows, self.n_items)
        return (
            ArraySpec(ITEMS, self.item_dtype, (), rows),
            ArraySpec(ROWS, self.dtype, (self.width,), rows),
            *others,
        )

    def held_bytes(self, rows: Ints) -> Ints:
        """Return what updates of so many rows take in a batch, bytes, int64 [n]: they are laid out later."""
        row = self.item_dtype.itemsize + self.width * self.dtype.itemsize
        others = sum(self.whole.values()) * self.dtype.itemsize
        return np.minimum(rows, self.n_items) * row + others

    def batch(self, fields: Mapping[str, Any]) -> UpdateBatch:
        """Return the updates with the sparse ``fields`` of an :class:`~edge.learning.updates.UpdateBatch`."""
        if self.dense:
            return DenseUpdateBatch(**fields, n_items=self.n_items)
        return UpdateBatch(**fields)

    def accumulator(self) -> Accumulator:
        """Return an empty accumulator for one round."""
        whole = {name: (self.dtype, (length,)) for name, length in self.whole.items()}
        if self.dense:
            return DenseAccumulator({ROWS: (self.dtype, (self.n_items, self.width)), **whole})
        of_rows: dict[str, Any] = {
            "index_dtype": self.item_dtype,
            "dtype": self.dtype,
            "rows": self.n_items,
            "width": self.width,
        }
        if whole:
            return RowsAndWholeAccumulator(ROWS, ITEMS, **of_rows, whole=whole)
        return RowAccumulator(ROWS, ITEMS, **of_rows)


class RowRecommender(Recommender):
    """A recommender whose updates change rows of one table.

    Attributes
    ----------
    layout : of its uploads.
    """

    layout: RowUploads

    def changed_rows(self, examples: Ints) -> Ints:
        """Return how many rows users with this many ratings change, int64 [n]: one for each."""
        return examples

    def upload_spec(self, examples: Ints) -> Sequence[ArraySpec]:
        """Return the arrays uploaded by users with this many ratings."""
        return self.layout.specs(self.changed_rows(examples))

    def held_bytes(self, examples: Ints) -> Ints:
        """Return what updates of users with this many ratings take in a batch, bytes: their rows."""
        return self.layout.held_bytes(self.changed_rows(examples))

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty accumulator for one round."""
        return self.layout.accumulator()
