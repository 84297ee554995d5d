"""FedAvg for matrix factorisation: everything is shared, a user's own row too.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS
2017), algorithm 1, applied to r̂_ui = μ + b_i + b_u + p_u·q_i as Singhal et al., "Federated Reconstruction"
(NeurIPS 2021), do to have something to compare with. The coordinator holds the table of the users beside that
of the items. A device downloads the items and its own row of the users, takes local steps on both together,
and uploads how they changed; the coordinator averages the items' rows over the cohort, and a user's row over
the one device that has it.

What an upload reveals: p_u itself, to the coordinator, which also keeps it; and what FedRecon's sparse
uploads reveal. No sum hides a user's row: it has one summand. That is why there is no dense upload here, and
no secure sum: the table of all users in every upload would buy nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from device_profiles.fields import NonNegativeFloat, PositiveFloat, PositiveInt, StrictBool
from edge.learning import fedrecon_kernels as kernels
from edge.learning.accumulators import UserRowsAccumulator
from edge.learning.base import (
    MEAN,
    WORK_KINDS,
    OptimizerState,
    Problem,
    RatingBatch,
    Recommender,
    State,
    Work,
)
from edge.learning.joint_descent import (
    Gradient,
    Pair,
    PairShape,
    Targets,
    descend_jointly,
    gradient,
    losses_and_descent,
)
from edge.learning.losses import FLOPS_A_ROW, Loss, check_steps, partners
from edge.learning.method_settings import (
    GradientSteps,
    LocalDescent,
    MethodSettings,
    Reconstruction,
    Ridge,
    SubtractMean,
    UserSteps,
    rows_seen,
    step_counts,
    work_share,
)
from edge.learning.methods.fedrecon.algorithm import BIAS, FACTORS, FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings
from edge.learning.server_optimizers import AdamSettings, ConstantSchedule, Schedule, ServerOptimizer
from edge.learning.tables import TableVersions
from edge.learning.updates import ITEMS, ROWS, Accumulator, Aggregate, Array, ArraySpec, UpdateBatch

USER_TABLE, USER_ROW, USERS = "user_table", "user_row", "users"
Ints = npt.NDArray[np.int64]
_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))


class SharedFactorizationSettings(MethodSettings):
    """Settings of a matrix factorisation whose user rows go through the coordinator."""

    factors: PositiveInt = Field(default=16, description="length k of the user and item factors")
    item_bias: StrictBool = Field(default=True, description="learn a bias for every item")
    user_bias: StrictBool = Field(default=True, description="learn a bias for every user")
    subtract_mean: SubtractMean = True
    initial_scale: NonNegativeFloat = Field(
        default=0.1, description="standard deviation of the item factors before the first round"
    )
    client: LocalDescent = Field(
        default=GradientSteps.model_construct(
            method="gradient-steps", steps=5, learning_rate=1.0, regularization=0.02
        ),
        description="a device's steps on its user's row and the items: gradient-steps or mini-batches",
    )
    loss: Loss = Field(
        default="squared-error",
        description="`squared-error`, of ratings or of ones and zeros; of ones and zeros (`data.negatives`)"
        " also `cross-entropy`, `bpr` and `sampled-softmax`, by gradient-steps",
    )
    proximal: NonNegativeFloat = Field(
        default=0.0, description="μ of FedProx, which pulls each of these steps back to what was downloaded"
    )
    new_users: Literal["mean", "initial"] = Field(
        default="mean",
        description="row of a user that has none: the mean of the others' rows, or zeros as before training",
    )
    fine_tuning: Reconstruction | None = Field(
        default=None,
        description="fit the user's row on the device before predicting: ridge, gradient-steps, mini-batches",
    )
    optimizer: ServerOptimizer = Field(
        default=AdamSettings.model_construct(beta2=0.99, epsilon=1e-4),
        description="server optimiser of the items: sgd, adagrad or adam",
    )
    learning_rate: PositiveFloat = Field(default=0.02, description="server learning rate of the items")
    schedule: Schedule = ConstantSchedule.model_construct()
    user_learning_rate: PositiveFloat = Field(
        default=1.0, description="share of its change that a user's row takes on the coordinator"
    )

    @field_validator("loss", "fine_tuning")
    @classmethod
    def _descends(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name == "loss":
            check_steps(value, client=info.data.get("client"))
        else:
            check_steps(info.data.get("loss", "squared-error"), fine_tuning=value)
        return value

    def plain(self) -> FedReconSettings:
        """Return the settings of FedRecon whose items are kept and served in the same way."""
        shared = set(FedReconSettings.model_fields) & set(SharedFactorizationSettings.model_fields)
        values = {name: getattr(self, name) for name in shared}
        squared = self.loss == "squared-error"
        # What is not asked for is never fitted.
        unused = Ridge() if squared else UserSteps(method="gradient-steps")
        fitted = self.fine_tuning or unused
        return FedReconSettings(algorithm="fedrecon", reconstruction=fitted, **values)


class FedAvgMFSettings(SharedFactorizationSettings):
    """Settings of FedAvg for matrix factorisation."""

    algorithm: Literal["fedavg-mf"]


class FedAvgMF(Recommender):
    """FedAvg for matrix factorisation; see the module and :class:`FedAvgMFSettings`.

    State: that of :class:`~edge.learning.methods.fedrecon.algorithm.FedRecon`, and ``user_table`` [users,
    k (+ 1)], factors and
    bias of every user, zeros for those that have never taken part. Download: the items and ``user_row``
    [1, k (+ 1)], the user's own. Upload: ``items`` and ``item_rows`` as FedRecon's, and ``user_row`` [k (+
    1)], the change of the user's row, not multiplied by any weight; whose it is the coordinator knows from
    whom it came. All arithmetic in ``dtype``.
    """

    Settings: ClassVar[type[BaseModel]] = FedAvgMFSettings
    row_arrays = FedRecon.row_arrays
    user_rows = True
    settings: SharedFactorizationSettings

    def __init__(
        self, settings: SharedFactorizationSettings, problem: Problem, dtype: type[Any] = np.float32
    ) -> None:
        if problem.n_items < 1:
            raise ValueError(f"{self.name()} learns from ratings; this problem has no items")
        super().__init__(settings, problem)
        self.items = FedRecon(settings.plain(), problem, dtype)
        """Keeps the items, as FedRecon does."""
        self._users = TableVersions()
        self.n_users = problem.n_users
        self.dtype = self.items.dtype
        self.user_width = settings.factors + settings.user_bias

    @classmethod
    def begins_with_mean(cls, settings: SharedFactorizationSettings) -> bool:
        """Return whether the items subtract the mean rating, as FedRecon's do."""
        return FedRecon.begins_with_mean(settings)

    @classmethod
    def learns_ones(cls, settings: SharedFactorizationSettings) -> bool:
        """Return whether its loss is another than squared error."""
        return settings.loss != "squared-error"

    def initial_state(self, seed: int) -> State:
        """Return FedRecon's, and rows of zeros for all users."""
        table = np.zeros((self.n_users, self.user_width), self.dtype)
        return {**self.items.initial_state(seed), USER_TABLE: table}

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return that of the items."""
        return self.items.initial_optimizer_state(state)

    def broadcast(self, state: State) -> dict[str, Array]:
        """Return the items, and a row of zeros in the place of each device's own; see :meth:`own`."""
        shared = {name: array for name, array in state.items() if name != USER_TABLE}
        return {**shared, USER_ROW: np.zeros((1, self.user_width), self.dtype)}

    def own(self, state: State, user: int) -> dict[str, Array]:
        """Return what the device of ``user`` alone downloads: its row."""
        return {USER_ROW: state[USER_TABLE][user : user + 1]}

    def rows_of(self, state: State, users: Ints) -> Array:
        """Return the rows of ``users``, [n, k (+ 1)]; on a device, which has no other, its user's."""
        if USER_ROW in state:
            return state[USER_ROW]
        return state[USER_TABLE].take(users, axis=0)

    def local_steps(self, examples: Ints) -> Ints:
        """Return how many steps users with this many ratings take."""
        return step_counts(self.settings.client, examples)

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return what a round costs users with this many ratings; see :func:`fedavg_work`."""
        return fedavg_work(self.settings, self.items.n_items, examples, steps)

    def upload_spec(self, examples: Ints) -> Sequence[ArraySpec]:
        """Return the arrays uploaded by users with this many ratings."""
        width = np.full(len(examples), self.user_width, dtype=np.int64)
        return (*self.items.upload_spec(examples), ArraySpec(USER_ROW, self.dtype, (), width))

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Compute how every user's ratings change its row and the items.

        ``local`` [users, k (+ 1)] are the users' rows as they were downloaded; None: zeros. See
        :meth:`edge.learning.base.Recommender.client_update`.

        Raises
        ------
        ValueError : ``clients`` is given; a client is one user.
        """
        if clients is not None:
            raise ValueError("fedavg-mf has one user a client; leave clients out")
        s = self.settings
        counts: Ints = np.diff(batch.indptr)
        table = self._table(state)
        done = work_share(steps, step_counts(s.client, counts))
        weights = np.asarray(counts * done, np.float64)
        changes = np.empty((len(batch.items), self.items.width), self.dtype)
        rows = np.empty((len(counts), self.user_width), self.dtype)
        losses: npt.NDArray[Any] = np.zeros(len(counts))
        for first, end in kernels.blocks(batch.indptr):
            part = slice(int(batch.indptr[first]), int(batch.indptr[end]))
            indptr = batch.indptr[first : end + 1] - batch.indptr[first]
            here = counts[first:end]
            start = Pair(
                table.take(batch.items[part])[:, : self.items.width],
                np.zeros((end - first, self.user_width), self.dtype)
                if local is None
                else np.asarray(local[first:end], self.dtype),
            )
            targets = self._targets(table, batch, first, end, client_keys)
            each, _ = losses_and_descent(start, targets, here, self._shape(table))
            owner = np.repeat(np.arange(end - first), here)
            losses[first:end] = np.bincount(owner, each, minlength=end - first)
            fitted = descend_jointly(
                start,
                targets,
                indptr,
                client_keys[first:end],
                s.client,
                self._gradient_of(table),
                proximal=s.proximal,
                limits=None if steps is None else steps[first:end],
            )
            scale = weights[first:end].astype(self.dtype).repeat(here)
            np.multiply(fitted.items - start.items, scale[:, None], out=changes[part])
            np.subtract(fitted.users, start.users, out=rows[first:end])
        return UpdateBatch(
            stacked={USER_ROW: rows},
            ragged={ITEMS: batch.items.astype(self.items.layout.item_dtype, copy=False), ROWS: changes},
            offsets=batch.indptr,
            weights=weights,
            examples=counts,
            losses=losses / np.maximum(counts, 1),
        )

    def _shape(self, table: kernels.ItemTable) -> PairShape:
        s = self.settings
        return PairShape(s.factors, s.client.regularization, s.loss, table.mean)

    def _targets(
        self,
        table: kernels.ItemTable,
        batch: RatingBatch,
        first: int,
        end: int,
        keys: npt.NDArray[np.uint64],
    ) -> Targets:
        """Return what users ``first`` … ``end - 1`` of a batch are fitted to."""
        indptr = batch.indptr[first : end + 1]
        ratings = batch.ratings[int(indptr[0]) : int(indptr[-1])].astype(self.dtype)
        if self.settings.loss == "squared-error":
            return Targets(ratings - self.dtype.type(table.mean))
        return Targets(ratings, partners(indptr, ratings, keys[first:end]))

    def _gradient_of(self, table: kernels.ItemTable) -> Gradient:
        """Return the gradient of devices' objectives, for the steps that they take."""
        return functools.partial(gradient, shape=self._shape(table))

    def named(self, arrays: Mapping[str, Array], user: int) -> dict[str, Array]:
        """Return the arrays of a report with whose row it changes: ``users`` int64 [1]."""
        return {**arrays, USERS: np.array([user], np.int64)}

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty accumulator for one round, of reports that :meth:`named` was given."""
        return UserRowsAccumulator(
            self.items.accumulator(state), USER_ROW, USERS, dtype=self.dtype, width=self.user_width
        )

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean change of the items; add each user's change to its row."""
        items, optimizer_state = self.items.server_update(state, optimizer_state, aggregate, round_number)
        step = self.dtype.type(self.settings.user_learning_rate) * aggregate.sums[USER_ROW]
        table = self._users.plus(state[USER_TABLE], aggregate.sums[USERS].astype(np.intp), step)
        return {**items, USER_TABLE: table}, optimizer_state

    def finite(self, before: State, after: State, aggregate: Aggregate) -> bool:
        """Return whether a server update by ``aggregate`` has left finite numbers alone, as all were."""
        of_items = {name: array for name, array in after.items() if name != USER_TABLE}
        changed = after[USER_TABLE][aggregate.sums[USERS]]
        return self.items.finite(before, of_items, aggregate) and bool(np.isfinite(changed).all())

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Predict ``query`` from the users' rows, fitted to ``support`` if need be, [N of query]."""
        rows = self._starting_rows(state, support, client_keys, local)
        if self.settings.fine_tuning is not None:
            return self.items.predict(state, support, query, client_keys, rows)
        return self.items.predict_from(state, rows, query.items, np.diff(query.indptr))

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Predict every item from the users' rows, fitted as by :meth:`predict`; float32 [n, items]."""
        rows = self.reconstruct(state, support, client_keys, local)
        scores = kernels.score_catalogue(self._table(state), self._extended(rows))
        return np.asarray(scores, np.float32)

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Return the users' rows, fitted as by :meth:`predict`: factors, then the bias; [n, k (+ 1)]."""
        rows = self._starting_rows(state, support, client_keys, local)
        if self.settings.fine_tuning is None:
            return rows
        return self.items.reconstruct(state, support, client_keys, rows)

    def _starting_rows(
        self, state: State, support: RatingBatch, keys: npt.NDArray[np.uint64], local: Array | None
    ) -> Array:
        """Return the users' rows, in the place of missing ones (zeros) that of new users."""
        users = len(support.indptr) - 1
        rows = np.zeros((users, self.user_width), self.dtype) if local is None else local
        if self.settings.new_users == "initial":
            return rows
        table = state[USER_TABLE]
        trained = np.any(table, axis=1)
        if not trained.any():
            return rows
        mean = table[trained].mean(axis=0, dtype=np.float64).astype(self.dtype)
        return np.where(np.any(rows, axis=1, keepdims=True), rows, mean)

    def _extended(self, rows: Array) -> Array:
        """Return rows as the kernels lay them out, [p, −1, b_u]."""
        return np.insert(rows, self.settings.factors, -1.0, axis=1)

    def _table(self, state: State) -> kernels.ItemTable:
        return kernels.item_table(
            state[FACTORS], state.get(BIAS), user_bias=self.settings.user_bias, mean=float(state[MEAN][0])
        )


def fedavg_work(
    settings: SharedFactorizationSettings,
    n_items: int,
    examples: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64] | None = None,
    inner_steps: int = 1,
) -> Work:
    """Return the work of users with so many ratings (int64 [n]), or of the first ``steps`` of their steps.

    A step costs, for every rating that it looks at and w = k + 1 numbers: 2w for the error, 3w for the item's
    row, 2w for the user's; 3w more for the pull of FedProx; the slope of another loss than squared error; and
    3w for the user's row itself. ``inner_steps`` times that, where every step has inner ones.
    """
    n, width = len(examples), settings.factors + 1
    taken = step_counts(settings.client, examples) if steps is None else steps
    seen = inner_steps * rows_seen(settings.client, examples, taken).astype(np.float64)
    taken_steps = np.maximum(taken.astype(np.float64), 1.0)
    flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
    moved[:, _GATHER] = 2.0 * examples * width * _FLOAT_BYTES
    ops[:, _GATHER] = 1.0
    per_row = (10.0 if settings.proximal else 7.0) * width + FLOPS_A_ROW[settings.loss]
    flops[:, _SCORING] = seen * per_row + taken_steps * inner_steps * 3.0 * width
    moved[:, _SCORING] = seen * 4.0 * width * _FLOAT_BYTES
    ops[:, _SCORING] = 5.0 * taken_steps * inner_steps
    # The items, the user's ratings, their rows at the start and now, a gradient, and the upload.
    memory = _FLOAT_BYTES * (n_items * width + examples * (4.0 * width + 2.0) + 3.0 * width)
    per_step = taken_steps[:, None]
    return Work(
        flops / per_step, moved / per_step, ops / per_step, taken_steps, np.ceil(memory).astype(np.int64)
    )
