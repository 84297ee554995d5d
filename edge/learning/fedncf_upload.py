"""What a device of FedNCF uploads: how its item rows and the network changed, sparse or dense."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.learning.accumulators import DenseAccumulator, RowsAndWholeAccumulator
from edge.learning.base import Accumulator, ArraySpec, ClientUpdate, UpdateBatch
from edge.learning.fedncf_local import NETWORK
from edge.learning.neumf import Shape

ITEMS, ROWS = "items", "item_rows"


@dataclasses.dataclass(frozen=True, slots=True)
class DenseUpdateBatch(UpdateBatch):
    """Keeps the rows sparse and lays a client's table out when asked for it: no n × items buffer."""

    n_items: int = dataclasses.field(kw_only=True)

    def client(self, index: int) -> ClientUpdate:
        """Return the update of the client at ``index``; its table is a new array."""
        return self._laid_out(UpdateBatch.client(self, index))

    def __iter__(self) -> Iterator[ClientUpdate]:
        return map(self._laid_out, UpdateBatch.__iter__(self))

    def _laid_out(self, sparse: ClientUpdate) -> ClientUpdate:
        arrays = dict(sparse.arrays)
        rows = arrays[ROWS]
        table = np.zeros((self.n_items, rows.shape[1]), rows.dtype)
        table[arrays.pop(ITEMS)] = rows
        return sparse._replace(arrays={**arrays, ROWS: table})


class Uploads:
    """The layout of uploads: of the whole table if ``dense``, else of the changed rows and their numbers."""

    def __init__(self, n_items: int, shape: Shape, dtype: np.dtype[Any], *, dense: bool) -> None:
        self.n_items = n_items
        self.shape = shape
        self.dtype = dtype
        self.item_dtype = np.dtype(np.uint16 if n_items < 65_536 else np.int32)
        self.dense = dense

    def specs(self, examples: npt.NDArray[np.int64]) -> Sequence[ArraySpec]:
        """Return the arrays uploaded by users with this many examples, int64 [n]."""
        n = len(examples)
        network = ArraySpec(NETWORK, self.dtype, (), np.full(n, self.shape.weights, dtype=np.int64))
        if self.dense:
            rows = np.full(n, self.n_items, dtype=np.int64)
            return (ArraySpec(ROWS, self.dtype, (self.shape.width,), rows), network)
        rows = np.minimum(examples, self.n_items)
        return (
            ArraySpec(ITEMS, self.item_dtype, (), rows),
            ArraySpec(ROWS, self.dtype, (self.shape.width,), rows),
            network,
        )

    def batch(self, fields: dict[str, Any]) -> UpdateBatch:
        """Return the updates with the sparse ``fields`` of an :class:`~edge.learning.base.UpdateBatch`."""
        if self.dense:
            return DenseUpdateBatch(**fields, n_items=self.n_items)
        return UpdateBatch(**fields)

    def accumulator(self) -> Accumulator:
        """Return an empty accumulator for one round."""
        width, weights = self.shape.width, self.shape.weights
        if self.dense:
            return DenseAccumulator(
                {ROWS: (self.dtype, (self.n_items, width)), NETWORK: (self.dtype, (weights,))}
            )
        return RowsAndWholeAccumulator(
            ROWS,
            ITEMS,
            index_dtype=self.item_dtype,
            dtype=self.dtype,
            rows=self.n_items,
            width=width,
            whole={NETWORK: (self.dtype, (weights,))},
        )
