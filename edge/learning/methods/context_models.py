"""Models of ratings on features, the same for all users: linear, a factorisation machine, a small network.

Sources: Rendle, "Factorization Machines" (ICDM 2010), equation 1 and the gradient below it; the network is
that of the high-order mask (:mod:`edge.learning.masks.network`), with parameters that all users share.

Shapes: u clients padded to S ratings, D features, f factors, h hidden units. The parameters of clients drift
apart while they train, so every one has a leading axis u. Every product is one BLAS call per client on arrays
in C order, so no client meets another; padding has no error and no slope.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from device_profiles.fields import ByKey, NonNegativeFloat, PositiveInt
from edge.core.rng import stream
from edge.learning.masks import network
from edge.learning.masks.network import (
    HIDDEN_BIAS,
    HIDDEN_WEIGHTS,
    INTERCEPT,
    OUTPUT_WEIGHTS,
    NetworkProblem,
    Parameters,
)
from edge.learning.method_settings import MethodSettings
from edge.learning.updates import Array

WEIGHTS, FACTORS = "weights", "factors"
FREE = frozenset((INTERCEPT, HIDDEN_BIAS))
"""Parameters without weight decay."""
_FREE_OF_PENALTY = network.NetworkPenalties(0.0, 0.0)


class LinearSettings(MethodSettings):
    """ŷ = c + w·x."""

    kind: Literal["linear"] = Field(default="linear", description="linear: a weight for every feature")


class FactorizationMachineSettings(MethodSettings):
    """ŷ = c + w·x + ½ Σ_f [(V_fᵀx)² − (V_f²)ᵀx²]."""

    kind: Literal["factorization-machine"] = Field(
        description="factorization-machine: a weight for every feature and for every pair of two"
    )
    factors: PositiveInt = Field(default=8, description="length of a feature's factors")
    initial_scale: NonNegativeFloat = Field(
        default=0.05, description="standard deviation of the factors before the first round"
    )


class NetworkSettings(MethodSettings):
    """ŷ = c + v·tanh(Wᵀx + b)."""

    kind: Literal["network"] = Field(description="network: one hidden layer of tanh")
    width: PositiveInt = Field(default=16, description="units of the hidden layer")


ModelSettings = Annotated[LinearSettings | FactorizationMachineSettings | NetworkSettings, ByKey("kind")]


class ContextModel(Protocol):
    """A model of ratings; pure functions of arrays."""

    def initial(self, d: int, seed: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return the parameters for ``d`` features before training, by name, without the leading axis."""
        ...

    def error(self, problem: NetworkProblem, p: Parameters) -> npt.NDArray[Any]:
        """Return ŷ − r of every rating, [u, S], zero in padding."""
        ...

    def slopes(self, problem: NetworkProblem, p: Parameters) -> Parameters:
        """Return the gradient of ½ Σ (ŷ − r)² of every client, by parameter."""
        ...

    def evaluate(self, p: Parameters, x: Array) -> Array:
        """Return ŷ of rows ``x`` [n, D] under one client's parameters, without a leading axis: [n]."""
        ...

    def folded(self, p: Parameters, known: Array) -> Parameters:
        """Return a model of the first D − e features for each of n users whose other e are known.

        ``p`` is as for :meth:`evaluate`, ``known`` [n, e]. The result has a leading axis n, and gives the
        same ŷ.
        """
        ...

    def flops(self, d: int) -> float:
        """Return the flops of a rating in one step, ``d`` being the number of features."""
        ...


class Linear:
    """ŷ = c + w·x: ``intercept``, ``weights`` [D]."""

    def initial(self, d: int, seed: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return zeros."""
        return {INTERCEPT: np.zeros(()), WEIGHTS: np.zeros(d)}

    def error(self, problem: NetworkProblem, p: Parameters) -> npt.NDArray[Any]:
        """Return ŷ − r, [u, S]."""
        error: npt.NDArray[Any] = np.matmul(problem.x, p[WEIGHTS][:, :, None])[:, :, 0]
        error += p[INTERCEPT][:, None]
        error -= problem.targets
        error *= problem.present
        return error

    def slopes(self, problem: NetworkProblem, p: Parameters) -> Parameters:
        """Return Σ e for the intercept and Σ e·x for the weights."""
        return _linear_slopes(problem, self.error(problem, p))

    def evaluate(self, p: Parameters, x: Array) -> Array:
        """Return ŷ, [n]."""
        return np.asarray(x @ p[WEIGHTS] + p[INTERCEPT])

    def folded(self, p: Parameters, known: Array) -> Parameters:
        """Return intercepts c + w_u·u; the other weights are everybody's."""
        own = len(p[WEIGHTS]) - known.shape[1]
        return {
            INTERCEPT: p[INTERCEPT] + known @ p[WEIGHTS][own:],
            WEIGHTS: _for_each(p[WEIGHTS][:own], known),
        }

    def flops(self, d: int) -> float:
        """Return 2 for each feature on the way in, and 2 on the way back."""
        return 4.0 * d + 4.0


class FactorizationMachine:
    """ŷ = c + w·x + ½ Σ_f [(V_fᵀx)² − (V_f²)ᵀx²]: ``intercept``, ``weights`` [D], ``factors`` [D, f]."""

    def __init__(self, settings: FactorizationMachineSettings) -> None:
        self.settings = settings

    def initial(self, d: int, seed: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return factors ~ N(0, ``initial_scale``²) and zeros."""
        draws = stream(seed, "learning", "context", "factors").standard_normal((d, self.settings.factors))
        return {
            INTERCEPT: np.zeros(()),
            WEIGHTS: np.zeros(d),
            FACTORS: self.settings.initial_scale * draws,
        }

    def error(self, problem: NetworkProblem, p: Parameters) -> npt.NDArray[Any]:
        """Return ŷ − r, [u, S]."""
        return self._forward(problem, p)[1]

    def _forward(self, problem: NetworkProblem, p: Parameters) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return Vᵀx, [u, S, f], and ŷ − r, [u, S]."""
        crossed: npt.NDArray[Any] = np.matmul(problem.x, p[FACTORS])
        squares = np.matmul(problem.x * problem.x, p[FACTORS] * p[FACTORS])
        error: npt.NDArray[Any] = np.matmul(problem.x, p[WEIGHTS][:, :, None])[:, :, 0]
        error += np.einsum("usf->us", crossed * crossed - squares) * error.dtype.type(0.5)
        error += p[INTERCEPT][:, None]
        error -= problem.targets
        error *= problem.present
        return crossed, error

    def slopes(self, problem: NetworkProblem, p: Parameters) -> Parameters:
        """Return the gradient: of v_jf it is Σ e·(x_j·(V_fᵀx) − v_jf·x_j²)."""
        crossed, error = self._forward(problem, p)
        crossed *= error[:, :, None]
        factors = np.matmul(problem.x.transpose(0, 2, 1), crossed)
        weighed = np.matmul(error[:, None, :], problem.x * problem.x)[:, 0]
        factors -= weighed[:, :, None] * p[FACTORS]
        return {**_linear_slopes(problem, error), FACTORS: factors}

    def evaluate(self, p: Parameters, x: Array) -> Array:
        """Return ŷ, [n]."""
        crossed, squares = x @ p[FACTORS], (x * x) @ (p[FACTORS] * p[FACTORS])
        pairs = (crossed * crossed - squares).sum(axis=1) * x.dtype.type(0.5)
        return np.asarray(x @ p[WEIGHTS] + pairs + p[INTERCEPT])

    def folded(self, p: Parameters, known: Array) -> Parameters:
        """Return weights w + V·(V_uᵀu), which are the pairs of a known feature and another one.

        The pairs of two known ones go into the intercept.
        """
        own = len(p[WEIGHTS]) - known.shape[1]
        factors, theirs = p[FACTORS][:own], p[FACTORS][own:]
        crossed = known @ theirs
        pairs = (crossed * crossed - (known * known) @ (theirs * theirs)).sum(axis=1)
        return {
            INTERCEPT: p[INTERCEPT] + known @ p[WEIGHTS][own:] + pairs * known.dtype.type(0.5),
            WEIGHTS: p[WEIGHTS][:own] + crossed @ factors.T,
            FACTORS: _for_each(factors, known),
        }

    def flops(self, d: int) -> float:
        """Return those of the linear part, and 6 for each feature and factor."""
        return 4.0 * d + 4.0 + self.settings.factors * (6.0 * d + 4.0)


class Network:
    """ŷ = c + v·tanh(Wᵀx + b): named as in :mod:`edge.learning.masks.network`."""

    def __init__(self, settings: NetworkSettings) -> None:
        self.settings = settings

    def initial(self, d: int, seed: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return hidden weights of variance 1/D, output weights of variance 1/h, and zeros."""
        h = self.settings.width
        draws = stream(seed, "learning", "context", "network").standard_normal((d + 1, h))
        return {
            HIDDEN_WEIGHTS: draws[:d] / np.sqrt(d),
            HIDDEN_BIAS: np.zeros(h),
            OUTPUT_WEIGHTS: draws[d] / np.sqrt(h),
            INTERCEPT: np.zeros(()),
        }

    def error(self, problem: NetworkProblem, p: Parameters) -> npt.NDArray[Any]:
        """Return ŷ − r, [u, S]."""
        return network.forward(problem, p)[1]

    def slopes(self, problem: NetworkProblem, p: Parameters) -> Parameters:
        """Return the gradient, by back-propagation."""
        return network.gradient(problem, p, _FREE_OF_PENALTY)

    def evaluate(self, p: Parameters, x: Array) -> Array:
        """Return ŷ, [n]."""
        hidden = np.tanh(x @ p[HIDDEN_WEIGHTS] + p[HIDDEN_BIAS])
        return np.asarray(hidden @ p[OUTPUT_WEIGHTS] + p[INTERCEPT])

    def folded(self, p: Parameters, known: Array) -> Parameters:
        """Return hidden biases b + W_uᵀu; the rest is everybody's."""
        own = len(p[HIDDEN_WEIGHTS]) - known.shape[1]
        return {
            HIDDEN_WEIGHTS: _for_each(p[HIDDEN_WEIGHTS][:own], known),
            HIDDEN_BIAS: p[HIDDEN_BIAS] + known @ p[HIDDEN_WEIGHTS][own:],
            OUTPUT_WEIGHTS: _for_each(p[OUTPUT_WEIGHTS], known),
            INTERCEPT: np.repeat(p[INTERCEPT], len(known)),
        }

    def flops(self, d: int) -> float:
        """Return 4 for each feature and unit, and 8 a unit for tanh, its derivative and the output."""
        return self.settings.width * (4.0 * d + 8.0)


def _for_each(array: Array, known: Array) -> Array:
    """Return a view of ``array`` for each row of ``known``."""
    return np.broadcast_to(array, (len(known), *array.shape))


def _linear_slopes(problem: NetworkProblem, error: npt.NDArray[Any]) -> Parameters:
    return {
        INTERCEPT: np.einsum("us->u", error),
        WEIGHTS: np.matmul(error[:, None, :], problem.x)[:, 0],
    }


def create(settings: LinearSettings | FactorizationMachineSettings | NetworkSettings) -> ContextModel:
    """Make the model that settings belong to."""
    match settings:
        case LinearSettings():
            return Linear()
        case FactorizationMachineSettings():
            return FactorizationMachine(settings)
        case NetworkSettings():
            return Network(settings)
