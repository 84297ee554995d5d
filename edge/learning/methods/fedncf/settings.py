"""The settings of FedNCF, and what a round costs a device by them, counted from the shapes of its arrays."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationInfo, field_validator

from device_profiles.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from edge.learning.base import WORK_KINDS, Work
from edge.learning.losses import FLOPS_A_ROW, ScoreLoss, check_steps
from edge.learning.method_settings import (
    GradientSteps,
    LocalDescent,
    MethodSettings,
    RowUpload,
    rows_seen,
    step_counts,
)
from edge.learning.neumf import NetworkShape
from edge.learning.server_optimizers import AdamSettings, ConstantSchedule, Schedule, ServerOptimizer
from edge.learning.sharpness import Radii

_FLOAT_BYTES = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))
# Operators of a forward pass, of going back to the users alone, and to everything: for the first layer and
# the outputs, and for each layer after it.
_OPS = {"forward": (10, 3), "local": (6, 2), "shared": (12, 4)}


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
        default=GradientSteps.model_construct(
            method="gradient-steps", steps=1, learning_rate=1.0, regularization=0.0
        ),
        description="a device's steps on everything: gradient-steps or mini-batches",
    )
    loss: ScoreLoss = Field(
        default="cross-entropy",
        description="`cross-entropy` of every example, or by gradient-steps `bpr` or `sampled-softmax` of"
        " positives beside their negatives",
    )
    weighting: Literal["examples", "uniform"] = Field(
        default="examples", description="weight of an update: its number of positives, or one per client"
    )
    upload: RowUpload = "sparse"
    optimizer: ServerOptimizer = AdamSettings.model_construct(beta2=0.99, epsilon=1e-6)
    learning_rate: PositiveFloat = Field(default=0.01, description="server learning rate")
    schedule: Schedule = ConstantSchedule.model_construct()

    @field_validator("loss")
    @classmethod
    def _descends(cls, value: ScoreLoss, info: ValidationInfo) -> ScoreLoss:
        if value != "cross-entropy":
            check_steps(value, client=info.data.get("client"))
        return value

    @field_validator("user_steps")
    @classmethod
    def _reconstructs(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and info.data.get("user_embeddings") == "reconstructed":
            raise ValueError(
                "'reconstructed' embeddings are made by steps on them; write 1 or more, or"
                " 'user_embeddings: persistent'"
            )
        return value


def fedncf_work(
    settings: FedNCFSettings,
    shape: NetworkShape,
    n_items: int,
    examples: npt.NDArray[np.int64],
    radii: Radii,
    steps: npt.NDArray[np.int64] | None = None,
) -> Work:
    """Return the work of users with ``examples`` positives and negatives, int64 [n].

    Multiplications and additions count one flop each. Bytes are those of every array an operator reads or
    writes, at four bytes a number.

    A row costs 2 flops a weight forward, as many back to its input, as many for the weights' gradient; the
    user's half of the first layer counts once a step. The items' part of that layer is computed once, and
    known until the client's first step is taken. A step on the users alone needs no gradient of weights. A
    sharpness-aware step evaluates a block's gradient twice. Losses that compare cost two flops more a row.
    """
    n = len(examples)
    rows = examples.astype(np.float64)
    first = float(shape.mlp * shape.hidden[0])
    inner = float(sum(a * b for a, b in zip(shape.hidden, shape.hidden[1:], strict=False)))
    outputs = float(shape.gmf + shape.hidden[-1])
    depth = len(shape.hidden) - 1
    numbers = float(shape.width + 2 * sum(shape.hidden))

    def ops(kind: str) -> float:
        base, each = _OPS[kind]
        return float(base + each * depth)

    # One evaluation for each row, and once whatever the rows: flops, then bytes of weights.
    slope = FLOPS_A_ROW[settings.loss] - FLOPS_A_ROW["cross-entropy"]
    row_users, row_shared = 4 * inner + 6 * outputs + slope, 0.0
    row_all = 6 * (first + inner + outputs) + slope
    once_users, once_all = 4 * first, 6 * first
    evaluations_users = 1 + (radii.local > 0)
    user_rows = settings.user_steps * evaluations_users * rows
    client_steps = (step_counts(settings.client, examples) if steps is None else steps).astype(np.float64)
    seen = rows_seen(settings.client, examples, client_steps.astype(np.int64)).astype(np.float64)
    row_shared = row_all if radii.shared > 0 else 0.0
    row_local = (row_users + 2 * first) if radii.local > 0 else 0.0
    known = rows_seen(settings.client, examples, np.minimum(client_steps, 1).astype(np.int64))
    per_row = row_all + row_shared + row_local
    evaluations = 1 + (radii.shared > 0) + (radii.local > 0)

    flops, moved, launched = (np.zeros((n, len(WORK_KINDS))) for _ in range(3))
    moved[:, _GATHER] = 2.0 * rows * shape.width * _FLOAT_BYTES
    launched[:, _GATHER] = 2.0
    flops[:, _DENSE] = (
        user_rows * row_users
        + settings.user_steps * evaluations_users * once_users
        + (rows - known * (1 + (radii.local > 0))) * 2 * first
        + seen * per_row
        + client_steps * (evaluations * once_all + 2.0 * shape.weights)
    )
    moved[:, _DENSE] = _FLOAT_BYTES * (
        (user_rows + evaluations * seen) * 2.0 * numbers
        + (settings.user_steps * evaluations_users + client_steps * (2 * evaluations + 2)) * shape.weights
    )
    launched[:, _DENSE] = settings.user_steps * evaluations_users * (
        ops("forward") + ops("local")
    ) + client_steps * evaluations * (ops("forward") + ops("shared"))

    total = np.maximum(client_steps + settings.user_steps, 1.0)
    model = n_items * shape.width + shape.weights
    sent = np.full(n, float(n_items)) if settings.upload == "dense" else rows
    memory = _FLOAT_BYTES * (model + rows * (2 * shape.width + 2 * numbers) + 3.0 * shape.weights)
    memory += _FLOAT_BYTES * (sent * (shape.width + 1) + shape.weights + 2 * shape.width)
    per_step = total[:, None]
    return Work(
        flops / per_step, moved / per_step, launched / per_step, total, np.ceil(memory).astype(np.int64)
    )
