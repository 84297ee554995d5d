from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secagg_harness import small_config

from edge.crypto.errors import DuplicateKeyError, InfeasibleError, ThresholdError, WrongLengthError
from edge.crypto.keys import key_list_hash
from edge.crypto.prg import ring_order
from edge.secagg.graph import (
    COMPLETE_UP_TO,
    GraphParameters,
    check_parameters,
    check_private,
    choose_parameters,
    complete_parameters,
    find_parameters,
    neighbours,
)
from edge.secagg.keylist import ring_seed
from edge.secagg.states import Mode

SEED = bytes(range(16))


# -- choice of k and t -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "corrupt", "dropout", "semi_honest", "active"),
    [
        (50, 0.1, 0.1, (12, 6), (18, 13)),
        (100, 0.05, 0.05, (12, 6), (18, 13)),
        (100, 0.1, 0.1, (22, 11), (32, 22)),
        (100, 0.1, 0.3, (34, 11), (72, 42)),
        (1000, 0.1, 0.1, (48, 27), (100, 70)),
        (1000, 0.33, 0.1, (102, 72), (218, 171)),
        (10_000, 0.1, 0.1, (54, 31), (122, 85)),
    ],
)
def test_known_degrees_and_thresholds(
    n: int, corrupt: float, dropout: float, semi_honest: tuple[int, int], active: tuple[int, int]
) -> None:
    assert find_parameters(n, corrupt, dropout, active=False) == semi_honest
    assert find_parameters(n, corrupt, dropout) == active


def exact_parameters(n: int, corrupt: int, dropped: int, active: bool) -> tuple[int, int] | None:
    """The rules in whole numbers, for counts of corrupt and dropped devices."""
    lost = corrupt + dropped

    def above(marked: int, k: int, x: int) -> Fraction:
        """P[X > x] for k draws from n of which some are marked."""
        ways = sum(math.comb(marked, i) * math.comb(n - marked, k - i) for i in range(x + 1, k + 1))
        return Fraction(ways, math.comb(n, k))

    for k in range(2, n - 1, 2):
        apart = Fraction(n * (n - k - 1), 2) * Fraction(math.comb(lost, k), math.comb(n, k))
        if apart >= Fraction(1, 2**41):
            continue
        t1 = next(x for x in range(k + 1) if above(corrupt, k, x) <= Fraction(1, n * 2**41))
        t2 = max(x for x in range(k + 1) if 1 - above(n - dropped, k, x - 1) <= Fraction(1, n * 2**20))
        if active:
            t1 = (k + 1 + t1) // 2
        if t2 > t1:
            return k, max(t1 + 1, 2)
    return None


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("n", [5, 17, 40, 60])
@pytest.mark.parametrize(
    ("corrupt", "dropout"), [(0, 0.2), (0.05, 0.05), (0.1, 0.3), (0.3, 0.01), (0.2, 0.35)]
)
def test_agrees_with_exact_arithmetic(n: int, corrupt: float, dropout: float, active: bool) -> None:
    exact = exact_parameters(n, int(corrupt * 100) * n // 100, int(dropout * 100) * n // 100, active)
    if exact is None:
        with pytest.raises(InfeasibleError, match="use the complete graph"):
            find_parameters(n, corrupt, dropout, active=active)
    else:
        assert find_parameters(n, corrupt, dropout, active=active) == exact


def test_stricter_demands_need_more_neighbours() -> None:
    usual = find_parameters(1000, 0.1, 0.1)
    assert find_parameters(1000, 0.1, 0.1, sigma=80).k > usual.k
    assert find_parameters(1000, 0.1, 0.1, eta=60).k > usual.k
    assert find_parameters(1000, 0.1, 0.1, sigma=10, eta=5).k < usual.k
    assert find_parameters(1000, 0.2, 0.1).k > usual.k
    assert find_parameters(1000, 0.1, 0.2).k > usual.k


REFUSED = [
    (1, 0.1, 0.1),
    (0, 0.1, 0.1),
    (100, -0.1, 0.1),
    (100, 0.1, -0.1),
    (100, 1.0, 0.1),
    (100, 0.1, 1.0),
    (100, math.nan, 0.1),
    (100, 0.1, math.nan),
    (100, 0.31, 0.3),
    (100, 0.45, 0.45),
]


@pytest.mark.parametrize(("n", "corrupt", "dropout"), REFUSED)
def test_demands_that_no_graph_meets(n: int, corrupt: float, dropout: float) -> None:
    for choose in (find_parameters, complete_parameters, choose_parameters):
        with pytest.raises(InfeasibleError):
            choose(n, corrupt, dropout)


@pytest.mark.parametrize(
    ("n", "corrupt", "dropout"), [(2, 0.0, 0.0), (3, 0.1, 0.1), (8, 0.3, 0.3), (20, 0.3, 0.3)]
)
def test_a_cohort_too_small_for_a_sparse_graph(n: int, corrupt: float, dropout: float) -> None:
    with pytest.raises(InfeasibleError, match="use the complete graph"):
        find_parameters(n, corrupt, dropout)
    check_parameters(n, *choose_parameters(n, corrupt, dropout))


def test_the_limits_on_the_fractions_are_decimal() -> None:
    # On paper 0.1 + 2·0.4 is 0.9; of the floats, the exact sum is above it.
    assert choose_parameters(60, 0.1, 0.4).k < 59
    with pytest.raises(InfeasibleError, match=r"0.301 corrupt and twice 0.3 .* above 0.9"):
        find_parameters(60, 0.301, 0.3)
    with pytest.raises(InfeasibleError, match=r"0.5 corrupt and 0.41 dropping"):
        find_parameters(60, 0.5, 0.41, active=False)
    # 0.29 · 100 is 28.999… in binary.
    assert complete_parameters(100, 0.29, 0.1) == (99, 65)


@pytest.mark.parametrize(
    ("n", "corrupt", "dropout", "t"),
    [(100, 1 / 3, 0.1, 67), (100, 0.1, 0.1, 56), (2, 0.1, 0.1, 2), (3, 0.1, 0.1, 2), (10, 0.1, 0.4, 6)],
)
def test_complete_graph(n: int, corrupt: float, dropout: float, t: int) -> None:
    assert complete_parameters(n, corrupt, dropout) == (n - 1, t)


@given(st.integers(2, 300), st.integers(0, 900), st.data())
@settings(max_examples=200, deadline=None)
def test_a_choice_is_safe_and_reached(n: int, corrupt_permille: int, data: st.DataObject) -> None:
    dropout_permille = data.draw(st.integers(0, (900 - corrupt_permille) // 2))
    corrupt, dropout = corrupt_permille / 1000, dropout_permille / 1000
    k, t = choose_parameters(n, corrupt, dropout, grinding_bits=data.draw(st.sampled_from((0, 64))))
    check_parameters(n, k, t)
    assert (k == n - 1) == (n <= COMPLETE_UP_TO)
    k, t = complete_parameters(n, corrupt, dropout)
    check_parameters(n, k, t)
    # Reached even if all drop out that may, and not by two groups that share the corrupt devices.
    assert t <= n - dropout_permille * n // 1000
    assert 2 * t > n + corrupt_permille * n // 1000


@pytest.mark.parametrize(("k", "t"), [(9, 2), (9, 5), (8, 4), (8, 1), (2, 0), (8, 10), (9, 11)])
def test_unsafe_thresholds_are_refused(k: int, t: int) -> None:
    with pytest.raises(ThresholdError, match=f"threshold of {t} out of {k + 1}"):
        check_parameters(10, k, t)


@pytest.mark.parametrize(("k", "t"), [(9, 6), (9, 10), (8, 5), (8, 9), (2, 2), (2, 3)])
def test_safe_thresholds_pass(k: int, t: int) -> None:
    check_parameters(10, k, t)


@pytest.mark.parametrize("k", [-2, 0, 1, 3, 7, 10, 11])
def test_degrees_that_a_ring_cannot_have(k: int) -> None:
    with pytest.raises(InfeasibleError, match=f"cannot have {k} neighbours"):
        check_parameters(10, k, 6)
    with pytest.raises(InfeasibleError):
        neighbours(list(range(10)), k)


# -- the ring --------------------------------------------------------------------------------------------


def connected(graph: dict[int, tuple[int, ...]], lost: set[int]) -> bool:
    alive = set(graph) - lost
    reached, todo = set[int](), [min(alive)]
    while todo:
        device = todo.pop()
        if device not in reached:
            reached.add(device)
            todo += [other for other in graph[device] if other in alive]
    return reached == alive


@given(
    st.sets(st.integers(0, 2**40), min_size=2, max_size=40),
    st.binary(min_size=16, max_size=16),
    st.data(),
)
@settings(deadline=None)
def test_neighbours(devices: set[int], seed: bytes, data: st.DataObject) -> None:
    n = len(devices)
    k = data.draw(st.sampled_from([*range(2, n - 1, 2), n - 1]))
    order = ring_order(sorted(devices), seed)
    assert set(order) == devices
    graph = neighbours(order, k)
    assert set(graph) == devices
    for device, others in graph.items():
        assert len(others) == k
        assert list(others) == sorted(set(others) - {device})
        assert all(device in graph[other] for other in others)
    lost = data.draw(st.sets(st.sampled_from(sorted(devices)), max_size=min(k - 1, n - 2)))
    assert connected(graph, lost)


def test_the_nearest_on_the_ring() -> None:
    graph = neighbours([50, 20, 40, 10, 30, 60], 2)
    assert graph == {50: (20, 60), 20: (40, 50), 40: (10, 20), 10: (30, 40), 30: (10, 60), 60: (30, 50)}
    assert neighbours([7, 3], 1) == {7: (3,), 3: (7,)}


def test_the_order_depends_on_the_seed_and_the_set_alone() -> None:
    devices = list(range(100))
    order = ring_order(devices, SEED)
    assert ring_order(devices[::-1], SEED) == order
    assert ring_order(devices, SEED[::-1]) != order
    assert order != devices


def test_every_device_is_as_likely_everywhere() -> None:
    counts = [0] * 5
    for number in range(2000):
        counts[ring_order(range(5), number.to_bytes(16, "big")).index(3)] += 1
    # Chi-squared with 4 degrees of freedom is above 40 with a probability of 4e-8.
    assert sum((count - 400) ** 2 / 400 for count in counts) < 40


def test_rings_that_are_refused() -> None:
    with pytest.raises(DuplicateKeyError):
        ring_order([1, 2, 1], SEED)
    with pytest.raises(DuplicateKeyError):
        neighbours([1, 2, 1, 4], 2)
    with pytest.raises(WrongLengthError, match="16 bytes, not 4"):
        ring_order([1, 2], b"seed")


def exposed(n: int, corrupt: int, k: int, t: int) -> float:
    """In how many of 2,000 rounds the corrupt devices alone rebuild some honest one's secret."""
    draws, rounds = np.random.default_rng(7), 2_000
    found = 0
    for _ in range(rounds):
        is_corrupt = draws.permutation(n) < corrupt
        around = sum(np.roll(is_corrupt, step) for step in (*range(-(k // 2), 0), *range(1, k // 2 + 1)))
        found += bool((around[~is_corrupt] >= t).any())
    return found / rounds


def test_what_a_written_graph_is_refused_for_and_what_the_refusal_asks_for() -> None:
    assert exposed(60, 6, 2, 2) > 0.3
    with pytest.raises(InfeasibleError, match="write 14 or more, 14 with a threshold of 11 or more"):
        check_private(60, 2, 2, 0.1, 0.1)
    check_private(60, 14, 11, 0.1, 0.1)
    assert exposed(60, 6, 14, 11) == 0
    with pytest.raises(ThresholdError, match="write 11 to 15"):
        check_private(60, 14, 10, 0.1, 0.1)


@pytest.mark.parametrize(("n", "corrupt", "dropout"), [(10, 0.3, 0.1), (60, 0.1, 0.1), (200, 0.2, 0.3)])
def test_a_written_graph_that_would_be_chosen_is_accepted_and_one_share_less_is_not(
    n: int, corrupt: float, dropout: float
) -> None:
    for k, t in (choose_parameters(n, corrupt, dropout), complete_parameters(n, corrupt, dropout)):
        check_private(n, k, t, corrupt, dropout)
        check_private(n, k, k + 1, corrupt, dropout)
        with pytest.raises(ThresholdError, match=f"write {t} to {k + 1}"):
            check_private(n, k, t - 1, corrupt, dropout)


# -- a ring that somebody chooses ------------------------------------------------------------------------


def isolated(order: list[int], corrupt: set[int], parameters: GraphParameters) -> list[int]:
    """Return the honest devices of which stories about who is dead give a coordinator both secrets.

    Of k neighbours c are corrupt: these release both their shares, the others and the device itself one each,
    k + c + 1 in all.
    """
    k, t = parameters
    around = neighbours(order, k)
    return [
        device
        for device in order
        if device not in corrupt and 2 * t <= k + 1 + len(corrupt.intersection(around[device]))
    ]


@pytest.mark.parametrize("n", range(COMPLETE_UP_TO + 1, COMPLETE_UP_TO + 12))
def test_no_device_is_isolated_by_all_corrupt_devices_around_it(n: int) -> None:
    # So few are corrupt that chance cannot be counted on to spread them.
    graph = find_parameters(n, 0.1, 0.1)
    order = list(range(n))
    corrupt = set(neighbours(order, graph.k)[0][: n // 10])
    assert not isolated(order, corrupt, graph)
    assert isolated(order, corrupt, graph._replace(t=graph.t - 1)) or graph.t - 1 <= (graph.k + 1) // 2


def grind(parameters: GraphParameters, n: int, corrupt: set[int], tries: int) -> int | None:
    """Try keys for the last device of the list until the ring suits; return after how many, if any did."""
    keys = [
        (device, hashlib.sha256(b"%d 0" % device).digest(), hashlib.sha256(b"%d 1" % device).digest())
        for device in range(n)
    ]
    for attempt in range(tries):
        keys[-1] = (*keys[-1][:2], hashlib.sha256(b"try %d" % attempt).digest())
        order = ring_order(range(n), ring_seed(key_list_hash(keys)))
        if isolated(order, corrupt, parameters):
            return attempt
    return None


def test_trying_keys_until_the_ring_suits_isolates_a_device_unless_the_graph_allows_for_the_tries() -> None:
    n, share, bits = 200, 0.3, 9
    # The coordinator's devices, among them the one that advertises last.
    corrupt = set(range(n - int(share * n), n))
    few = find_parameters(n, share, 0.05, sigma=4)
    allowing = find_parameters(n, share, 0.05, sigma=4 + bits)
    assert grind(few, n, corrupt, 2**bits) is not None
    assert grind(allowing, n, corrupt, 2**bits) is None


def test_in_active_mode_the_graph_allows_for_every_ring_that_a_coordinator_can_try() -> None:
    for n, semi_honest, active in (
        (100, (32, 22), (32, 22)),
        (1_000, (100, 70), (134, 99)),
        (10_000, (122, 85), (178, 131)),
    ):
        assert small_config(n, weight_max=1).graph(n) == semi_honest
        graph = small_config(n, weight_max=1, mode=Mode.ACTIVE).graph(n)
        assert graph == active == find_parameters(n, 0.1, 0.1, sigma=40 + 64)
