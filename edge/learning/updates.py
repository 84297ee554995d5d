"""What devices upload, and how the coordinator adds it up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError

Array = npt.NDArray[Any]
ITEMS, ROWS = "items", "item_rows"
"""The arrays of an upload: the numbers of its rows, and the rows; a whole table has rows alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of an upload: name, dtype, trailing shape, and its number of rows per client, int64 [n]."""

    name: str
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    rows: npt.NDArray[np.int64]

    def nbytes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of this array's data for each client, int64 [n]."""
        return self.rows * (self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64)))


class ClientUpdate(NamedTuple):
    """What one client uploads.

    ``arrays`` are its contribution to the sum, **already multiplied by its weight**, so that adding up is
    all that is left to do, in the clear or under masks; ``weight`` is its contribution to the divisor.
    ``loss`` is the mean training loss before the update, over ``examples`` examples.

    ``local`` is no part of the upload: it is what the device keeps until it takes part again, [users of the
    client, :attr:`Recommender.local_width`], None where it keeps nothing. The device takes it out as soon as
    it has finished computing.
    """

    arrays: dict[str, Array]
    weight: float
    examples: int
    loss: float
    local: Array | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class UpdateBatch:
    """The updates of ``n`` clients, stacked: a client's arrays are views.

    ``stacked`` arrays have one leading entry per client; ``ragged`` arrays hold the rows of all clients one
    after another, cut by ``offsets`` int64 [n + 1]. ``weights`` float64 [n], ``examples`` int64 [n],
    ``losses`` float64 [n]. ``local`` [users, :attr:`Recommender.local_width`] is what the devices keep, one
    user after another, cut by ``local_offsets`` int64 [n + 1]; None where they keep nothing.
    """

    stacked: Mapping[str, Array]
    ragged: Mapping[str, Array]
    offsets: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    examples: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]
    local: Array | None = None
    local_offsets: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls,
        changes: Mapping[str, Array],
        examples: npt.NDArray[np.int64],
        losses: npt.NDArray[np.float64],
        weights: npt.NDArray[np.float64] | None = None,
    ) -> UpdateBatch:
        """Return updates of whole arrays, from changes [n, …] that no weight has been applied to.

        ``weights`` float64 [n]; None: the numbers of examples.
        """
        n = len(examples)
        weights = examples.astype(np.float64) if weights is None else weights
        stacked = {
            name: change * weights.astype(change.dtype).reshape(n, *[1] * (change.ndim - 1))
            for name, change in changes.items()
        }
        return cls(stacked, {}, np.zeros(n + 1, np.int64), weights, examples, losses)

    def __len__(self) -> int:
        return len(self.weights)

    def client(self, index: int) -> ClientUpdate:
        """Return the update of the client at ``index``, as views into this batch."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        arrays = {name: array[start:end] for name, array in self.ragged.items()}
        for name, array in self.stacked.items():
            arrays[name] = array[index]
        return ClientUpdate(
            arrays,
            float(self.weights[index]),
            int(self.examples[index]),
            float(self.losses[index]),
            self._kept(index),
        )

    def __iter__(self) -> Iterator[ClientUpdate]:
        # As client(), with the numbers converted once instead of one by one.
        offsets: list[int] = self.offsets.tolist()
        ragged, stacked = list(self.ragged.items()), list(self.stacked.items())
        numbers = zip(self.weights.tolist(), self.examples.tolist(), self.losses.tolist(), strict=True)
        for index, (weight, examples, loss) in enumerate(numbers):
            start, end = offsets[index], offsets[index + 1]
            arrays = {name: array[start:end] for name, array in ragged}
            for name, array in stacked:
                arrays[name] = array[index]
            yield ClientUpdate(arrays, weight, examples, loss, self._kept(index))

    def _kept(self, index: int) -> Array | None:
        if self.local is None or self.local_offsets is None:
            return None
        return self.local[int(self.local_offsets[index]) : int(self.local_offsets[index + 1])]


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregate:
    """The sum of a round's contributions: all that the coordinator learns from them.

    ``sums`` by name, each the shape of the global array it changes; ``weight`` the sum of the weights;
    ``loss`` the mean training loss per example; ``shrinkage`` γ: the mean is to be multiplied by 1 − γ.
    """

    sums: Mapping[str, Array]
    weight: float
    clients: int
    examples: int
    loss: float
    shrinkage: float = 0.0

    def mean(self) -> dict[str, Array]:
        """Return the weighted mean of the clients' updates, by name.

        Raises
        ------
        LocalProtocolError : the sum of the weights is not positive; an empty round must not be applied.
        """
        if not self.weight > 0:
            raise LocalProtocolError(
                f"an aggregate of {self.clients} clients weighs {self.weight}; there is nothing to average"
            )
        # Dividing by a Python float keeps the dtype of the sums.
        divisor = self.weight / (1.0 - self.shrinkage)
        return {name: array / divisor for name, array in self.sums.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class RowTable:
    """A table of which an update names some rows.

    ``index`` is the array of their numbers, [n], ``name`` that of the rows themselves, [n, ``width``] of
    ``dtype``; ``rows`` how many the table has.
    """

    index: str
    name: str
    dtype: np.dtype[Any]
    rows: int
    width: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How an update is laid out: arrays that are whole, by name with dtype and shape, and tables."""

    dense: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    tables: Sequence[RowTable] = ()


class Accumulator(Protocol):
    """Adds client updates up, one at a time, in the order they come, holding one sum and no update.

    The result depends on that order alone, not on the batches they were computed in.
    """

    @property
    def layout(self) -> Layout:
        """How an update is laid out, for those who look at single ones."""
        ...

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update.

        Raises
        ------
        RemoteProtocolError : reason ``malformed-update``; wrong names, dtypes, shapes or values. Reason
            ``out-of-range``: a value is too large.
        """
        ...

    def add(self, update: ClientUpdate) -> None:
        """Add one update."""
        ...

    def result(self) -> Aggregate:
        """Return the sum so far."""
        ...


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
