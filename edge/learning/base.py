"""What a federated learning method is, as far as devices and coordinator are concerned.

A method is a handful of pure functions of arrays. The device side works on many clients at once: a batch
holds the local data of ``n`` clients one after another, without padding, and what comes back for a client is
bitwise the same whichever other clients were in the batch. Local parameters (user factors) never leave the
device: they are made inside these functions and thrown away, or kept on the device for its next round.

The coordinator side sees sums: an :class:`Accumulator` adds contributions up in the order they arrive, and
``server_update`` only ever sees the :class:`Aggregate`.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from edge.learning.accumulators import DenseAccumulator
from edge.learning.server_optimizers import ConstantSchedule, SgdSettings
from edge.learning.updates import Accumulator, Aggregate, Array, ArraySpec, UpdateBatch

State = Mapping[str, Array]
"""The global parameters by name. Never written to: every server update makes new arrays."""

MEAN = "rating_mean"
"""The array [1] of a model that has the mean rating for devices, which need not know it otherwise."""

WORK_KINDS = ("gather", "dense", "scoring")
"""Kinds of operation that the compute model distinguishes, in the order of the columns of :class:`Work`."""
_FLOAT_BYTES = 4
_NO_SCHEDULE = ConstantSchedule()
_PLAIN_STEPS = SgdSettings(kind="sgd")


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


class Ratings(NamedTuple):
    """A :class:`RatingBatch` of plain arrays."""

    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[Any]
    ratings: npt.NDArray[np.float32]


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


@dataclass(frozen=True, slots=True)
class Problem:
    """What a method must know of the data before the first round; all of it is public.

    ``n_items`` and ``n_features`` are the width of the data (0 where they do not apply), ``n_users`` the
    number of users with a row of their own on the coordinator, where a method has such; ``rating_mean`` is
    the mean training rating, as stated, or as devices say in one sum before training;
    ``features`` are those of the items, float32 [n_items, d], None where they have none; ``kept_back`` is the
    most ratings of a user that are kept back for validation and test.
    """

    n_items: int = 0
    n_features: int = 0
    rating_mean: float = 0.0
    features: npt.NDArray[np.float32] | None = None
    kept_back: int = 0
    n_users: int = 0


@dataclass(frozen=True, slots=True)
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
Ints = npt.NDArray[np.int64]


class Algorithm(abc.ABC, Generic[BatchT_contra]):
    """A federated learning method: its settings, what is said of it before a run, and pure functions.

    A method defines :meth:`initial_state`, :meth:`client_update` and :meth:`predict`, and overrides of the
    rest what differs. Every function is pure: the same arguments give the same bits.

    By default devices download the whole state and upload a change of every array of it, or of those in
    ``trained``, dense; the coordinator applies the weighted mean with the settings' ``optimizer``,
    ``learning_rate`` and ``schedule`` where they have such fields, and adds it as it is otherwise.

    Parameters
    ----------
    settings : an instance of ``Settings``.
    problem : what is known of the data.

    Attributes
    ----------
    Settings : the section of a scenario, a model with a field ``algorithm: Literal["its-name"]``.
    data : what it learns from, ``ratings`` or ``regression``.
    trained : names of the arrays of the state that updates change; None: all of them.
    needs_features : whether it learns from the features of the items.
    timed : whether it reads a user's ratings in the order of time, so that they need timestamps.
    uploads : whether an update holds anything but counts and the loss.
    signed_loss : whether its training loss may be negative.
    has_masks : whether devices fit private masks to their ratings, as those of FedMMF, which can be audited.
    user_rows : whether the coordinator keeps a row of every user, which its device alone changes: no sum
        hides it.
    hides_values : whether the model that a run leaves is differentially private in the value of each
        rating, by noise of the method's own in what it sums, if it is released once: :meth:`value_epsilon`.
    unsummable : why updates of such a method cannot be summed securely, as an error says it.
    row_arrays : the arrays of the state, item factors and item bias, whose rows a user's vector is multiplied
        with to score an item, and an uploaded row is a change of, side by side; a model may lack the bias.
        Empty where scores or uploads are made otherwise.
    """

    Settings: ClassVar[type[BaseModel]] = BaseModel
    data: ClassVar[Literal["ratings", "regression"]] = "ratings"
    trained: ClassVar[tuple[str, ...] | None] = None
    needs_features: ClassVar[bool] = False
    timed: ClassVar[bool] = False
    uploads: ClassVar[bool] = True
    signed_loss: ClassVar[bool] = False
    has_masks: ClassVar[bool] = False
    user_rows: ClassVar[bool] = False
    hides_values: ClassVar[bool] = False
    unsummable: ClassVar[str] = (
        "no sum hides a user's row, which one device alone changes, from the coordinator"
    )
    row_arrays: ClassVar[tuple[str, ...]] = ()

    settings: Any

    def __init__(self, settings: Any, problem: Problem) -> None:
        self.settings = settings
        self.problem = problem

    @classmethod
    def name(cls) -> str:
        """Return the name that ``learning.algorithm`` gives it."""
        return str(get_args(cls.Settings.model_fields["algorithm"].annotation)[0])

    @classmethod
    def create(cls, settings: Any, problem: Problem) -> Algorithm[Any]:
        """Return the method with these settings.

        Raises
        ------
        ValueError : the problem lacks what the method needs.
        """
        return cls(settings, problem)

    @classmethod
    def uniform(cls, settings: Any) -> bool:
        """Return whether every update weighs 1, from a field ``weighting``; otherwise its examples."""
        return getattr(settings, "weighting", "examples") == "uniform"

    @classmethod
    def dense(cls, settings: Any) -> bool:
        """Return whether an update has the same arrays whatever data made it, so that sums can hide it.

        From a field ``upload``, and by default true: what :meth:`upload_spec` says.
        """
        return not cls.user_rows and getattr(settings, "upload", "dense") == "dense"

    @classmethod
    def stepwise(cls, settings: Any) -> bool:
        """Return whether an update is made of :meth:`local_steps`, of which a device can take a part."""
        return cls.local_steps is not Algorithm.local_steps

    @classmethod
    def has_item_rows(cls, settings: Any) -> bool:
        """Return whether scores and uploads are made of :attr:`row_arrays` with these settings."""
        return bool(cls.row_arrays)

    @classmethod
    def begins_with_mean(cls, settings: Any) -> bool:
        """Return whether it reads ``problem.rating_mean``; it is then made anew once devices have said it."""
        return False

    @classmethod
    def only_ranks(cls, settings: Any) -> bool:
        """Return whether its predictions are no ratings, so that only rankings can be measured."""
        return False

    @classmethod
    def draws_items(cls, settings: Any) -> bool:
        """Return whether devices draw items that their users have not rated: by default if it only ranks."""
        return cls.only_ranks(settings)

    @classmethod
    def learns_ones(cls, settings: Any) -> bool:
        """Return whether it learns from nothing but the ones and zeros that ``data.negatives`` makes."""
        return False

    @classmethod
    def added_examples(cls, settings: Any) -> float:
        """Return how many examples an update may have beside each that its client holds."""
        return 0.0

    @classmethod
    def estimates_work(cls) -> bool:
        """Return whether :meth:`work` is the estimate from shapes, not counted by the method."""
        return cls.work is Algorithm.work

    def value_epsilon(self, rounding: float) -> float:
        """Return the ε of the value of one rating, δ = 0, of a method that ``hides_values``.

        By default the setting ``epsilon``. ``rounding`` is how far a secure sum moves each number of an
        update at most, 0 without one.
        """
        return float(self.settings.epsilon)

    @abc.abstractmethod
    def initial_state(self, seed: int) -> State:
        """Return the global parameters before the first round; by default each has a dimension or more."""

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return the server optimiser's own arrays before the first round."""
        initial: OptimizerState = self._optimizer.initial(self._trained(state))
        return initial

    def broadcast(self, state: State) -> dict[str, Array]:
        """Return what a device downloads to take part in a round: all of the state."""
        return dict(state)

    def fixed(self) -> dict[str, Array]:
        """Return what a device downloads once and keeps, because it never changes: nothing."""
        return {}

    def local_steps(self, examples: Ints) -> Ints | None:
        """Return how many local steps clients with this many local examples (int64 [n]) take, int64 [n].

        None for a method whose updates are not made of steps: its devices cannot do a part of the work.
        """
        return None

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return what an update costs clients with this many local examples, int64 [n].

        With ``steps`` (int64 [n]) they take only the first so many of their local steps. By default it is
        estimated from shapes: six flops (two forwards, four backwards) an example, step and parameter that
        an example meets, which is one row of an array with a row an item and all of any other.
        """
        rows = examples.astype(np.float64)
        whole = steps if steps is not None else self.local_steps(examples)
        taken = np.ones(len(rows)) if whole is None else np.maximum(whole, 1).astype(np.float64)
        n_items, shapes = self.problem.n_items, [shape for _, shape in self._shapes.values()]
        numbers = float(sum(math.prod(shape) for shape in shapes))
        met = float(sum(math.prod(shape[1:] if shape[0] == n_items else shape) for shape in shapes))
        flops, moved, ops = (np.zeros((len(rows), len(WORK_KINDS))) for _ in range(3))
        gather, dense = WORK_KINDS.index("gather"), WORK_KINDS.index("dense")
        moved[:, gather] = 2.0 * rows * met * _FLOAT_BYTES / taken
        ops[:, gather] = len(shapes) / taken
        flops[:, dense] = 6.0 * rows * met
        moved[:, dense] = 3.0 * rows * met * _FLOAT_BYTES
        ops[:, dense] = 3.0 * len(shapes)
        memory = _FLOAT_BYTES * (2.0 * numbers + rows * (met + 2.0))
        return Work(flops, moved, ops, taken, np.ceil(memory).astype(np.int64))

    def scoring_work(self, scored: Ints) -> Work:
        """Return what it costs to predict so many items (int64 [n]) with a personalised model.

        By default it is estimated from shapes: two flops a number of the model that an item meets.
        """
        n_items, shapes = self.problem.n_items, [shape for _, shape in self._shapes.values()]
        met = float(sum(math.prod(shape[1:] if shape[0] == n_items else shape) for shape in shapes))
        rows = scored.astype(np.float64)
        flops, moved, ops = (np.zeros((len(rows), len(WORK_KINDS))) for _ in range(3))
        scoring = WORK_KINDS.index("scoring")
        flops[:, scoring] = 2.0 * rows * met
        moved[:, scoring] = rows * (met + 1.0) * _FLOAT_BYTES
        ops[:, scoring] = 1.0
        return Work(flops, moved, ops, np.ones(len(rows)), (_FLOAT_BYTES * scored).astype(np.int64))

    def upload_spec(self, examples: Ints) -> Sequence[ArraySpec]:
        """Return the arrays that clients with this many local examples upload: all that are trained, whole.

        For a client of several users it is an upper bound: items that its users share are uploaded once.
        """
        return tuple(
            ArraySpec(name, dtype, shape[1:], np.full(len(examples), shape[0], np.int64))
            for name, (dtype, shape) in self._shapes.items()
        )

    def held_bytes(self, examples: Ints) -> Ints:
        """Return what updates of clients with this many local examples take in a batch, bytes, int64 [n].

        By default it is what they upload; less where a batch has some rows of tables that are uploaded whole.
        """
        total = np.zeros(len(examples), np.int64)
        for spec in self.upload_spec(examples):
            total += spec.nbytes()
        return total

    def summed_spec(self) -> Sequence[ArraySpec]:
        """Return the arrays of one client's update as a secure sum takes it."""
        return self.upload_spec(np.ones(1, np.int64))

    @abc.abstractmethod
    def client_update(
        self,
        state: State,
        batch: BatchT_contra,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
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

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty accumulator for one round, of dense uploads."""
        return DenseAccumulator(
            {name: (array.dtype, array.shape) for name, array in self._trained(state).items()}
        )

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean update.

        ``round_number`` counts the updates applied so far, from 0.
        """
        trained, rate = self._trained(state), getattr(self.settings, "learning_rate", 1.0)
        if not trained:
            return state, optimizer_state
        rate *= getattr(self.settings, "schedule", _NO_SCHEDULE).factor(round_number)
        moved, optimizer_state = self._optimizer.apply(trained, optimizer_state, aggregate.mean(), rate)
        return {**state, **moved}, optimizer_state

    def finite(self, before: State, after: State, aggregate: Aggregate) -> bool:
        """Return whether a server update by ``aggregate`` has left finite numbers alone, as all were.

        By default every number of the arrays is looked at that it has made.
        """
        return all(
            array is before.get(name) or bool(np.isfinite(array).all()) for name, array in after.items()
        )

    def converged(self, aggregate: Aggregate) -> str | None:
        """Return the name of the stopping rule that this round's aggregate meets; None: there is none."""
        return None

    @abc.abstractmethod
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

    @property
    def _optimizer(self) -> Any:
        return getattr(self.settings, "optimizer", _PLAIN_STEPS)

    def _trained(self, state: State) -> dict[str, Array]:
        return {name: array for name, array in state.items() if self.trained is None or name in self.trained}

    @functools.cached_property
    def _shapes(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtypes and shapes of what is trained."""
        return {n: (array.dtype, array.shape) for n, array in self._trained(self.initial_state(0)).items()}


class Recommender(Algorithm[RatingBatch]):
    """A method that learns from ratings, can rank a catalogue for a user, and may keep something on devices.

    Wherever ``local`` appears, it is the rows that the devices of the batch's users begin with, [users,
    width]: what they kept, ``local_width`` numbers a user, and with ``user_rows`` what they were sent. Zeros
    are those of users that have never taken part; None is zeros for all.

    Attributes
    ----------
    samples_negatives : whether it draws items that a user has not rated, and must be told what not to draw:
        its batches are :class:`~edge.learning.sampled_negatives.ImplicitBatch`.
    own_tables : whether devices score with embeddings of items, or a network, of their own, so that no shared
        model has their scores.
    export_advice : what an error says of model files where no graph of its models is known.
    """

    samples_negatives: ClassVar[bool] = False
    export_advice: ClassVar[str] = ""
    own_tables: bool = False
    local_width: int = 0
    """Numbers that a device keeps of each of its users between rounds; 0: devices are stateless."""

    @classmethod
    def only_ranks(cls, settings: Any) -> bool:
        """Return whether it samples negatives, and so predicts no ratings."""
        return cls.samples_negatives

    def training_examples(
        self, batch: RatingBatch, client_keys: npt.NDArray[np.uint64], clients: Ints | None = None
    ) -> RatingBatch:
        """Return the examples that :meth:`client_update` makes of ``batch``: the batch itself.

        A method that samples negatives returns ones for positives and zeros for what it draws.
        """
        return batch

    @abc.abstractmethod
    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Compute the updates of the clients in a batch; see :meth:`Algorithm.client_update`.

        What the devices keep from now on is in the updates; ``local`` is not written to.
        """

    @abc.abstractmethod
    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Personalise on the support data and predict the query data; see :meth:`Algorithm.predict`."""

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Personalise on the support data and score every item, float32 [n, n_items]: its prediction."""
        n, n_items = len(support.indptr) - 1, self.problem.n_items
        everything = Ratings(
            np.arange(n + 1) * n_items, np.tile(np.arange(n_items), n), np.zeros(n * n_items, np.float32)
        )
        predicted = self.predict(state, support, everything, client_keys, local)
        return np.asarray(predicted, np.float32).reshape(n, n_items)

    def own(self, state: State, user: int) -> dict[str, Array]:
        """Return what the device of ``user`` alone downloads, with ``user_rows``."""
        return {}

    def named(self, arrays: Mapping[str, Array], user: int) -> dict[str, Array]:
        """Return the arrays of a report with whose row it changes, with ``user_rows``."""
        return dict(arrays)

    def rows_of(self, state: State, users: Ints) -> Array:
        """Return the rows of ``users`` that a state with ``user_rows`` has, [n, width]."""
        return np.zeros((len(users), 0), np.float32)
