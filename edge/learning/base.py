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
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.learning.updates import Accumulator, Aggregate, Array, ArraySpec, UpdateBatch

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
