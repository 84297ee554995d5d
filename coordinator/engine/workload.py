"""What the devices learn: a method together with the local data of every client."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from coordinator.engine.kept_rows import KeptRows
from edge.core.errors import LocalProtocolError
from edge.core.rng import hashed_bits, stream_key
from edge.data.clients import Clients, one_user_per_client
from edge.data.split import Split
from edge.data.store import RatingStore
from edge.device.compute import Kernel
from edge.learning.base import Algorithm, Problem, RatingBatch, Recommender, State, Work
from edge.learning.updates import Array, ArraySpec, ClientUpdate

if TYPE_CHECKING:
    from edge.data.regression import RegressionStore
    from edge.learning.sampled_negatives import ZeroOne

Ids = npt.NDArray[np.int64]


class DrawnItems(NamedTuple):
    """How a scenario has items drawn.

    ``zeros`` for each rating, which then is a one; None: ratings are what they are. ``barred``: items that no
    user draws beside its own ratings, a row of them a user; None: there are none.
    """

    zeros: int | None = None
    barred: RatingStore | None = None

    def most_barred(self) -> int:
        """Return the most that is barred to any user."""
        return 0 if self.barred is None else int(self.barred.counts.max(initial=0))

    def zero_one(self, n_items: int) -> ZeroOne | None:
        """Return how ones and zeros are made of ratings; None where they stay what they are."""
        if self.zeros is None:
            return None
        from edge.learning.sampled_negatives import ZeroOne  # noqa: PLC0415 - most runs do without

        return ZeroOne(self.zeros, n_items, self.most_barred())


class Workload(Protocol):
    """The clients' data and what is done with it; one device a client."""

    n_clients: int
    keep: Callable[[int, Array], None] | None
    """Stores what a client's device keeps between rounds; None: devices keep nothing."""

    @property
    def algorithm(self) -> Algorithm[Any]:
        """The method."""

    def held(self, clients: Ids) -> Ids:
        """Return how many ratings or samples each client holds to train on, int64 [n]."""

    def examples(self, clients: Ids) -> Ids:
        """Return how many examples each client trains on, int64 [n]: what it holds, and zeros it draws."""

    def local_steps(self, clients: Ids) -> Ids | None:
        """Return how many local steps each client takes, int64 [n]; None where there are no steps."""

    def work(self, clients: Ids, steps: Ids | None = None) -> Work:
        """Return what a client update costs each client, or the first ``steps`` (int64 [n]) of it."""

    def upload_spec(self, examples: Ids) -> Sequence[ArraySpec]:
        """Return the arrays that clients with so many examples (int64 [n]) report."""

    def training(self, state: State, round_number: int) -> TrainingKernel:
        """Return the kernel that computes client updates of a round from the global ``state``."""

    def own_parts(self, state: State) -> OwnRows | None:
        """Return what ``state`` has of each client alone; None where a method has no such thing."""


class TrainingKernel(Kernel[ClientUpdate], Protocol):
    """Computes client updates, all of their local steps or a part of them."""

    @property
    def state(self) -> State:
        """The global parameters that it begins with."""

    def limited(self, clients: Ids, steps: Ids) -> TrainingKernel:
        """Return the kernel that takes the first ``steps`` local steps of each of ``clients``, int64 [n]."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """How many local steps some clients take."""

    clients: Ids
    """Increasing."""
    steps: Ids

    @classmethod
    def of(cls, clients: Ids, steps: Ids) -> _Limits:
        order = np.argsort(clients)
        return cls(clients[order], steps[order])

    def take(self, clients: Ids) -> Ids:
        return self.steps[np.searchsorted(self.clients, clients)]


@dataclass(frozen=True, slots=True)
class _RatingKernel:
    workload: RatingWorkload
    state: State
    round_number: int
    limits: _Limits | None = None

    def limited(self, clients: Ids, steps: Ids) -> TrainingKernel:
        return replace(self, limits=_Limits.of(clients, steps))

    def __call__(self, clients: Ids) -> Callable[[], Iterable[ClientUpdate]]:
        workload = self.workload
        users, offsets, keys = workload.drawing(clients, self.round_number)
        batch = workload.training_batch(users, self.round_number)
        steps = None if self.limits is None else self.limits.take(clients)
        update = functools.partial(
            workload.algorithm.client_update, self.state, batch, keys, offsets, steps=steps
        )
        # A device is in one round at a time, and only it changes its rows, once it has this result: however
        # early or late a batch is computed, the rows of those that will ask for it are the same.
        local = workload.rows_of(users, self.state)
        return update if local is None else functools.partial(update, local=local)


@dataclass(frozen=True, slots=True)
class OwnRows:
    """The users' rows of a model that has them: each is for one device, and changed by no other."""

    algorithm: Recommender
    clients: Clients
    state: State

    def sent_to(self, device: int) -> dict[str, Array]:
        """Return the row of the device's user, by name."""
        return self.algorithm.own(self.state, int(self.clients.users[device]))

    def named(self, device: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays of a report with whose row is in it: that of whoever sent it."""
        return self.algorithm.named(arrays, int(self.clients.users[device]))


class RatingWorkload:
    """Ratings of users, one user a client or a group of users a client.

    Parameters
    ----------
    algorithm : the method.
    split : the ratings; devices train on ``split.train``.
    clients : the users of each client.
    seed : the run's seed.
    timed : whether the method reads a user's ratings in the order of time.
    drawn : what users draw beside their ratings, if the method or the data has them draw.

    Attributes
    ----------
    only_ranks : whether what is predicted is no rating, and only orders items.
    kept : rows of ``local_width`` numbers, what each user's device keeps between rounds, zeros
        before it has taken part; None where devices are stateless. A device knows its own rows alone: nothing
        of this is ever sent, or written to a run directory.
    """

    def __init__(
        self,
        algorithm: Recommender,
        split: Split,
        clients: Clients,
        seed: int,
        *,
        timed: bool = False,
        drawn: DrawnItems = DrawnItems(),  # noqa: B008 - a tuple
    ) -> None:
        self.algorithm = algorithm
        self.timed = timed
        self.split = split
        self.clients = clients
        self.n_clients = clients.n_clients
        self.grouped = bool((clients.counts != 1).any())
        self.key = stream_key(seed, "learning", "client")
        self._zero_one = drawn.zero_one(split.train.n_items)
        self._zeros_key = stream_key(seed, "learning", "zeros")
        self.only_ranks = self._zero_one is not None or algorithm.only_ranks(algorithm.settings)
        self._barred = drawn.barred if self.only_ranks else None
        self.kept: KeptRows | None = None
        self.keep: Callable[[int, Array], None] | None = None
        if algorithm.local_width:
            self.kept = KeptRows(split.train.n_users, algorithm.local_width)
            self.keep = self._keep

    def training_batch(self, users: Ids, round_number: int) -> RatingBatch:
        """Return what the devices of ``users`` (int64 [n]) train on in a round."""
        return self.gather(self.split.train, users, hashed_bits(self._zeros_key, users, round_number))

    def drawing(self, clients: Ids, round_number: int) -> tuple[Ids, Ids | None, npt.NDArray[np.uint64]]:
        """Return the users of ``clients`` (int64 [n]), and by what their devices draw in a round.

        That is int64 [n + 1] offsets into the users, None where a client is one user, and uint64 [n] keys.
        """
        keys = hashed_bits(self.key, clients, round_number)
        if not self.grouped:
            return self.clients.users[clients], None, keys
        offsets, users = self.clients.gather(clients)
        return users, offsets, keys

    def training_examples(self, clients: Ids, round_number: int) -> tuple[Ids, RatingBatch]:
        """Return the users of ``clients`` and what their devices train on in a round, with what they draw.

        With implicit feedback the ratings are ones and zeros, and zeros are sampled negatives.
        """
        users, offsets, keys = self.drawing(clients, round_number)
        batch = self.training_batch(users, round_number)
        return users, self.algorithm.training_examples(batch, keys, offsets)

    def gather(self, store: RatingStore, users: Ids, keys: npt.NDArray[np.uint64]) -> RatingBatch:
        """Return what methods are given of the ratings of ``users`` in ``store``.

        Ratings as they are; for methods that sample negatives, with what they must not draw; or ones, and
        zeros that follow from ``keys``, uint64 [n].
        """
        batch = store.gather(users, timed=self.timed)
        positives: RatingBatch = batch
        if self._barred is not None:
            from edge.learning.sampled_negatives import ImplicitBatch  # noqa: PLC0415 - most runs do without

            barred = self._barred.gather(users)
            positives = ImplicitBatch(
                batch.indptr, batch.items, batch.ratings, barred.indptr, barred.items, batch.timestamps
            )
        return positives if self._zero_one is None else self._zero_one.batch(positives, keys)

    def users_of(self, clients: Ids) -> Ids:
        """Return the users of ``clients`` (int64 [n]), client after client, int64."""
        return self.clients.gather(clients)[1] if self.grouped else self.clients.users[clients]

    def kept_of(self, users: Ids) -> npt.NDArray[np.float32] | None:
        """Return a copy of what the devices of ``users`` (int64 [n]) keep; None where they keep nothing."""
        return None if self.kept is None else self.kept.of(users)

    def rows_of(self, users: Ids, state: State) -> Array | None:
        """Return the rows that the devices of ``users`` (int64 [n]) begin with; None where they have none.

        They are what the devices keep, and what they are sent of ``state`` for themselves.
        """
        kept = self.kept_of(users)
        if not self.algorithm.user_rows:
            return kept
        sent = self.algorithm.rows_of(state, users)
        return sent if kept is None else np.concatenate([kept, sent], axis=1)

    def own_parts(self, state: State) -> OwnRows | None:
        """Return what ``state`` has of each client alone: its user's row; None where there are none."""
        return OwnRows(self.algorithm, self.clients, state) if self.algorithm.user_rows else None

    def _keep(self, client: int, local: Array) -> None:
        assert self.kept is not None
        self.kept.put(self.clients.users_of(client), local)

    def held(self, clients: Ids) -> Ids:
        """Return how many training ratings each client holds, int64 [n]."""
        return self._sums(clients, self._ratings)

    def examples(self, clients: Ids) -> Ids:
        """Return how many examples each client trains on, int64 [n]: its ratings, and zeros it draws."""
        return self._sums(clients, self._examples)

    def _ratings(self, users: Ids) -> Ids:
        indptr = self.split.train.indptr
        return np.asarray(indptr[users + 1] - indptr[users])

    def _examples(self, users: Ids) -> Ids:
        ratings = self._ratings(users)
        return ratings if self._zero_one is None else self._zero_one.counts(ratings)

    def _sums(self, clients: Ids, of_users: Callable[[Ids], Ids]) -> Ids:
        if not self.grouped:
            return of_users(self.clients.users[clients])
        offsets, users = self.clients.gather(clients)
        return np.add.reduceat(of_users(users), offsets[:-1])

    def local_steps(self, clients: Ids) -> Ids | None:
        """Return how many local steps each client takes, int64 [n]; None for clients of several users."""
        return None if self.grouped else self.algorithm.local_steps(self.examples(clients))

    def work(self, clients: Ids, steps: Ids | None = None) -> Work:
        """Return what a client update costs each client, or the first ``steps`` (int64 [n]) of it."""
        if steps is not None:
            return self.algorithm.work(self.examples(clients), steps)
        return self.work_of(clients, self.algorithm.work)

    def work_of(self, clients: Ids, task: Callable[[Ids], Work]) -> Work:
        """Return what a task costs each client, given what it costs users with so many examples, int64 [n].

        A client of several users does them in turn.
        """
        if not self.grouped:
            return task(self.examples(clients))
        offsets, users = self.clients.gather(clients)
        each = task(self._examples(users))
        starts = offsets[:-1]

        total = np.add.reduceat(each.steps, starts)

        def mean(per_step: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return np.add.reduceat(per_step * each.steps[:, None], starts, axis=0) / total[:, None]

        return Work(
            flops=mean(each.flops),
            moved_bytes=mean(each.moved_bytes),
            ops=mean(each.ops),
            steps=total,
            memory_bytes=np.maximum.reduceat(each.memory_bytes, starts),
        )

    def upload_spec(self, examples: Ids) -> Sequence[ArraySpec]:
        """Return the arrays that clients with so many examples (int64 [n]) report: the method's."""
        return self.algorithm.upload_spec(examples)

    def training(self, state: State, round_number: int) -> TrainingKernel:
        """Return the kernel that computes client updates of a round from the global ``state``."""
        return _RatingKernel(self, state, round_number)


@dataclass(frozen=True, slots=True)
class _RemoteKernel:
    state: State

    def limited(self, clients: Ids, steps: Ids) -> TrainingKernel:
        return self

    def __call__(self, clients: Ids) -> Callable[[], Iterable[ClientUpdate]]:
        raise LocalProtocolError("the data is on the devices; nobody else computes their updates")


class RemoteWorkload:
    """Clients whose data is on their devices, as a coordinator without it knows them.

    Parameters
    ----------
    algorithm : the method.
    n_clients : how many there are.
    examples_max : how many examples a client has at most.
    """

    def __init__(self, algorithm: Recommender, n_clients: int, examples_max: int) -> None:
        self.algorithm = algorithm
        self.n_clients = n_clients
        self.keep: Callable[[int, Array], None] | None = None
        self._examples_max = examples_max

    def held(self, clients: Ids) -> Ids:
        """Return how many examples each client has at most, int64 [n]."""
        return np.full(len(clients), self._examples_max, np.int64)

    def examples(self, clients: Ids) -> Ids:
        """Return the same."""
        return self.held(clients)

    def local_steps(self, clients: Ids) -> Ids | None:
        """Return None: the number of steps follows from that of examples."""
        return None

    def work(self, clients: Ids, steps: Ids | None = None) -> Work:
        """Return what an update costs a client at most."""
        return self.algorithm.work(self.examples(clients), steps)

    def upload_spec(self, examples: Ids) -> Sequence[ArraySpec]:
        """Return the arrays that clients with so many examples (int64 [n]) report: the method's."""
        return self.algorithm.upload_spec(examples)

    def training(self, state: State, round_number: int) -> TrainingKernel:
        """Return a kernel that cannot be computed here."""
        return _RemoteKernel(state)

    def own_parts(self, state: State) -> OwnRows | None:
        """Return what ``state`` has of each client alone: the row of its number; None without such."""
        if not self.algorithm.user_rows:
            return None
        return OwnRows(self.algorithm, one_user_per_client(np.arange(self.n_clients)), state)


@dataclass(frozen=True, slots=True)
class _RegressionKernel:
    workload: RegressionWorkload
    state: State
    round_number: int
    limits: _Limits | None = None

    def limited(self, clients: Ids, steps: Ids) -> TrainingKernel:
        return replace(self, limits=_Limits.of(clients, steps))

    def __call__(self, clients: Ids) -> Callable[[], Iterable[ClientUpdate]]:
        workload = self.workload
        keys = hashed_bits(workload.key, clients, self.round_number)
        batch = workload.store.gather(clients)
        steps = None if self.limits is None else self.limits.take(clients)
        return functools.partial(workload.algorithm.client_update, self.state, batch, keys, steps=steps)


class RegressionWorkload:
    """Samples of a regression, one client a device."""

    def __init__(self, algorithm: Algorithm[Any], store: RegressionStore, seed: int) -> None:
        self.algorithm = algorithm
        self.store = store
        self.n_clients = store.n_clients
        self.keep: Callable[[int, Array], None] | None = None
        self.key = stream_key(seed, "learning", "client")

    def held(self, clients: Ids) -> Ids:
        """Return how many samples each client holds, int64 [n]."""
        return np.asarray(self.store.indptr[clients + 1] - self.store.indptr[clients])

    def examples(self, clients: Ids) -> Ids:
        """Return the same: a client trains on all of its samples."""
        return self.held(clients)

    def local_steps(self, clients: Ids) -> Ids | None:
        """Return how many local steps each client takes, int64 [n]; None for FedSGD."""
        return self.algorithm.local_steps(self.examples(clients))

    def work(self, clients: Ids, steps: Ids | None = None) -> Work:
        """Return what a client update costs each client, or the first ``steps`` (int64 [n]) of it."""
        return self.algorithm.work(self.examples(clients), steps)

    def upload_spec(self, examples: Ids) -> Sequence[ArraySpec]:
        """Return the arrays that clients with so many examples (int64 [n]) report: the method's."""
        return self.algorithm.upload_spec(examples)

    def training(self, state: State, round_number: int) -> TrainingKernel:
        """Return the kernel that computes client updates of a round from the global ``state``."""
        return _RegressionKernel(self, state, round_number)

    def own_parts(self, state: State) -> None:
        """Return None: a regression has nothing of one client alone."""


def rating_problem(
    split: Split,
    features: npt.NDArray[np.float32] | None = None,
    drawn: DrawnItems = DrawnItems(),  # noqa: B008 - a tuple
) -> Problem:
    """Return the facts about ratings that a method is made with; ``features`` are the items'."""
    train, zero_one = split.train, drawn.zero_one(split.train.n_items)
    return Problem(
        n_items=train.n_items,
        rating_mean=train.mean() if zero_one is None else zero_one.mean(train.counts),
        features=features,
        kept_back=drawn.most_barred(),
        n_users=train.n_users,
    )
