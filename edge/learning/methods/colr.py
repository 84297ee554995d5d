"""CoLR: the change of an item's factors is uploaded in a random subspace of few dimensions.

Source: Nguyen et al., "Towards Efficient Communication and Secure Federated Recommendation System via
Low-rank Training" (WWW 2024), and the published code (NNHieu/CoLR-FedRec). In round t the coordinator draws a
matrix Q of r orthonormal rows of length k, the same for all devices, from a number that it sends. With B =
√(k/r)·Q the items that devices train are E + A·B, E frozen, A of r columns zero at first, and the gradient by
A is scaled by √(r/k):

    A_i ← −η g_i Qᵀ                  g_i = ∂L_u / ∂e_i, on the device
    E ← E + mean(A)·B                on the coordinator, which then draws another Q

An upload has r numbers a row in place of k. A change is what is left of it in the subspace, Σ g QᵀQ, as long
on average as the whole; with r = k nothing is lost, and the factorisation is the one without.

The factorisation, its losses, and user factors that stay on the devices are FedMF's
(:mod:`edge.learning.methods.fedmf`). The mean of an item is over the devices that have it, whose number is
uploaded as one more column (``average: touched``), or over the cohort.

What an upload reveals. What FedMF's does: a row of an item names it, and A_i is a multiple of Q p_u, the
user's factors as the subspace sees them. The map is linear and the same for all, so that sums under masks are
sums of A.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from device_profiles.fields import PositiveFloat, PositiveInt
from edge.core.rng import hashed_bits_scalar, stream, stream_key
from edge.learning import layers
from edge.learning.base import WORK_KINDS, OptimizerState, Problem, RatingBatch, State, Work
from edge.learning.method_settings import GradientSteps, LocalDescent
from edge.learning.methods.fedmf import FactorizationSettings
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.row_uploads import RowUploads
from edge.learning.tables import TableRows
from edge.learning.updates import ROWS, Aggregate, Array, UpdateBatch

BASIS = "basis"
_FLOAT_BYTES = 4
_SCORING = WORK_KINDS.index("scoring")
_LEAST_SHARE = 0.01
"""A row stays as it is where its weights sum to less than this part of a mean update's, as noise may do."""


class CoLRSettings(FactorizationSettings):
    """Settings of CoLR."""

    algorithm: Literal["colr"]
    rank: PositiveInt = Field(default=4, description="r: numbers that are uploaded of an item's change")
    average: Literal["touched", "cohort"] = Field(
        default="touched",
        description="mean of an item's change over the devices that have it, whose weights are uploaded as a"
        " further column, or over the cohort",
    )
    client: LocalDescent = Field(
        default=GradientSteps.model_construct(
            method="gradient-steps", steps=1, learning_rate=1.0, regularization=0.1
        ),
        description="a device's step on the items, one a row: of all ratings, or an epoch of mini-batches",
    )
    weighting: Literal["examples", "uniform"] = Field(
        default="uniform", description="weight of an update: one per client, or its number of ratings"
    )
    learning_rate: PositiveFloat = Field(default=0.1, description="server learning rate")

    @field_validator("client")
    @classmethod
    def _once(cls, value: LocalDescent) -> LocalDescent:
        passes = value.steps if isinstance(value, GradientSteps) else value.epochs
        if passes != 1:
            name = "steps" if isinstance(value, GradientSteps) else "epochs"
            raise ValueError(f"a row takes one step a round in its subspace; write '{name}: 1' in client")
        return value

    @model_validator(mode="after")
    def _narrows(self) -> CoLRSettings:
        if self.rank > self.factors:
            raise ValueError(
                f"rank {self.rank} is above the {self.factors} factors; write 'rank: {self.factors}' or less"
            )
        if self.proximal:
            raise ValueError("one step from the items as received is not pulled back; leave 'proximal' out")
        return self


class CoLR(FedRecon):
    """CoLR; see the module and :class:`CoLRSettings`.

    State: that of :class:`~edge.learning.methods.fedrecon.algorithm.FedRecon`, and ``basis`` int64 [1], from
    which Q follows. Upload: ``item_rows`` [n, r (+ 1) (+ 1)], A, the change of the bias with ``item_bias``,
    and the weight with ``average: touched``, all times the weight; and when sparse ``items`` [n]. Devices
    keep p_u (and b_u).
    """

    Settings = CoLRSettings
    row_arrays = ()
    settings: CoLRSettings

    def __init__(self, settings: CoLRSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        super().__init__(settings, problem, dtype)
        self.narrow = settings.rank + settings.item_bias
        """Columns of a row that are changes."""
        self.layout = RowUploads(
            self.n_items,
            self.narrow + (settings.average == "touched"),
            self.dtype,
            dense=settings.upload == "dense",
        )

    def initial_state(self, seed: int) -> State:
        """Return the factorisation's, and the number of the first basis."""
        number = stream_key(seed, "learning", "basis") >> 1
        return {**super().initial_state(seed), BASIS: np.array([number], np.int64)}

    def basis(self, state: State) -> Array:
        """Return Q of a round, [r, k]: orthonormal rows, uniform over all such."""
        r, k = self.settings.rank, self.settings.factors
        draws = stream(int(state[BASIS][0]), "learning", "basis").standard_normal((k, r))
        q, triangle = np.linalg.qr(draws)
        # The sign of the diagonal is LAPACK's choice; a positive one makes the columns uniform.
        columns = q * np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
        return np.ascontiguousarray(columns.T).astype(self.dtype)

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return what a round costs: FedMF's, and 2kr flops a row; the upload is narrower, Q is held."""
        s = self.settings
        rows = examples.astype(np.float64)
        plain = super().work(examples, steps)
        flops = plain.flops.copy()
        flops[:, _SCORING] += 2.0 * s.factors * s.rank * rows / plain.steps
        sent = float(self.n_items) if s.upload == "dense" else rows
        less = sent * (s.factors + 1 - self.layout.width) - s.factors * s.rank
        memory = np.asarray(np.maximum(plain.memory_bytes - _FLOAT_BYTES * less, 0), np.int64)
        return dataclasses.replace(plain, flops=flops, memory_bytes=memory)

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Compute how every user's ratings change the items, in the subspace of the round.

        See :meth:`edge.learning.base.Recommender.client_update`.

        Raises
        ------
        ValueError : ``steps`` is given and clients hold several users.
        """
        s = self.settings
        plain = super().client_update(state, batch, client_keys, clients, steps, local)
        rows = plain.ragged[ROWS]
        narrow = np.empty((len(rows), self.layout.width), self.dtype)
        turned = np.ascontiguousarray(self.basis(state).T)[None]
        narrow[:, : s.rank] = layers.vector_products(np.ascontiguousarray(rows[:, : s.factors]), turned)
        if s.item_bias:
            narrow[:, s.rank] = rows[:, s.factors]
        if s.average == "touched":
            narrow[:, self.narrow] = np.repeat(plain.weights, np.diff(plain.offsets))
        fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(UpdateBatch)}
        return self.layout.batch({**fields, "ragged": {**plain.ragged, ROWS: narrow}})

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean of A times B, and draw another basis."""
        mean = aggregate.mean_rows(ROWS)
        sparse = mean if isinstance(mean, TableRows) else None
        change = self.widened(state, np.asarray(mean) if sparse is None else sparse.rows, aggregate)
        rows = change if sparse is None else dataclasses.replace(sparse, rows=change)
        moved, optimizer_state = self.apply(state, optimizer_state, rows, round_number)
        number = hashed_bits_scalar(int(state[BASIS][0]), 1) >> 1
        return {**moved, BASIS: np.array([number], np.int64)}, optimizer_state

    def widened(self, state: State, mean: Array, aggregate: Aggregate) -> Array:
        """Return the change of items, [m, k (+ 1)], of rows of the aggregate's mean, [m, r (+ 1) (+ 1)]."""
        s = self.settings
        rows = mean[:, : self.narrow]
        if s.average == "touched":
            kept = 1.0 - aggregate.shrinkage
            share = mean[:, self.narrow, None]
            known = share > _LEAST_SHARE * kept / max(aggregate.clients, 1)
            rows = np.where(known, kept * rows / np.where(known, share, 1.0), 0.0).astype(self.dtype)
        change = np.empty((len(rows), self.width), self.dtype)
        scale = self.dtype.type(np.sqrt(s.factors / s.rank))
        change[:, : s.factors] = scale * (rows[:, : s.rank] @ self.basis(state))
        change[:, s.factors :] = rows[:, s.rank :]
        return change
