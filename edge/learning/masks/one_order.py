"""One-order mask: ridge regression of a user's ratings on the features of the items.

Source: Yang et al. 2021, the linear mask; solved exactly instead of by gradient steps. The intercept has a
weaker penalty of its own, on its distance from the global mean.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import PositiveFloat
from edge.learning.base import RatingBatch, Work
from edge.learning.fedrecon_kernels import blocks
from edge.learning.least_squares import ridge, segment_grams
from edge.learning.masks.base import (
    FLOAT_BYTES,
    Evaluate,
    EvaluatedMask,
    Features,
    MaskParameters,
    blank,
    fitting_work,
    limited,
)
from edge.learning.method_settings import FeatureLimit, MethodSettings
from edge.learning.updates import Array

INTERCEPT, WEIGHTS = "intercept", "weights"


class OneOrderSettings(MethodSettings):
    """Settings of the one-order mask."""

    kind: Literal["one-order"] = "one-order"
    feature_limit: FeatureLimit = 2.0
    regularization: PositiveFloat = Field(default=50.0, description="λ of the weights of the features")
    intercept_regularization: PositiveFloat = Field(
        default=5.0, description="λ_0 of the intercept's distance from the global mean"
    )


class OneOrder(EvaluatedMask):
    """f_u(i) = c + w·x_i with the least Σ (r − f)² + λ|w|² + λ_0 (c − μ)².

    Parameters: ``intercept`` [n], ``weights`` [n, d].
    """

    def __init__(self, settings: OneOrderSettings) -> None:
        self.settings = settings

    def spec(self, d: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return names and shapes of one user's parameters."""
        return ((INTERCEPT, ()), (WEIGHTS, (d,)))

    def fit(
        self, batch: RatingBatch, features: Features, mean: float, keys: npt.NDArray[np.uint64]
    ) -> MaskParameters:
        """Solve every user's ridge regression; keys play no part. See :class:`MaskModel`.

        One gather of rows ``[x, 1, r − μ]``, a small symmetric product per user, one batched solve.
        """
        d = features.shape[1]
        parameters = blank(self.spec(d), len(batch.indptr) - 1, INTERCEPT, mean)
        table = np.ones((len(features), d + 2), np.float32)
        table[:, :d] = limited(features, self.settings.feature_limit)
        penalty = np.full(d + 1, self.settings.regularization, np.float32)
        penalty[d] = self.settings.intercept_regularization
        for first, end in blocks(batch.indptr):
            start, stop = int(batch.indptr[first]), int(batch.indptr[end])
            design = table.take(batch.items[start:stop], axis=0, mode="clip")
            design[:, d + 1] = batch.ratings[start:stop] - np.float32(mean)
            grams = np.empty((end - first, d + 2, d + 2), np.float32)
            segment_grams(design, (batch.indptr[first : end + 1] - start).tolist(), grams)
            # Copies in C order whatever the number of users: the layout decides which routine solves.
            gram = np.ascontiguousarray(grams[:, : d + 1, : d + 1])
            moment = np.ascontiguousarray(grams[:, : d + 1, d + 1])
            solution = ridge(gram, moment, penalty)
            parameters[WEIGHTS][first:end] = solution[:, :d]
            parameters[INTERCEPT][first:end] += solution[:, d]
        return parameters

    def work(self, examples: npt.NDArray[np.int64], d: int) -> Work:
        """Return the work of one Gram matrix (N·w² flops, w = d + 2) and one solve (⅔u³ + 2u², u = d + 1)."""
        rows = examples.astype(np.float64)
        width, unknowns = d + 2, d + 1
        numbers = float(width * width)
        return fitting_work(
            flops=rows * width * (width + 1) + 2.0 / 3.0 * unknowns**3 + 2.0 * unknowns**2,
            moved_bytes=(rows * width + 3.0 * numbers) * FLOAT_BYTES,
            ops=np.full(len(rows), 2.0),
            gathered_rows=rows,
            width=width,
            steps=np.ones(len(rows)),
            memory_bytes=(rows * width + 2.0 * numbers + unknowns) * FLOAT_BYTES,
        )

    def evaluator(self, parameters: MaskParameters) -> Evaluate:
        """Return the function that evaluates c + w·x of a user."""
        intercept, weights = parameters[INTERCEPT], parameters[WEIGHTS]

        def evaluate(user: int, x: Features) -> Array:
            return np.asarray(x @ weights[user] + intercept[user])

        return evaluate
