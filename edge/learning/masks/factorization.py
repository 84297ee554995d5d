"""The arithmetic of a factorisation machine fitted by coordinate descent, for many users at once.

Source: Rendle, "Factorization Machines with libFM" (2012), the ALS learner (section 3.2): a prediction is
linear in every single parameter θ, ŷ = g + θ·h, so the best θ with all others fixed is

    θ ← (θ Σ h² + Σ h e + λ·θ₀) / (Σ h² + λ),   e = r − ŷ,

θ₀ being what the penalty pulls to. h is 1 for the intercept, x_j for a weight, and for a factor
h = x_j·(V_fᵀx − v_jf·x_j). V_fᵀx and e are carried along instead of being computed anew.

Shapes: u users padded to S ratings, d features, f factors. Features lie one after the other, [d, u, S]:
a coordinate reads one plane of them. Padding has x = 0 and e = 0 and so has no say.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class FactorizationPenalties(NamedTuple):
    """λ of the intercept (its distance from the global mean), of the weights and of the factors."""

    intercept: float
    weights: float
    factors: float


class FactorizationProblem(NamedTuple):
    """Ratings to explain: ``x`` [d, u, S], ``present`` [u, S] 1 or 0, in the dtype of the arithmetic."""

    x: npt.NDArray[Any]
    present: npt.NDArray[Any]

    def only(self, rows: npt.NDArray[np.bool_]) -> FactorizationProblem:
        """Return the problem of some of the users, bool [u]."""
        # Unlike an index, compress leaves planes in C order, however many users are left.
        return FactorizationProblem(self.x.compress(rows, axis=1), self.present[rows])


class Fit(NamedTuple):
    """Where the descent stands; :func:`sweep` writes into these arrays.

    ``offset`` [u], the intercept less the global mean; ``weights`` [d, u]; ``factors`` [f, d, u];
    ``error`` [u, S], r − ŷ, zero in padding.
    """

    offset: npt.NDArray[Any]
    weights: npt.NDArray[Any]
    factors: npt.NDArray[Any]
    error: npt.NDArray[Any]

    def only(self, rows: npt.NDArray[np.bool_]) -> Fit:
        """Return copies for some of the users, bool [u]."""
        return Fit(self.offset[rows], self.weights[:, rows], self.factors[:, :, rows], self.error[rows])


def residuals(
    problem: FactorizationProblem,
    targets: npt.NDArray[Any],
    offset: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    factors: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Return r − ŷ of the given parameters, [u, S]; ``targets`` [u, S] are ratings less the global mean."""
    error: npt.NDArray[Any] = targets - offset[:, None]
    for plane, weight in zip(problem.x, weights, strict=True):
        error -= plane * weight[:, None]
    half = error.dtype.type(0.5)
    for factor in factors:
        crossed, squares = np.zeros_like(error), np.zeros_like(error)
        for plane, loading in zip(problem.x, factor, strict=True):
            term = plane * loading[:, None]
            crossed += term
            term *= term
            squares += term
        error -= half * (crossed * crossed - squares)
    return np.asarray(error * problem.present)


def objective(fit: Fit, penalties: FactorizationPenalties) -> npt.NDArray[Any]:
    """Return Σ e² + λ_0 (c − μ)² + λ_w |w|² + λ_V |V|² of every user, [u]."""
    # Sums run over leading axes, one user to a column, or within a row: no user meets another.
    value: npt.NDArray[Any] = np.einsum("us,us->u", fit.error, fit.error)
    value += penalties.intercept * fit.offset**2
    for weight in fit.weights:
        value += penalties.weights * weight**2
    for factor in fit.factors:
        for loading in factor:
            value += penalties.factors * loading**2
    return value


def sweep(problem: FactorizationProblem, fit: Fit, penalties: FactorizationPenalties) -> None:
    """Set every parameter to its best value once: the intercept, the weights, then factor after factor."""
    x, error = problem.x, fit.error
    dtype = error.dtype.type
    lambda_0, lambda_w, lambda_v = (dtype(value) for value in penalties)
    counts = np.einsum("us->u", problem.present)
    change = (np.einsum("us->u", error) - lambda_0 * fit.offset) / (counts + lambda_0)
    fit.offset[:] += change
    error -= problem.present * change[:, None]
    for j, plane in enumerate(x):
        weight = fit.weights[j]
        change = np.einsum("us,us->u", plane, error) - lambda_w * weight
        change /= np.einsum("us,us->u", plane, plane) + lambda_w
        weight += change
        error -= plane * change[:, None]
    h, scratch = np.empty_like(error), np.empty_like(error)
    for factor in fit.factors:
        crossed = np.zeros_like(error)
        for plane, loading in zip(x, factor, strict=True):
            np.multiply(plane, loading[:, None], out=scratch)
            crossed += scratch
        for j, plane in enumerate(x):
            loading = factor[j]
            np.multiply(plane, loading[:, None], out=scratch)
            np.subtract(crossed, scratch, out=h)
            h *= plane
            change = np.einsum("us,us->u", h, error) - lambda_v * loading
            change /= np.einsum("us,us->u", h, h) + lambda_v
            loading += change
            h *= change[:, None]
            error -= h
            np.multiply(plane, change[:, None], out=scratch)
            crossed += scratch
