"""The rules by themselves: known values, and what a minority cannot do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.learning.robust_rules import Krum, Median, TrimmedMean, krum_choice, middle, share_of

Floats = npt.NDArray[np.float64]


@pytest.mark.parametrize("n", range(1, 9))
def test_the_median_is_the_median(n: int) -> None:
    values = np.random.default_rng(n).normal(size=(7, n))
    found = middle(values.copy(), Median().cut(n))
    np.testing.assert_allclose(found, np.median(values, axis=-1), rtol=1e-15)


def test_a_trimmed_mean_by_hand() -> None:
    values = np.array([[100.0, 1.0, 2.0, 3.0, 6.0, -50.0], [0.0, 0.0, 0.0, 4.0, 8.0, 12.0]])
    # A fifth of six values, rounded up, is two at either end; a tenth is one.
    assert middle(values.copy(), TrimmedMean(0.2).cut(6)).tolist() == [2.5, 2.0]
    assert middle(values.copy(), TrimmedMean(0.1).cut(6)).tolist() == [3.0, 3.0]


def test_never_are_all_left_out() -> None:
    assert [TrimmedMean(0.49).cut(n) for n in range(1, 7)] == [0, 0, 1, 1, 2, 2]
    assert [TrimmedMean(0.1).cut(n) for n in (1, 2, 3, 10, 11)] == [0, 0, 1, 1, 2]


def test_shares_are_rounded_up_but_for_how_binary_fractions_are_rounded() -> None:
    assert [share_of(0.1, n) for n in (1, 10, 30, 31)] == [1, 1, 3, 4]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9), st.randoms(), st.floats(0.01, 0.49))
def test_the_order_of_the_clients_changes_no_bit(values: list[float], random: object, trim: float) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = np.array([values], np.float32), np.array([shuffled], np.float32)
    cut = TrimmedMean(trim).cut(len(values))
    # −0.0 and 0.0 are equal, and where they are in the order of two is nobody's choice.
    assert middle(one, cut)[0] == middle(other, cut)[0]


@settings(max_examples=60)
@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=12),
    st.lists(st.sampled_from([1e300, -1e300, np.inf, -np.inf, 0.0]), max_size=11),
)
def test_less_than_half_cannot_take_the_median_from_where_the_others_are(
    honest: list[float], false: list[float]
) -> None:
    false = false[: len(honest) - 1]
    values = np.array([[*honest, *false]])
    found = middle(values, Median().cut(values.shape[1]))[0]
    assert min(honest) <= found <= max(honest)


def test_the_mean_of_large_values_does_not_overflow() -> None:
    large = np.array([[3e38, 3e38, 3e38, 3e38]], np.float32)
    np.testing.assert_allclose(middle(large, 1), 3e38, rtol=1e-6)


def naive_scores(updates: Floats, false: int) -> list[float]:
    n = len(updates)
    scores = []
    for i in range(n):
        distances = sorted(float(((updates[i] - updates[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(distances[: n - false - 2]))
    return scores


@pytest.mark.parametrize(("n", "false"), [(5, 1), (7, 2), (20, 6)])
def test_krum_takes_the_lowest_scores_of_its_definition(n: int, false: int) -> None:
    updates = np.random.default_rng(n).normal(size=(n, 4))
    order = np.argsort(naive_scores(updates, false))
    gram = updates @ updates.T
    assert krum_choice(gram, false, 1).tolist() == [order[0]]
    assert krum_choice(gram, false, n - false).tolist() == sorted(order[: n - false].tolist())


def test_krum_takes_none_of_a_few_that_agree_far_away() -> None:
    rng = np.random.default_rng(3)
    updates = np.concatenate([rng.normal(size=(8, 3)), 1e200 + np.zeros((3, 3))])
    with np.errstate(over="ignore"):
        gram = updates @ updates.T
    rule = Krum(0.25, multi=True)
    assert rule.false(11) == 3
    assert krum_choice(gram, 3, rule.kept(11)).tolist() == list(range(8))
    assert Krum(0.25, multi=False).kept(11) == 1


def test_krum_takes_the_earlier_of_two_alike() -> None:
    updates = np.zeros((6, 2))
    assert krum_choice(updates @ updates.T, 1, 2).tolist() == [0, 1]
