"""GPFedRec: the coordinator draws a graph between users from the tables of items that they have tuned.

Source: Zhang et al., "GPFedRec: Graph-Guided Personalization for Federated Recommendation" (KDD 2024), and
the published code (Zhangcx19/GPFedRec). A score is that of a perceptron on [p_u; q_i]; p_u and the perceptron
are kept on the device. A device starts from the shared table E, takes steps on everything, and uploads how
the table changed. The coordinator has the tables Q_u of all devices of the round, and

    S_uv = cosine of Q_u and Q_v                   A: of each row of S the entries ≥ τ·mean(S), by their sum
    R = Aʰ Q                                       E ← E + γ (mean_u R_u − E)

R_u is sent to the device of u the next time, beside E, and pulls at the table: its loss has ``pull``·mean
(Q_u − R_u)².

The published code has the graph upside down: for the cosine it takes distances for similarities, so that
users average with those that are least like them, and never with themselves. ``neighbours`` has the paper's
graph, that of the code, and one of as many neighbours at random, beside which a gain of either is to be read.

What an upload reveals. The coordinator sees each device's whole table, has to, and keeps what follows from it
for each user: which items a device touched, and by the direction of their rows what it took to. No sum hides
that: the method compares single tables, and cannot have secure aggregation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import ByKey, NonNegativeFloat, PositiveFloat, PositiveInt
from edge.core.rng import hashed_bits, stream, stream_key
from edge.learning import layers, neumf
from edge.learning.accumulators import DenseAccumulator, UserRowsAccumulator
from edge.learning.base import WORK_KINDS, OptimizerState, Problem, RatingBatch, Recommender, State, Work
from edge.learning.joint_descent import selections
from edge.learning.method_settings import (
    GradientSteps,
    MethodSettings,
    MiniBatches,
    rows_seen,
    step_counts,
    work_share,
)
from edge.learning.neumf import ExampleRows, NetworkShape, Point
from edge.learning.sampled_negatives import NEGATIVES_DRAW, Examples, ZeroOne
from edge.learning.tables import TableVersions
from edge.learning.updates import Accumulator, Aggregate, Array, ArraySpec, UpdateBatch

TABLE, OWN, GRAPH = "item_factors", "initial_own", "graph"
USER_TABLE, USER_ROW, USERS = "user_table", "user_row", "users"
Ints = npt.NDArray[np.int64]
_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))
_TABLES_AT_ONCE = 1 << 20
"""Numbers of tables that are tuned together: so many stay in the cache."""


class GPFedRecSettings(MethodSettings):
    """Settings of GPFedRec."""

    algorithm: Literal["gpfedrec"]
    factors: PositiveInt = Field(default=32, description="length d of the embeddings of users and items")
    layers: tuple[PositiveInt, ...] = Field(
        default=(32, 16, 8), min_length=1, description="outputs of the perceptron's layers"
    )
    negatives: PositiveInt = Field(default=4, description="items sampled for every positive")
    initial_scale: NonNegativeFloat = Field(
        default=1.0, description="standard deviation of the embeddings before the first round"
    )
    user_embeddings: Literal["persistent"] = Field(
        default="persistent", description="devices keep their user's embedding and their perceptron"
    )
    client: Annotated[GradientSteps | MiniBatches, ByKey("method")] = Field(
        default=MiniBatches.model_construct(
            method="mini-batches", batch_size=256, epochs=1, learning_rate=0.1, regularization=0.0
        ),
        description="a device's steps on everything: gradient-steps or mini-batches; rate of the perceptron",
    )
    user_learning_rate: PositiveFloat = Field(default=8.0, description="rate of the user's embedding")
    item_learning_rate: PositiveFloat = Field(
        default=8.0, description="rate of the items in these steps, times the number of items"
    )
    pull: NonNegativeFloat = Field(
        default=1.0, description="weight of the mean square distance to the table of the user's neighbours"
    )
    neighbours: Literal["similar", "dissimilar", "random"] = Field(
        default="similar",
        description="who is averaged: the more alike, as in the paper; the less, as in its code; or anybody",
    )
    threshold: NonNegativeFloat = Field(
        default=1.0, description="τ: neighbours are those whose likeness is at least τ times the mean"
    )
    hops: PositiveInt = Field(default=1, description="h: how often tables go along the graph")
    served_table: Literal["personal", "server"] = Field(
        default="server",
        description="what predicts: the table tuned on the device's own data, or the coordinator's as it is",
    )
    learning_rate: PositiveFloat = Field(
        default=1.0, description="γ: part of the way to the mean table that the shared one goes"
    )


class _Tuned(NamedTuple):
    """A run of users ``first`` … ``end - 1`` after their steps."""

    first: int
    end: int
    tables: Array
    """[n, items, d]."""
    own: Array
    """p_u and the perceptron's weights, [n, d + weights]."""
    losses: npt.NDArray[np.float64]
    """Mean cross-entropies before the first step, [n]."""


class GPFedRec(Recommender):
    """GPFedRec; see the module and :class:`GPFedRecSettings`.

    State: ``item_factors`` E [items, d]; ``initial_own`` [d + weights], what devices begin with;
    ``user_table`` [users, items · d], R_u of each user, zeros for those that have never taken part; ``graph``
    int64 [1], from which random neighbours follow. Download: E, ``initial_own``, and ``user_row`` [1, items ·
    d], the user's R_u. Upload: ``user_row`` [items · d], Q_u − E. A device keeps p_u and its perceptron;
    ``local`` has R_u after them.
    """

    Settings = GPFedRecSettings
    samples_negatives = True
    user_rows = True
    own_tables = True
    unsummable = "the coordinator compares the tables of single devices, which a sum does not show"
    settings: GPFedRecSettings

    def __init__(self, settings: GPFedRecSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        if problem.n_items < 1:
            raise ValueError("gpfedrec learns from ratings; this problem has no items")
        super().__init__(settings, problem)
        self.n_items, self.n_users = problem.n_items, problem.n_users
        self.dtype = np.dtype(dtype)
        self.zero_one = ZeroOne(settings.negatives, self.n_items, problem.kept_back)
        self.shape = NetworkShape(0, settings.factors, settings.layers)
        self.local_width = settings.factors + self.shape.weights
        self.table_width = self.n_items * settings.factors
        self._users = TableVersions()

    @classmethod
    def uniform(cls, settings: Any) -> bool:
        """Return True: every device is a node of the graph."""
        return True

    def initial_state(self, seed: int) -> State:
        """Return items and a user ~ N(0, ``initial_scale``²), and dense layers ~ N(0, 2 / inputs)."""
        s, d = self.settings, self.settings.factors
        own = np.zeros(self.local_width, self.dtype)
        own[:d] = s.initial_scale * stream(seed, "learning", "user").standard_normal(d)
        network = neumf.network_of(self.shape, own[None, d:])
        draws = stream(seed, "learning", "network")
        for weights in network.dense:
            weights[0] = draws.standard_normal(weights.shape[1:]) * np.sqrt(2.0 / weights.shape[1])
        network.mlp[0] = draws.standard_normal(network.mlp.shape[1]) / np.sqrt(network.mlp.shape[1])
        table = stream(seed, "learning", "item_factors").standard_normal((self.n_items, d))
        return {
            TABLE: (s.initial_scale * table).astype(self.dtype),
            OWN: own,
            USER_TABLE: np.zeros((self.n_users, self.table_width), self.dtype),
            GRAPH: np.array([stream_key(seed, "learning", "graph") >> 1], np.int64),
        }

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return nothing: the coordinator has no optimiser."""
        return {}

    def broadcast(self, state: State) -> dict[str, Array]:
        """Return what is shared, and a row of zeros in the place of each device's own; see :meth:`own`."""
        row = np.zeros((1, self.table_width), self.dtype)
        return {TABLE: state[TABLE], OWN: state[OWN], USER_ROW: row}

    def own(self, state: State, user: int) -> dict[str, Array]:
        """Return what the device of ``user`` alone downloads: R_u."""
        return {USER_ROW: state[USER_TABLE][user : user + 1]}

    def named(self, arrays: Mapping[str, Array], user: int) -> dict[str, Array]:
        """Return the arrays of a report with whose it is: ``users`` int64 [1]."""
        return {**arrays, USERS: np.array([user], np.int64)}

    def rows_of(self, state: State, users: Ints) -> Array:
        """Return R_u of ``users``, [n, items · d]; on a device, which has no other, its user's."""
        return state[USER_ROW] if USER_ROW in state else state[USER_TABLE].take(users, axis=0)

    def local_steps(self, examples: Ints) -> Ints:
        """Return how many steps users with this many positives take."""
        return step_counts(self.settings.client, self.zero_one.counts(examples))

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return what a round costs users with this many positives.

        A row costs 6 flops a weight of the perceptron, 2 for the loss before the first step; the pull 4 a
        number of the table and step. Memory: E, R_u and the tuned table, the rows, the perceptron thrice, the
        upload.
        """
        s = self.settings
        counts, weights = self.zero_one.counts(examples), float(self.shape.weights)
        rows = counts.astype(np.float64)
        taken = np.maximum(step_counts(s.client, counts) if steps is None else steps, 1).astype(np.float64)
        seen = rows_seen(s.client, counts, taken.astype(np.int64)).astype(np.float64)
        numbers = float(2 * sum(self.shape.hidden) + 2 * s.factors)
        flops, moved, ops = (np.zeros((len(rows), len(WORK_KINDS))) for _ in range(3))
        moved[:, _GATHER] = 2.0 * seen * s.factors * _FLOAT_BYTES
        ops[:, _GATHER] = taken
        pulled = 4.0 * taken * self.table_width if s.pull else 0.0
        flops[:, _DENSE] = 2.0 * weights * rows + 6.0 * weights * seen + pulled + 2.0 * taken * weights
        moved[:, _DENSE] = _FLOAT_BYTES * (2.0 * seen * numbers + pulled + 4.0 * taken * weights)
        ops[:, _DENSE] = (16.0 + 7.0 * len(s.layers)) * taken
        memory = 4.0 * self.table_width + rows * (numbers + 2.0) + 3.0 * self.local_width
        whole = np.ceil(_FLOAT_BYTES * memory).astype(np.int64)
        return Work(flops / taken[:, None], moved / taken[:, None], ops / taken[:, None], taken, whole)

    def upload_spec(self, examples: Ints) -> Sequence[ArraySpec]:
        """Return the arrays uploaded: the change of the whole table."""
        return (ArraySpec(USER_ROW, self.dtype, (), np.full(len(examples), self.table_width, np.int64)),)

    def training_examples(
        self, batch: RatingBatch, client_keys: npt.NDArray[np.uint64], clients: Ints | None = None
    ) -> RatingBatch:
        """Return ones for positives, and zeros for the negatives that users draw."""
        return self._examples(batch, client_keys).zero_one()

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Tune every user's embedding, perceptron and table, and return how the table changed.

        See :meth:`edge.learning.base.Recommender.client_update`. Changes are not multiplied by any weight.

        Raises
        ------
        ValueError : ``clients`` is given; a client is one user.
        """
        if clients is not None:
            raise ValueError("gpfedrec has one user a client; leave clients out")
        positives, users = np.diff(batch.indptr), len(batch.indptr) - 1
        examples = self._examples(batch, client_keys)
        changes = np.empty((users, self.table_width), self.dtype)
        kept = np.empty((users, self.local_width), self.dtype)
        losses = np.zeros(users)
        for tuned in self._tuned(state, examples, client_keys, local, steps):
            those = slice(tuned.first, tuned.end)
            tables = tuned.tables.reshape(len(tuned.tables), -1)
            np.subtract(tables, state[TABLE].ravel(), out=changes[those])
            kept[those], losses[those] = tuned.own, tuned.losses
        done = work_share(steps, step_counts(self.settings.client, np.diff(examples.indptr)))
        return UpdateBatch(
            stacked={USER_ROW: changes},
            ragged={},
            offsets=np.zeros(users + 1, np.int64),
            weights=np.asarray(positives > 0, np.float64) * done,
            examples=positives,
            losses=losses,
            local=kept,
            local_offsets=np.arange(users + 1),
        )

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty accumulator for one round, of reports that :meth:`named` was given."""
        return UserRowsAccumulator(
            DenseAccumulator({}), USER_ROW, USERS, dtype=self.dtype, width=self.table_width
        )

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Draw the graph, average each user's table with its neighbours', and the shared one with all."""
        users = aggregate.sums[USERS]
        tables = state[TABLE].ravel() + aggregate.sums[USER_ROW]
        graph, averaged = self.graph(tables, users, int(state[GRAPH][0])), tables
        for _ in range(self.settings.hops):
            averaged = graph @ averaged
        rate = self.dtype.type(self.settings.learning_rate)
        shared = state[TABLE] + rate * (averaged.mean(axis=0).reshape(state[TABLE].shape) - state[TABLE])
        table = self._users.replaced(state[USER_TABLE], users.astype(np.intp), averaged)
        number = np.array([int(hashed_bits(int(state[GRAPH][0]), 1)) >> 1], np.int64)
        return {**state, TABLE: shared, USER_TABLE: table, GRAPH: number}, optimizer_state

    def graph(self, tables: Array, users: Ints, key: int) -> Array:
        """Return A, [n, n]: what each user's neighbours weigh; every row sums to 1.

        ``tables`` [n, items · d], flattened; ``users`` int64 [n] and ``key`` are what random neighbours
        follow from. A user without neighbours has itself.
        """
        s = self.settings
        norms = np.sqrt(layers.squared_norms(tables)).astype(self.dtype)
        unit = tables / np.maximum(norms, np.finfo(self.dtype).tiny)[:, None]
        likeness = np.clip(unit @ unit.T, 0.0, 1.0)
        if s.neighbours == "dissimilar":
            likeness = 1.0 - likeness
            np.fill_diagonal(likeness, 0.0)
        chosen = likeness >= s.threshold * likeness.mean()
        weights = np.where(chosen, likeness, 0.0)
        if s.neighbours == "random":
            draws = hashed_bits(key, users[:, None], users[None, :])
            ranks = np.argsort(np.argsort(draws, axis=1), axis=1)
            weights = (ranks < chosen.sum(axis=1, keepdims=True)).astype(self.dtype)
        totals = weights.sum(axis=1, keepdims=True)
        alone = np.eye(len(tables), dtype=self.dtype)
        return np.asarray(np.where(totals > 0, weights / np.where(totals > 0, totals, 1), alone), self.dtype)

    def finite(self, before: State, after: State, aggregate: Aggregate) -> bool:
        """Return whether a server update by ``aggregate`` has left finite numbers alone, as all were."""
        changed = after[USER_TABLE][aggregate.sums[USERS]]
        return bool(np.isfinite(after[TABLE]).all() and np.isfinite(changed).all())

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Return the probability that users take to their ``query`` items, float64 [N of query].

        With ``served_table: personal`` everything is tuned on ``support`` first.
        """
        counts = np.diff(query.indptr)
        found = np.empty(int(query.indptr[-1]), self.dtype)
        for run in self._served(state, support, client_keys, local):
            part = slice(int(query.indptr[run.first]), int(query.indptr[run.end]))
            here = counts[run.first : run.end]
            place = np.repeat(np.arange(len(here)), here), query.items[part].astype(np.int64)
            found[part] = self._logits(run.own, run.tables[place], here)
        return layers.sigmoid(found.astype(np.float64))

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the logit of every item, float32 [n, items]; as in :meth:`predict`."""
        found = np.empty((len(support.indptr) - 1, self.n_items), np.float32)
        for run in self._served(state, support, client_keys, local):
            for index, user in enumerate(range(run.first, run.end)):
                counts = np.array([self.n_items])
                found[user] = self._logits(run.own[index : index + 1], run.tables[index], counts)
        return found

    def _served(
        self, state: State, support: RatingBatch, keys: npt.NDArray[np.uint64], local: Array | None
    ) -> Iterator[_Tuned]:
        """Yield what users are served with, a run of users at a time."""
        if self.settings.served_table == "personal":
            yield from self._tuned(state, self._examples(support, keys), keys, local)
            return
        users = len(support.indptr) - 1
        own = self._own(state, users, local)
        for first, end in self._runs(users):
            shared = np.broadcast_to(state[TABLE], (end - first, *state[TABLE].shape))
            yield _Tuned(first, end, shared, own[first:end], np.zeros(end - first))

    def _own(self, state: State, users: int, local: Array | None) -> Array:
        """Return p_u and perceptrons as devices keep them, [users, d + weights]; of new ones the initial."""
        if local is None:
            return np.tile(state[OWN], (users, 1))
        kept = np.asarray(local[:, : self.local_width], self.dtype)
        return np.where(np.any(kept, axis=1, keepdims=True), kept, state[OWN])

    def _runs(self, users: int) -> Iterator[tuple[int, int]]:
        """Cut users into runs whose tables stay in the cache."""
        step = max(_TABLES_AT_ONCE // self.table_width, 1)
        for first in range(0, users, step):
            yield first, min(first + step, users)

    def _tuned(
        self,
        state: State,
        examples: Examples,
        keys: npt.NDArray[np.uint64],
        local: Array | None,
        steps: Ints | None = None,
    ) -> Iterator[_Tuned]:
        """Take the users' steps, each on everything."""
        s, d = self.settings, self.settings.factors
        everyone = self._own(state, len(examples.indptr) - 1, local)
        rate, user_rate = self.dtype.type(s.client.learning_rate), self.dtype.type(s.user_learning_rate)
        item_rate = self.dtype.type(s.item_learning_rate * self.n_items)
        pull = self.dtype.type(2.0 * s.pull / self.table_width)
        for first, end in self._runs(len(everyone)):
            n, part = end - first, slice(int(examples.indptr[first]), int(examples.indptr[end]))
            indptr = examples.indptr[first : end + 1] - examples.indptr[first]
            owners, items = np.repeat(np.arange(n), np.diff(indptr)), examples.items[part]
            own, labels = everyone[first:end].copy(), examples.positive[part].astype(self.dtype)
            tables = np.tile(state[TABLE], (n, 1, 1))
            around = self._around(state, n, None if local is None else local[first:end])
            of_rows = self._logits(own, tables[owners, items], np.diff(indptr))
            losses = layers.device_means(layers.cross_entropy(of_rows, labels), np.diff(indptr))
            limits = None if steps is None else steps[first:end]
            for active, places, sizes in selections(indptr, keys[first:end], s.client, limits):
                place = owners[places], items[places]
                point = self._point(own.take(active, axis=0), tables[place])
                rows = ExampleRows([0, *np.cumsum(sizes).tolist()], sizes, labels.take(places))
                _, found = neumf.losses_and_gradients(
                    self.shape, point, rows, s.client.regularization, shared=True, local=True
                )
                assert found.mlp is not None
                assert found.network is not None
                assert found.users is not None
                if s.pull:
                    tables[active] -= item_rate * pull * (tables[active] - around[active])
                tables[place] -= item_rate * found.mlp
                own[active, :d] -= user_rate * found.users
                own[active, d:] -= rate * found.network
            yield _Tuned(first, end, tables, own, losses)

    def _around(self, state: State, users: int, local: Array | None) -> Array:
        """Return R_u as devices were sent it, [users, items, d]; of users without one the shared table."""
        if local is None:
            return np.broadcast_to(state[TABLE], (users, *state[TABLE].shape))
        sent = np.asarray(local[:, self.local_width :], self.dtype)
        known = np.any(sent, axis=1)[:, None, None]
        return np.where(known, sent.reshape(len(local), self.n_items, -1), state[TABLE])

    def _point(self, own: Array, rows: Array) -> Point:
        d = self.settings.factors
        none = np.zeros((len(rows), 0), self.dtype)
        return Point(none, rows, np.ascontiguousarray(own[:, d:]), np.ascontiguousarray(own[:, :d]))

    def _logits(self, own: Array, rows: Array, counts: Ints) -> Array:
        examples = ExampleRows([0, *np.cumsum(counts).tolist()], counts, np.zeros(0))
        return neumf.logits(self.shape, self._point(own, rows), examples)

    def _examples(self, batch: RatingBatch, keys: npt.NDArray[np.uint64]) -> Examples:
        return self.zero_one.examples(batch, hashed_bits(NEGATIVES_DRAW, keys))
