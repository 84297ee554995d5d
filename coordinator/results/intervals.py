"""Means with confidence intervals: of one sample, of paired differences, and of two samples."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.95


def t_probability(t: float, freedom: int) -> float:
    """Return P(|T| ≤ t) of Student's t distribution.

    Exact but for rounding: the finite series of Abramowitz and Stegun, "Handbook of Mathematical Functions"
    (1964), 26.7.3 for an odd and 26.7.4 for an even number of degrees of freedom.

    Parameters
    ----------
    t : 0 or more.
    freedom : degrees of freedom, 1 or more.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom % 2:
        # 2/π (θ + sin θ (cos θ + 2/3 cos³ θ + 2·4/(3·5) cos⁵ θ + … up to cos^(ν−2) θ))
        term, total = cosine, 0.0
        for power in range(1, freedom - 1, 2):
            total += term
            term *= cosine * cosine * (power + 1) / (power + 2)
        return 2 / math.pi * (angle + sine * total)
    # sin θ (1 + 1/2 cos² θ + 1·3/(2·4) cos⁴ θ + … up to cos^(ν−2) θ)
    term, total = 1.0, 0.0
    for power in range(0, freedom, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return sine * total


@functools.lru_cache(maxsize=256)
def t_quantile(confidence: float, freedom: int) -> float:
    """Return t with P(|T| ≤ t) = ``confidence``: 12.706 for 95 % and one degree of freedom.

    :func:`t_probability` is inverted by bisection of the angle arctan(t/√ν), in which it is bounded and
    smooth.

    Parameters
    ----------
    confidence : above 0 and below 1.
    freedom : degrees of freedom, 1 or more.

    Raises
    ------
    ValueError : a parameter out of its range.
    """
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"no t quantile for confidence {confidence} and {freedom} degrees of freedom")
    low, high = 0.0, math.pi / 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return math.sqrt(freedom) * math.tan(middle)
        if t_probability(math.sqrt(freedom) * math.tan(middle), freedom) < confidence:
            low = middle
        else:
            high = middle


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its confidence interval ``mean ± half_width``.

    Attributes
    ----------
    mean : of the sample.
    half_width : None where one observation allows no interval.
    n : observations; of a difference between samples, the smaller number.
    """

    mean: float
    half_width: float | None
    n: int


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and interval of a sample, at least one value: mean ± t_(n−1) s/√n."""
    n = len(values)
    if n == 1:
        return Estimate(values[0], None, n)
    if min(values) == max(values):
        return Estimate(values[0], 0.0, n)  # as it is: no trace of how a mean is rounded
    mean = math.fsum(values) / n
    return Estimate(mean, t_quantile(CONFIDENCE, n - 1) * math.sqrt(_variance(values) / n), n)


def _variance(values: Sequence[float]) -> float:
    """Return the unbiased variance of two values or more."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much larger a second mean is than a first.

    ``paired`` says that the interval is of the differences seed by seed.
    """

    estimate: Estimate
    paired: bool


def difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """Return the difference of two samples by seed, the second minus the first; neither is empty.

    With the same seeds it is the mean of the differences of each seed and its t interval. Otherwise it is the
    difference of the means with the interval of Welch (1947), "The generalization of Student's problem when
    several different population variances are involved", its degrees of freedom rounded down; with a single
    run on either side there is no interval.
    """
    if set(first) == set(second):
        changes = [second[seed] - first[seed] for seed in sorted(first)]
        return Difference(estimate(changes), paired=True)
    samples = [list(sample.values()) for sample in (first, second)]
    means = [math.fsum(sample) / len(sample) for sample in samples]
    n = min(len(sample) for sample in samples)
    if n < 2:
        return Difference(Estimate(means[1] - means[0], None, n), paired=False)
    spreads = [_variance(sample) / len(sample) for sample in samples]
    total = sum(spreads)
    half_width = 0.0
    if total > 0:
        parts = [spread**2 / (len(sample) - 1) for spread, sample in zip(spreads, samples, strict=True)]
        freedom = max(1, math.floor(total**2 / sum(parts)))
        half_width = t_quantile(CONFIDENCE, freedom) * math.sqrt(total)
    return Difference(Estimate(means[1] - means[0], half_width, n), paired=False)
