"""What a federated learning method is, as far as devices and coordinator are concerned.

A method is a handful of pure functions of arrays. The device side works on many clients at once: a batch
holds the local data of ``n`` clients one after another, without padding, and what comes back for a client is
bitwise the same whichever other clients were in the batch. Local parameters (user factors) never leave the
device: they are made inside these functions and thrown away, or kept on the device for its next round.

The coordinator side sees sums: an :class:`Accumulator` adds contributions up in the order they arrive, and
``server_update`` only ever sees the :class:`Aggregate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.errors import LocalProtocolError

Array = npt.NDArray[Any]
State = Mapping[str, Array]
"""The global parameters by name. Never written to: every server update makes new arrays."""

WORK_KINDS = ("gather", "dense", "scoring")
"""Kinds of operation that the compute model tells apart, in the order of the columns of :class:`Work`."""


class RatingBatch(Protocol):
    """Ratings of some users, one user after another.

    ``indptr`` int64 [users + 1]; ``items`` unsigned or signed integers [N], increasing within a user;
    ``ratings`` float32 [N].
    """

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Row offsets, int64 [users + 1]."""
        ...

    @property
    def items(self) -> npt.NDArray[Any]:
        """Item numbers, integers [N], increasing within a user."""
        ...

    @property
    def ratings(self) -> npt.NDArray[np.float32]:
        """Ratings, float32 [N]."""
        ...


class RegressionBatch(Protocol):
    """Samples of some clients, one client after another."""

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Row offsets, int64 [clients + 1]."""
        ...

    @property
    def x(self) -> npt.NDArray[np.float64]:
        """Features, float64 [N, features]."""
        ...

    @property
    def y(self) -> npt.NDArray[np.float64]:
        """Targets, float64 [N]."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What a method must know of the data before the first round; all of it is public.

    ``n_items`` and ``n_features`` are the width of the data (0 where they do not apply), ``n_users`` the
    number of users with a row of their own on the coordinator, where a method has such; ``rating_mean`` is
    the mean training rating, a statistic that a fleet can compute as one secure sum before training;
    ``features`` are those of the items, float32 [n_items, d], None where they have none; ``kept_back`` is the
    most ratings of a user that are kept back for validation and test.
    """

    n_items: int = 0
    n_features: int = 0
    rating_mean: float = 0.0
    features: npt.NDArray[np.float32] | None = None
    kept_back: int = 0
    n_users: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What a client update costs, per client and per step; a task is ``steps`` such steps.

    ``flops``, ``moved_bytes`` (read and written) and ``ops`` (operator launches) are float64 [n, 3], one
    column for each of :data:`WORK_KINDS`; ``steps`` is float64 [n]; ``memory_bytes`` int64 [n] is the peak,
    with the model, the batch and the upload counted.
    """

    flops: npt.NDArray[np.float64]
    moved_bytes: npt.NDArray[np.float64]
    ops: npt.NDArray[np.float64]
    steps: npt.NDArray[np.float64]
    memory_bytes: npt.NDArray[np.int64]


def together(first: Work, second: Work) -> Work:
    """Return the work of two tasks done one after the other, as the mean of their steps."""
    steps = first.steps + second.steps

    def mean(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        whole = one * first.steps[:, None] + other * second.steps[:, None]
        return np.asarray(whole / steps[:, None])

    return Work(
        flops=mean(first.flops, second.flops),
        moved_bytes=mean(first.moved_bytes, second.moved_bytes),
        ops=mean(first.ops, second.ops),
        steps=steps,
        memory_bytes=np.maximum(first.memory_bytes, second.memory_bytes),
    )


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
class Table:
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
    tables: Sequence[Table] = ()


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
        RemoteProtocolError : reason ``malformed-update``; wrong names, dtypes, shapes or values.
        """
        ...

    def add(self, update: ClientUpdate) -> None:
        """Add one update."""
        ...

    def result(self) -> Aggregate:
        """Return the sum so far."""
        ...


BatchT_contra = TypeVar("BatchT_contra", contravariant=True)
OptimizerState = Mapping[str, Array]


class Algorithm(Protocol[BatchT_contra]):
    """A federated learning method. Every function is pure: the same arguments give the same bits."""

    def initial_state(self, seed: int) -> State:
        """Return the global parameters before the first round."""
        ...

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return the server optimiser's own arrays before the first round."""
        ...

    def broadcast(self, state: State) -> dict[str, Array]:
        """Return what a device downloads to take part in a round."""
        ...

    def fixed(self) -> dict[str, Array]:
        """Return what a device downloads once and keeps, because it never changes; often nothing."""
        ...

    def local_steps(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return how many local steps clients with this many local examples (int64 [n]) take, int64 [n].

        None for a method whose updates are not made of steps: its devices cannot do a part of the work.
        """
        ...

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return what an update costs clients with this many local examples, int64 [n].

        With ``steps`` (int64 [n]) they take only the first so many of their local steps.
        """
        ...

    def upload_spec(self, examples: npt.NDArray[np.int64]) -> Sequence[ArraySpec]:
        """Return the arrays that clients with this many local examples upload.

        For a client of several users it is an upper bound: items that its users share are uploaded once.
        """
        ...

    def client_update(
        self,
        state: State,
        batch: BatchT_contra,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
    ) -> UpdateBatch:
        """Compute the updates of the clients in a batch.

        Parameters
        ----------
        state : global parameters, as received.
        batch : local data; one segment is one user.
        client_keys : uint64 [n], one random key per client and round; all of a client's draws come from it.
        clients : int64 [n + 1], offsets into the users of the batch for clients that hold several users;
            None when a client is one user.
        steps : int64 [n], the first so many local steps are taken, 1 or more; None: all of them. An update
            weighs as much less as its client has done of its work.
        """
        ...

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty accumulator for one round."""
        ...

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Apply an aggregate. ``round_number`` counts the updates applied so far, from 0."""
        ...

    def converged(self, aggregate: Aggregate) -> str | None:
        """Return the name of the stopping rule that this round's aggregate meets, or None."""
        ...

    def predict(
        self,
        state: State,
        support: BatchT_contra,
        query: BatchT_contra,
        client_keys: npt.NDArray[np.uint64],
    ) -> Array:
        """Personalise on the support data and predict the query data.

        Parameters
        ----------
        support, query : data of the same ``n`` users, in the same order; their own targets in ``query`` are
            not looked at.
        client_keys : uint64 [n].

        Returns
        -------
        Predictions, [entries of query].
        """
        ...


class Recommender(Algorithm[RatingBatch], Protocol):
    """A method that learns from ratings, can rank a catalogue for a user, and may keep something on devices.

    Wherever ``local`` appears, it is what the devices kept of each user of the batch, [users,
    ``local_width``]: rows of zeros for those that have never taken part. None is zeros for all.
    """

    local_width: int
    """Numbers that a device keeps of each of its users between rounds; 0: devices are stateless."""

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Compute the updates of the clients in a batch; see :meth:`Algorithm.client_update`.

        What the devices keep from now on is in the updates; ``local`` is not written to.
        """
        ...

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Personalise on the support data and predict the query data; see :meth:`Algorithm.predict`."""
        ...

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Personalise on the support data and score every item, float32 [n, n_items]."""
        ...
