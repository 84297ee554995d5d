"""Settings of FedRecon, and of every matrix factorisation built on it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from device_profiles.fields import NonNegativeFloat, PositiveFloat, PositiveFraction, PositiveInt, StrictBool
from edge.learning.losses import Loss, check_steps
from edge.learning.method_settings import (
    GradientSteps,
    LocalDescent,
    MethodSettings,
    Reconstruction,
    Ridge,
    RowUpload,
    SubtractMean,
)
from edge.learning.server_optimizers import AdamSettings, ConstantSchedule, Schedule, ServerOptimizer


class ReconstructionSettings(MethodSettings):
    """Settings of every matrix factorisation whose user factors are reconstructed on the device."""

    factors: PositiveInt = Field(default=16, description="length k of the user and item factors")
    item_bias: StrictBool = Field(default=True, description="learn a bias for every item")
    user_bias: StrictBool = Field(default=True, description="reconstruct a bias for every user")
    initial_scale: NonNegativeFloat = Field(
        default=0.1, description="standard deviation of the item factors before the first round"
    )
    reconstruction: Reconstruction = Field(
        default=Ridge.model_construct(),
        description="how a device fits its user factors: ridge, gradient-steps, mini-batches",
    )
    split: Literal["none", "support-query"] = Field(
        default="none",
        description="reconstruct on one part of the ratings and update on the other; none: all for both",
    )
    support_fraction: PositiveFraction = Field(
        default=0.5, description="part of a user's ratings that goes into support, with split: support-query"
    )
    user_factors: Literal["reconstructed", "persistent"] = Field(
        default="reconstructed",
        description="fit user factors from zero every round, or keep them on the device and go on from there",
    )
    client: LocalDescent = Field(
        default=GradientSteps.model_construct(
            method="gradient-steps", steps=1, learning_rate=1.0, regularization=0.02
        ),
        description="a device's steps on the items: gradient-steps or mini-batches",
    )
    loss: Loss = Field(
        default="squared-error",
        description="`squared-error`, of ratings or of ones and zeros; of ones and zeros (`data.negatives`)"
        " also `cross-entropy`, `bpr` and `sampled-softmax`, by gradient-steps",
    )
    proximal: NonNegativeFloat = Field(
        default=0.0, description="μ of FedProx, which pulls each of these steps back to the global items"
    )
    weighting: Literal["examples", "uniform"] = Field(
        default="examples", description="weight of an update: its number of query ratings, or one per client"
    )
    upload: RowUpload = "sparse"
    optimizer: ServerOptimizer = AdamSettings.model_construct(beta2=0.99, epsilon=1e-4)
    learning_rate: PositiveFloat = Field(default=0.02, description="server learning rate")
    schedule: Schedule = ConstantSchedule.model_construct()

    @field_validator("loss")
    @classmethod
    def _descends(cls, value: Loss, info: ValidationInfo) -> Loss:
        check_steps(value, reconstruction=info.data.get("reconstruction"), client=info.data.get("client"))
        return value

    @field_validator("user_factors")
    @classmethod
    def _persists(cls, value: str, info: ValidationInfo) -> str:
        if value != "persistent":
            return value
        if isinstance(info.data.get("reconstruction"), Ridge):
            raise ValueError(
                "'persistent' factors go on from where they were, but 'ridge' ends in the same place wherever"
                " it starts; write 'reconstruction: {method: gradient-steps, steps: 1}' in learning, or"
                " 'user_factors: reconstructed'"
            )
        if info.data.get("split") == "support-query":
            raise ValueError(
                "'persistent' factors were fitted in earlier rounds to what is the query now; write"
                " 'split: none' in learning, or 'user_factors: reconstructed'"
            )
        return value


class FedReconSettings(ReconstructionSettings):
    """Settings of FedRecon matrix factorisation."""

    algorithm: Literal["fedrecon"]
    subtract_mean: SubtractMean = True
