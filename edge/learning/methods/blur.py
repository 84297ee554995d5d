"""BLUR and LUS: local updates that are short and sparse before they are clipped and noised.

Source: Cheng, Wang, Zhang and Cheng 2022, "Differentially Private Federated Learning with Local
Regularization and Sparsification" (CVPR). Clipping an update throws away what is beyond the bound, and noise
on every element costs as much where the update is small. So a device

* **BLUR**, bounded local update regularisation: takes its steps on f + ½λ·max(0, |Δ| − S)², with Δ its change
  of the items so far and S the norm that it will be clipped to;
* **LUS**, local update sparsification: keeps the largest elements of Δ and sets the others to zero, so that
  those that matter have more of the norm.

Clipping and noise themselves are the section ``privacy``'s, here as for every method, and so is ε: what is
kept is chosen before the noise, which is on every element all the same. The factorisation is FedRecon's.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from device_profiles.fields import NonNegativeFloat, PositiveFloat, PositiveFraction
from edge.learning import fedrecon_kernels as kernels
from edge.learning.method_settings import GradientSteps, SubtractMean
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import ReconstructionSettings
from edge.learning.proximal import Pull
from edge.learning.updates import Array


class BLURSettings(ReconstructionSettings):
    """Settings of BLUR and LUS: those of the factorisation, and how updates are kept short and sparse."""

    algorithm: Literal["blur"]
    loss: Literal["squared-error"] = Field(default="squared-error", description="squared error alone")
    subtract_mean: SubtractMean = True
    client: GradientSteps = Field(
        default=GradientSteps.model_construct(
            method="gradient-steps", steps=5, learning_rate=0.5, regularization=0.02
        ),
        description="a device's steps on the items, each on all of its ratings",
    )
    norm_bound: PositiveFloat = Field(
        description="S: local steps are pulled back once the update is longer; usually `privacy.clip_norm`"
    )
    norm_penalty: NonNegativeFloat = Field(
        default=1.0, description="λ of the pull; 0: none. Stable below 2 over the rate of `client`"
    )
    keep: PositiveFraction = Field(
        default=1.0, description="part of the elements of an update, the largest, that is kept"
    )

    @field_validator("proximal")
    @classmethod
    def _pulled_once(cls, value: float) -> float:
        if value:
            raise ValueError("updates are pulled back by 'norm_penalty' already; leave 'proximal' out")
        return value


class BLUR(FedRecon):
    """FedRecon with bounded and sparsified local updates; see the module and :class:`BLURSettings`."""

    Settings = BLURSettings
    settings: BLURSettings

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
        """Take the client's steps on the items, the penalty of the norm with them, and sparsify."""
        if self.settings.norm_penalty == 0:
            ones = np.ones_like(scales)
            first_error = super()._item_steps(design, fitted, counts, rates, ones, out, pull)
        else:
            assert pull is None, "the settings were checked"
            first_error = self._bounded_steps(design, fitted, counts, rates, out)
        if self.settings.keep < 1:
            sparsify(out, counts, self.settings.keep)
        out *= np.repeat(scales, counts)[:, None]
        return first_error

    def _bounded_steps(
        self, design: Array, fitted: Array, counts: npt.NDArray[np.int64], rates: Array, out: Array
    ) -> Array:
        """Step as ``Δ ← Δ + step − ηλ·max(0, 1 − S/|Δ|)·Δ``; the gradient of the penalty is the last."""
        k, s = self.settings.factors, self.settings
        has_bias = self.width > k
        current, step = design.copy(), np.empty_like(out)
        ones = np.ones(len(counts), self.dtype)
        out[:] = 0.0
        first_error: Array | None = None
        rate = self.settings.client.learning_rate
        for number in range(len(rates)):
            pull = np.repeat(s.norm_penalty * rate * beyond(out, counts, s.norm_bound), counts)
            pull[rates[number] == 0] = 0.0  # those who have taken all the steps they may
            error = kernels.item_steps(
                current,
                fitted,
                k,
                counts=counts,
                rates=rates[number : number + 1],
                scales=ones,
                regularization=self.settings.client.regularization,
                out=step,
            )
            first_error = error if first_error is None else first_error
            step -= pull[:, None] * out
            out += step
            current[:, :k] += step[:, :k]
            if has_bias:
                # A bias that rises takes as much from the target t = r − μ − b.
                current[:, k] -= step[:, k]
        assert first_error is not None, "there is a step at least"
        return first_error


def beyond(rows: Array, counts: npt.NDArray[np.int64], bound: float) -> Array:
    """Return max(0, 1 − bound/|Δ|) of each user's rows [N, width], [n], of the dtype of ``rows``.

    ``counts`` int64 [n] are the rows of each user. The norm is over all of a user's elements.
    """
    owners = np.repeat(np.arange(len(counts)), counts)
    squares = np.einsum("nk,nk->n", rows, rows)
    norms = np.sqrt(np.bincount(owners, squares, minlength=len(counts)))
    share = 1.0 - bound / np.maximum(norms, bound)
    return share.astype(rows.dtype)


def sparsify(rows: Array, counts: npt.NDArray[np.int64], keep: float) -> None:
    """Set all but the largest elements of each user's rows to zero, in place.

    Of a user's elements ⌈``keep`` · their number⌉ stay; of equals the first. ``rows`` [N, width], ``counts``
    int64 [n].
    """
    width = rows.shape[1]
    elements = counts * width
    owners = np.repeat(np.arange(len(counts)), elements)
    order = np.lexsort((-np.abs(rows.ravel()), owners))
    first = np.cumsum(elements) - elements
    rank = np.arange(len(order)) - np.repeat(first, elements)
    # Rounded before it is rounded up: 10% of 50 are 5, though 0.1 · 50 may be a little more.
    kept = np.ceil(np.round(keep * elements, 9)).astype(np.int64)
    dropped = order[rank >= np.repeat(kept, elements)]
    flat = rows.reshape(-1)
    flat[dropped] = 0.0
