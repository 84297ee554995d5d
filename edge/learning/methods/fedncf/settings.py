"""The settings of FedNCF."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from device_profiles.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from edge.learning.local_steps import GradientSteps, LocalDescent
from edge.learning.method_settings import MethodSettings
from edge.learning.server_optimizers import AdamSettings, ConstantSchedule, Schedule, ServerOptimizer


class FedNCFSettings(MethodSettings):
    """Settings of FedNCF."""

    algorithm: Literal["fedncf"]
    gmf_factors: PositiveInt = Field(default=32, description="length of the embeddings of the factorisation")
    mlp_factors: PositiveInt = Field(default=128, description="length of the embeddings of the perceptron")
    layers: tuple[PositiveInt, ...] = Field(
        default=(128, 64, 32), min_length=1, description="outputs of the perceptron's layers"
    )
    negatives: PositiveInt = Field(default=4, description="items sampled for every positive")
    initial_scale: NonNegativeFloat = Field(
        default=0.1, description="standard deviation of the item embeddings before the first round"
    )
    user_embeddings: Literal["persistent", "reconstructed"] = Field(
        default="persistent",
        description="keep user embeddings on the device, or fit them from zero every round",
    )
    user_learning_rate: PositiveFloat = Field(default=10.0, description="rate of the user embeddings")
    user_steps: NonNegativeInt = Field(
        default=2, description="steps on the user embeddings alone, on all examples, before the client's"
    )
    client: LocalDescent = Field(
        default=GradientSteps(method="gradient-steps", steps=1, learning_rate=1.0, regularization=0.0),
        description="a device's steps on everything: gradient-steps or mini-batches",
    )
    weighting: Literal["examples", "uniform"] = Field(
        default="examples", description="weight of an update: its number of positives, or one per client"
    )
    upload: Literal["sparse", "dense"] = Field(
        default="sparse", description="upload the changed item rows and their numbers, or the whole table"
    )
    optimizer: ServerOptimizer = Field(
        default=AdamSettings(beta2=0.99, epsilon=1e-6), description="server optimiser: sgd, adagrad or adam"
    )
    learning_rate: PositiveFloat = Field(default=0.01, description="server learning rate")
    schedule: Schedule = Field(default=ConstantSchedule(), description="how the server learning rate changes")

    @field_validator("user_steps")
    @classmethod
    def _reconstructs(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and info.data.get("user_embeddings") == "reconstructed":
            raise ValueError(
                "'reconstructed' embeddings are made by steps on them; write 1 or more, or"
                " 'user_embeddings: persistent'"
            )
        return value
