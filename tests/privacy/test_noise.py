from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from privacy_statistics import (
    chi_square,
    chi_square_limit,
    discrete_gaussian_pmf,
    distance_to_normal,
)

from edge.core.errors import LocalProtocolError
from edge.crypto import noise
from edge.crypto.entropy import SeededEntropy
from edge.crypto.errors import WrongLengthError
from edge.crypto.noise import Sampler, discrete_gaussian, gaussian, grid_step, with_gaussian
from edge.crypto.noise_scale import share_sd


def seed(number: int) -> bytes:
    return number.to_bytes(16, "little")


def pooled(
    draws: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return counts and probabilities of the values −reach … reach, rare ones put together at both ends."""
    reach = len(probabilities) // 2
    cut = int(np.flatnonzero(probabilities * len(draws) > 10)[-1]) - reach
    counts = np.bincount(np.clip(draws, -cut, cut) + cut, minlength=2 * cut + 1)
    inner = probabilities[reach - cut : reach + cut + 1].copy()
    inner[0] = inner[-1] = probabilities[reach + cut :].sum()
    return counts, inner


# -- Gaussian --------------------------------------------------------------------------------------------


def test_gaussian_noise_is_gaussian() -> None:
    draws = gaussian(seed(1), 3.0, 100_001) / 3.0
    assert distance_to_normal(draws) < 2.7
    # Neighbours in a chunk, and the two branches of one pair, are independent: six standard deviations.
    assert abs(float(np.mean(draws[1:] * draws[:-1]))) < 6 / math.sqrt(100_000)
    half = noise._CHUNK // 2
    assert abs(float(np.mean(draws[:half] * draws[half : 2 * half]))) < 6 / math.sqrt(half)
    assert abs(float(np.mean(draws[:half] ** 2 * draws[half : 2 * half] ** 2)) - 1) < 6 * math.sqrt(8 / half)


@pytest.mark.parametrize("n", [0, 1, 2, 3, noise._CHUNK, noise._CHUNK + 1, 2 * noise._CHUNK + 3])
def test_the_seed_decides_gaussian_noise(n: int) -> None:
    draws = gaussian(seed(2), 1.5, n)
    assert draws.dtype == np.float64
    assert draws.shape == (n,)
    assert np.array_equal(draws, gaussian(seed(2), 1.5, n))
    assert len(set(draws.tolist())) == n
    assert n == 0 or not np.isin(draws, gaussian(seed(3), 1.5, n)).any()


def test_no_noise_is_zero() -> None:
    assert not gaussian(seed(1), 0.0, 10).any()


def test_noise_on_arrays() -> None:
    arrays = {"b": np.full((300, 200), 7.0, np.float32), "a": np.full(50_000, -1.0), "none": np.empty(0)}
    noisy = with_gaussian(arrays, 0.5, SeededEntropy(bytes(16), 1, 1))
    assert list(noisy) == list(arrays)
    assert {name: (array.dtype, array.shape) for name, array in noisy.items()} == {
        name: (array.dtype, array.shape) for name, array in arrays.items()
    }
    assert distance_to_normal(((noisy["b"].astype(np.float64) - 7) / 0.5).ravel()) < 2.7
    assert distance_to_normal((noisy["a"] + 1) / 0.5) < 2.7
    assert arrays["a"].max() == -1.0
    # The order in which arrays are named decides nothing; each has noise of its own.
    turned = with_gaussian(dict(reversed(arrays.items())), 0.5, SeededEntropy(bytes(16), 1, 1))
    assert all(np.array_equal(turned[name], noisy[name]) for name in arrays)
    assert abs(np.corrcoef(noisy["a"], noisy["b"].ravel()[:50_000])[0, 1]) < 6 / math.sqrt(50_000)
    with pytest.raises(LocalProtocolError, match="'rows' is int64"):
        with_gaussian({"rows": np.arange(3)}, 0.5, SeededEntropy(bytes(16), 1, 1))


def test_discrete_noise_on_arrays() -> None:
    arrays = {"b": np.full((300, 200), 7.0, np.float32), "a": np.full(50_000, -1.0), "none": np.empty(0)}
    noisy = with_gaussian(arrays, 0.5, SeededEntropy(bytes(16), 1, 1), Sampler.DISCRETE)
    assert {name: (array.dtype, array.shape) for name, array in noisy.items()} == {
        name: (array.dtype, array.shape) for name, array in arrays.items()
    }
    assert distance_to_normal(((noisy["b"].astype(np.float64) - 7) / 0.5).ravel()) < 2.7
    assert distance_to_normal((noisy["a"] + 1) / 0.5) < 2.7
    assert arrays["a"].max() == -1.0


def test_what_discrete_noise_leads_to_does_not_depend_on_what_it_is_added_to() -> None:
    """Every result is on one grid, whatever was there; in floating point low bits differ."""
    sd = 0.3
    step = grid_step(sd)
    for value in (0.0, 1.0, 1 / 3, -1e-12, 1000 * math.pi):
        whole, loose = (
            with_gaussian({"a": np.full(20_000, value)}, sd, SeededEntropy(bytes(16), 2, 1), sampler)["a"]
            for sampler in (Sampler.DISCRETE, Sampler.FLOATING_POINT)
        )
        assert np.array_equal(np.rint(whole / step) * step, whole)
        assert np.count_nonzero(np.rint(loose / step) * step != loose) > 10_000
        # Rounding moves a value by half a step at most.
        assert abs(float(whole.mean()) - value) < 6 * sd / math.sqrt(20_000)


def test_noise_that_is_discrete_has_the_steps_that_are_accounted_for() -> None:
    for sd in (1e-29, 0.3, 0.5, 1.0, math.nextafter(1.0, 0), 1e30):
        step = grid_step(sd)
        assert math.frexp(step)[0] == 0.5
        assert 2.0**30 <= sd / step < 2.0**31
    assert grid_step(0.0) == 0.0
    nothing = {"a": np.array([1 / 3])}
    for sampler in Sampler:
        assert with_gaussian(nothing, 0.0, SeededEntropy(bytes(16), 1, 1), sampler)["a"].tolist() == [1 / 3]


def test_values_far_beyond_the_noise_stay_finite() -> None:
    huge = with_gaussian(
        {"a": np.array([1e300, -1e300])}, 1.0, SeededEntropy(bytes(16), 1, 1), Sampler.DISCRETE
    )["a"]
    assert huge == pytest.approx([2.0**32, -(2.0**32)], rel=1e-6)


@pytest.mark.parametrize("steps", [4.0, 8.0, 16.0])
def test_a_rounded_gaussian_differs_from_a_discrete_one_by_what_is_said(steps: float) -> None:
    """By (x²/s² − 1)/24s² of itself, and terms of a higher order: at 2^30 steps by 2^-57 within 12 σ."""
    pmf = discrete_gaussian_pmf(steps, math.ceil(40 * steps))
    middle = len(pmf) // 2
    for x in range(round(4 * steps)):
        edges = ((x - 0.5) / steps, (x + 0.5) / steps)
        rounded = 0.5 * (math.erfc(edges[0] / math.sqrt(2)) - math.erfc(edges[1] / math.sqrt(2)))
        expected = ((x / steps) ** 2 - 1) / (24 * steps**2)
        assert rounded / pmf[middle + x] - 1 == pytest.approx(expected, abs=2 / steps**4)
    assert 143 / (24 * 2.0**60) < 2.0**-57


def test_shares_add_up() -> None:
    assert share_sd(6.0, 9) == 2.0
    assert share_sd(0.0, 1) == 0.0


@pytest.mark.parametrize("sd", [-1.0, math.nan, math.inf])
def test_deviations_that_are_refused(sd: float) -> None:
    with pytest.raises(LocalProtocolError, match="0 or more and finite"):
        gaussian(seed(1), sd, 3)
    with pytest.raises(LocalProtocolError, match="0 or more and finite"):
        share_sd(sd, 3)
    with pytest.raises(LocalProtocolError, match="1 or more contributors"):
        share_sd(1.0, 0)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_short_seeds_are_refused(length: int) -> None:
    with pytest.raises(WrongLengthError, match="16 bytes"):
        gaussian(bytes(length), 1.0, 3)
    with pytest.raises(WrongLengthError, match="16 bytes"):
        discrete_gaussian(bytes(length), 1.0, 3)


# -- discrete Gaussian -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.3, 0.5, 0.8, 1.0, 1.7, 2.0, 4.6, 25.0])
def test_discrete_noise_has_its_distribution(sigma: float) -> None:
    draws = discrete_gaussian(seed(int(100 * sigma)), sigma, 300_000)
    counts, probabilities = pooled(draws, discrete_gaussian_pmf(sigma, math.ceil(20 * sigma)))
    assert chi_square(counts, probabilities) < chi_square_limit(len(counts) - 1)


@pytest.mark.parametrize("sigma", [1e3, 1e5, 1e8, 2.0**40, 2.0**53])
def test_wide_discrete_noise_is_gaussian_down_to_its_last_digits(sigma: float) -> None:
    draws = discrete_gaussian(seed(7), sigma, 100_000)
    # A step of 1e−3 σ moves the distribution function by 4e−4/2 at most: 0.07 in units of 1/√n.
    assert distance_to_normal(draws / sigma) < 2.7 + 0.07
    for modulus in (7, 16):
        counts = np.bincount(draws % modulus, minlength=modulus)
        assert chi_square(counts, np.full(modulus, 1 / modulus)) < chi_square_limit(modulus - 1)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.3, 1e4, 1e8])
def test_moments_of_discrete_noise(sigma: float) -> None:
    n = 400_000
    draws = discrete_gaussian(seed(11), sigma, n) / sigma
    if sigma < 10:
        reach = math.ceil(20 * sigma)
        x = np.arange(-reach, reach + 1) / sigma
        variance, fourth = (float(discrete_gaussian_pmf(sigma, reach) @ x**power) for power in (2, 4))
    else:
        variance, fourth = 1.0, 3.0
    # Six standard deviations of each estimate.
    assert abs(float(draws.mean())) < 6 * math.sqrt(variance / n)
    assert abs(float((draws**2).mean()) - variance) < 6 * math.sqrt((fourth - variance**2) / n)
    # Independent of its neighbour.
    assert abs(float((draws[1:] * draws[:-1]).mean())) < 6 * variance / math.sqrt(n)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.0, 1e8])
@pytest.mark.parametrize("n", [0, 1, 1000, 50_001])
def test_the_seed_decides_discrete_noise(sigma: float, n: int) -> None:
    draws = discrete_gaussian(seed(5), sigma, n)
    assert draws.dtype == np.int64
    assert draws.shape == (n,)
    assert np.array_equal(draws, discrete_gaussian(seed(5), sigma, n))
    if n >= 1000 and sigma >= 0.5:
        assert not np.array_equal(draws, discrete_gaussian(seed(6), sigma, n))


def test_known_draws() -> None:
    # A run that replays must draw these for ever.
    assert discrete_gaussian(bytes(range(16)), 3.0, 12).tolist() == [
        -5,
        -4,
        -4,
        0,
        -6,
        -5,
        4,
        -3,
        -3,
        1,
        -5,
        4,
    ]
    assert discrete_gaussian(bytes(range(16)), 1e6, 4).tolist() == [723876, -712204, -339873, -316660]


def test_draws_beyond_the_largest_are_drawn_again() -> None:
    sigma, largest = 3.0, 4
    draws = discrete_gaussian(seed(8), sigma, 200_000, largest=largest)
    assert (draws.min(), draws.max()) == (-largest, largest)
    counts = np.bincount(draws + largest)
    assert chi_square(counts, discrete_gaussian_pmf(sigma, largest)) < chi_square_limit(2 * largest)


def test_the_tail_is_finer_than_one_word() -> None:
    # σ = 1.5, so t = 2; v = 8 and u = 0 are kept with probability exp(−(16 − 1.125)²/4.5) = 4e−22 < 2**−64.
    eight = int(2**64 * math.exp(-8.5))
    for last, kept in ((0, [16]), (2**57, [16]), (2**58, []), (2**64 - 1, [])):
        words = np.array([[0], [eight], [0], [last]], np.uint64)
        assert noise._kept(words, 1.5, None).tolist() == kept


def test_zero_has_one_sign() -> None:
    # Small words keep the candidate 0; its sign is the lowest bit of the first.
    for sign, kept in ((0, [0]), (1, [])):
        words = np.array([[sign], [2**64 - 1], [0], [0]], np.uint64)
        assert noise._kept(words, 1.5, None).tolist() == kept


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 2.0**54])
def test_sigmas_that_are_refused(sigma: float) -> None:
    with pytest.raises(LocalProtocolError, match="above 0 and up to 2"):
        discrete_gaussian(seed(1), sigma, 3)


def test_a_bound_that_would_take_for_ever_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="cannot be kept within"):
        discrete_gaussian(seed(1), 100.0, 3, largest=99)
    assert discrete_gaussian(seed(1), 100.0, 3, largest=100).size == 3
