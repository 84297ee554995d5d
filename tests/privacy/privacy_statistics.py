"""Bounds that a statistic passes with a known, tiny probability when all is well."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


def chi_square_limit(freedom: int) -> float:
    """Return what a chi-square of ``freedom`` exceeds with probability below e**−14 = 8e−7.

    Laurent and Massart 2000, Lemma 1: P(χ² >= f + 2√(fx) + 2x) <= e**−x.
    """
    return freedom + 2 * math.sqrt(14 * freedom) + 28


def chi_square(counts: npt.NDArray[Any], probabilities: npt.NDArray[np.float64]) -> float:
    expected = probabilities * counts.sum()
    assert expected.min() > 5
    return float(((counts - expected) ** 2 / expected).sum())


def distance_to_normal(values: npt.NDArray[Any]) -> float:
    """Return √n times the Kolmogorov distance to the standard normal.

    Massart 1990: above 2.7 with probability below 2·exp(−2·2.7²) = 1e−6.
    """
    ordered = np.sort(values.astype(np.float64))
    normal = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in ordered.tolist()])
    n = len(ordered)
    above = np.max(np.arange(1, n + 1) / n - normal)
    below = np.max(normal - np.arange(n) / n)
    return math.sqrt(n) * float(max(above, below))


def discrete_gaussian_pmf(sigma: float, reach: int) -> npt.NDArray[np.float64]:
    """Return the probabilities of −reach … reach; what lies beyond must not count."""
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = np.exp(-x * x / (2 * sigma * sigma))
    return np.asarray(weights / weights.sum())


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return ε of ρ-zCDP at ``delta``: Canonne, Kamath and Steinke 2020, Corollary 13, over a grid of α."""
    alpha = 1 + np.geomspace(1e-3, 1e5, 1_000_000)
    curve = rho * alpha + np.log1p(-1 / alpha) - np.log(alpha * delta) / (alpha - 1)
    return max(0.0, float(curve.min()))
