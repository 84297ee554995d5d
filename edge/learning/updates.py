"""What devices upload, and how the coordinator adds it up."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError, RemoteProtocolError
from edge.learning.tables import NamedSums, TableRows

Array = npt.NDArray[Any]
ITEMS, ROWS = "items", "item_rows"
"""The arrays of an upload: the numbers of its rows, and the rows; a whole table has rows alone."""
SUM_GROUPS: Final = 16
"""Groups that clients fall into by default."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of an upload: name, dtype, trailing shape, and its number of rows per client, int64 [n]."""

    name: str
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    rows: npt.NDArray[np.int64]

    def nbytes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of this array's data for each client, int64 [n]."""
        return self.rows * (self.dtype.itemsize * math.prod(self.row_shape))


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


@dataclass(frozen=True, slots=True)
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

    def upload_bytes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of the arrays that each client uploads, int64 [n]."""
        rows = np.diff(self.offsets)
        sizes = np.zeros(len(self), np.int64)
        for array in self.ragged.values():
            sizes += rows * (array.nbytes // max(len(array), 1))
        for array in self.stacked.values():
            sizes += array.nbytes // max(len(array), 1)
        return sizes

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


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The sum of a round's contributions: all that the coordinator learns from them.

    ``sums`` by name, each the shape of the global array it changes, large tables among them given by rows
    (:meth:`rows`); ``weight`` the sum of the weights; ``loss`` the mean training loss per example;
    ``shrinkage`` γ: the mean is to be multiplied by 1 − γ.
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
        divisor = self._divisor()
        return {name: array / divisor for name, array in self.sums.items()}

    def _divisor(self) -> float:
        if not self.weight > 0:
            raise LocalProtocolError(
                f"an aggregate of {self.clients} clients weighs {self.weight}; there is nothing to average"
            )
        # Dividing by a Python float keeps the dtype of the sums.
        return self.weight / (1.0 - self.shrinkage)

    def rows(self, name: str) -> TableRows | None:
        """Return the rows of a table that updates have changed; None of a sum that is held whole."""
        return self.sums.tables.get(name) if isinstance(self.sums, NamedSums) else None

    def mean_rows(self, name: str) -> TableRows | Array:
        """Return :meth:`mean` of one table, by rows where its sum is.

        Raises
        ------
        LocalProtocolError : as :meth:`mean`.
        """
        rows = self.rows(name)
        if rows is None:
            return np.asarray(self.sums[name] / self._divisor())
        return dataclasses.replace(rows, rows=rows.rows / self._divisor())

    def beside(self, others: Mapping[str, Array]) -> Aggregate:
        """Return this aggregate with the sums of further arrays."""
        sums = self.sums
        more = sums.beside(others) if isinstance(sums, NamedSums) else {**sums, **others}
        return dataclasses.replace(self, sums=more)

    def finite(self) -> bool:
        """Return whether every number of the sums is finite."""
        if isinstance(self.sums, NamedSums):
            return self.sums.finite()
        return all(bool(np.isfinite(array).all()) for array in self.sums.values())


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Layout:
    """How an update is laid out: arrays that are whole, by name with dtype and shape, and tables."""

    dense: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    tables: Sequence[RowTable] = ()


class Accumulator(abc.ABC):
    """Adds client updates up, holding sums and no update.

    Clients fall into :attr:`groups` groups, by number modulo groups. Updates are added in order of arrival
    within a group, and the groups in order by :meth:`result`. The bits of the sum depend on the order within
    each group alone: not on batches, nor on how updates of different groups interleave, so that groups may be
    added up in different processes.

    A method with an accumulator of its own defines :attr:`layout`, :meth:`check`, :meth:`add` and
    :meth:`result`; the bulk forms are loops over these until they are overridden.
    """

    groups: int = SUM_GROUPS
    """Groups that clients fall into."""

    def in_groups(self, groups: int) -> None:
        """Set the number of groups; before anything is added."""
        self.groups = groups

    @property
    @abc.abstractmethod
    def layout(self) -> Layout:
        """How an update is laid out, for those who look at single ones."""

    @abc.abstractmethod
    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that are not a well-formed update.

        Raises
        ------
        RemoteProtocolError : reason ``malformed-update``; wrong names, dtypes, shapes or values. Reason
            ``out-of-range``: a value is too large.
        """

    @abc.abstractmethod
    def add(self, update: ClientUpdate, client: int) -> None:
        """Add one update, that of ``client``."""

    @abc.abstractmethod
    def result(self) -> Aggregate:
        """Return the sum so far."""

    def partial(self) -> Any:
        """Return the sums of the groups that have any, to be pickled and joined elsewhere; empty afterwards.

        Raises
        ------
        LocalProtocolError : the sums are not kept by group.
        """
        raise LocalProtocolError(f"{type(self).__name__} does not keep its sums by group")

    def join(self, partial: Any) -> None:
        """Take over what :meth:`partial` of another of this kind returned: groups that are empty here.

        Raises
        ------
        LocalProtocolError : the sums are not kept by group.
        """
        raise LocalProtocolError(f"{type(self).__name__} does not keep its sums by group")

    def check_many(self, batch: UpdateBatch) -> bool:
        """Return whether :meth:`check` is known to refuse none of a batch.

        False means that each is to be checked: one may be refused, or all may pass.
        """
        try:
            for update in batch:
                self.check(update.arrays)
        except RemoteProtocolError:
            return False
        return True

    def add_many(
        self, batch: UpdateBatch, places: npt.NDArray[np.int64], clients: npt.NDArray[np.int64]
    ) -> None:
        """Add the updates at ``places`` (int64 [m]) of a batch in that order, those of ``clients`` int64 [m].

        Gives the same bits as :meth:`add` for one after the other.
        """
        for place, client in zip(places.tolist(), clients.tolist(), strict=True):
            self.add(batch.client(place), client)


def laid_out(sparse: ClientUpdate, n_items: int) -> ClientUpdate:
    """Return a sparse update as one of the whole table, a new array."""
    rows = sparse.arrays[ROWS]
    table = np.zeros((n_items, rows.shape[1]), rows.dtype)
    table[sparse.arrays[ITEMS]] = rows
    rest = {name: array for name, array in sparse.arrays.items() if name != ITEMS}
    return sparse._replace(arrays={**rest, ROWS: table})


@dataclass(frozen=True, slots=True)
class DenseUpdateBatch(UpdateBatch):
    """Keeps the rows sparse and lays a client's table out when asked for it: no n × items buffer."""

    n_items: int = dataclasses.field(kw_only=True)

    def upload_bytes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of the arrays that each client uploads, whole table included, int64 [n]."""
        whole = {name: array for name, array in self.ragged.items() if name not in (ITEMS, ROWS)}
        sparse = dataclasses.replace(self, ragged=whole)
        rows = self.ragged[ROWS]
        return UpdateBatch.upload_bytes(sparse) + self.n_items * (rows.nbytes // max(len(rows), 1))

    def client(self, index: int) -> ClientUpdate:
        """Return the update of the client at ``index``; its table is a new array."""
        return laid_out(UpdateBatch.client(self, index), self.n_items)

    def __iter__(self) -> Iterator[ClientUpdate]:
        return (laid_out(sparse, self.n_items) for sparse in UpdateBatch.__iter__(self))
