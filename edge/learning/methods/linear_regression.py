"""Federated linear regression: FedSGD and FedAvg.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS
2017), algorithm 1. Client i minimises J_i(w) = ½·mean (y − x·w)² over its n_i samples; the objective of the
fleet is Σ (n_i / n) J_i, so the coordinator averages with weights n_i / n.

* FedSGD (``local: {method: gradient}``): a device uploads its gradient; the coordinator steps w ← w − η g.
* FedAvg (the other local methods): a device takes local steps from w and uploads the change; the coordinator
  adds the mean of the changes. With every client taking part, one local step on the full batch and
  ``learning_rate: 1`` this is gradient descent on the pooled data.

* FedProx (``proximal``, Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, equation
  2): the same, each client minimising J_i(w) + ½μ|w − w_t|², w_t the weights that it was sent.

All arithmetic is float64. An upload is no anonymous data: it is a combination of the device's samples, and
with one sample it is that sample up to scale.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationInfo, field_validator

from device_profiles.fields import ByKey, NonNegativeFloat, PositiveFloat, StrictBool
from edge.learning.base import WORK_KINDS, Algorithm, Problem, RegressionBatch, State, Work
from edge.learning.least_squares import descend, descend_in_mini_batches, segment_grams, shuffled_ranks
from edge.learning.method_settings import (
    Gradient,
    GradientSteps,
    MethodSettings,
    MiniBatches,
    rows_seen,
    step_counts,
    work_share,
)
from edge.learning.server_optimizers import ConstantSchedule, Schedule, ServerOptimizer, SgdSettings
from edge.learning.updates import Aggregate, Array, UpdateBatch

WEIGHTS = "weights"
_FLOAT_BYTES = 8
_DENSE = WORK_KINDS.index("dense")


class LinearRegressionSettings(MethodSettings):
    """Settings of federated linear regression."""

    algorithm: Literal["linear-regression"]
    intercept: StrictBool = Field(default=True, description="fit a constant beside the features")
    local: Annotated[Gradient | GradientSteps | MiniBatches, ByKey("method")] = Field(
        default=GradientSteps.model_construct(method="gradient-steps", steps=1, learning_rate=0.1),
        description="what a device does: gradient (FedSGD), or gradient-steps or mini-batches (FedAvg)",
    )
    proximal: NonNegativeFloat = Field(
        default=0.0, description="μ of FedProx, which pulls local steps back to the global weights"
    )
    optimizer: ServerOptimizer = Field(
        default=SgdSettings.model_construct(kind="sgd"), description="server optimiser"
    )
    learning_rate: PositiveFloat = Field(default=1.0, description="server learning rate")
    schedule: Schedule = ConstantSchedule.model_construct()
    stop_gradient_norm: NonNegativeFloat = Field(
        default=0.0, description="stop when the gradient of a round is shorter; 0 never stops"
    )
    stop_loss: NonNegativeFloat = Field(
        default=0.0, description="stop when the mean training loss of a round is below; 0 never stops"
    )

    @field_validator("proximal")
    @classmethod
    def _pulls_steps(cls, value: float, info: ValidationInfo) -> float:
        if value and isinstance(info.data.get("local"), Gradient):
            raise ValueError("a gradient is no local step that could be pulled back; leave it out")
        return value


class LinearRegression(Algorithm[RegressionBatch]):
    """FedSGD and FedAvg on linear regression; see the module and :class:`LinearRegressionSettings`.

    State: ``weights`` float64 [features (+ 1 for the intercept, last)]. Upload: ``weights`` of that shape,
    the gradient with its sign changed or the change of the weights, times the number of samples.
    """

    Settings = LinearRegressionSettings
    data = "regression"
    settings: LinearRegressionSettings

    def __init__(self, settings: LinearRegressionSettings, problem: Problem) -> None:
        if problem.n_features < 1:
            raise ValueError("linear-regression learns from features; this problem has none")
        super().__init__(settings, problem)
        self.unknowns = problem.n_features + settings.intercept

    @classmethod
    def stepwise(cls, settings: LinearRegressionSettings) -> bool:
        """Return whether it is FedAvg: a gradient is no step."""
        return not isinstance(settings.local, Gradient)

    def initial_state(self, seed: int) -> State:
        """Return zero weights, whatever the seed."""
        return {WEIGHTS: np.zeros(self.unknowns)}

    def local_steps(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return how many steps clients with this many samples take; None for FedSGD, which takes none."""
        local = self.settings.local
        return None if isinstance(local, Gradient) else step_counts(local, examples)

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return the cost of the local steps: 4d flops a sample and step, three operators a step.

        The pull of FedProx is another 3d a step.
        """
        n, d = len(examples), self.unknowns
        rows = examples.astype(np.float64)
        local = self.settings.local
        if isinstance(local, Gradient):
            seen, taken = rows, np.ones(n)
        else:
            limited = step_counts(local, examples) if steps is None else steps
            seen = rows_seen(local, examples, limited).astype(np.float64)
            taken = np.maximum(limited.astype(np.float64), 1.0)
        flops, moved, ops = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
        flops[:, _DENSE] = (seen * 4 * d + taken * (5 if self.settings.proximal else 2) * d) / taken
        moved[:, _DENSE] = (seen * 2 * (d + 1) * _FLOAT_BYTES) / taken
        ops[:, _DENSE] = 3.0
        memory = _FLOAT_BYTES * (rows * (d + 2) + 4 * d)
        return Work(flops, moved, ops, taken, memory.astype(np.int64))

    def client_update(
        self,
        state: State,
        batch: RegressionBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
    ) -> UpdateBatch:
        """Compute gradients or local steps; see :meth:`edge.learning.base.Algorithm.client_update`.

        Raises
        ------
        ValueError : ``clients`` is given; samples are not grouped into users. ``steps`` is given, and there
            are none.
        """
        if clients is not None:
            raise ValueError("linear-regression has one segment of samples per client; leave clients out")
        s = self.settings
        counts = np.diff(batch.indptr)
        n = len(counts)
        full = self.local_steps(counts)
        if steps is not None and full is None:
            raise ValueError("a gradient is no step; leave steps out")
        done = 1.0 if full is None else work_share(steps, full)
        rows = self._rows(batch.x)
        start = np.broadcast_to(state[WEIGHTS], (n, self.unknowns))
        owners = np.repeat(np.arange(n), counts)
        error = batch.y - np.einsum("nf,f->n", rows, state[WEIGHTS])
        losses = 0.5 * np.bincount(owners, np.square(error), minlength=n) / np.maximum(counts, 1)
        if not isinstance(s.local, MiniBatches):
            change = self._full_batch(start, rows, batch, counts, steps) - start
        else:
            weights = start
            per_epoch = -(-counts // s.local.batch_size)
            for epoch in range(s.local.epochs):
                weights = descend_in_mini_batches(
                    weights,
                    rows,
                    batch.y,
                    batch.indptr,
                    shuffled_ranks(batch.indptr, client_keys, epoch),
                    batch_size=s.local.batch_size,
                    learning_rate=np.full(self.unknowns, s.local.learning_rate),
                    regularization=self._decay(s.local.regularization),
                    limits=None if steps is None else steps - epoch * per_epoch,
                    anchor=start if s.proximal else None,
                    proximal=s.proximal,
                )
            change = weights - start
        weight = np.asarray(counts * done, dtype=np.float64)
        return UpdateBatch(
            stacked={WEIGHTS: change * weight[:, None]},
            ragged={},
            offsets=np.zeros(n + 1, np.int64),
            weights=weight,
            examples=counts,
            losses=losses,
        )

    def converged(self, aggregate: Aggregate) -> str | None:
        """Return ``gradient-norm``, ``target-loss`` or None.

        The gradient norm is |mean update|, for FedAvg divided by the local learning rate and the number of
        full-batch steps (or epochs), which for one full-batch step is the gradient exactly. Both rules look
        at the clients that reported, at the weights they were sent.
        """
        s = self.settings
        norm = float(np.linalg.norm(aggregate.mean()[WEIGHTS]))
        if not isinstance(s.local, Gradient):
            passes = s.local.steps if isinstance(s.local, GradientSteps) else s.local.epochs
            norm /= s.local.learning_rate * passes
        if norm < s.stop_gradient_norm:
            return "gradient-norm"
        if aggregate.loss < s.stop_loss:
            return "target-loss"
        return None

    def predict(
        self,
        state: State,
        support: RegressionBatch,
        query: RegressionBatch,
        client_keys: npt.NDArray[np.uint64],
    ) -> Array:
        """Predict the targets of ``query``, float64 [N]; there is nothing to personalise on ``support``."""
        predictions: npt.NDArray[Any] = np.einsum("nf,f->n", self._rows(query.x), state[WEIGHTS])
        return predictions

    def _rows(self, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if not self.settings.intercept:
            return np.ascontiguousarray(x)
        rows = np.empty((len(x), self.unknowns))
        rows[:, :-1] = x
        rows[:, -1] = 1.0
        return rows

    def _decay(self, regularization: float) -> npt.NDArray[np.float64]:
        decay = np.full(self.unknowns, regularization)
        if self.settings.intercept:
            decay[-1] = 0.0
        return decay

    def _full_batch(
        self,
        start: npt.NDArray[np.float64],
        rows: npt.NDArray[np.float64],
        batch: RegressionBatch,
        counts: npt.NDArray[np.int64],
        limits: npt.NDArray[np.int64] | None,
    ) -> npt.NDArray[np.float64]:
        """Return the weights after full-batch steps; for FedSGD one of rate 1: the change is −gradient."""
        s = self.settings
        design = np.concatenate([rows, batch.y[:, None]], axis=1)
        grams = np.empty((len(counts), self.unknowns + 1, self.unknowns + 1))
        segment_grams(design, batch.indptr.tolist(), grams)
        # The loss is a mean: divide the sums by the number of samples.
        sizes = counts.astype(np.float64)[:, None]
        steps, rate = 1, 1.0
        if isinstance(s.local, GradientSteps):
            steps, rate = s.local.steps, s.local.learning_rate
        return descend(
            start,
            np.ascontiguousarray(grams[:, :-1, :-1]),
            grams[:, :-1, -1],
            steps=steps,
            step_sizes=rate / np.maximum(sizes, 1.0),
            regularization=sizes * self._decay(s.local.regularization),
            limits=limits,
            proximal=sizes * s.proximal if s.proximal else None,
        )
