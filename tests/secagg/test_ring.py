from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.errors import LocalProtocolError, RemoteProtocolError
from edge.crypto import errors
from edge.crypto.errors import SecAggError, ValueRangeError, WrongDtypeError, WrongLengthError
from edge.crypto.ring import Ring


@pytest.mark.parametrize("bits", [0, 8, 24, 31, 33, 128])
def test_only_sizes_that_wrap_by_themselves(bits: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"not {bits}"):
        Ring(bits)


@pytest.mark.parametrize(("bits", "name"), [(32, "<u4"), (64, "<u8")])
def test_layout(bits: int, name: str) -> None:
    ring = Ring(bits)
    assert ring.zeros(3).dtype.str == name
    assert ring.zeros(3).tolist() == [0, 0, 0]
    assert ring.largest == 2 ** (bits - 1) - 1
    assert Ring(bits) == ring


@given(
    st.sampled_from([32, 64]).flatmap(
        lambda bits: st.tuples(
            st.just(bits),
            st.lists(
                st.tuples(st.integers(0, 2**bits - 1), st.integers(0, 2**bits - 1)), min_size=1, max_size=20
            ),
        )
    )
)
@settings(deadline=None)
def test_addition_is_modular(case: tuple[int, list[tuple[int, int]]]) -> None:
    bits, pairs = case
    ring = Ring(bits)
    left = np.array([a for a, _ in pairs], dtype=ring.dtype)
    right = np.array([b for _, b in pairs], dtype=ring.dtype)
    total = left.copy()
    ring.add_into(total, right)
    assert total.tolist() == [(a + b) % 2**bits for a, b in pairs]
    ring.subtract_into(total, right)
    assert total.tolist() == left.tolist()
    ring.subtract_into(total, right)
    assert total.tolist() == [(a - b) % 2**bits for a, b in pairs]


@pytest.mark.parametrize("bits", [32, 64])
def test_signed_values_there_and_back(bits: int) -> None:
    ring = Ring(bits)
    values = np.array([0, 1, -1, ring.largest, -ring.largest - 1], dtype=np.int64)
    encoded = ring.from_signed(values)
    assert encoded.tolist() == [v % 2**bits for v in values.tolist()]
    assert ring.to_signed(encoded).tolist() == values.tolist()
    assert ring.from_signed(np.empty(0, dtype=np.int64)).size == 0


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_values_beyond_the_ring_are_refused_not_wrapped(value: int) -> None:
    with pytest.raises(ValueRangeError, match="32 signed bits"):
        Ring(32).from_signed(np.array([0, value], dtype=np.int64))


def test_dtypes_and_shapes_are_checked() -> None:
    ring = Ring(32)
    with pytest.raises(WrongDtypeError):
        ring.add_into(ring.zeros(2), np.zeros(2, dtype=np.uint64))
    with pytest.raises(WrongDtypeError):
        ring.subtract_into(np.zeros(2, dtype=np.uint64), ring.zeros(2))
    with pytest.raises(WrongLengthError, match=r"shape \(2,\), not \(3,\)"):
        ring.add_into(ring.zeros(2), ring.zeros(3))
    with pytest.raises(WrongLengthError):
        ring.to_signed(np.zeros((2, 2), dtype=np.uint32))
    with pytest.raises(WrongDtypeError, match="not uint32"):
        ring.from_signed(np.zeros(2, dtype=np.uint32))
    with pytest.raises(WrongLengthError):
        ring.from_signed(np.zeros((2, 2), dtype=np.int64))


def test_every_error_has_a_name_of_its_own() -> None:
    named = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, SecAggError) and value is not SecAggError
    ]
    names = [error.NAME for error in named]
    assert len(set(names)) == len(names)
    assert SecAggError.NAME not in names
    for error in named:
        raised = error("what was wrong")
        assert isinstance(raised, RemoteProtocolError)
        assert raised.reason == error.NAME
        assert str(raised) == f"{error.NAME}: what was wrong"
