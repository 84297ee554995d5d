import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.rng import (
    hashed_bits,
    hashed_bits_scalar,
    hashed_exponential,
    hashed_normal,
    hashed_uniform,
    hashed_uniform_scalar,
    stream,
    stream_key,
    uniform_source,
)

N = 200_000


def test_streams_are_named_and_independent_of_each_other() -> None:
    names = [("a",), ("b",), ("a", 1), ("a", "1"), ("a", "b"), ("ab",), (1, "a"), ()]
    firsts = {name: stream(7, *name).random() for name in names}
    assert len(set(firsts.values())) == len(names)
    assert stream(7, "a").random() == firsts["a",]
    assert stream(8, "a").random() != firsts["a",]
    assert len({stream_key(7, *name) for name in names}) == len(names)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="non-negative whole number, not -1"):
        stream(-1, "a")


def test_known_values_pin_the_streams() -> None:
    assert stream_key(7, "device", 17, "dropout") == 0xBE300756F8EBE2F4
    assert hashed_bits_scalar(1, 2, 3) == 0x2DA45A1FB5225383
    program = (
        "from edge.core.rng import stream_key, stream; print(stream_key(7, 'x', 3), stream(7, 'x').random())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(outputs) == 1


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4))
def test_scalars_and_arrays_agree_to_the_bit(key: int, counters: list[int]) -> None:
    arrays = [np.array([c]) for c in counters]
    assert hashed_bits(key, *arrays).tolist() == [hashed_bits_scalar(key, *counters)]
    assert hashed_uniform(key, *arrays).tolist() == [hashed_uniform_scalar(key, *counters)]
    assert float(hashed_uniform(key, *counters)) == hashed_uniform_scalar(key, *counters)


def test_a_source_gives_the_same_values_one_after_the_other() -> None:
    draw = uniform_source(99, 2**33)
    assert [draw() for _ in range(5)] == [hashed_uniform_scalar(99, 2**33 + n) for n in range(5)]


def test_a_value_does_not_depend_on_who_else_is_asked() -> None:
    key = stream_key(3, "x")
    ids = np.arange(1000)
    whole = hashed_uniform(key, ids, 5)
    shuffled = np.random.default_rng(0).permutation(ids)
    assert np.array_equal(hashed_uniform(key, shuffled, 5), whole[shuffled])
    keys = hashed_bits(key, ids)
    assert np.array_equal(hashed_uniform(keys, 5), whole)


def test_uniforms_are_uniform_and_never_touch_the_ends() -> None:
    values = hashed_uniform(stream_key(3, "u"), np.arange(N))
    assert values.min() > 0.0
    assert values.max() < 1.0
    counts = np.bincount((values * 64).astype(int), minlength=64)
    chi_square = float(((counts - N / 64) ** 2 / (N / 64)).sum())
    assert chi_square < 63 + 5 * math.sqrt(2 * 63)


@pytest.mark.parametrize("lag", [1, 2, 64, 1000])
def test_neighbouring_counters_are_uncorrelated(lag: int) -> None:
    values = hashed_uniform(stream_key(3, "c"), np.arange(N)) - 0.5
    correlation = float((values[lag:] * values[:-lag]).mean() * 12)
    assert abs(correlation) < 5 / math.sqrt(N)


def test_two_counters_give_independent_values() -> None:
    key = stream_key(3, "two")
    first, second = hashed_uniform(key, np.arange(N), 0) - 0.5, hashed_uniform(key, np.arange(N), 1) - 0.5
    assert abs(float((first * second).mean() * 12)) < 5 / math.sqrt(N)


def test_normals_and_exponentials_have_their_moments() -> None:
    normal = hashed_normal(stream_key(3, "n"), np.arange(N))
    assert abs(normal.mean()) < 5 / math.sqrt(N)
    assert normal.std() == pytest.approx(1.0, abs=5 / math.sqrt(2 * N))
    assert (normal**3).mean() == pytest.approx(0.0, abs=5 * math.sqrt(15 / N))
    assert (normal**4).mean() == pytest.approx(3.0, abs=5 * math.sqrt(96 / N))
    exponential = hashed_exponential(stream_key(3, "e"), np.arange(N))
    assert exponential.mean() == pytest.approx(1.0, abs=5 / math.sqrt(N))
    assert exponential.std() == pytest.approx(1.0, abs=5 * math.sqrt(8 / N))
