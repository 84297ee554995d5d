"""FedRecGEL: a federated recommender that descends where its loss is worst nearby, in two blocks.

Source: Yu et al., "FedRecGEL", on sharpness-aware minimisation for federated recommendation; see
:mod:`edge.learning.sharpness` for the equations. It changes how a device steps, and nothing else: what is
downloaded, uploaded, kept and averaged is that of the method it is wrapped around.

* FedNCF: shared are the item rows of a device's examples together with the network, local its user
  embeddings.
* FedRecon, and with ``user_factors: persistent`` FedMF: shared are the item rows and biases of a device's
  ratings, local p_u and b_u. Both sides must take full-batch gradient steps; a ridge solve has no gradient to
  take elsewhere.

With both radii 0 it is the wrapped method, bit for bit.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from device_profiles.fields import ByKey, NonNegativeFloat
from edge.learning import fedrecon_kernels as kernels
from edge.learning.base import Problem, RatingBatch, Work
from edge.learning.layers import device_sums
from edge.learning.least_squares import segment_grams
from edge.learning.method_settings import GradientSteps, MethodSettings, UserSteps
from edge.learning.methods.fedncf.algorithm import FedNCF
from edge.learning.methods.fedncf.settings import FedNCFSettings
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import FedReconSettings
from edge.learning.proximal import Pull
from edge.learning.sharpness import Radii, step_lengths
from edge.learning.updates import Array

Base = Annotated[FedNCFSettings | FedReconSettings, ByKey("algorithm")]


class FedRecGELSettings(MethodSettings):
    """Settings of FedRecGEL."""

    algorithm: Literal["fedrecgel"]
    base: Base = Field(description="the method it is wrapped around, with its settings: fedncf or fedrecon")
    shared_radius: NonNegativeFloat = Field(default=0.02, description="ρ of the shared block; 0 leaves it be")
    local_radius: NonNegativeFloat = Field(default=0.02, description="ρ of the local block; 0 leaves it be")

    @field_validator("base")
    @classmethod
    def _has_gradients(cls, value: FedNCFSettings | FedReconSettings) -> FedNCFSettings | FedReconSettings:
        if isinstance(value, FedReconSettings):
            if not isinstance(value.reconstruction, UserSteps):
                raise ValueError(
                    f"'{value.reconstruction.method}' has no full gradient to take elsewhere; write"
                    " 'reconstruction: {method: gradient-steps}' in learning.base"
                )
            if value.loss != "squared-error":
                raise ValueError(f"'{value.loss}' is not taken elsewhere; leave 'loss' out")
            if value.proximal:
                raise ValueError("a step that is pulled back is not taken elsewhere; leave 'proximal' out")
            if not isinstance(value.client, GradientSteps):
                raise ValueError(
                    f"'{value.client.method}' has no full gradient to take elsewhere; write"
                    " 'client: {method: gradient-steps, steps: 1}' in learning.base"
                )
        return value

    @property
    def radii(self) -> Radii:
        """Both radii."""
        return Radii(self.shared_radius, self.local_radius)


class FedRecGEL(FedRecon):
    """FedRecon, or FedMF, whose gradient steps are sharpness-aware on both sides.

    Around FedNCF, :meth:`create` returns a FedNCF with such steps.
    """

    Settings = FedRecGELSettings

    def __init__(self, settings: FedRecGELSettings, problem: Problem, dtype: type[Any] = np.float32) -> None:
        assert isinstance(settings.base, FedReconSettings), "made by 'create'"
        super().__init__(settings.base, problem, dtype)
        self.radii = settings.radii

    @classmethod
    def create(
        cls, settings: FedRecGELSettings, problem: Problem, dtype: type[Any] = np.float32
    ) -> FedNCF | FedRecGEL:
        """Return the wrapped method with sharpness-aware steps."""
        if isinstance(settings.base, FedNCFSettings):
            return FedNCF(settings.base, problem, dtype, settings.radii)
        return cls(settings, problem, dtype)

    @classmethod
    def uniform(cls, settings: FedRecGELSettings) -> bool:
        """Return what holds of the wrapped method."""
        return bool(super().uniform(settings.base))

    @classmethod
    def begins_with_mean(cls, settings: FedRecGELSettings) -> bool:
        """Return what holds of the wrapped method."""
        return isinstance(settings.base, FedReconSettings) and super().begins_with_mean(settings.base)

    @classmethod
    def dense(cls, settings: FedRecGELSettings) -> bool:
        """Return what holds of the wrapped method."""
        return bool(super().dense(settings.base))

    @classmethod
    def has_item_rows(cls, settings: FedRecGELSettings) -> bool:
        """Return whether it is around another than FedNCF, whose scores are a network's."""
        return not isinstance(settings.base, FedNCFSettings)

    @classmethod
    def only_ranks(cls, settings: FedRecGELSettings | FedReconSettings) -> bool:
        """Return whether it is around FedNCF; a method that was made has the settings of its base."""
        return isinstance(settings, FedRecGELSettings) and isinstance(settings.base, FedNCFSettings)

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return FedRecon's work, its dense part (users) and scoring part (items) twice where ρ is not 0."""
        plain = super().work(examples, steps)
        times = np.array([1.0, 1.0 + (self.radii.local > 0), 1.0 + (self.radii.shared > 0)])
        return dataclasses.replace(
            plain, flops=plain.flops * times, moved_bytes=plain.moved_bytes * times, ops=plain.ops * times
        )

    def _reconstruct(
        self,
        table: kernels.ItemTable,
        support: RatingBatch,
        first: int,
        end: int,
        keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> tuple[Array, Array]:
        if self.radii.local == 0:
            return super()._reconstruct(table, support, first, end, keys, local)
        design = kernels.gather(table, support, first, end)
        indptr = support.indptr[first : end + 1] - support.indptr[first]
        method = self.settings.reconstruction
        assert isinstance(method, UserSteps)
        start = None if local is None else local[first:end]
        return design, _reconstruct_sharply(table, design, indptr, method, start, self.radii.local)

    def _item_steps(
        self,
        design: Array,
        fitted: Array,
        counts: npt.NDArray[np.int64],
        rates: Array,
        scales: Array,
        out: Array,
        pull: Pull | None,
    ) -> Array:
        if self.radii.shared == 0:
            return super()._item_steps(design, fitted, counts, rates, scales, out, pull)
        assert pull is None, "the settings were checked"
        decay = self.settings.client.regularization
        return _item_steps_sharply(
            design, fitted, self.settings.factors, counts, rates, scales, decay, self.radii.shared, out
        )


def _reconstruct_sharply(
    table: kernels.ItemTable,
    design: Array,
    indptr: npt.NDArray[np.int64],
    method: UserSteps,
    start: Array | None,
    radius: float,
) -> Array:
    """Fit users' local parameters as :func:`~edge.learning.fedrecon_kernels.reconstruct` does, sharply.

    The objective is quadratic, so the gradient ρ further along itself is g + H·(ρ·g/‖g‖), H the Gram matrix
    plus λ.
    """
    k, width, dtype = table.factors, design.shape[1], design.dtype
    unknowns = np.delete(np.arange(width), k)
    grams = np.empty((len(indptr) - 1, width, width), dtype)
    segment_grams(design, indptr.tolist(), grams)
    # `take` lays the result out in C order whatever the number of users, and the layout decides who
    # multiplies.
    gram = grams.take(unknowns, axis=1).take(unknowns, axis=2)
    moment = grams[:, :, k].take(unknowns, axis=1)
    weights = (
        np.zeros((len(grams), len(unknowns)), dtype) if start is None else np.array(start, dtype, order="C")
    )
    penalty = np.full(len(unknowns), method.regularization, dtype)
    penalty[k:] = method.bias_regularization
    rate = np.full(len(unknowns), method.learning_rate, dtype)
    rate[k:] = method.bias_learning_rate
    sizes = (rate / np.maximum(np.diff(indptr)[:, None] + penalty, dtype.type(1e-6))).astype(dtype)

    def gradients(at: Array) -> Array:
        found: Array = np.matmul(gram, at[:, :, None])[:, :, 0]
        found -= moment
        found += penalty * at
        return found

    for _ in range(method.steps):
        plain = gradients(weights)
        squares = np.einsum("nk,nk->n", plain, plain).astype(np.float64)
        away = step_lengths(squares, radius).astype(dtype)[:, None]
        weights = weights - sizes * gradients(weights + away * plain)
    local = np.empty((len(grams), width), dtype)
    local[:, unknowns] = weights
    local[:, k] = -1.0
    return local


def _item_steps_sharply(
    design: Array,
    local: Array,
    factors: int,
    counts: npt.NDArray[np.int64],
    rates: Array,
    scales: Array,
    decay: float,
    radius: float,
    out: Array,
) -> Array:
    """Take the client's steps as :func:`~edge.learning.fedrecon_kernels.item_steps` does, sharply.

    The block is all rows of a user together: ‖g‖ is over them all. Returns e before the first step, [N].
    """
    dtype = design.dtype
    spread = np.repeat(local, counts, axis=0)
    users = spread[:, :factors]
    has_bias = out.shape[1] > factors
    first_error: Array = -np.einsum("nk,nk->n", design, spread)
    error = first_error.copy()
    out[:] = 0.0
    for rate in rates:
        # Of Σ e², the rate holds the division by its number.
        down = users * error[:, None] - dtype.type(decay) * (design[:, :factors] + out[:, :factors])
        squares = np.einsum("nk,nk->n", down, down)
        if has_bias:
            squares += np.square(error)
        total = device_sums(squares, counts)
        away = np.repeat(step_lengths(total, radius).astype(dtype), counts)
        # The worst point is against the descent: e grows by (down·p + e)·ρ/‖g‖.
        rise = np.einsum("nk,nk->n", down, users)
        if has_bias:
            rise += error
        there = error + away * rise
        step = users * there[:, None]
        if decay:
            step -= dtype.type(decay) * (design[:, :factors] + out[:, :factors] - away[:, None] * down)
        step *= rate[:, None]
        out[:, :factors] += step
        error -= np.einsum("nk,nk->n", step, users)
        if has_bias:
            out[:, factors] += rate * there
            error -= rate * there
    out *= np.repeat(scales, counts)[:, None]
    return first_error
