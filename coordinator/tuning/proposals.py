"""Which settings to try next: Bayesian optimisation with constraints, for tens to hundreds of trials.

The figure and the distance to each threshold are modelled by a Gaussian process each (Rasmussen & Williams
2006, "Gaussian Processes for Machine Learning", algorithm 2.1; Matérn kernel, ν = 5/2, a length scale an
axis). The next point has the largest expected improvement (Jones, Schonlau & Welch 1998, "Efficient Global
Optimization of Expensive Black-Box Functions", equation 15) times the probability that all thresholds hold
(Gardner et al. 2014, "Bayesian Optimization with Inequality Constraints", equation 6); as long as none has
held them, that probability alone. Both are means over several kernels, by their likelihood (Snoek, Larochelle
& Adams 2012, "Practical Bayesian Optimization of Machine Learning Algorithms", section 3.2).

The thresholds are what pays: a run says not only that one was missed, but by how much, so its limit is found
in a few steps. Numpy suffices; a proposal depends on the tried points and its generator alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from coordinator.tuning.space import Point, Space

__all__ = ["Tried", "first_points", "propose"]

Floats: TypeAlias = npt.NDArray[np.float64]

_KERNELS: Final = 64
"""Kernels that are drawn for a model."""
_KEPT: Final = 8
"""Likeliest of them, of which the mean is taken."""
_LENGTH: Final = (math.log(0.6), 0.8)
"""Mean and deviation of the logarithm of a length scale, in parts of an axis."""
_NOISE: Final = (-5.0, -2.0)
"""Decimal logarithm of the variance of the noise, between these, of that of the figure."""
_ANYWHERE: Final = 600
_NEAR: Final = ((200, 0.1), (100, 0.03))
"""Candidates around the best point, and their deviation in parts of an axis."""
_CORNERS: Final = 60
"""Candidates at ends of all axes."""
_LEAST_VARIANCE: Final = 1e-10
"""Below this the variance at a known point is how numbers are rounded."""
_MOST_POINTS: Final = 2000
"""A space of no more points is looked at as a whole."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A point that has been tried, or is being tried.

    Attributes
    ----------
    point : the settings.
    value : the figure, less is better; None where it is not known.
    distances : to each threshold, by its text; 0 or more where it holds. None as long as it is being tried.
    """

    point: Point
    value: float | None = None
    distances: Mapping[str, float] | None = None

    @property
    def holds(self) -> bool:
        """Whether the figure is known and every threshold held."""
        return self.value is not None and min((self.distances or {}).values(), default=0.0) >= 0.0


def first_points(space: Space, rng: np.random.Generator, number: int) -> list[Point]:
    """Return the middle of a space, and points that fill it evenly, from a start that is drawn.

    The sequence is that of Roberts 2018, "The Unreasonable Effectiveness of Quasirandom Sequences": multiples
    of powers of 1/φ, φ^(axes + 1) = φ + 1.
    """
    axes = len(space.axes)
    ratio = 2.0
    for _ in range(50):
        ratio = (1.0 + ratio) ** (1.0 / (axes + 1))
    steps = ratio ** -np.arange(1.0, axes + 1.0)
    start = rng.random(axes)
    parts = [np.full(axes, 0.5), *((start + at * steps) % 1.0 for at in range(1, number))]
    return [space.at(each.tolist()) for each in parts[:number]]


def propose(space: Space, tried: Sequence[Tried], rng: np.random.Generator) -> Point | None:
    """Return the point to try next; None where every point has been tried.

    Parameters
    ----------
    space : of the settings.
    tried : what has been tried, at least one point, and what is being tried.
    rng : its randomness.
    """
    held = [one for one in tried if one.holds]
    best = min(held, key=_value_of, default=None)
    points = _candidates(space, best, {one.point for one in tried}, rng)
    if not points:
        return None
    at = space.describe(points)
    gain = np.ones(len(points))
    known = [one for one in tried if one.value is not None]
    running = [one.point for one in tried if one.distances is None]
    if best is not None:
        values, aim = _scaled(np.array([_value_of(one) for one in known]), _value_of(best))
        model = _FigureModel(space, [one.point for one in known], values, running, rng)
        gain *= model.improvement(at, aim)
    for name in dict.fromkeys(name for one in tried for name in one.distances or ()):
        of = [(one.point, one.distances[name]) for one in tried if one.distances and name in one.distances]
        distances = np.array([distance for _, distance in of])
        if np.ptp(distances) > 0.0:
            gain *= _FigureModel(space, [point for point, _ in of], distances, running, rng).positive(at)
    return points[int(np.argmax(gain))]


def _value_of(one: Tried) -> float:
    assert one.value is not None
    return one.value


def _candidates(space: Space, best: Tried | None, tried: set[Point], rng: np.random.Generator) -> list[Point]:
    """Return points that have not been tried, each once."""
    if space.size <= _MOST_POINTS:
        return [point for point in space.every() if point not in tried]
    axes = len(space.axes)
    parts = [rng.random((_ANYWHERE, axes)), rng.integers(0, 2, (_CORNERS, axes)).astype(np.float64)]
    if best is not None:
        middle = space.parts(best.point)
        for number, deviation in _NEAR:
            # Of several axes some alone: what is found of one must not be lost by the others.
            moved = rng.normal(0.0, deviation, (number, axes)) * (rng.random((number, axes)) < 0.7)
            parts.append(np.clip(middle + moved, 0.0, 1.0))
    found = dict.fromkeys(space.at(row) for row in np.concatenate(parts).tolist())
    return [point for point in found if point not in tried]


def _scaled(values: Floats, aim: float) -> tuple[Floats, float]:
    """Return values and what is to be improved on, as logarithms where all are of one sign.

    Figures of fleets (seconds, bytes, errors) differ by factors.
    """
    if np.all(values > 0.0):
        return np.log(values), math.log(aim)
    if np.all(values < 0.0):
        return -np.log(-values), -math.log(-aim)
    return values, aim


class _Kernel(NamedTuple):
    """A Gaussian process given standardised values at n points.

    Attributes
    ----------
    lengths : length scales, float64 [numbers that describe a point].
    noise, variance : of the observations, in parts of the figure's, and of the figure.
    factor : Cholesky factor of the covariance of the observations, float64 [n, n].
    solved : its inverse times the values, float64 [n].
    """

    lengths: Floats
    noise: float
    variance: float
    factor: Floats
    solved: Floats

    @classmethod
    def given(
        cls, lengths: Floats, noise: float, at: Floats, values: Floats, variance: float | None = None
    ) -> _Kernel:
        """Return the process given ``values`` at ``at``.

        Without a ``variance`` it is the likeliest, with two more observations around 1.
        """
        covariance = _matern(at / lengths, at / lengths)
        factor: Floats = np.asarray(np.linalg.cholesky(covariance + noise * np.eye(len(values))), np.float64)
        solved: Floats = np.asarray(np.linalg.solve(factor, values), np.float64)
        if variance is None:
            variance = (float(solved @ solved) + 2.0) / (len(values) + 2.0)
        return cls(lengths, noise, variance, factor, solved)

    def likelihood(self) -> float:
        """Return the logarithm of the likelihood of the values, but for a constant."""
        halved = 0.5 * (len(self.solved) + 2.0) * math.log(self.variance)
        return -halved - float(np.log(np.diag(self.factor)).sum())

    def predict(self, known: Floats, at: Floats) -> tuple[Floats, Floats]:
        """Return mean and deviation at points, float64 [points] each; ``known`` are those of the values."""
        solved = np.linalg.solve(self.factor, _matern(known / self.lengths, at / self.lengths))
        parts = np.maximum(1.0 - (solved * solved).sum(axis=0), _LEAST_VARIANCE)
        return solved.T @ self.solved, np.sqrt(parts * self.variance)


class _FigureModel:
    """What is known of a figure at any point: a mixture of Gaussian processes.

    Parameters
    ----------
    space : of the points.
    points : where the figure is known, n of them.
    values : there, float64 [n].
    running : points that are being tried: there the model believes itself, so that others are proposed
        (Ginsbourger, Le Riche & Carraro 2010, "Kriging is well-suited to parallelize optimization").
    rng : of the kernels.
    """

    def __init__(
        self,
        space: Space,
        points: Sequence[Point],
        values: Floats,
        running: Sequence[Point],
        rng: np.random.Generator,
    ) -> None:
        self._mean, self._deviation = float(values.mean()), float(values.std()) or 1.0
        self._known = space.describe(points)
        standard = (values - self._mean) / self._deviation
        drawn = []
        for _ in range(_KERNELS):
            lengths = np.repeat(np.exp(rng.normal(*_LENGTH, len(space.axes))), space.widths)
            noise = float(10.0 ** rng.uniform(*_NOISE))
            drawn.append(_Kernel.given(lengths, noise, self._known, standard))
        likelihoods = np.array([kernel.likelihood() for kernel in drawn])
        kept = np.argsort(-likelihoods, kind="stable")[:_KEPT].tolist()
        weights = np.exp(likelihoods[kept] - likelihoods[kept[0]])
        self._weights: list[float] = (weights / weights.sum()).tolist()
        self._kernels = [drawn[at] for at in kept]
        if running:
            there = space.describe(running)
            believed = self._average(there, lambda mean, deviation: mean)
            standard = np.concatenate([standard, (believed - self._mean) / self._deviation])
            self._known = np.concatenate([self._known, there])
            self._kernels = [
                _Kernel.given(one.lengths, one.noise, self._known, standard, one.variance)
                for one in self._kernels
            ]

    def improvement(self, at: Floats, aim: float) -> Floats:
        """Return by how much the figure is expected to be below ``aim`` at points, float64 [points]."""

        def expected(mean: Floats, deviation: Floats) -> Floats:
            z = (aim - mean) / deviation
            density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            return deviation * (z * _normal(z) + density)

        return self._average(at, expected)

    def positive(self, at: Floats) -> Floats:
        """Return the probability that the figure is above 0 at points, float64 [points]."""
        return self._average(at, lambda mean, deviation: _normal(mean / deviation))

    def _average(self, at: Floats, of: Callable[[Floats, Floats], Floats]) -> Floats:
        total = np.zeros(len(at))
        for weight, kernel in zip(self._weights, self._kernels, strict=True):
            mean, deviation = kernel.predict(self._known, at)
            total += weight * of(mean * self._deviation + self._mean, deviation * self._deviation)
        return total


def _normal(z: Floats) -> Floats:
    """Return the distribution function of the normal distribution."""
    return np.array([0.5 * math.erfc(-one / math.sqrt(2.0)) for one in z.tolist()])


def _matern(a: Floats, b: Floats) -> Floats:
    """Return the covariance of points [n, d] and [m, d] with a length scale of 1, float64 [n, m]."""
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None] - 2.0 * (a @ b.T)
    distance = np.sqrt(5.0 * np.maximum(squares, 0.0))
    covariance: Floats = (1.0 + distance + distance * distance / 3.0) * np.exp(-distance)
    return covariance
