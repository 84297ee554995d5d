"""Recommenders whose users are logistic heads on item rows: what PFedRec and FedRAP have in common.

A device keeps its head, and perhaps more; a table of items is shared. It draws negatives, takes steps, and
uploads how the rows of its examples changed. Which steps, a method says (:meth:`HeadRecommender.tuned`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import ByKey, NonNegativeFloat, PositiveFloat, PositiveInt
from edge.core.rng import hashed_bits, stream
from edge.learning import fedrecon_kernels as kernels
from edge.learning.base import OptimizerState, Problem, RatingBatch, State
from edge.learning.method_settings import (
    GradientSteps,
    MethodSettings,
    MiniBatches,
    RowUpload,
    step_counts,
    work_share,
)
from edge.learning.personal_heads import Heads
from edge.learning.row_uploads import RowRecommender, RowUploads
from edge.learning.sampled_negatives import NEGATIVES_DRAW, Examples, ZeroOne
from edge.learning.server_optimizers import ConstantSchedule, Schedule, ServerOptimizer, SgdSettings
from edge.learning.updates import ITEMS, ROWS, Aggregate, Array, UpdateBatch

TABLE, HEAD = "item_factors", "initial_head"
Ints = npt.NDArray[np.int64]


class HeadSettings(MethodSettings):
    """Settings of recommenders whose users are heads on item rows."""

    factors: PositiveInt = Field(default=32, description="length d of an item's embedding")
    negatives: PositiveInt = Field(default=4, description="items sampled for every positive")
    initial_scale: NonNegativeFloat = Field(
        default=1.0, description="standard deviation of the item embeddings before the first round"
    )
    user_factors: Literal["persistent"] = Field(
        default="persistent", description="devices keep their score function w, b"
    )
    client: Annotated[GradientSteps | MiniBatches, ByKey("method")] = Field(
        default=MiniBatches.model_construct(
            method="mini-batches", batch_size=256, epochs=1, learning_rate=0.1, regularization=0.0
        ),
        description="a device's steps: gradient-steps or mini-batches; the rate is that of w, b",
    )
    weighting: Literal["uniform", "examples"] = Field(
        default="uniform", description="weight of an update: one per client, or its number of positives"
    )
    upload: RowUpload = "sparse"
    optimizer: ServerOptimizer = SgdSettings.model_construct(kind="sgd")
    learning_rate: PositiveFloat = Field(default=1.0, description="server learning rate")
    schedule: Schedule = ConstantSchedule.model_construct()


class Tuned(NamedTuple):
    """A run of users ``first`` … ``end - 1`` after their steps."""

    first: int
    end: int
    part: slice
    """Of the examples."""
    start: Array
    """Rows of the shared table before, [R, d]."""
    rows: Array
    """Rows after, [R, d]."""
    kept: Array
    """What the devices keep, [n, local_width]; the last d + 1 numbers are w and b."""
    losses: npt.NDArray[np.float64]
    """Mean cross-entropies before the first step, [n]."""

    @property
    def heads(self) -> Heads:
        """The heads, where devices keep nothing else."""
        return Heads.of(self.kept)


class HeadRecommender(RowRecommender):
    """A recommender whose users are heads on item rows; see the module and :class:`HeadSettings`.

    State: ``item_factors`` [items, d], ``initial_head`` [d + 1], the w and b that all devices begin with.
    Upload, times the weight: ``item_rows`` [n, d], and when sparse ``items`` [n]. A device keeps at least w
    and b. All arithmetic in ``dtype``.
    """

    trained = (TABLE,)
    row_arrays = (TABLE,)
    samples_negatives = True
    settings: HeadSettings

    def __init__(self, settings: HeadSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        if problem.n_items < 1:
            raise ValueError(f"{self.name()} learns from ratings; this problem has no items")
        super().__init__(settings, problem)
        self.n_items = problem.n_items
        self.zero_one = ZeroOne(settings.negatives, self.n_items, problem.kept_back)
        self.dtype = np.dtype(dtype)
        self.local_width = settings.factors + 1
        self.layout = RowUploads(self.n_items, settings.factors, self.dtype, dense=settings.upload == "dense")

    def initial_state(self, seed: int) -> State:
        """Return items ~ N(0, ``initial_scale``²), and a head uniform in ±1/√d, as PyTorch's layers begin."""
        d = self.settings.factors
        table = stream(seed, "learning", "item_factors").standard_normal((self.n_items, d))
        head = stream(seed, "learning", "initial_head").uniform(-1.0, 1.0, d + 1) / np.sqrt(d)
        return {
            TABLE: (self.settings.initial_scale * table).astype(self.dtype),
            HEAD: head.astype(self.dtype),
        }

    def local_steps(self, examples: Ints) -> Ints:
        """Return how many steps users with this many positives take."""
        return step_counts(self.settings.client, self.zero_one.counts(examples))

    def changed_rows(self, examples: Ints) -> Ints:
        """Return how many rows users with this many positives change: those of all that they train on."""
        return self.zero_one.counts(examples)

    def training_examples(
        self, batch: RatingBatch, client_keys: npt.NDArray[np.uint64], clients: Ints | None = None
    ) -> RatingBatch:
        """Return ones for positives, and zeros for the negatives that users draw."""
        return self.examples(batch, kernels.ClientUsers.of(client_keys, clients).keys).zero_one()

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Take every user's steps, and return how the rows of the shared table changed.

        See :meth:`edge.learning.base.Recommender.client_update`. A client of several users uploads the sum of
        its users' changes: weighted by their positives, or their mean with uniform weights.

        Raises
        ------
        ValueError : ``steps`` is given and clients hold several users.
        """
        s = self.settings
        users = len(batch.indptr) - 1
        held = kernels.ClientUsers.of(client_keys, clients, steps)
        owners, keys = held.owners, held.keys
        positives = np.diff(batch.indptr)
        examples = self.examples(batch, keys)
        counts = np.diff(examples.indptr)
        done = work_share(steps, step_counts(s.client, counts))
        weights = held.weights(s.weighting, positives)
        scales = np.asarray(weights * done).astype(self.dtype)
        rows = np.empty((len(examples.items), s.factors), self.dtype)
        kept = np.empty((users, self.local_width), self.dtype)
        losses = np.zeros(users)
        for tuned in self.tuned(state, examples, keys, local, steps):
            those = slice(tuned.first, tuned.end)
            np.subtract(tuned.rows, tuned.start, out=rows[tuned.part])
            rows[tuned.part] *= scales[those].repeat(counts[those])[:, None]
            kept[those], losses[those] = tuned.kept, tuned.losses
        items, offsets, summed = examples.items.astype(self.layout.item_dtype), examples.indptr, positives
        if clients is not None:
            items, rows, offsets = kernels.merge_users(
                items, rows, np.repeat(owners, counts), len(held.per_client)
            )
            losses = np.asarray(np.bincount(owners, losses * positives, minlength=len(held.per_client)))
            summed = np.bincount(owners, positives, minlength=len(held.per_client)).astype(np.int64)
            losses = losses / np.maximum(summed, 1)
        return self.layout.batch({
            "stacked": {},
            "ragged": {ITEMS: items, ROWS: rows},
            "offsets": offsets,
            "weights": np.asarray(summed if s.weighting == "examples" else summed > 0, np.float64) * done,
            "examples": summed,
            "losses": losses,
            "local": kept,
            "local_offsets": np.arange(users + 1) if clients is None else clients,
        })  # fmt: skip

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean change of the items."""
        s = self.settings
        rate = s.learning_rate * s.schedule.factor(round_number)
        moved, optimizer_state = s.optimizer.apply(
            {TABLE: state[TABLE]}, optimizer_state, {TABLE: aggregate.mean_rows(ROWS)}, rate
        )
        return {**state, **moved}, optimizer_state

    @abc.abstractmethod
    def tuned(
        self,
        state: State,
        examples: Examples,
        keys: npt.NDArray[np.uint64],
        local: Array | None,
        steps: Ints | None = None,
    ) -> Iterator[Tuned]:
        """Take the users' steps on their examples, a run of users at a time.

        ``keys`` uint64 [users]; ``local`` what devices keep, [users, local_width], None for new ones;
        ``steps`` int64 [users], the first so many steps are taken.
        """

    def heads(self, state: State, users: int, local: Array | None) -> Array:
        """Return w and b as devices keep them, [users, d + 1]: the end of ``local``, or the first."""
        if local is None:
            return np.tile(state[HEAD], (users, 1))
        kept = np.asarray(local[:, -self.settings.factors - 1 :], self.dtype)
        return np.where(np.any(kept, axis=1, keepdims=True), kept, state[HEAD])

    def examples(self, batch: RatingBatch, keys: npt.NDArray[np.uint64]) -> Examples:
        """Return the positives of users and the negatives that they draw by their keys, uint64 [users]."""
        return self.zero_one.examples(batch, hashed_bits(NEGATIVES_DRAW, keys))
