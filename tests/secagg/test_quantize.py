from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.crypto.errors import (
    NotFiniteError,
    OverflowingConfigError,
    ValueRangeError,
    WeightError,
    WrongDtypeError,
    WrongLengthError,
)
from edge.crypto.prg import Keystream
from edge.crypto.ring import Ring
from edge.secagg.quantize import Quantizer, check_integers, encode_integers, plan

SEED = bytes(range(16))


def seed(number: int) -> bytes:
    return number.to_bytes(16, "little")


def words(of_seed: bytes) -> Callable[[int], npt.NDArray[np.uint32]]:
    return Keystream(of_seed).words


def signed(
    quantizer: Quantizer, values: npt.NDArray[np.float64], number: int, weight: float = 1
) -> list[int]:
    vector, *_ = quantizer.quantize(values, words(seed(number)), weight=weight)
    return [int(v) for v in quantizer.ring.to_signed(vector)]


# -- the plan --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "levels"), [(100, 21_474_836), (1000, 2_147_483), (10_000, 214_748)])
def test_known_levels_of_32_bits(n: int, levels: int) -> None:
    assert plan(32, n, 1, 1.0).levels == levels


limits = st.floats(1e-6, 1e6)


@given(st.sampled_from([32, 64]), st.integers(1, 10**6), limits, limits, st.just(0.0) | st.floats(1e-6, 1e6))
@settings(deadline=None)
def test_no_sum_within_the_plan_wraps(
    bits: int, n: int, weight_max: float, clip: float, noise_max: float
) -> None:
    largest = 2 ** (bits - 1) - 1
    try:
        quantizer = plan(bits, n, weight_max, clip, noise_max=noise_max)
    except OverflowingConfigError:
        # Refused only if a single step really is too much, up to the unit given up for rounding.
        one = math.ceil(Fraction(weight_max)) + math.ceil(Fraction(noise_max) / Fraction(clip))
        assert n * (one + 1) > largest
        return

    def largest_sum(levels: int) -> int:
        noise = Fraction(noise_max) / Fraction(clip) * levels
        return n * (math.ceil(Fraction(weight_max) * levels) + math.ceil(noise))

    assert largest_sum(quantizer.levels) <= largest
    assert quantizer.noise_levels * quantizer.clip >= noise_max * quantizer.levels * (1 - 1e-12)
    with pytest.raises(OverflowingConfigError, match=f"write 1 to {quantizer.levels}$"):
        plan(bits, n, weight_max, clip, noise_max=noise_max, levels=quantizer.levels + 1)
    if noise_max == 0 and largest // n < 2**53:
        assert largest_sum(quantizer.levels + 1) > largest


def test_a_modulus_that_is_too_small_is_refused_not_wrapped() -> None:
    # Range 2**22 for each of more than 511 devices: the sum has more than 31 bits.
    assert plan(32, 511, 1, 3.0, levels=2**22).levels == 2**22
    for n in (512, 1024, 1025):
        with pytest.raises(OverflowingConfigError, match=rf"stay below 2\^31; write 1 to {(2**31 - 1) // n}"):
            plan(32, n, 1, 3.0, levels=2**22)
    with pytest.raises(OverflowingConfigError):
        plan(32, 100, 1000, 3.0, levels=2**22)


@pytest.mark.parametrize(
    ("n", "weight_max", "clip", "noise_max"),
    [
        (0, 1, 1.0, 0.0),
        (-1, 1, 1.0, 0.0),
        (10, 0, 1.0, 0.0),
        (10, -1, 1.0, 0.0),
        (10, math.nan, 1.0, 0.0),
        (10, math.inf, 1.0, 0.0),
        (10, 1, 0.0, 0.0),
        (10, 1, -1.0, 0.0),
        (10, 1, math.nan, 0.0),
        (10, 1, math.inf, 0.0),
        (10, 1, 1.0, -1.0),
        (10, 1, 1.0, math.nan),
        (10, 1, 1.0, math.inf),
        (2**31, 1, 1.0, 0.0),
        (10**6, 10**4, 1.0, 0.0),
        (10**6, 1, 1.0, 10**4),
    ],
)
def test_plans_that_are_refused(n: int, weight_max: float, clip: float, noise_max: float) -> None:
    with pytest.raises(OverflowingConfigError):
        plan(32, n, weight_max, clip, noise_max=noise_max)
    with pytest.raises(OverflowingConfigError):
        plan(32, 10, 1, 1.0, levels=0)


def test_noise_takes_its_share_of_the_range() -> None:
    quiet, noisy = plan(32, 100, 1, 2.0), plan(32, 100, 1, 2.0, noise_max=6.0)
    assert noisy.levels == (quiet.levels - 1) // 4
    assert noisy.noise_levels == 3 * noisy.levels
    assert quiet.noise_levels == 0


# -- one device ------------------------------------------------------------------------------------------


def test_values_on_a_step_are_exact() -> None:
    quantizer = plan(32, 10, 1, 2.0, levels=1000)
    values = np.array([0.0, 2.0, -2.0, 1.0, -0.5, 0.002], dtype=np.float64)
    assert signed(quantizer, values, 1) == [0, 1000, -1000, 500, -250, 1]
    assert quantizer.scale == 500
    assert quantizer.error_bound == 0.02


@given(
    st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=50),
    st.floats(0, 7),
    st.floats(0.01, 2),
    st.sampled_from([32, 64]),
    st.integers(0, 2**64),
)
@settings(deadline=None)
def test_rounding_stays_next_to_the_value_and_inside_the_range(
    values: list[float], weight: float, clip: float, bits: int, number: int
) -> None:
    quantizer = plan(bits, 5, 7.0, clip)
    array = np.array(values, dtype=np.float32)
    vector, clipped, _ = quantizer.quantize(array, words(seed(number)), weight=weight)
    bound = (2 ** (bits - 1) - 1) // 5
    assert clipped == sum(abs(value) > clip for value in array.tolist())
    for value, z in zip(array.tolist(), quantizer.ring.to_signed(vector).tolist(), strict=True):
        kept = min(max(Fraction(value), -Fraction(clip)), Fraction(clip))
        exact = kept * Fraction(weight) * quantizer.levels / Fraction(clip)
        # One step of rounding, and what float64 loses.
        assert abs(z - exact) < 1 + abs(exact) * 2**-50
        assert abs(z) <= bound


def test_rounding_is_unbiased() -> None:
    quantizer = plan(32, 10, 1, 1.0, levels=100)
    values = np.full(100_000, -0.1234)
    mean = float(np.mean(signed(quantizer, values, 1)))
    # −12.34 in steps; six standard deviations of the mean of so many roundings.
    assert abs(mean + 12.34) < 6 * math.sqrt(0.34 * 0.66 / values.size)


def test_a_tiny_negative_value_rounds_to_its_neighbours() -> None:
    quantizer = plan(32, 10, 1, 1.0, levels=100)
    assert set(signed(quantizer, np.full(1000, -1e-30), 1)) <= {-1, 0}
    assert set(signed(quantizer, np.full(1000, 1e-30), 1)) <= {0, 1}


def test_the_seed_decides_the_rounding() -> None:
    quantizer = plan(32, 10, 1, 1.0, levels=1000)
    values = np.linspace(-0.9995, 0.9995, 70_001)
    assert signed(quantizer, values, 1) == signed(quantizer, values, 1)
    assert signed(quantizer, values, 1) != signed(quantizer, values, 2)
    # The same value in another place is rounded on its own.
    assert len(set(signed(quantizer, np.full(100_000, 0.0005), 1)[65_000:])) == 2


def test_clipped_values_are_counted() -> None:
    quantizer = plan(32, 10, 1, 1.0, levels=1000)
    values = np.zeros(100_000)
    values[[5, 40_000, 99_999]] = [1.5, -1e30, 1.0000001]
    values[[6, 7]] = [1.0, -1.0]
    vector, clipped, nonzero = quantizer.quantize(values, words(SEED))
    assert (clipped, nonzero) == (3, 5)
    assert quantizer.ring.to_signed(vector)[[5, 40_000, 99_999]].tolist() == [1000, -1000, 1000]


@pytest.mark.parametrize("weight", [8.0000001, 9, 1e300, math.inf, math.nan, -0.1, -math.inf])
def test_a_weight_outside_the_plan_is_refused(weight: float) -> None:
    quantizer = plan(32, 10, 8, 1.0)
    with pytest.raises(WeightError, match="from 0 to 8"):
        quantizer.quantize(np.zeros(3), words(SEED), weight=weight)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_that_are_not_finite_are_refused(bad: float, dtype: type[np.floating[npt.NBitBase]]) -> None:
    values = np.zeros(50_000, dtype=dtype)
    values[40_001] = bad
    with pytest.raises(NotFiniteError, match="element 40001"):
        plan(32, 10, 1, 1.0).quantize(values, words(SEED))


def test_inputs_of_another_kind_are_refused() -> None:
    quantizer = plan(32, 10, 1, 1.0)
    for dtype in (np.float16, np.int64, np.uint32):
        with pytest.raises(WrongDtypeError, match="float32 or float64"):
            quantizer.quantize(np.zeros(3, dtype=dtype), words(SEED))
    with pytest.raises(WrongLengthError, match="one dimension"):
        quantizer.quantize(np.zeros((3, 3)), words(SEED))
    with pytest.raises(WrongLengthError):
        quantizer.quantize(np.zeros(3), words(SEED), out=quantizer.ring.zeros(4))
    with pytest.raises(WrongDtypeError):
        quantizer.quantize(np.zeros(3), words(SEED), out=np.zeros(3, dtype=np.uint64))
    with pytest.raises(WrongDtypeError):
        quantizer.dequantize(np.zeros(3, dtype=np.uint64))


def test_into_part_of_a_longer_vector() -> None:
    quantizer = plan(64, 10, 1, 1.0, levels=1000)
    whole = quantizer.ring.zeros(10)
    values = np.array([0.5, -1.0])
    vector, *_ = quantizer.quantize(values, words(SEED), out=whole[4:6])
    assert np.shares_memory(vector, whole)
    assert quantizer.ring.to_signed(whole).tolist() == [0, 0, 0, 0, 500, -1000, 0, 0, 0, 0]


# -- sums ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
def test_the_largest_sums_do_not_wrap(bits: int) -> None:
    n, weight = 1000, 7.3
    quantizer = plan(bits, n, weight, 0.1)
    for extreme in (0.1, -0.1, 5.0):
        one, *_ = quantizer.quantize(np.full(4, extreme), words(SEED), weight=weight)
        total = quantizer.ring.zeros(4)
        for _ in range(n):
            quantizer.ring.add_into(total, one)
        expected = n * weight * math.copysign(0.1, extreme)
        assert quantizer.dequantize(total) == pytest.approx(expected, rel=1e-6)


@given(st.integers(1, 30), st.integers(0, 2**32), st.sampled_from([32, 64]))
@settings(max_examples=50, deadline=None)
def test_the_sum_is_within_its_error_bound(n: int, number: int, bits: int) -> None:
    generator = np.random.default_rng(number)
    quantizer = plan(bits, n, 4.0, 1.0, levels=10_000)
    total = quantizer.ring.zeros(200)
    exact = np.zeros(200)
    for device in range(n):
        values, weight = generator.uniform(-1, 1, 200), float(generator.uniform(0, 4))
        vector, clipped, _ = quantizer.quantize(values, words(seed(number + device)), weight=weight)
        assert clipped == 0
        quantizer.ring.add_into(total, vector)
        exact += weight * values
    error = np.abs(quantizer.dequantize(total) - exact)
    assert float(error.max()) < quantizer.error_bound
    # Six times the bound on the standard deviation of one element, averaged over the elements.
    assert float(np.sqrt(np.mean(error**2))) < 1.5 * math.sqrt(n) / (2 * quantizer.scale)


# -- whole numbers ---------------------------------------------------------------------------------------


def test_counts_sum_exactly() -> None:
    ring = Ring(32)
    total = ring.zeros(2)
    for _ in range(1000):
        ring.add_into(
            total, encode_integers(np.array([2_147_483, -3]), ring, n_max=1000, value_max=2_147_483)
        )
    assert ring.to_signed(total).tolist() == [2_147_483_000, -3000]
    assert encode_integers(np.empty(0, dtype=np.int64), ring, n_max=10, value_max=1).size == 0


def test_counts_that_could_overflow_are_refused() -> None:
    ring = Ring(32)
    check_integers(ring, n_max=1000, value_max=2_147_483)
    with pytest.raises(OverflowingConfigError, match="2147483 would fit"):
        check_integers(ring, n_max=1000, value_max=2_147_484)
    with pytest.raises(OverflowingConfigError, match="at least 1 device"):
        check_integers(ring, n_max=0, value_max=1)
    for value in (6, -6):
        with pytest.raises(ValueRangeError, match="beyond 5"):
            encode_integers(np.array([0, value]), ring, n_max=10, value_max=5)
    with pytest.raises(OverflowingConfigError):
        encode_integers(np.array([0]), ring, n_max=10, value_max=2**31)


def test_one_level_is_the_fewest() -> None:
    assert plan(32, 10, 1, 1.0, levels=1).levels == 1
    with pytest.raises(OverflowingConfigError, match="0 quantisation levels do not fit"):
        plan(32, 10, 1, 1.0, levels=0)
