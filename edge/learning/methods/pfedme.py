"""pFedMe: every device has a model of its own near the shared one, here of a matrix factorisation.

Source: T. Dinh et al., "Personalized Federated Learning with Moreau Envelopes" (NeurIPS 2020), algorithm 1. A
device's own model θ minimises f_u(θ) + ½λ|θ − w_u|², and what it shares descends on that minimum as a
function of w_u, whose gradient is λ(w_u − θ). A round on a device: w_u ← w, then in every local step, on all
ratings or a mini-batch of them,

    θ ← w_u;  K times θ ← θ − η_p (∇f_u(θ) + λ (θ − w_u));  then w_u ← w_u − η λ (w_u − θ)

and on the coordinator w ← (1 − β) w + β Σ (n_u/n) w_u, which is SGD of rate β on the mean change. w is all
that :mod:`edge.learning.methods.fedavg_mf` shares, and goes the same ways: a user's row is on the
coordinator.
Predictions are those of θ, from K steps on all of the device's ratings.

With λ → ∞ and λ η_p = 1 a local step becomes one of FedAvg, w_u ← w_u − η ∇f_u(w_u). What is computed is
g = λ(w_u − θ), so that nothing cancels for large λ: g ← (1 − λη_p) g + λη_p ∇f_u(w_u − g/λ), from g = 0.

What an upload reveals is what one of FedAvg does.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationInfo, field_validator

from device_profiles.fields import PositiveFloat, PositiveInt
from edge.learning import fedrecon_kernels as kernels
from edge.learning.base import RatingBatch, State, Work
from edge.learning.joint_descent import Gradient, Pair, Targets
from edge.learning.methods.fedavg_mf import FedAvgMF, SharedFactorizationSettings, fedavg_work
from edge.learning.server_optimizers import ServerOptimizer, SgdSettings
from edge.learning.updates import Array

Ints = npt.NDArray[np.int64]


class PFedMeSettings(SharedFactorizationSettings):
    """Settings of pFedMe: those of the factorisation, and how a device's own model is fitted."""

    algorithm: Literal["pfedme"]
    proximity: PositiveFloat = Field(
        default=15.0, description="λ, which holds a device's own model near the shared one"
    )
    inner_steps: PositiveInt = Field(
        default=5, description="K, steps on a device's own model in every local step"
    )
    inner_learning_rate: PositiveFloat = Field(
        default=0.05,
        validate_default=True,
        description="η_p, rate of these steps, below 2/λ; 1/λ for the limit of large λ",
    )
    optimizer: ServerOptimizer = Field(
        default=SgdSettings.model_construct(kind="sgd"),
        description="server optimiser of the items: sgd, adagrad or adam",
    )
    learning_rate: PositiveFloat = Field(default=3.0, description="server learning rate of the items, β")
    user_learning_rate: PositiveFloat = Field(
        default=1.0, description="share of its change that a user's row takes on the coordinator, β"
    )

    @field_validator("inner_learning_rate")
    @classmethod
    def _converges(cls, value: float, info: ValidationInfo) -> float:
        proximity = info.data.get("proximity")
        if proximity is not None and value * proximity >= 2:
            raise ValueError(
                f"steps of rate {value:g} overshoot with a proximity of {proximity:g}; write less than"
                f" {2 / proximity:g}"
            )
        return value

    @field_validator("proximal", "fine_tuning")
    @classmethod
    def _is_other(cls, value: Any) -> Any:
        if value:
            raise ValueError("pfedme has its own way to keep near the shared model; leave it out")
        return value


def envelope_gradient(
    of: Gradient,
    pair: Pair,
    targets: Targets,
    counts: Ints,
    *,
    proximity: float,
    steps: int,
    rate: float,
) -> Pair:
    """Return g = λ(w − θ) after ``steps`` steps on θ: the gradient of the Moreau envelope, up to θ's error.

    Parameters
    ----------
    of : the gradient ∇f.
    pair, targets, counts : w, and what ``of`` takes beside it.
    proximity, rate : λ and η_p.
    """
    dtype = pair.items.dtype.type
    pace = dtype(proximity * rate)
    found = Pair(*(np.zeros_like(side) for side in pair))
    for _ in range(steps):
        slope = of(_own(pair, found, proximity), targets, counts)
        found = Pair(*((dtype(1) - pace) * g + pace * f for g, f in zip(found, slope, strict=True)))
    return found


def _own(pair: Pair, found: Pair, proximity: float) -> Pair:
    """Return θ = w − g/λ."""
    return Pair(*(w - g / g.dtype.type(proximity) for w, g in zip(pair, found, strict=True)))


class PFedMe(FedAvgMF):
    """pFedMe for matrix factorisation; see the module and :class:`PFedMeSettings`.

    State, downloads and uploads are those of :class:`~edge.learning.methods.fedavg_mf.FedAvgMF`.
    """

    Settings = PFedMeSettings
    settings: PFedMeSettings

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return FedAvg's, with K times the gradients."""
        return fedavg_work(self.settings, self.items.n_items, examples, steps, self.settings.inner_steps)

    def _gradient_of(self, table: kernels.ItemTable) -> Gradient:
        s = self.settings
        return functools.partial(
            envelope_gradient,
            super()._gradient_of(table),
            proximity=s.proximity,
            steps=s.inner_steps,
            rate=s.inner_learning_rate,
        )

    def _starting_rows(
        self, state: State, support: RatingBatch, keys: npt.NDArray[np.uint64], local: Array | None
    ) -> Array:
        """Return the users' rows of θ.

        The rows of items that a device has rated are its own as well; nobody asks it to predict those.
        """
        rows = super()._starting_rows(state, support, keys, local)
        own, table = rows.copy(), self._table(state)
        counts: Ints = np.diff(support.indptr)
        for first, end in kernels.blocks(support.indptr):
            part = slice(int(support.indptr[first]), int(support.indptr[end]))
            rated = first + np.flatnonzero(counts[first:end])
            items = table.rows.take(support.items[part], axis=0, mode="clip")[:, : self.items.width]
            if len(rated):
                pair, targets = Pair(items, rows[rated]), self._targets(table, support, first, end, keys)
                found = self._gradient_of(table)(pair, targets, counts[rated])
                own[rated] = _own(pair, found, self.settings.proximity).users
        return own
