"""Uploads of item rows: the changed ones with their numbers, or laid out as the whole table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from edge.learning.updates import ClientUpdate, UpdateBatch

ITEMS, ROWS = "items", "item_rows"
"""The arrays of an upload: the numbers of its rows, and the rows; a whole table has rows alone."""


def laid_out(sparse: ClientUpdate, n_items: int) -> ClientUpdate:
    """Return a sparse update as one of the whole table, a new array."""
    rows = sparse.arrays[ROWS]
    table = np.zeros((n_items, rows.shape[1]), rows.dtype)
    table[sparse.arrays[ITEMS]] = rows
    rest = {name: array for name, array in sparse.arrays.items() if name != ITEMS}
    return sparse._replace(arrays={**rest, ROWS: table})


@dataclasses.dataclass(frozen=True, slots=True)
class DenseUpdateBatch(UpdateBatch):
    """Keeps the rows sparse and lays a client's table out when asked for it: no n × items buffer."""

    n_items: int = dataclasses.field(kw_only=True)

    def client(self, index: int) -> ClientUpdate:
        """Return the update of the client at ``index``; its table is a new array."""
        return laid_out(UpdateBatch.client(self, index), self.n_items)

    def __iter__(self) -> Iterator[ClientUpdate]:
        return (laid_out(sparse, self.n_items) for sparse in UpdateBatch.__iter__(self))
