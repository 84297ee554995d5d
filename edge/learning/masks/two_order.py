"""Two-order mask: a factorisation machine on the features of the items.

Source: Rendle, "Factorization Machines" (2010), equation 1 with the identity of lemma 3.1, here as the
two-order mask of Yang et al. 2021; fitted as in :mod:`edge.learning.masks.factorization`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import PositiveFloat, PositiveInt
from edge.core.rng import hashed_normal
from edge.learning.base import RatingBatch, Work
from edge.learning.masks.base import (
    FLOAT_BYTES,
    Evaluate,
    EvaluatedMask,
    Features,
    MaskParameters,
    PaddedUsers,
    blank,
    fitting_work,
    groups,
    limited,
)
from edge.learning.masks.factorization import (
    FactorizationPenalties,
    FactorizationProblem,
    Fit,
    objective,
    residuals,
    sweep,
)
from edge.learning.method_settings import FeatureLimit, MethodSettings
from edge.learning.updates import Array

INTERCEPT, WEIGHTS, FACTORS = "intercept", "weights", "factors"


class TwoOrderSettings(MethodSettings):
    """Settings of the two-order mask."""

    kind: Literal["two-order"] = "two-order"
    feature_limit: FeatureLimit = 2.0
    factors: PositiveInt = Field(default=4, description="rank f of the interactions")
    regularization: PositiveFloat = Field(default=50.0, description="λ_w of the weights of the features")
    factor_regularization: PositiveFloat = Field(default=50.0, description="λ_V of the factors")
    intercept_regularization: PositiveFloat = Field(
        default=5.0, description="λ_0 of the intercept's distance from the global mean"
    )
    initial_scale: PositiveFloat = Field(
        default=0.1, description="standard deviation of the factors before the first sweep"
    )
    tolerance: PositiveFloat = Field(
        default=1e-3, description="stop when a sweep lowers the objective by less than this part of it"
    )
    max_sweeps: PositiveInt = Field(default=6, description="stop after this many sweeps at the latest")


class TwoOrder(EvaluatedMask):
    """f_u(i) = c + w·x + ½ Σ_f [(V_fᵀx)² − (V_f²)ᵀx²], with the penalties of the settings.

    Parameters: ``intercept`` [n], ``weights`` [n, d], ``factors`` [n, d, f].
    """

    def __init__(self, settings: TwoOrderSettings) -> None:
        self.settings = settings
        self._penalties = FactorizationPenalties(
            settings.intercept_regularization, settings.regularization, settings.factor_regularization
        )

    def spec(self, d: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return names and shapes of one user's parameters."""
        return ((INTERCEPT, ()), (WEIGHTS, (d,)), (FACTORS, (d, self.settings.factors)))

    def fit(
        self, batch: RatingBatch, features: Features, mean: float, keys: npt.NDArray[np.uint64]
    ) -> MaskParameters:
        """Sweep until every user meets the stopping rule; see :class:`edge.learning.masks.base.MaskModel`.

        The factors start as normals drawn from the user's key, everything else at the global mean and zero. A
        user stops by itself, on its own objective, and then drops out of the work.
        """
        parameters = blank(self.spec(features.shape[1]), len(batch.indptr) - 1, INTERCEPT, mean)
        planes = np.ascontiguousarray(limited(features, self.settings.feature_limit).T)
        for group in groups(batch.indptr):
            present = group.present.astype(np.float32)
            x = planes.take(batch.items[group.positions], axis=1, mode="clip")
            x *= present
            targets = (batch.ratings[group.positions] - np.float32(mean)) * present
            self._fit_group(FactorizationProblem(x, present), targets, keys[group.users], group, parameters)
        return parameters

    def _fit_group(
        self,
        problem: FactorizationProblem,
        targets: npt.NDArray[Any],
        keys: npt.NDArray[np.uint64],
        group: PaddedUsers,
        parameters: MaskParameters,
    ) -> None:
        s, users = self.settings, group.users
        fit = self._start(problem, targets, keys)
        value = objective(fit, self._penalties)
        for number in range(1, s.max_sweeps + 1):
            sweep(problem, fit, self._penalties)
            before, value = value, objective(fit, self._penalties)
            # Written so that an objective of zero, which cannot fall, is done as well.
            done = before - value <= s.tolerance * before
            if number == s.max_sweeps:
                done[:] = True
            if not done.any():
                continue
            finished = users[done]
            parameters[INTERCEPT][finished] += fit.offset[done]
            parameters[WEIGHTS][finished] = fit.weights[:, done].T
            parameters[FACTORS][finished] = fit.factors[:, :, done].transpose(2, 1, 0)
            if done.all():
                return
            left = ~done
            problem, fit, value, users = problem.only(left), fit.only(left), value[left], users[left]

    def _start(
        self, problem: FactorizationProblem, targets: npt.NDArray[Any], keys: npt.NDArray[np.uint64]
    ) -> Fit:
        d, users = problem.x.shape[0], len(keys)
        numbers = np.arange(self.settings.factors * d).reshape(-1, d, 1)
        factors = (self.settings.initial_scale * hashed_normal(keys, numbers)).astype(targets.dtype)
        offset, weights = np.zeros(users, targets.dtype), np.zeros((d, users), targets.dtype)
        return Fit(offset, weights, factors, residuals(problem, targets, offset, weights, factors))

    def work(self, examples: npt.NDArray[np.int64], d: int) -> Work:
        """Return the work of ``max_sweeps`` sweeps, one fused operator a coordinate: an upper bound.

        A rating costs 4 flops for the intercept, 6 for a weight (two products, one update), and 12 for a
        factor (h, two products, two updates, and its part of V_fᵀx); a coordinate reads x and e and writes e,
        one of a factor reads and writes V_fᵀx too.
        """
        rows = examples.astype(np.float64)
        loadings = d * self.settings.factors
        sweeps = float(self.settings.max_sweeps)
        numbers = 1.0 + d + loadings
        return fitting_work(
            flops=sweeps * (rows * (4.0 + 6.0 * d + 12.0 * loadings) + 4.0 * numbers),
            moved_bytes=sweeps * rows * (2.0 + 3.0 * d + 5.0 * loadings) * FLOAT_BYTES,
            ops=np.full(len(rows), sweeps * numbers),
            gathered_rows=rows,
            width=d,
            steps=np.full(len(rows), sweeps),
            memory_bytes=(rows * (d + 3.0) + numbers) * FLOAT_BYTES,
        )

    def evaluator(self, parameters: MaskParameters) -> Evaluate:
        """Return the function that evaluates the machine of a user."""
        intercept, weights, factors = (parameters[name] for name in (INTERCEPT, WEIGHTS, FACTORS))
        squares = np.einsum("ndf,ndf->nd", factors, factors)

        def evaluate(user: int, x: Features) -> Array:
            crossed = x @ factors[user]
            pairs = np.einsum("if,if->i", crossed, crossed) - (x * x) @ squares[user]
            return np.asarray(x @ weights[user] + intercept[user] + np.float32(0.5) * pairs)

        return evaluate
