"""Student's t, and the intervals made of it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.results.intervals import Estimate, difference, estimate, t_probability, t_quantile


@pytest.mark.parametrize(
    ("freedom", "confidence", "tabulated"),
    [
        # Any table of the distribution, two-sided.
        (1, 0.90, 6.314), (1, 0.95, 12.706), (1, 0.99, 63.657),
        (2, 0.90, 2.920), (2, 0.95, 4.303), (2, 0.99, 9.925),
        (3, 0.95, 3.182), (4, 0.95, 2.776), (5, 0.95, 2.571), (6, 0.95, 2.447), (7, 0.95, 2.365),
        (8, 0.95, 2.306), (9, 0.95, 2.262), (10, 0.95, 2.228), (10, 0.99, 3.169), (20, 0.95, 2.086),
        (30, 0.95, 2.042), (60, 0.95, 2.000), (120, 0.95, 1.980), (120, 0.99, 2.617),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(freedom: int, confidence: float, tabulated: float) -> None:
    assert round(t_quantile(confidence, freedom), 3) == tabulated


def test_quantiles_with_a_closed_form() -> None:
    # One degree of freedom is Cauchy's distribution; of two, t² = 2p²/(1 − p²).
    assert t_quantile(0.95, 1) == pytest.approx(math.tan(0.95 * math.pi / 2), rel=1e-12)
    assert t_quantile(0.95, 2) == pytest.approx(math.sqrt(2 * 0.95**2 / (1 - 0.95**2)), rel=1e-12)
    # Of many, the normal distribution.
    assert t_quantile(0.95, 100_000) == pytest.approx(1.959964, abs=3e-5)


@given(st.integers(1, 200), st.floats(0.01, 0.999))
def test_a_quantile_has_its_probability(freedom: int, confidence: float) -> None:
    assert t_probability(t_quantile(confidence, freedom), freedom) == pytest.approx(confidence, rel=1e-9)


def test_no_probability_and_no_freedom_is_an_error() -> None:
    for confidence, freedom in ((0.0, 3), (1.0, 3), (0.95, 0)):
        with pytest.raises(ValueError, match="no t quantile"):
            t_quantile(confidence, freedom)


def test_an_interval_by_hand() -> None:
    # Mean 4, deviations −2 −1 0 3: s² = 14/3, s/√4 = 1.0801, t of three degrees of freedom 3.18245.
    found = estimate([2.0, 3.0, 4.0, 7.0])
    assert found.mean == 4.0
    assert found.half_width == pytest.approx(3.182446 * math.sqrt(14 / 3 / 4), rel=1e-6)
    assert found.n == 4


def test_one_value_has_no_interval_and_equal_ones_an_empty_one() -> None:
    assert estimate([0.1]) == Estimate(0.1, None, 1)
    assert estimate([0.1, 0.1, 0.1]) == Estimate(0.1, 0.0, 3)


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    draw = random.Random(5)
    caught = 0
    for _ in range(4000):
        found = estimate([draw.gauss(3.0, 2.0) for _ in range(4)])
        assert found.half_width is not None
        caught += abs(found.mean - 3.0) <= found.half_width
    # 95 % of 4000 is 3800, its standard deviation 13.8.
    assert abs(caught - 3800) < 60


def test_a_paired_difference_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, s = 1, t of two degrees of freedom 4.30265.
    found = difference({7: 10.0, 8: 20.0, 9: 30.0}, {9: 33.0, 7: 11.0, 8: 22.0})
    assert found.paired
    assert found.estimate.mean == 2.0
    assert found.estimate.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def test_a_difference_of_other_seeds_by_hand() -> None:
    # Variances 1 and 4 of three each: Welch's degrees of freedom (5/3)²/((1/3)²/2 + (4/3)²/2) = 2.94, so 2.
    found = difference({1: 1.0, 2: 2.0, 3: 3.0}, {4: 2.0, 5: 4.0, 6: 6.0})
    assert not found.paired
    assert found.estimate.mean == 2.0
    assert found.estimate.half_width == pytest.approx(4.302653 * math.sqrt(5 / 3), rel=1e-6)


def test_single_runs_have_a_difference_and_no_interval() -> None:
    assert difference({1: 3.0}, {1: 5.0}).estimate == Estimate(2.0, None, 1)
    found = difference({1: 3.0}, {1: 5.0, 2: 7.0})
    assert found.estimate == Estimate(3.0, None, 1)
    assert not found.paired
