from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.privacy.attacks import (
    AuditFigure,
    AuditMetric,
    joined,
    privacy_indicator,
    ranking_attack,
    recovery_attack,
)

STARS = np.arange(1.0, 6.0)
HALF_STARS = np.arange(1, 11) / 2

Rows = list[list[float]]
Users = list[list[tuple[float, float]]]


def offsets(rows: list[list[Any]]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)


def flat(rows: Rows) -> npt.NDArray[np.float32]:
    return np.array([value for row in rows for value in row], dtype=np.float32)


def arrays(users: Users) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The arguments of an attack: offsets, ratings and masked values of users given as pairs."""
    return (
        offsets(users),
        flat([[r for r, _ in user] for user in users]),
        flat([[v for _, v in user] for user in users]),
    )


def figures(users: Users, h: int = 2) -> list[AuditFigure]:
    indptr, ratings, masked = arrays(users)
    return [
        *recovery_attack(indptr, ratings, masked, scale=HALF_STARS, within_stars=0.5),
        *ranking_attack(indptr, ratings, masked, h=h),
        privacy_indicator(indptr, ratings, masked, scale=HALF_STARS),
    ]


# Half stars, and masked values in quarters: every shift and scaling below is exact in float32.
entries = st.tuples(st.integers(1, 10).map(lambda n: n / 2), st.integers(-12, 12).map(lambda n: n / 4))
users_of_any_length = st.lists(st.lists(entries, max_size=7), max_size=5)


# Recovery.

RATINGS: Rows = [[1, 2, 4, 5], [4, 5], [3], [], [2, 2, 2]]
MASKED: Rows = [[-1, 0, 0.5, 1], [0.25, 0.25], [0.7], [], [1, -1, 0]]
"""Guesses of the first user: 1, 3, 4, 5; of the second, with nothing to scale, 4.5; of others the rating."""


def test_recovery_by_hand() -> None:
    audit = recovery_attack(offsets(RATINGS), flat(RATINGS), flat(MASKED), scale=STARS, within_stars=0.5)
    np.testing.assert_array_equal(audit.attack.per_user(), [0.75, 1.0, 1.0, np.nan, 1.0])
    np.testing.assert_array_equal(audit.midrange.per_user(), [0.0, 1.0, 1.0, np.nan, 1.0])
    np.testing.assert_allclose(audit.chance.per_user(), [0.2, 0.2, 0.2, np.nan, 0.2], rtol=1e-15)
    assert audit.attack.metric() == AuditMetric("audit.recovery@0.5", 9 / 10, users=4, left_out=1)
    assert audit.midrange.metric() == AuditMetric("audit.recovery_midrange@0.5", 6 / 10, users=4, left_out=1)
    assert audit.chance.metric() == AuditMetric("audit.recovery_chance@0.5", pytest.approx(0.2), 4, 1)


def test_a_wider_tolerance_by_hand() -> None:
    audit = recovery_attack(offsets(RATINGS), flat(RATINGS), flat(MASKED), scale=STARS, within_stars=1)
    # The guess 3 for a rating of 2 is just within one star, as is the middle, 3, of 2 and 4.
    assert audit.attack.per_user()[0] == 1.0
    assert audit.midrange.per_user()[0] == 0.5
    # Of 1 … 5 two values are within one star of 1 and of 5, three of the others: (2 + 3 + 3 + 2)/(4·5).
    assert audit.chance.per_user()[0] == pytest.approx(0.5)
    assert audit.attack.name == "audit.recovery@1.0"


def test_chance_on_half_stars() -> None:
    ratings = flat([[0.5, 3.0]])
    audit = recovery_attack(offsets([[0, 0]]), ratings, ratings, scale=HALF_STARS, within_stars=0.5)
    # 0.5 and 1.0 are near 0.5; 2.5, 3.0 and 3.5 are near 3.0.
    assert audit.chance.per_user()[0] == pytest.approx((2 + 3) / (2 * 10))


def test_a_guess_on_the_edge_is_not_decided_by_rounding() -> None:
    # The masked value 0.3 in float32 is a little above; the guess for it is 3.5, half a star from 3.
    ratings, masked = flat([[3, 3, 4]]), flat([[0.1, 0.3, 0.5]])
    for shift in (0.0, 0.1, 0.7, 1.3):
        moved = masked + np.float32(shift)
        audit = recovery_attack(offsets([[0] * 3]), ratings, moved, scale=STARS, within_stars=0.5)
        assert audit.attack.per_user()[0] == 1.0


@given(users_of_any_length, st.sampled_from([0.25, 0.5, 1.0]))
def test_recovery_against_exact_arithmetic(users: Users, within_stars: float) -> None:
    indptr, ratings, masked = arrays(users)
    audit = recovery_attack(indptr, ratings, masked, scale=HALF_STARS, within_stars=within_stars)
    for index, user in enumerate(users):
        truth = [Fraction(r) for r, _ in user]
        seen = [Fraction(v) for _, v in user]
        middle = (min(truth) + max(truth)) / 2 if user else Fraction(0)
        spread = max(seen) - min(seen) if user else Fraction(0)
        guesses = [
            min(truth) + (max(truth) - min(truth)) * (v - min(seen)) / spread if spread else middle
            for v in seen
        ]
        assert audit.attack.sums[index] == sum(
            abs(guess - r) <= within_stars for guess, r in zip(guesses, truth, strict=True)
        )
        assert audit.midrange.sums[index] == sum(abs(middle - r) <= within_stars for r in truth)
        near = sum(abs(value - r) <= within_stars for value in HALF_STARS.tolist() for r, _ in user)
        assert audit.chance.sums[index] == near / 10


@given(users_of_any_length)
def test_a_constant_mask_gives_every_rating_back(users: Users) -> None:
    indptr, ratings, _ = arrays(users)
    audit = recovery_attack(indptr, ratings, ratings - np.float32(3.25), scale=HALF_STARS, within_stars=0.01)
    np.testing.assert_array_equal(audit.attack.sums, np.diff(indptr))


@given(users_of_any_length)
def test_constant_masked_values_give_the_middle_of_the_range(users: Users) -> None:
    indptr, ratings, _ = arrays(users)
    audit = recovery_attack(indptr, ratings, np.full_like(ratings, 0.3), scale=HALF_STARS)
    np.testing.assert_array_equal(audit.attack.sums, audit.midrange.sums)


# Ranking.


def test_ranking_by_hand() -> None:
    # First user, top 2: a and b by rating; b and c by masked value. Second: 5, then two 4s for one seat; by
    # masked value the second and the fourth: 0.5 + 0. Third and fourth have no more than two.
    ratings: Rows = [[5, 4, 3, 2], [5, 4, 4, 1, 1], [3, 4], []]
    masked: Rows = [[0, 2, 1, -1], [-1, 3, 0, 2, 0], [1, 2], []]
    audit = ranking_attack(offsets(ratings), flat(ratings), flat(masked), h=2)
    np.testing.assert_array_equal(audit.attack.per_user(), [0.5, 0.25, np.nan, np.nan])
    np.testing.assert_array_equal(audit.chance.per_user(), [2 / 4, 2 / 5, np.nan, np.nan])
    # The ratings in the clear: the second user's two 4s have half a chance each, on either side.
    np.testing.assert_array_equal(audit.clear.per_user(), [1.0, (1 + 2 * 0.25) / 2, np.nan, np.nan])
    assert audit.attack.metric() == AuditMetric("audit.ranking@2", 0.375, users=2, left_out=2)
    assert audit.chance.metric() == AuditMetric("audit.ranking_chance@2", pytest.approx(0.45), 2, 2)
    assert audit.clear.metric() == AuditMetric("audit.ranking_clear@2", 0.875, users=2, left_out=2)


def test_favourites_as_a_share_of_a_users_ratings() -> None:
    # 40% of 4 is 1.6, so 2; of 5 just 2; of 2 and of 1 it is one.
    ratings: Rows = [[5, 4, 3, 2], [5, 4, 3, 2, 1], [3, 4], [3]]
    masked: Rows = [[0, 2, 1, -1], [4, 3, 2, 1, 0], [2, 1], [1]]
    audit = ranking_attack(offsets(ratings), flat(ratings), flat(masked), h=0.4)
    np.testing.assert_array_equal(audit.attack.per_user(), [0.5, 1.0, 0.0, np.nan])
    np.testing.assert_array_equal(audit.chance.per_user(), [2 / 4, 2 / 5, 1 / 2, np.nan])
    assert audit.attack.metric() == AuditMetric("audit.ranking@40%", 0.5, users=3, left_out=1)
    for wrong in (0, 2.5, 1.0 + 1e-9):
        with pytest.raises(ValueError, match="whole number of 1 or more, or a share"):
            ranking_attack(offsets(ratings), flat(ratings), flat(masked), h=wrong)


def expected_overlap(a: list[float], b: list[float], h: int) -> Fraction:
    """The mean overlap over every pair of ways to draw a top-h."""

    def tops(values: list[float]) -> list[set[int]]:
        edge = sorted(values, reverse=True)[h - 1]
        sure = {i for i, value in enumerate(values) if value > edge}
        tied = [i for i, value in enumerate(values) if value == edge]
        return [sure | set(drawn) for drawn in itertools.combinations(tied, h - len(sure))]

    overlaps = [len(x & y) for x in tops(a) for y in tops(b)]
    return Fraction(sum(overlaps), len(overlaps))


few_grades = st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([-0.5, 0.0, 0.25]))


@given(st.lists(st.lists(few_grades, max_size=6), max_size=4), st.integers(1, 4))
def test_ranking_against_every_way_to_break_ties(users: Users, h: int) -> None:
    audit = ranking_attack(*arrays(users), h=h)
    for index, user in enumerate(users):
        ratings, masked = [r for r, _ in user], [v for _, v in user]
        if len(user) <= h:
            assert audit.attack.weights[index] == audit.chance.weights[index] == 0
            continue
        assert audit.attack.sums[index] == pytest.approx(float(expected_overlap(ratings, masked, h) / h))
        assert audit.clear.sums[index] == pytest.approx(float(expected_overlap(ratings, ratings, h) / h))


@given(
    users_of_any_length,
    st.integers(1, 4),
    st.integers(-40, 40),
    st.sampled_from([0.125, 0.5, 1.0, 3.0, 64.0]),
)
def test_shifting_and_scaling_changes_no_ranking(users: Users, h: int, shift: int, factor: float) -> None:
    indptr, ratings, masked = arrays(users)
    moved = masked * np.float32(factor) + np.float32(shift)
    before = ranking_attack(indptr, ratings, masked, h=h).attack
    after = ranking_attack(indptr, ratings, moved, h=h).attack
    np.testing.assert_array_equal(before.sums, after.sums)


@given(users_of_any_length, st.integers(1, 4), st.sampled_from([0.0, 3.53, -2.1]))
def test_a_constant_mask_hides_no_ranking(users: Users, h: int, mask: float) -> None:
    indptr, ratings, _ = arrays(users)
    audit = ranking_attack(indptr, ratings, ratings - np.float32(mask), h=h)
    np.testing.assert_array_equal(audit.attack.sums, audit.clear.sums)
    for index, weight in enumerate(audit.attack.weights):
        ranked = sorted(ratings[indptr[index] : indptr[index + 1]].tolist(), reverse=True)
        if weight and ranked[h - 1] > ranked[h]:
            assert audit.attack.sums[index] == 1.0


@given(users_of_any_length, st.integers(1, 4))
def test_masked_values_that_are_all_equal_find_what_chance_finds(users: Users, h: int) -> None:
    indptr, ratings, _ = arrays(users)
    audit = ranking_attack(indptr, ratings, np.zeros_like(ratings), h=h)
    np.testing.assert_allclose(audit.attack.sums, audit.chance.sums, rtol=1e-12)


# The indicator.


def test_indicator_by_hand() -> None:
    ratings: Rows = [[5, 1], [], [3]]
    predictions: Rows = [[3, 1], [], [4]]
    figure = privacy_indicator(offsets(ratings), flat(ratings), flat(predictions), scale=STARS)
    # Residuals 2, 0 and −1 of a range of 4.
    np.testing.assert_array_equal(figure.per_user(), [(0.25 + 0) / 2, np.nan, 0.0625])
    assert figure.metric() == AuditMetric("audit.indicator", (0.25 + 0.0625) / 3, users=2, left_out=1)


def test_the_indicator_does_not_depend_on_the_unit_of_ratings() -> None:
    ratings, predictions = flat([[5, 2, 4]]), flat([[4.5, 3, 1]])
    indptr = offsets([[0] * 3])
    stars = privacy_indicator(indptr, ratings, predictions, scale=STARS).metric().value
    percent = privacy_indicator(indptr, ratings * 20, predictions * 20, scale=STARS * 20).metric().value
    assert stars == pytest.approx(percent)


# All of them.


def test_shares_of_users_by_bucket() -> None:
    sums, weights = np.array([0.0, 3.0, 7.0, 10.0, 29.0, 0.0]), np.array([10, 10, 10, 10, 100, 0])
    figure = AuditFigure("audit.recovery@0.5", sums, weights.astype(np.int64))
    # A lower end belongs to its bucket, however 0.7 · 10 and 0.29 · 100 are rounded; the last has both ends.
    np.testing.assert_allclose(figure.distribution(10), [0.2, 0, 0.2, 0.2, 0, 0, 0, 0.2, 0, 0.2])
    assert np.flatnonzero(figure.distribution(100)).tolist() == [0, 29, 30, 70, 99]
    nobody = AuditFigure(figure.name, sums[5:], weights[5:].astype(np.int64))
    assert np.isnan(nobody.distribution(3)).all()


@given(users_of_any_length)
def test_shares_are_between_nothing_and_everything(users: Users) -> None:
    *shares, indicator = figures(users)
    for figure in shares:
        assert ((figure.sums >= 0) & (figure.sums <= figure.weights)).all(), figure.name
    recovery, ranking = shares[:3], shares[3:]
    attack, _, clear = ranking
    # Sums of products of probabilities: equal up to rounding where the attack is as good as it can be.
    assert (attack.sums <= clear.sums + 1e-12).all()
    assert all(figure.weights.tolist() == [len(user) for user in users] for figure in (*recovery, indicator))
    assert (indicator.sums >= 0).all()


@given(users_of_any_length, st.randoms(use_true_random=False))
def test_neither_batches_nor_the_order_of_items_change_a_bit(users: Users, random: Any) -> None:
    whole = figures(users)
    apart = [figures([user]) for user in users]
    shuffled = figures([random.sample(user, len(user)) for user in users])
    for number, figure in enumerate(whole):
        if figure.name != "audit.indicator":
            np.testing.assert_array_equal(figure.sums, shuffled[number].sums)
        if users:
            pieces = joined([pieces[number] for pieces in reversed(apart)])
            np.testing.assert_array_equal(figure.sums, pieces.sums[::-1])
            np.testing.assert_array_equal(figure.weights, pieces.weights[::-1])
            np.testing.assert_equal(figure.metric(), pieces.metric())


def test_figures_of_some_users() -> None:
    figure = AuditFigure("audit.indicator", np.array([1.0, 4.0, 0.0]), np.array([2, 1, 0]))
    assert figure.metric() == AuditMetric("audit.indicator", 5 / 3, 2, 1)
    assert figure.metric(np.array([False, True, True])) == AuditMetric("audit.indicator", 4.0, 1, 1)
    nobody = figure.metric(np.array([False, False, True]))
    assert math.isnan(nobody.value)
    assert nobody[2:] == (0, 1)
    with pytest.raises(ValueError, match=r"bool\[3\]"):
        figure.metric(np.array([0, 1, 2]))
    with pytest.raises(ValueError, match=r"audit\.a.*audit\.b"):
        joined([AuditFigure(name, figure.sums, figure.weights) for name in ("audit.a", "audit.b")])
    with pytest.raises(ValueError, match="one metric"):
        joined([])


def test_no_users_at_all() -> None:
    for figure in figures([]):
        metric = figure.metric()
        assert math.isnan(metric.value)
        assert (metric.users, metric.left_out) == (0, 0)


def test_arguments_are_not_written_to() -> None:
    indptr, ratings, masked = offsets(RATINGS), flat(RATINGS), flat(MASKED)
    for array in (indptr, ratings, masked):
        array.flags.writeable = False
    recovery_attack(indptr, ratings, masked, scale=STARS)
    ranking_attack(indptr, ratings, masked, h=1)
    privacy_indicator(indptr, ratings, masked, scale=STARS)


def test_bad_arguments_are_refused() -> None:
    indptr, ratings, masked = offsets(RATINGS), flat(RATINGS), flat(MASKED)
    with pytest.raises(ValueError, match="from 0 and never falling"):
        ranking_attack(np.array([0, 6, 4, 10]), ratings, masked)
    with pytest.raises(ValueError, match="from 0 and never falling"):
        ranking_attack(indptr + 1, ratings, masked)
    with pytest.raises(ValueError, match="indptr ends at 10"):
        ranking_attack(indptr, ratings[:-1], masked[:-1])
    with pytest.raises(ValueError, match="indptr ends at 10"):
        privacy_indicator(indptr, ratings, masked[:-1], scale=STARS)
    diverged = masked.copy()
    diverged[4] = np.inf
    with pytest.raises(ValueError, match=r"row 1 .* has diverged"):
        recovery_attack(indptr, ratings, diverged, scale=STARS)
    with pytest.raises(ValueError, match=r"rating 5\.0 is outside the scale 1\.0 \.\. 4\.0"):
        privacy_indicator(indptr, ratings, masked, scale=STARS[:4])
    for scale in (STARS[:1], STARS[::-1], np.array([1.0, np.nan]), STARS[None]):
        with pytest.raises(ValueError, match="at least two values, ascending"):
            recovery_attack(indptr, ratings, masked, scale=scale)
    for within_stars in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="within_stars"):
            recovery_attack(indptr, ratings, masked, scale=STARS, within_stars=within_stars)
    for h in (0, -0.1, 2.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="h must be a whole number of 1 or more, or a share"):
            ranking_attack(indptr, ratings, masked, h=h)
