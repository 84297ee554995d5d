"""Settings that methods share: their base, and how a device fits parameters on its own data.

Losses are ½·mean(error²), so a gradient is mean(error · features). A rate published for mean squared error
without the half, as Keras defines it, is doubled here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from device_profiles.fields import ByKey, NonNegativeFloat, PositiveFloat, PositiveInt, StrictBool

Ints = npt.NDArray[np.int64]


class MethodSettings(BaseModel):
    """Settings of a method or of a part of it: immutable, and any key that they do not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


RowUpload = Annotated[
    Literal["sparse", "dense"],
    Field(description="upload the changed item rows and their numbers, or the whole table"),
]
Weighting = Annotated[
    Literal["examples", "uniform"],
    Field(description="weight of an update: its number of ratings, or one per client"),
]
SubtractMean = Annotated[
    StrictBool,
    Field(description="predict the difference to the mean training rating, a public statistic"),
]
FeatureLimit = Annotated[
    PositiveFloat,
    Field(description="standard deviations that a feature is cut at, so that rare ones do not rule"),
]


class Ridge(MethodSettings):
    """The exact minimiser of Σ error² + λ|p|² + λ_b b²."""

    method: Literal["ridge"] = "ridge"
    regularization: PositiveFloat = Field(default=8.0, description="λ of the user factors")
    bias_regularization: PositiveFloat = Field(default=1.0, description="λ_b of the user bias")


class Gradient(MethodSettings):
    """No step at all: the gradient on all local examples is what a device uploads (FedSGD)."""

    method: Literal["gradient"]
    regularization: NonNegativeFloat = Field(default=0.0, description="weight decay λ; biases are exempt")


class UserSteps(MethodSettings):
    """Gradient steps on ½Σ error² + ½λ|p|² + ½λ_b b², each divided by the number of ratings plus λ (or λ_b).

    The division is the diagonal of the Hessian for features of size one. It makes one rate fit users with few
    and with many ratings: rates up to 2 are stable for the bias, for factors 2 over their mean square.

    Not ``normalized``, a step is that of stochastic gradient descent on matrix factorisation, η·Σ (error·q −
    λp), with λ for every rating: it grows with their number, and the rate has to be small enough for the
    longest history.
    """

    method: Literal["gradient-steps"]
    steps: PositiveInt = Field(default=5, description="gradient steps, each on all support ratings")
    learning_rate: PositiveFloat = Field(default=1.0, description="rate of the user factors")
    bias_learning_rate: PositiveFloat = Field(default=0.5, description="rate of the user bias")
    regularization: NonNegativeFloat = Field(default=8.0, description="λ of the user factors")
    bias_regularization: NonNegativeFloat = Field(default=1.0, description="λ_b of the user bias")
    normalized: StrictBool = Field(
        default=True,
        description="divide steps by the number of ratings plus λ; false: sums, with λ for every rating",
    )


class GradientSteps(MethodSettings):
    """A number of gradient steps, each on all local examples."""

    method: Literal["gradient-steps"]
    steps: PositiveInt = Field(description="gradient steps, each on all local examples")
    learning_rate: PositiveFloat = Field(default=0.1, description="rate on the device, for ½·mean(error²)")
    regularization: NonNegativeFloat = Field(default=0.0, description="weight decay λ; biases are exempt")


class MiniBatches(MethodSettings):
    """Passes over the local examples in random order, one gradient step per mini-batch."""

    method: Literal["mini-batches"]
    batch_size: PositiveInt = Field(description="examples in a mini-batch")
    epochs: PositiveInt = Field(default=1, description="passes over the local examples")
    learning_rate: PositiveFloat = Field(default=0.1, description="rate on the device, for ½·mean(error²)")
    regularization: NonNegativeFloat = Field(default=0.0, description="weight decay λ; biases are exempt")


def step_counts(method: GradientSteps | MiniBatches, rows: Ints) -> Ints:
    """Return the steps that clients with so many local examples take, int64 [n]."""
    if isinstance(method, GradientSteps):
        return np.full(len(rows), method.steps, dtype=np.int64)
    return method.epochs * -(-rows // method.batch_size)


def rows_seen(method: GradientSteps | MiniBatches, rows: Ints, steps: Ints) -> Ints:
    """Return how many examples clients look at in their first ``steps`` steps, with repeats, int64 [n]."""
    if isinstance(method, GradientSteps):
        return rows * steps
    passes, rest = np.divmod(steps, np.maximum(-(-rows // method.batch_size), 1))
    return np.asarray(passes * rows + np.minimum(rest * method.batch_size, rows))


def work_share(steps: Ints | None, of: Ints) -> npt.NDArray[np.float64] | float:
    """Return which share of its steps each client takes, by which its update weighs less, float64 [n].

    ``steps`` (int64 [n]) are those that it takes, ``of`` all of them; None for all, a share of 1.
    """
    return 1.0 if steps is None else np.asarray(np.minimum(steps, of) / np.maximum(of, 1))


Reconstruction = Annotated[Ridge | UserSteps | MiniBatches, ByKey("method")]
LocalDescent = Annotated[GradientSteps | MiniBatches, ByKey("method")]
