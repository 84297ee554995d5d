from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import NotFiniteError
from edge.privacy.clipping import clip_update

Arrays = dict[str, npt.NDArray[Any]]


def exact_squares(arrays: Arrays) -> Fraction:
    values = (value for array in arrays.values() for value in np.ravel(array).tolist())
    return sum((Fraction(value) ** 2 for value in values), Fraction(0))


float32s = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=12)
float64s = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=12)
bounds = st.floats(1e-30, 1e300) | st.floats(0.01, 100)


@given(float32s, float64s, bounds)
@settings(deadline=None, max_examples=300)
def test_the_norm_is_never_above_the_bound(singles: list[float], doubles: list[float], bound: float) -> None:
    arrays: Arrays = {"a": np.array(singles, np.float32), "b": np.array(doubles, np.float64)}
    result = clip_update(arrays, bound)
    assert exact_squares(result.arrays) <= Fraction(bound) ** 2
    if not result.clipped:
        assert all(np.array_equal(result.arrays[name], array) for name, array in arrays.items())
    again = clip_update(result.arrays, bound)
    assert not again.clipped
    assert all(np.array_equal(again.arrays[name], result.arrays[name]) for name in arrays)


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=50), st.floats(0.01, 100))
@settings(deadline=None)
def test_what_is_clipped_keeps_its_direction_and_fills_the_bound(values: list[float], bound: float) -> None:
    arrays: Arrays = {"a": np.array(values, np.float32)}
    result = clip_update(arrays, bound)
    norm = math.sqrt(exact_squares(arrays))
    assert result.norm == pytest.approx(norm, rel=1e-12)
    # Truncated to float32, each value is short of its own by one part in 2**23 at most.
    kept = min(1.0, bound / norm) if norm else 1.0
    assert result.arrays["a"] == pytest.approx(arrays["a"].astype(np.float64) * kept, rel=2**-22, abs=1e-37)
    assert result.clipped == (norm > bound) or norm == pytest.approx(bound, rel=1e-14)


def test_the_norm_is_over_all_arrays_together() -> None:
    arrays: Arrays = {
        "rows": np.array([[3.0, 0.0], [0.0, 0.0]], np.float32),
        "bias": np.array(4.0),
        "empty": np.empty((0, 3), np.float32),
    }
    result = clip_update(arrays, 1.0)
    assert result.clipped
    assert result.norm == 5.0
    assert result.arrays["rows"] == pytest.approx(np.array([[0.6, 0.0], [0.0, 0.0]]))
    assert result.arrays["bias"] == pytest.approx(0.8)
    assert {name: (array.dtype, array.shape) for name, array in result.arrays.items()} == {
        name: (array.dtype, array.shape) for name, array in arrays.items()
    }


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
def test_the_arrays_are_new(scale: float) -> None:
    given_array = np.full(4, scale, np.float32)
    result = clip_update({"a": given_array}, 2.0)
    assert not np.shares_memory(result.arrays["a"], given_array)
    assert given_array.tolist() == [scale] * 4
    assert result.clipped == (scale == 2.0)


def test_extreme_values_are_measured() -> None:
    large = clip_update({"a": np.full(4, 1e200)}, 1.0)
    assert large.norm == pytest.approx(2e200)
    assert large.arrays["a"] == pytest.approx([0.5] * 4)
    beyond = clip_update({"a": np.full(4, 1.7e308)}, 1.0)
    assert beyond.norm == math.inf
    assert beyond.arrays["a"] == pytest.approx([0.5] * 4)
    assert clip_update({"a": np.full(4, 1e-200)}, 1.0).norm == pytest.approx(2e-200, rel=1e-12)
    assert clip_update({}, 1.0) == ({}, False, 0.0)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, 1e-301])
def test_a_bound_that_is_none_is_refused(bound: float) -> None:
    with pytest.raises(LocalProtocolError, match="write a positive one"):
        clip_update({"a": np.ones(3)}, bound)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.float16, np.bool_, np.complex128])
def test_other_kinds_of_arrays_are_refused(dtype: type[Any]) -> None:
    with pytest.raises(LocalProtocolError, match="'rows' is"):
        clip_update({"a": np.ones(3), "rows": np.ones(3, dtype)}, 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(NotFiniteError, match="'b' holds"):
        clip_update({"a": np.ones(3), "b": np.array([0.0, bad], np.float32)}, 1.0)
