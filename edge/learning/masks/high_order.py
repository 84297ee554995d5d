"""High-order mask: a small neural network on the features of the items.

Source: Yang et al. 2021, the mask by a multi-layer perceptron. One hidden layer of tanh, a linear output,
trained on all of a user's ratings at once by Adam (Kingma & Ba 2015, algorithm 1).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import PositiveFloat, PositiveInt
from edge.core.rng import hashed_normal
from edge.learning.base import RatingBatch, Work
from edge.learning.masks import network
from edge.learning.masks.base import (
    FLOAT_BYTES,
    Evaluate,
    EvaluatedMask,
    Features,
    MaskParameters,
    blank,
    fitting_work,
    groups,
    limited,
)
from edge.learning.masks.network import HIDDEN_BIAS, HIDDEN_WEIGHTS, INTERCEPT, OUTPUT_WEIGHTS
from edge.learning.masks.zero_order import shrunk_means
from edge.learning.method_settings import FeatureLimit, MethodSettings
from edge.learning.updates import Array


class HighOrderSettings(MethodSettings):
    """Settings of the high-order mask."""

    kind: Literal["high-order"] = "high-order"
    feature_limit: FeatureLimit = 2.0
    width: PositiveInt = Field(default=8, description="units of the hidden layer")
    weight_decay: PositiveFloat = Field(default=17.0, description="λ of hidden and output weights")
    intercept_regularization: PositiveFloat = Field(
        default=5.0, description="λ_0 of the intercept's distance from the global mean"
    )
    learning_rate: PositiveFloat = Field(default=0.05, description="Adam's step size")
    epochs: PositiveInt = Field(default=40, description="Adam steps at most, each on all ratings of the user")
    check_every: PositiveInt = Field(default=10, description="epochs between two looks at the objective")
    tolerance: PositiveFloat = Field(
        default=1e-3,
        description="stop when the objective fell by less than this part of it between two looks",
    )


class HighOrder(EvaluatedMask):
    """f_u(i) = c + v·tanh(Wᵀx + b); the objective is that of :func:`edge.learning.masks.network.objective`.

    Parameters: ``hidden_weights`` [n, d, h], ``hidden_bias`` [n, h], ``output_weights`` [n, h],
    ``intercept`` [n].
    """

    def __init__(self, settings: HighOrderSettings) -> None:
        self.settings = settings

    def spec(self, d: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return names and shapes of one user's parameters."""
        h = self.settings.width
        return ((HIDDEN_WEIGHTS, (d, h)), (HIDDEN_BIAS, (h,)), (OUTPUT_WEIGHTS, (h,)), (INTERCEPT, ()))

    def fit(
        self, batch: RatingBatch, features: Features, mean: float, keys: npt.NDArray[np.uint64]
    ) -> MaskParameters:
        """Train every user's network; see :class:`edge.learning.masks.base.MaskModel`.

        Hidden weights start as normals of variance 1/d drawn from the user's key, the intercept at the shrunk
        mean, everything else at zero. A user stops by itself and then drops out of the work.
        """
        s, d = self.settings, features.shape[1]
        features = limited(features, s.feature_limit)
        parameters = blank(self.spec(d), len(batch.indptr) - 1, INTERCEPT, mean)
        starts = shrunk_means(batch, mean, s.intercept_regularization).astype(np.float32)
        numbers = np.arange(d * s.width).reshape(d, s.width)
        for group in groups(batch.indptr):
            present = group.present.astype(np.float32)
            problem = network.NetworkProblem(
                x=features.take(batch.items[group.positions], axis=0, mode="clip"),
                present=present,
                targets=(batch.ratings[group.positions] - np.float32(mean)) * present,
            )
            start = {name: np.zeros((len(group.users), *shape), np.float32) for name, shape in self.spec(d)}
            draws = hashed_normal(keys[group.users][:, None, None], numbers)
            start[HIDDEN_WEIGHTS][:] = draws / np.sqrt(d)
            start[INTERCEPT][:] = starts[group.users] - np.float32(mean)
            done = network.train(
                problem,
                start,
                network.NetworkPenalties(s.weight_decay, s.intercept_regularization),
                learning_rate=s.learning_rate,
                epochs=s.epochs,
                check_every=s.check_every,
                tolerance=s.tolerance,
            )
            for rows, fitted in done:
                for name, array in fitted.items():
                    parameters[name][group.users[rows]] = array
                parameters[INTERCEPT][group.users[rows]] += np.float32(mean)
        return parameters

    def work(self, examples: npt.NDArray[np.int64], d: int) -> Work:
        """Return the work of ``epochs`` epochs, an upper bound: a user may stop before.

        A rating costs 2dh flops on the way in and 2dh for the gradient of W, and 8h for tanh, its derivative
        and the output; Adam 12 a parameter. Eight operators an epoch.
        """
        rows = examples.astype(np.float64)
        h, epochs = self.settings.width, float(self.settings.epochs)
        numbers = d * h + 2.0 * h + 1.0
        return fitting_work(
            flops=epochs * (rows * (4.0 * d * h + 8.0 * h) + 12.0 * numbers),
            moved_bytes=epochs * (rows * (2.0 * d + 6.0 * h) + 7.0 * numbers) * FLOAT_BYTES,
            ops=np.full(len(rows), 8.0 * epochs),
            gathered_rows=rows,
            width=d,
            steps=np.full(len(rows), epochs),
            memory_bytes=(rows * (d + 2.0 * h + 2.0) + 4.0 * numbers) * FLOAT_BYTES,
        )

    def evaluator(self, parameters: MaskParameters) -> Evaluate:
        """Return the function that evaluates the network of a user."""
        hidden, bias, output, intercept = (
            parameters[name] for name in (HIDDEN_WEIGHTS, HIDDEN_BIAS, OUTPUT_WEIGHTS, INTERCEPT)
        )

        def evaluate(user: int, x: Features) -> Array:
            return np.asarray(np.tanh(x @ hidden[user] + bias[user]) @ output[user] + intercept[user])

        return evaluate
