"""FedNCF: a neural recommender of implicit feedback, its user embeddings kept on the devices.

Source: Perifanis and Efraimidis, "Federated Neural Collaborative Filtering" (Knowledge-Based Systems
2022), with the network NeuMF (:mod:`edge.learning.neumf`). Shared: item embeddings and the network's weights.
Local, never uploaded: the user's embeddings, kept from round to round or fitted from zero every time.

Every rating of the data is a positive, whatever its value (``data.positive`` drops the low ones). A round on
a device: draw negatives (:mod:`edge.learning.sampled_negatives`); take some steps on the user's embeddings
alone; take the client's steps on everything; upload how the item rows and the network changed.

What an upload reveals. A sparse upload names the items of the examples, the positives among four times as
many others, and their rows tell which are which: a positive's moves towards the user, a negative's away from
it. A dense one reveals as much in the clear, and can be summed under masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from device_profiles.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from edge.learning import fedrecon_kernels, layers, neumf
from edge.learning.accumulators import DenseAccumulator, RowsAndWholeAccumulator
from edge.learning.base import (
    Accumulator,
    Aggregate,
    Array,
    ArraySpec,
    ClientUpdate,
    OptimizerState,
    Problem,
    RatingBatch,
    State,
    UpdateBatch,
    Work,
)
from edge.learning.fedncf_work import fedncf_work
from edge.learning.least_squares import shuffled_ranks
from edge.learning.local_steps import GradientSteps, LocalDescent, MiniBatches, step_counts, work_share
from edge.learning.neumf import Gradients, Point, Rows, Shape
from edge.learning.sampled_negatives import Examples, draw_examples, negative_counts
from edge.learning.server_optimizers import AdamSettings, ConstantSchedule, Schedule, ServerOptimizer
from edge.learning.sharpness import GradientFunction, Radii, rises, sharpness_aware
from edge.rng import hashed_bits, stream

ITEMS, ROWS, NETWORK = "items", "item_rows", "network"
GMF, MLP = "gmf_items", "mlp_items"
# What a draw under a client's key is for.
_NEGATIVES_DRAW, _ORDER_DRAW = 3, 4


class FedNCFSettings(BaseModel):
    """Settings of FedNCF."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Literal["fedncf"]
    gmf_factors: PositiveInt = Field(default=32, description="length of the embeddings of the factorisation")
    mlp_factors: PositiveInt = Field(default=128, description="length of the embeddings of the perceptron")
    layers: tuple[PositiveInt, ...] = Field(
        default=(128, 64, 32), min_length=1, description="outputs of the perceptron's layers"
    )
    negatives: PositiveInt = Field(default=4, description="items sampled for every positive")
    initial_scale: NonNegativeFloat = Field(
        default=0.1, description="standard deviation of the item embeddings before the first round"
    )
    user_embeddings: Literal["persistent", "reconstructed"] = Field(
        default="persistent",
        description="keep user embeddings on the device, or fit them from zero every round",
    )
    user_learning_rate: PositiveFloat = Field(default=10.0, description="rate of the user embeddings")
    user_steps: NonNegativeInt = Field(
        default=2, description="steps on the user embeddings alone, on all examples, before the client's"
    )
    client: LocalDescent = Field(
        default=GradientSteps(method="gradient-steps", steps=1, learning_rate=1.0, regularization=0.0),
        description="a device's steps on everything: gradient-steps or mini-batches",
    )
    weighting: Literal["examples", "uniform"] = Field(
        default="examples", description="weight of an update: its number of positives, or one per client"
    )
    upload: Literal["sparse", "dense"] = Field(
        default="sparse", description="upload the changed item rows and their numbers, or the whole table"
    )
    optimizer: ServerOptimizer = Field(
        default=AdamSettings(beta2=0.99, epsilon=1e-6), description="server optimiser: sgd, adagrad or adam"
    )
    learning_rate: PositiveFloat = Field(default=0.01, description="server learning rate")
    schedule: Schedule = Field(default=ConstantSchedule(), description="how the server learning rate changes")

    @field_validator("user_steps")
    @classmethod
    def _reconstructs(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and info.data.get("user_embeddings") == "reconstructed":
            raise ValueError(
                "'reconstructed' embeddings are made by steps on them; write 1 or more, or"
                " 'user_embeddings: persistent'"
            )
        return value


@dataclasses.dataclass(frozen=True, slots=True)
class _DenseUpdateBatch(UpdateBatch):
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


class _Start(NamedTuple):
    """A run of users, their examples, and where they stand before their first step."""

    first: int
    end: int
    part: slice
    rows: Rows
    point: Point


class FedNCF:
    """FedNCF; see the module for what it does and :class:`FedNCFSettings`.

    State: ``gmf_items`` [items, gmf_factors], ``mlp_items`` [items, mlp_factors], ``network`` [weights].
    Upload, times the weight: ``item_rows`` [n, gmf_factors + mlp_factors], ``network`` [weights], and when
    sparse ``items`` [n]. All arithmetic in ``dtype``. With ``radii`` every step is sharpness-aware.
    """

    samples_negatives: bool = True

    def __init__(
        self,
        settings: FedNCFSettings,
        problem: Problem,
        dtype: type[Any] = np.float32,
        radii: Radii = Radii(),  # noqa: B008 - a tuple of numbers
    ) -> None:
        if problem.n_items < 1:
            raise ValueError("fedncf learns from ratings; this problem has no items")
        self.settings = settings
        self.n_items = problem.n_items
        self.kept_back = problem.kept_back
        self.dtype = np.dtype(dtype)
        self.item_dtype = np.dtype(np.uint16 if self.n_items < 65_536 else np.int32)
        self.shape = Shape(settings.gmf_factors, settings.mlp_factors, settings.layers)
        self.radii = radii
        self.local_width = self.shape.width if settings.user_embeddings == "persistent" else 0
        """Numbers that a device keeps of each of its users: its embeddings, or nothing."""

    def initial_state(self, seed: int) -> State:
        """Return item embeddings ~ N(0, ``initial_scale``²), and a network that passes on what it is given.

        Dense layers are drawn as He et al. 2015 do for relu, N(0, 2 / inputs). Biases are 0, h_g is 1 and
        h_m is N(0, 1 / inputs): before the first round the prediction is near u_g·q_g.
        """
        s, shape = self.settings, self.shape
        vector = np.zeros((1, shape.weights), self.dtype)
        network = neumf.network_of(shape, vector)
        draws = stream(seed, "learning", "network")
        for weights in network.dense:
            weights[0] = draws.standard_normal(weights.shape[1:]) * np.sqrt(2.0 / weights.shape[1])
        network.gmf[:] = 1.0
        network.mlp[0] = draws.standard_normal(network.mlp.shape[1]) / np.sqrt(network.mlp.shape[1])
        state = {NETWORK: vector[0]}
        for name, width in ((GMF, shape.gmf), (MLP, shape.mlp)):
            table = stream(seed, "learning", name).standard_normal((self.n_items, width))
            state[name] = (s.initial_scale * table).astype(self.dtype)
        return state

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return the server optimiser's arrays before the first round."""
        return self.settings.optimizer.initial(state)

    def broadcast(self, state: State) -> dict[str, Array]:
        """Return the item tables and the network."""
        return dict(state)

    def fixed(self) -> dict[str, Array]:
        """Return nothing: whatever devices download changes every round."""
        return {}

    def local_steps(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many steps on everything users with this many positives take."""
        return step_counts(self.settings.client, self._example_counts(examples))

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return what a round costs users with this many positives; see :mod:`edge.learning.fedncf_work`."""
        rows = self._example_counts(examples)
        return fedncf_work(self.settings, self.shape, self.n_items, rows, self.radii, steps)

    def upload_spec(self, examples: npt.NDArray[np.int64]) -> Sequence[ArraySpec]:
        """Return the arrays uploaded by users with this many positives."""
        n = len(examples)
        network = ArraySpec(NETWORK, self.dtype, (), np.full(n, self.shape.weights, dtype=np.int64))
        if self.settings.upload == "dense":
            rows = np.full(n, self.n_items, dtype=np.int64)
            return (ArraySpec(ROWS, self.dtype, (self.shape.width,), rows), network)
        rows = np.minimum(self._example_counts(examples), self.n_items)
        return (
            ArraySpec(ITEMS, self.item_dtype, (), rows),
            ArraySpec(ROWS, self.dtype, (self.shape.width,), rows),
            network,
        )

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Train every user on its positives and as many negatives as the settings say.

        See :meth:`edge.learning.base.Recommender.client_update`. A client of several users uploads the sum of
        its users' deltas: weighted by their positives, or their mean with uniform weights.

        Raises
        ------
        ValueError : ``steps`` is given and clients hold several users.
        """
        if clients is not None and steps is not None:
            raise ValueError("the steps of clients with several users cannot be limited; leave steps out")
        s, shape = self.settings, self.shape
        users = len(batch.indptr) - 1
        per_client = np.ones(users, np.int64) if clients is None else np.diff(clients)
        owners = np.repeat(np.arange(len(per_client)), per_client)
        keys = client_keys
        if clients is not None:
            places = np.arange(users) - np.repeat(clients[:-1], per_client)
            keys = fedrecon_kernels.place_keys(np.repeat(client_keys, per_client), places)
        positives = np.diff(batch.indptr)
        examples = self._examples(batch, keys)
        counts = np.diff(examples.indptr)
        weights = positives.astype(np.float64) if s.weighting == "examples" else 1.0 / per_client[owners]
        done = work_share(steps, step_counts(s.client, counts))
        scales = np.asarray(weights * done).astype(self.dtype)
        rows = np.empty((len(examples.items), shape.width), self.dtype)
        network = np.empty((users, shape.weights), self.dtype)
        kept = np.empty((users, shape.width), self.dtype)
        losses = np.zeros(users)
        for start in self._starts(state, examples, local):
            part, those = start.part, slice(start.first, start.end)
            point = self._personalised(start)
            limits = None if steps is None else steps[those]
            moved, before = self._descend(start, point, keys[those], limits, network[those])
            scale = np.repeat(scales[those], counts[those])[:, None]
            np.multiply(moved.gmf, scale, out=rows[part, : shape.gmf])
            np.multiply(moved.mlp, scale, out=rows[part, shape.gmf :])
            network[those] *= scales[those, None]
            np.add(point.users, moved.users, out=kept[those])
            losses[those] = before
        items = examples.items.astype(self.item_dtype)
        offsets, summed = examples.indptr, positives
        if clients is not None:
            items, rows, offsets = fedrecon_kernels.merge_users(
                items, rows, np.repeat(owners, counts), len(per_client)
            )
            network = layers.row_sums(network, clients.tolist())
            losses = np.asarray(np.bincount(owners, losses * positives, minlength=len(per_client)))
            summed = np.bincount(owners, positives, minlength=len(per_client)).astype(np.int64)
            losses = losses / np.maximum(summed, 1)
        fields: dict[str, Any] = {
            "stacked": {NETWORK: network},
            "ragged": {ITEMS: items, ROWS: rows},
            "offsets": offsets,
            "weights": np.asarray(summed if s.weighting == "examples" else summed > 0, dtype=np.float64)
            * done,
            "examples": summed,
            "losses": losses,
        }
        if self.local_width:
            fields["local"] = kept
            fields["local_offsets"] = np.arange(users + 1) if clients is None else clients
        if s.upload == "dense":
            return _DenseUpdateBatch(**fields, n_items=self.n_items)
        return UpdateBatch(**fields)

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty accumulator for one round."""
        width, weights = self.shape.width, self.shape.weights
        if self.settings.upload == "dense":
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

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean delta of the item rows and the network."""
        s = self.settings
        mean = aggregate.mean()
        update = {
            NETWORK: mean[NETWORK],
            GMF: mean[ROWS][:, : self.shape.gmf],
            MLP: mean[ROWS][:, self.shape.gmf :],
        }
        rate = s.learning_rate * s.schedule.factor(round_number)
        return s.optimizer.apply(state, optimizer_state, update, rate)

    def converged(self, aggregate: Aggregate) -> str | None:
        """Return None: FedNCF has no stopping rule of its own."""
        return None

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Return the probability that users take to their ``query`` items, float64 [N of query].

        Their embeddings are those that they keep after ``user_steps`` steps on ``support``. In float64, so
        that the order of sure things is not lost.
        """
        users = self.reconstruct(state, support, client_keys, local)
        logits = np.empty(int(query.indptr[-1]), self.dtype)
        for first, end in fedrecon_kernels.blocks(query.indptr):
            part = slice(int(query.indptr[first]), int(query.indptr[end]))
            rows = _rows(query.indptr, first, end)
            logits[part] = neumf.logits(
                self.shape, self._point(state, query.items[part], users[first:end]), rows
            )
        return layers.sigmoid(logits.astype(np.float64))

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the logit of every item, float32 [n, items]; users as in :meth:`predict`."""
        users = self.reconstruct(state, support, client_keys, local)
        scores = np.empty((len(users), self.n_items), np.float32)
        catalogue = np.arange(self.n_items)
        rows = _rows(np.array([0, self.n_items]), 0, 1)
        for index, row in enumerate(scores):
            row[:] = neumf.logits(self.shape, self._point(state, catalogue, users[index : index + 1]), rows)
        return scores

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Take ``user_steps`` steps on ``support`` and return users' embeddings, [n, width]."""
        if self.settings.user_steps == 0 and local is not None:
            return np.asarray(local, self.dtype)
        users = np.empty((len(support.indptr) - 1, self.shape.width), self.dtype)
        for start in self._starts(state, self._examples(support, client_keys), local):
            users[start.first : start.end] = self._personalised(start).users
        return users

    def sharpness(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None,
        radii: Radii,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return how much users' losses rise at the worst point within ``radii``, to first order, [n] each.

        The first is of the shared block, the second of the user's embeddings, which are those of
        :meth:`predict`.
        """
        users = len(batch.indptr) - 1
        shared, own = np.empty(users, self.dtype), np.empty(users, self.dtype)
        for start in self._starts(state, self._examples(batch, client_keys), local):
            those = slice(start.first, start.end)
            rows = start.rows
            point = self._personalised(start)
            shared[those], own[those] = rises(self._plain(rows), point, rows.counts, radii)
        return shared, own

    def _example_counts(self, positives: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return positives + negative_counts(
            positives, each=self.settings.negatives, n_items=self.n_items, kept_back=self.kept_back
        )

    def _examples(self, batch: RatingBatch, keys: npt.NDArray[np.uint64]) -> Examples:
        return draw_examples(
            batch,
            hashed_bits(_NEGATIVES_DRAW, keys),
            each=self.settings.negatives,
            n_items=self.n_items,
            kept_back=self.kept_back,
        )

    def _starts(self, state: State, examples: Examples, local: Array | None) -> Iterator[_Start]:
        """Cut users into runs of a few thousand examples, which stay in the processor's cache."""
        users = len(examples.indptr) - 1
        own = np.zeros((users, self.shape.width), self.dtype) if local is None else local
        for first, end in fedrecon_kernels.blocks(examples.indptr):
            part = slice(int(examples.indptr[first]), int(examples.indptr[end]))
            labels = examples.positive[part].astype(self.dtype)
            rows = _rows(examples.indptr, first, end)._replace(labels=labels)
            point = self._point(state, examples.items[part], own[first:end].astype(self.dtype, copy=False))
            yield _Start(first, end, part, rows, point)

    def _point(self, state: State, items: npt.NDArray[Any], users: npt.NDArray[Any]) -> Point:
        network = np.broadcast_to(state[NETWORK], (len(users), self.shape.weights))
        return Point(layers.embedding(state[GMF], items), layers.embedding(state[MLP], items), network, users)

    def _plain(self, rows: Rows, known: Array | None = None) -> GradientFunction:
        def gradients(point: Point, *, shared: bool, local: bool) -> tuple[Array, Gradients]:
            return neumf.losses_and_gradients(
                self.shape,
                point,
                rows,
                self.settings.client.regularization,
                shared=shared,
                local=local,
                known=known,
            )

        return gradients

    def _personalised(self, start: _Start) -> Point:
        """Return the point after the steps on the users alone."""
        s, point = self.settings, start.point
        if s.user_steps == 0:
            return point
        known = neumf.item_part(self.shape, point.mlp, point.network, start.rows.bounds)
        gradients = sharpness_aware(self._plain(start.rows, known), start.rows.counts, self.radii)
        for _ in range(s.user_steps):
            _, found = gradients(point, shared=False, local=True)
            assert found.users is not None
            point = point._replace(users=point.users - self.dtype.type(s.user_learning_rate) * found.users)
        return point

    def _descend(
        self,
        start: _Start,
        point: Point,
        keys: npt.NDArray[np.uint64],
        limits: npt.NDArray[np.int64] | None,
        network: Array,
    ) -> tuple[Point, Array]:
        """Take the client's steps; return how everything moved, and the mean losses before, [n].

        ``network`` [n, weights] is where the network's change goes.
        """
        s, rows = self.settings, start.rows
        network[:] = 0
        moved = Point(np.zeros_like(point.gmf), np.zeros_like(point.mlp), network, np.zeros_like(point.users))
        rate, user_rate = self.dtype.type(s.client.learning_rate), self.dtype.type(s.user_learning_rate)
        before: Array | None = None
        if isinstance(s.client, MiniBatches):
            before = layers.device_means(self._plain(rows)(point, shared=False, local=False)[0], rows.counts)
        for step, (chosen, devices) in enumerate(_batches(s.client, rows, keys, limits)):
            here = _taken(point, chosen, devices)
            if step > 0:
                since = _taken(moved, chosen, devices)
                here = Point(*(one + other for one, other in zip(here, since, strict=True)))
            those = rows
            if not isinstance(chosen, slice):
                owners = np.repeat(np.arange(len(rows.counts)), rows.counts)[chosen]
                counts = np.bincount(owners, minlength=len(rows.counts))[devices]
                those = Rows(_bounds(counts), counts, rows.labels[chosen])
            losses, found = sharpness_aware(self._plain(those), those.counts, self.radii)(
                here, shared=True, local=True
            )
            if before is None:
                before = layers.device_means(losses, rows.counts)
            assert found.gmf is not None
            assert found.mlp is not None
            assert found.network is not None
            assert found.users is not None
            moved.gmf[chosen] -= rate * found.gmf
            moved.mlp[chosen] -= rate * found.mlp
            moved.network[devices] -= rate * found.network
            moved.users[devices] -= user_rate * found.users
        assert before is not None
        return moved, before


Index = slice | npt.NDArray[np.int64]


def _batches(
    method: GradientSteps | MiniBatches,
    rows: Rows,
    keys: npt.NDArray[np.uint64],
    limits: npt.NDArray[np.int64] | None,
) -> Iterator[tuple[Index, Index]]:
    """Yield, for each step, the rows that it looks at and the devices that take it.

    They are slices where that is all of them. Devices go through their batches together; those that have no
    more, or whose ``limits`` (int64 [n]) are reached, stay.
    """
    n = len(rows.counts)
    owners = np.repeat(np.arange(n), rows.counts)
    if isinstance(method, GradientSteps):
        for step in range(method.steps):
            if limits is None or bool((limits > step).all()):
                yield slice(None), slice(None)
            else:
                going_on = limits > step
                yield np.flatnonzero(going_on[owners]), np.flatnonzero(going_on)
        return
    indptr = np.array(rows.bounds)
    per_epoch = -(-rows.counts // method.batch_size)
    for epoch in range(method.epochs):
        batch = shuffled_ranks(indptr, keys, _ORDER_DRAW, epoch) // method.batch_size
        if limits is not None:
            batch[batch >= (limits - epoch * per_epoch)[owners]] = np.iinfo(np.int64).max
        order = np.argsort(batch, kind="stable")
        ends = np.searchsorted(batch[order], np.arange(int(per_epoch.max(initial=0)) + 1))
        for first, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            yield order[first:end], np.unique(owners[order[first:end]])


def _taken(point: Point, rows: Index, devices: Index) -> Point:
    return Point(point.gmf[rows], point.mlp[rows], point.network[devices], point.users[devices])


def _rows(indptr: npt.NDArray[np.int64], first: int, end: int) -> Rows:
    """Return where the rows of users ``first`` … ``end - 1`` are; without labels."""
    counts = np.diff(indptr[first : end + 1])
    return Rows(_bounds(counts), counts, np.zeros(0))


def _bounds(counts: npt.NDArray[np.int64]) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]
