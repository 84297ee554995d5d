"""Rows that devices keep: read as they were written, and no memory for devices that never took part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engine import kept_rows
from coordinator.engine.kept_rows import KeptRows


@given(
    writes=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=5, unique=True), max_size=12),
    width=st.sampled_from([1, 3, 40]),
)
def test_rows_are_read_as_they_were_written(writes: list[list[int]], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_rows, "_CHUNK_BYTES", 4 * 3 * 4)  # four rows of three numbers
        rows, expected = KeptRows(20, width), np.zeros((20, width), np.float32)
        for number, users in enumerate(writes):
            new = np.random.default_rng(number).normal(size=(len(users), width)).astype(np.float32)
            rows.put(np.array(users), new)
            expected[users] = new
            asked = np.random.default_rng(number).integers(0, 20, 7)
            assert rows.of(asked).tolist() == expected[asked].tolist()
        assert rows.of(np.arange(20)).tolist() == expected.tolist()
        assert rows.held == len({user for users in writes for user in users})


def test_what_is_read_is_a_copy() -> None:
    rows = KeptRows(3, 2)
    rows.put(np.array([1]), np.ones((1, 2), np.float32))
    rows.of(np.array([1]))[:] = 7.0
    assert rows.of(np.array([1])).tolist() == [[1.0, 1.0]]


def test_a_fleet_of_wide_rows_takes_memory_for_those_that_took_part() -> None:
    """A million users with a table of 100,000 numbers each would be 400 GB."""
    rows = KeptRows(1_000_000, 100_000)
    users = np.array([3, 999_999, 500_000])
    rows.put(users, np.full((3, 100_000), 2.0, np.float32))
    assert rows.held == 3
    assert rows.of(np.array([999_999, 4]))[:, 0].tolist() == [2.0, 0.0]
    assert sum(chunk.nbytes for chunk in rows._chunks) <= kept_rows._CHUNK_BYTES
