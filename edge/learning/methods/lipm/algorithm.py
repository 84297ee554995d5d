"""LIPM: factorisation whose updates are weighted by what recent behaviour says of the user.

Source: Zhu et al., "Collaborative Optimization in Federated Recommendation" (the module LIPM): a GRU on the
device summarises recent behaviour as the interest vector u, and updates are averaged with the weights
softmax(g(u)) over the cohort. The factorisation is FedRecon's
(:mod:`edge.learning.methods.fedrecon.algorithm`), with user
factors reconstructed or kept; a softmax needs no more than two sums:

    Σ_i softmax(g)_i·Δ_i = Σ_i e^{g_i}·Δ_i / Σ_i e^{g_i}

A device uploads a·Δ and a = e^{g−c}, which lies in [e^{−2c}, 1], times its weight. Neither u nor g nor a is
seen under secure aggregation; the coordinator divides one sum by the other. How GRU and g are learnt, on
which the paper is silent, is in :mod:`edge.learning.methods.lipm.interest`; their steps are averaged by
the same weights.

What an upload reveals in the clear is what a dense one of FedRecon reveals, and a beside it: how predictable
the user is.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import NonNegativeFloat, PositiveFloat, PositiveInt
from edge.core.errors import LocalProtocolError
from edge.core.rng import stream
from edge.learning import fedrecon_kernels as kernels
from edge.learning.accumulators import DenseAccumulator
from edge.learning.base import MEAN, WORK_KINDS, OptimizerState, Problem, RatingBatch, State, Work, together
from edge.learning.method_settings import GradientSteps, SubtractMean
from edge.learning.methods.fedrecon.algorithm import BIAS, FACTORS, FedRecon
from edge.learning.methods.fedrecon.settings import ReconstructionSettings
from edge.learning.methods.lipm.interest import (
    GRU_BIAS,
    GRU_HIDDEN,
    GRU_INPUT,
    INTEREST_NAMES,
    OUTLOOK,
    PRECISION,
    Interest,
    interest,
    recent,
)
from edge.learning.updates import ROWS, Accumulator, Aggregate, Array, ArraySpec, UpdateBatch

ATTENTION = "attention"
_FLOAT_BYTES = 4
_DENSE = WORK_KINDS.index("dense")


class LIPMSettings(ReconstructionSettings):
    """Settings of LIPM: those of the factorisation, the GRU, and how far weights may differ."""

    algorithm: Literal["lipm"]
    loss: Literal["squared-error"] = Field(default="squared-error", description="squared error alone")
    subtract_mean: SubtractMean = True
    upload: Literal["dense"] = Field(
        default="dense", description="the whole table: what is uploaded can be summed under masks"
    )
    window: PositiveInt = Field(default=20, description="how many of a user's last ratings the GRU reads")
    interest_width: PositiveInt = Field(default=16, description="length d of the interest vector")
    interest_learning_rate: PositiveFloat = Field(
        default=1.0, description="rate of a device's one step on the GRU and its heads"
    )
    attention_bound: NonNegativeFloat = Field(
        default=1.0,
        description="c: g keeps within ±c; no weight is above e^2c times another, and 0 weighs all alike",
    )
    attention_scale: PositiveFloat = Field(
        default=1.0,
        description="what a weight is multiplied by when it is uploaded; under `privacy` it takes this part "
        "of the clipping norm",
    )
    fine_tuning: GradientSteps | None = Field(
        default=None,
        description="a device's own steps on the items it rated before it predicts; never uploaded",
    )


class LIPM(FedRecon):
    """FedRecon with interest-guided aggregation; see the module and :class:`LIPMSettings`.

    State: FedRecon's, and the parameters of :mod:`edge.learning.methods.lipm.interest`. Upload:
    ``item_rows`` [items,
    k + 1], the steps on GRU and heads under their names, and ``attention`` [1], all times a and the weight.
    Batches must have ``timestamps``, int64 [N].
    """

    Settings = LIPMSettings
    row_arrays = ()
    trained = (FACTORS, BIAS, *INTEREST_NAMES)
    timed = True
    settings: LIPMSettings

    def __init__(self, settings: LIPMSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        super().__init__(settings, problem, dtype)
        k, d = settings.factors, settings.interest_width
        self._interest_shapes = {
            GRU_INPUT: (k + 1, 3 * d), GRU_HIDDEN: (d, 3 * d), GRU_BIAS: (3 * d,),
            OUTLOOK: (d, k), PRECISION: (d + 1,),
        }  # fmt: skip

    def initial_state(self, seed: int) -> State:
        """Return the factorisation's, and weights ~ N(0, 1/rows); biases and the precision are zero."""
        state = dict(super().initial_state(seed))
        for name, shape in self._interest_shapes.items():
            state[name] = np.zeros(shape, self.dtype)
        for name in (GRU_INPUT, GRU_HIDDEN, OUTLOOK):
            shape = self._interest_shapes[name]
            draws = stream(seed, "learning", name).standard_normal(shape) / math.sqrt(shape[0])
            state[name] = draws.astype(self.dtype)
        return state

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return the cost of reading the behaviour, forwards and backwards, and of the factorisation's round.

        A step of the GRU takes 6d·(k + 1 + d) flops, and 2dk for the outlook; the way back twice as many.
        """
        s = self.settings
        k, d = s.factors, s.interest_width
        n = len(examples)
        read = np.maximum(np.minimum(examples, s.window), 1).astype(np.float64)
        numbers = float(sum(math.prod(shape) for shape in self._interest_shapes.values()))
        flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
        flops[:, _DENSE] = 3.0 * (6.0 * d * (k + 1 + d) + 2.0 * d * k + 20.0 * d)
        moved[:, _DENSE] = 3.0 * numbers * _FLOAT_BYTES
        ops[:, _DENSE] = 24.0
        memory = _FLOAT_BYTES * (3.0 * numbers + read * (k + 1 + 12 * d))
        reading = Work(flops, moved, ops, read, memory.astype(np.int64))
        rest = super().work(examples, steps)
        both = together(reading, rest)
        parameters = int(3 * numbers * _FLOAT_BYTES)
        return dataclasses.replace(
            both, memory_bytes=np.maximum(reading.memory_bytes, rest.memory_bytes + parameters)
        )

    def upload_spec(self, examples: npt.NDArray[np.int64]) -> Sequence[ArraySpec]:
        """Return the arrays uploaded, alike for all clients."""
        n = len(examples)
        specs = [*super().upload_spec(examples)]
        for name, shape in (*self._interest_shapes.items(), (ATTENTION, (1,))):
            specs.append(ArraySpec(name, self.dtype, shape[1:], np.full(n, shape[0], np.int64)))
        return tuple(specs)

    def held_bytes(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return what updates of users with so many ratings take in a batch, bytes: rows, and the rest."""
        others = 1 + sum(math.prod(shape) for shape in self._interest_shapes.values())
        return super().held_bytes(examples) + others * self.dtype.itemsize

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Read every user's behaviour, update the factorisation, and weight the update.

        See :meth:`edge.learning.base.Recommender.client_update`. A client of several users has one weight, of
        the mean of their g, and one step on the GRU, of the mean of their gradients.

        Raises
        ------
        LocalProtocolError : the batch has no timestamps.
        ValueError : ``steps`` is given and clients hold several users.
        """
        plain = super().client_update(state, batch, client_keys, clients, steps, local)
        read = self.read(state, batch)
        g, gradient = read.g, read.gradient
        if clients is not None:
            g = _means(g, clients)
            gradient = {name: _means(array, clients) for name, array in gradient.items()}
        s = self.settings
        attention = np.exp(g - self.dtype.type(s.attention_bound))
        weight = attention * plain.weights.astype(self.dtype)
        stacked: dict[str, Array] = {
            name: array * (-s.interest_learning_rate * weight).reshape(-1, *[1] * (array.ndim - 1))
            for name, array in gradient.items()
        }
        stacked[ATTENTION] = (self.dtype.type(s.attention_scale) * weight)[:, None]
        rows = plain.ragged[ROWS]
        rows *= np.repeat(attention, np.diff(plain.offsets))[:, None]
        return dataclasses.replace(plain, stacked=stacked)

    def read(self, state: State, batch: RatingBatch) -> Interest:
        """Return what the last ratings of each user of ``batch`` say; see :mod:`interest`.

        Raises
        ------
        LocalProtocolError : the batch has no timestamps.
        """
        timestamps: npt.NDArray[np.int64] | None = getattr(batch, "timestamps", None)
        if timestamps is None:
            raise LocalProtocolError("lipm reads ratings in the order of time; this batch has no timestamps")
        behaviour = recent(batch.indptr, timestamps, self.settings.window)
        items = batch.items[behaviour.rows]
        targets = batch.ratings[behaviour.rows].astype(self.dtype) - state[MEAN][0]
        if BIAS in state:
            targets -= state[BIAS][items]
        return interest(
            {name: state[name] for name in INTEREST_NAMES},
            state[FACTORS].take(items, axis=0),
            targets,
            behaviour.indptr,
            self.settings.attention_bound,
        )

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty accumulator for one round."""
        shapes = {name: (self.dtype, shape) for name, shape in self._interest_shapes.items()}
        table = (self.n_items, self.width)
        return DenseAccumulator({ROWS: (self.dtype, table), **shapes, ATTENTION: (self.dtype, (1,))})

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Divide by the sum of the weights e^{g−c} and let the server optimiser apply the result.

        That sum is known to lie between e^{−2c} and 1 times the number of updates (or examples), which
        noise, or a device that lies about its own, cannot change: it is clipped to that.

        Raises
        ------
        LocalProtocolError : the sum of the weights of all updates is not positive.
        """
        if not aggregate.weight > 0:
            raise LocalProtocolError(
                f"an aggregate of {aggregate.clients} clients weighs {aggregate.weight}; "
                "there is nothing to average"
            )
        s = self.settings
        least = math.exp(-2.0 * s.attention_bound) * aggregate.weight
        total = float(aggregate.sums[ATTENTION][0]) / s.attention_scale
        divisor = min(max(total, least), aggregate.weight) / (1.0 - aggregate.shrinkage)
        rows = aggregate.sums[ROWS] / divisor
        others = {name: aggregate.sums[name] / divisor for name in INTEREST_NAMES}
        return super().apply(state, optimizer_state, rows, round_number, others)

    def _personalised(
        self,
        table: kernels.ItemTable,
        support: RatingBatch,
        first: int,
        end: int,
        keys: npt.NDArray[np.uint64],
        local: Array | None,
    ) -> Array:
        """Return factors fitted to items that went down the gradient of the users' own loss, if asked for."""
        how, k = self.settings.fine_tuning, self.settings.factors
        design, fitted = self._reconstruct(table, support, first, end, keys, local)
        if how is None:
            return fitted
        indptr = support.indptr[first : end + 1] - support.indptr[first]
        moved = np.empty((len(design), self.width), self.dtype)
        kernels.item_steps(
            design,
            fitted,
            k,
            counts=np.diff(indptr),
            rates=kernels.step_rates(indptr, keys[first:end], how, self.dtype),
            scales=np.ones(end - first, self.dtype),
            regularization=how.regularization,
            out=moved,
        )
        design[:, :k] += moved[:, :k]
        if self.settings.item_bias:
            # A bias that rises takes as much from the target t = r − μ − b.
            design[:, k] -= moved[:, k]
        start = None if local is None else local[first:end]
        return kernels.reconstruct(
            table, design, indptr, keys[first:end], self.settings.reconstruction, start
        )


def _means(values: Array, clients: npt.NDArray[np.int64]) -> Array:
    """Return the mean of the users' ``values`` [users, …] of each client, [clients, …]."""
    means = np.empty((len(clients) - 1, *values.shape[1:]), values.dtype)
    for client, (start, end) in enumerate(itertools.pairwise(clients.tolist())):
        np.divide(np.add.reduce(values[start:end], axis=0), end - start, out=means[client, ...])
    return means
