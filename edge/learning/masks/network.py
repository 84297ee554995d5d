"""The arithmetic of one small network per user, for many users at once.

Shapes: u users padded to S ratings, d features, h hidden units. Parameters are named as in
:class:`edge.learning.masks.high_order.HighOrder`, with the intercept less the global mean. Every product
is one BLAS
call per user on arrays in C order, so no user meets another. Padding has no weight in the objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.learning.updates import Array

HIDDEN_WEIGHTS, HIDDEN_BIAS = "hidden_weights", "hidden_bias"
OUTPUT_WEIGHTS, INTERCEPT = "output_weights", "intercept"
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8

Parameters = dict[str, Array]


class NetworkPenalties(NamedTuple):
    """λ of hidden and output weights, and λ_0 of the intercept's distance from the global mean."""

    weights: float
    intercept: float


class NetworkProblem(NamedTuple):
    """Ratings to explain: ``x`` [u, S, d]; ``present`` [u, S] 1 or 0; ``targets`` [u, S], r − μ or 0."""

    x: npt.NDArray[Any]
    present: npt.NDArray[Any]
    targets: npt.NDArray[Any]

    def only(self, rows: npt.NDArray[np.bool_]) -> NetworkProblem:
        """Return the problem of some of the users, bool [u]."""
        return NetworkProblem(self.x[rows], self.present[rows], self.targets[rows])


def forward(problem: NetworkProblem, p: Parameters) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the hidden units tanh(Wᵀx + b), [u, S, h], and the error ŷ − r, [u, S], zero in padding."""
    hidden: npt.NDArray[Any] = np.matmul(problem.x, p[HIDDEN_WEIGHTS])
    hidden += p[HIDDEN_BIAS][:, None, :]
    np.tanh(hidden, out=hidden)
    error: npt.NDArray[Any] = np.matmul(hidden, p[OUTPUT_WEIGHTS][:, :, None])[:, :, 0]
    error += p[INTERCEPT][:, None]
    error -= problem.targets
    error *= problem.present
    return hidden, error


def objective(problem: NetworkProblem, p: Parameters, penalties: NetworkPenalties) -> npt.NDArray[Any]:
    """Return ½·(Σ e² + λ|W|² + λ|v|² + λ_0 (c − μ)²) of every user, [u]; the hidden bias is free."""
    _, error = forward(problem, p)
    value: npt.NDArray[Any] = np.einsum("us,us->u", error, error)
    for name in (HIDDEN_WEIGHTS, OUTPUT_WEIGHTS):
        flat = p[name].reshape(len(value), -1)
        value += penalties.weights * np.einsum("uk,uk->u", flat, flat)
    value += penalties.intercept * p[INTERCEPT] ** 2
    return 0.5 * value


def gradient(problem: NetworkProblem, p: Parameters, penalties: NetworkPenalties) -> Parameters:
    """Return the gradient of :func:`objective` for every user, by parameter."""
    hidden, error = forward(problem, p)
    output = np.matmul(error[:, None, :], hidden)[:, 0] + penalties.weights * p[OUTPUT_WEIGHTS]
    intercept = np.einsum("us->u", error) + penalties.intercept * p[INTERCEPT]
    # From here on ``hidden`` is what flows back through it: e · v · (1 − tanh²).
    hidden *= hidden
    np.subtract(hidden.dtype.type(1), hidden, out=hidden)
    hidden *= p[OUTPUT_WEIGHTS][:, None, :]
    hidden *= error[:, :, None]
    weights = np.matmul(problem.x.transpose(0, 2, 1), hidden) + penalties.weights * p[HIDDEN_WEIGHTS]
    return {
        HIDDEN_WEIGHTS: weights,
        HIDDEN_BIAS: np.matmul(np.ones_like(error)[:, None, :], hidden)[:, 0],
        OUTPUT_WEIGHTS: output,
        INTERCEPT: intercept,
    }


def train(
    problem: NetworkProblem,
    start: Parameters,
    penalties: NetworkPenalties,
    *,
    learning_rate: float,
    epochs: int,
    check_every: int,
    tolerance: float,
) -> Iterator[tuple[npt.NDArray[np.int64], Parameters]]:
    """Train by Adam on all ratings; yield users that are done (their rows, int64) and their parameters.

    A user is done after ``epochs`` steps, or when its objective rose, or fell by less than ``tolerance`` of
    itself, in the last ``check_every`` steps. The gradient is divided by the number of ratings,
    which Adam's step hardly feels; it keeps ε small beside it.
    """
    rows = np.arange(len(problem.x))
    current = {name: array.copy() for name, array in start.items()}
    first = {name: np.zeros_like(array) for name, array in start.items()}
    second = {name: np.zeros_like(array) for name, array in start.items()}
    value = objective(problem, current, penalties)
    for step in range(1, epochs + 1):
        per_rating = 1 / np.einsum("us->u", problem.present)
        rate = learning_rate / (1 - _BETA_1**step)
        correction = 1 / (1 - _BETA_2**step)
        for name, total in gradient(problem, current, penalties).items():
            slope = total * per_rating.reshape(-1, *[1] * (total.ndim - 1))
            first[name] += (1 - _BETA_1) * (slope - first[name])
            second[name] += (1 - _BETA_2) * (slope * slope - second[name])
            current[name] -= rate * first[name] / (np.sqrt(correction * second[name]) + _EPSILON)
        if step % check_every and step < epochs:
            continue
        before, value = value, objective(problem, current, penalties)
        done = before - value <= tolerance * before
        if step == epochs:
            done[:] = True
        if done.any():
            yield rows[done], {name: array[done] for name, array in current.items()}
            left = ~done
            if not left.any():
                return
            problem, rows, value = problem.only(left), rows[left], value[left]
            current, first, second = (
                {name: array[left] for name, array in arrays.items()} for arrays in (current, first, second)
            )
