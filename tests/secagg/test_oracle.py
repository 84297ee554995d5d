"""The sum in the clear beside the protocol."""

from __future__ import annotations

import numpy as np
import pytest
from secagg_harness import small_config

from coordinator.secure.secagg.oracle import Oracle
from edge.core.errors import LocalProtocolError
from edge.crypto.ring import RingVector

CONFIG = small_config(8)


def vector(start: int) -> RingVector:
    return np.arange(start, start + CONFIG.length, dtype=CONFIG.ring.dtype)


def watching(*devices: int) -> Oracle:
    oracle = Oracle(CONFIG)
    for device in devices:
        oracle.watch(device, vector(device))
    return oracle


@pytest.mark.parametrize("arrived", [(), (1,), (4, 1), (1, 3, 4)])
def test_the_sum_is_that_of_the_survivors_whatever_has_arrived(arrived: tuple[int, ...]) -> None:
    oracle = watching(1, 2, 3, 4)
    for device in arrived:
        oracle.arrived(device)
    assert oracle.expected([1, 3, 4]).tolist() == (vector(1) + vector(3) + vector(4)).tolist()
    # Asking changes nothing.
    assert oracle.expected([4, 3, 1]).tolist() == (vector(1) + vector(3) + vector(4)).tolist()
    assert oracle.sum_error(vector(1) + vector(3) + vector(4), [1, 3, 4]) == 0


def test_the_inputs_that_arrived_are_kept_as_a_sum_only() -> None:
    oracle = watching(1, 2)
    oracle.arrived(1)
    oracle.arrived(2)
    with pytest.raises(KeyError):
        oracle.arrived(1)
    assert oracle.expected([1, 2]).tolist() == (vector(1) + vector(2)).tolist()


def test_an_input_that_was_taken_must_be_in_the_sum() -> None:
    oracle = watching(1, 2, 3)
    oracle.arrived(2)
    with pytest.raises(LocalProtocolError, match=r"inputs of devices \[2\] were taken"):
        oracle.expected([1, 3])


def test_what_is_watched_may_change_afterwards() -> None:
    oracle = Oracle(CONFIG)
    mine = vector(5)
    oracle.watch(7, mine)
    mine += np.uint32(9)
    assert oracle.expected([7]).tolist() == vector(5).tolist()
    oracle.arrived(7)
    assert oracle.expected([7]).tolist() == vector(5).tolist()


def test_a_sum_of_nobody_is_zero() -> None:
    assert not watching(1).expected([]).any()


def test_sums_wrap_around_and_errors_are_signed() -> None:
    oracle = watching(1, 2)
    oracle.arrived(1)
    total = vector(1) + vector(2)
    wrong = total.copy()
    wrong[0] -= np.uint32(3)
    wrong[1] += np.uint32(2)
    assert oracle.sum_error(wrong, [1, 2]) == 3
    wrong[2] += np.uint32(2**31)
    assert oracle.sum_error(wrong, [1, 2]) == 2**31
    assert oracle.sum_error(total, [1]) == CONFIG.length + 1, "the input of the other, its last element"


def test_both_secrets_of_a_device_take_a_threshold_of_each() -> None:
    oracle = watching(1, 2, 3)
    oracle.released(1, [1, 2, 3], frozenset({3}))
    oracle.released(2, [1, 2, 3], frozenset({3}))
    assert oracle.double_reveals(2) == 0
    oracle.released(3, [3], frozenset())
    assert oracle.double_reveals(1) == 1
    assert oracle.double_reveals(2) == 0
    oracle.released(4, [3], frozenset())
    assert oracle.double_reveals(2) == 1
    oracle.released(4, [3], frozenset())
    assert oracle.double_reveals(3) == 0, "a share that is released twice is one share"
