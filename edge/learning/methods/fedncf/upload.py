"""What a device of FedNCF uploads: how its item rows and the network changed, sparse or dense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.learning.accumulators import DenseAccumulator, RowsAndWholeAccumulator
from edge.learning.item_rows import ITEMS, ROWS, DenseUpdateBatch
from edge.learning.methods.fedncf.local import NETWORK
from edge.learning.neumf import NetworkShape
from edge.learning.updates import Accumulator, ArraySpec, UpdateBatch


class Uploads:
    """The layout of uploads: of the whole table if ``dense``, else of the changed rows and their numbers."""

    def __init__(self, n_items: int, shape: NetworkShape, dtype: np.dtype[Any], *, dense: bool) -> None:
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
        """Return the updates with the sparse ``fields`` of an :class:`~edge.learning.updates.UpdateBatch`."""
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
