from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.data.store import StoredRatings
from edge.metrics.ranking import RankingSums, metric_name, ranks_among, sample_negatives, top_k


def lists(*rows: list[int]) -> StoredRatings:
    items = np.array([item for row in rows for item in row], dtype=np.uint16)
    indptr = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
    return StoredRatings(indptr, items, np.zeros(items.size, dtype=np.float32))


SCORES = np.array(
    [
        [0.9, 0.1, 0.8, 0.3, 0.5, 0.7],
        [0.2, 0.6, 0.1, 0.9, 0.4, 0.3],
        [0.5, 0.45, 0.4, 0.35, 0.3, 0.25],
    ]
)
RELEVANT = lists([1, 2, 5], [0, 4], [5])

# Per user: sklearn.metrics.ndcg_score(relevance, scores, k=k), and precision_score and recall_score of the
# first k as predictions.
NDCG = {
    1: [0.0, 0.0, 0.0],
    2: [0.3868528072345415, 0.0, 0.0],
    3: [0.5307212739772434, 0.30657359638272924, 0.0],
    6: [0.6978817289434459, 0.5437713091520254, 0.35620718710802235],
}
PRECISION_AT_3 = [2 / 3, 1 / 3, 0.0]
RECALL_AT_3 = [2 / 3, 1 / 2, 0.0]


def test_known_values_of_full_ranking() -> None:
    sums = RankingSums((1, 2, 3, 6), n_groups=3)
    sums.add_full(SCORES, RELEVANT, groups=np.arange(3))
    results = sums.results()
    for k, expected in NDCG.items():
        assert results[f"ndcg@{k}"] == pytest.approx(expected, abs=1e-12)
    assert results["precision@3"] == pytest.approx(PRECISION_AT_3)
    assert results["recall@3"] == pytest.approx(RECALL_AT_3)
    assert results["hr@3"].tolist() == [1.0, 1.0, 0.0]
    assert results["hr@6"].tolist() == [1.0, 1.0, 1.0]


def test_means_over_users_and_batches() -> None:
    together, apart = RankingSums((3,)), RankingSums((3,))
    together.add_full(SCORES, RELEVANT)
    apart.add_full(SCORES[:1], lists([1, 2, 5]))
    apart.add_full(SCORES[1:], lists([0, 4], [5]))
    assert together.users.tolist() == apart.users.tolist() == [3]
    # sklearn.metrics.ndcg_score of all three users.
    assert together.results()["ndcg@3"][0] == pytest.approx(0.27909829011999093, abs=1e-12)
    for name, value in together.results().items():
        assert apart.results()[name] == pytest.approx(value, abs=1e-15)


def test_excluded_items_are_no_candidates() -> None:
    sums = RankingSums((2,))
    sums.add_full(SCORES[:1], lists([5]), exclude=lists([0, 2]))
    assert sums.results()["ndcg@2"][0] == 1.0
    with pytest.raises(ValueError, match="both relevant and excluded"):
        sums.add_full(SCORES[:1], lists([5]), exclude=lists([5]))


def test_users_without_relevant_items_do_not_count() -> None:
    sums = RankingSums((2,), n_groups=2)
    sums.add_full(SCORES[:2], lists([0], []), groups=np.array([0, 1]))
    assert sums.users.tolist() == [1, 0]
    assert math.isnan(sums.results()["hr@2"][1])


def test_top_k_breaks_ties_by_item_and_pads() -> None:
    scores = np.array([[1.0, 2.0, 1.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]], dtype=np.float32)
    assert top_k(scores, 3).tolist() == [[1, 3, 0], [0, 1, 2]]
    assert top_k(scores, 3, lists([1, 0], [0, 1, 2, 3])).tolist() == [[3, 2, 4], [4, -1, -1]]
    assert top_k(scores, 7).tolist() == [[1, 3, 0, 2, 4, -1, -1], [0, 1, 2, 3, 4, -1, -1]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 14), st.integers(1, 4))
def test_top_k_equals_sorting_by_score_then_item(seed: int, m: int, k: int, distinct: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, distinct, (5, m)).astype(np.float64)
    excluded = [sorted(rng.permutation(m)[: rng.integers(0, m + 1)].tolist()) for _ in range(5)]
    best = top_k(scores, k, lists(*excluded))
    for user in range(5):
        candidates = [item for item in range(m) if item not in excluded[user]]
        candidates.sort(key=lambda item: (-scores[user, item], item))
        expected = (candidates + [-1] * k)[:k]
        assert best[user].tolist() == expected


def test_ranks_among_negatives_with_ties_by_item() -> None:
    ranks = ranks_among(
        np.array([0.5, 0.5, 0.5]),
        np.array([[0.9, 0.1, 0.5], [0.5, 0.5, 0.5], [0.4, 0.3, 0.5]]),
        np.array([4, 4, 4]),
        np.array([[1, 2, 3], [3, 5, 6], [1, 2, 4]]),
    )
    # Third user: a negative that is the positive itself does not compete with it.
    assert ranks.tolist() == [2, 1, 0]


def test_known_values_of_sampled_ranking() -> None:
    sums = RankingSums((1, 3), negatives=99)
    sums.add_ranks(np.array([0, 2, 50]))
    results = sums.results()
    assert results["hr@1/99neg"][0] == pytest.approx(1 / 3)
    assert results["hr@3/99neg"][0] == results["recall@3/99neg"][0] == pytest.approx(2 / 3)
    assert results["precision@3/99neg"][0] == pytest.approx(2 / 9)
    # A single relevant item at rank 2 (from 0) has a DCG of 1/log2(4).
    assert results["ndcg@3/99neg"][0] == pytest.approx((1 + 0.5) / 3)


def test_full_and_sampled_metrics_are_named_apart_and_do_not_mix() -> None:
    assert metric_name("ndcg", 10) == "ndcg@10"
    assert metric_name("ndcg", 10, 99) == "ndcg@10/99neg"
    with pytest.raises(ValueError, match="sampled negatives"):
        RankingSums(negatives=99).add_full(SCORES, RELEVANT)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_of_a_diverged_model_are_refused(bad: float) -> None:
    scores = SCORES.copy()
    scores[1, 2] = bad
    with pytest.raises(ValueError, match="row 1 is nan or infinite"):
        top_k(scores, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_model_that_diverged_for_somebody_has_no_ranking(bad: float) -> None:
    scores = SCORES.copy()
    scores[1, 2] = bad
    groups = np.arange(len(SCORES))
    sums, finite = RankingSums((2,), n_groups=len(SCORES)), RankingSums((2,), n_groups=len(SCORES))
    sums.add_full(scores, RELEVANT, groups=groups)
    finite.add_full(SCORES, RELEVANT, groups=groups)
    for metric, values in finite.results().items():
        values[1] = np.nan
        np.testing.assert_array_equal(sums.results()[metric], values)
    positive, negatives, items = np.array([3.0, bad, 1.0]), np.zeros((3, 2)), np.array([[1, 2]] * 3)
    negatives[2, 1] = bad
    ranks = ranks_among(positive, negatives, np.array([0, 0, 0]), items)
    assert ranks.tolist() == [0, -1, -1]
    sampled = RankingSums((2,), negatives=2, n_groups=2)
    sampled.add_ranks(ranks, np.array([0, 1, 1]))
    assert sampled.results()["hr@2/2neg"][0] == 1
    assert np.isnan(sampled.results()["hr@2/2neg"][1])


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        top_k(SCORES, 0)
    with pytest.raises(ValueError, match="users, items"):
        top_k(SCORES[0], 1)
    with pytest.raises(ValueError, match="2 users for 3 rows"):
        top_k(SCORES, 1, lists([1], [2]))
    with pytest.raises(ValueError, match="at least 1"):
        RankingSums(())
    with pytest.raises(ValueError, match="positives"):
        ranks_among(np.zeros(2), np.zeros((1, 2)), np.zeros(2, int), np.zeros((1, 2), int))
    with pytest.raises(ValueError, match="negative items"):
        ranks_among(np.zeros(1), np.zeros((1, 2)), np.zeros(1, int), np.zeros((1, 3), int))


def test_random_scores_give_the_chance_level() -> None:
    rng = np.random.default_rng(1)
    users, n_items = 4000, 200
    sums = RankingSums((10,), negatives=99)
    rated = lists(*([item] for item in rng.integers(0, n_items, users).tolist()))
    negatives = sample_negatives(np.arange(users), rated, n_items, 99, seed=3)
    # All alike: only ties, so this also shows that ties by item favour nobody.
    constant = np.zeros((users, 99))
    sums.add_ranks(ranks_among(np.zeros(users), constant, rated.items, negatives))
    assert sums.results()["hr@10/99neg"][0] == pytest.approx(0.10, abs=6 * np.sqrt(0.09 / users))


def test_negatives_are_distinct_unrated_and_independent_of_the_batch() -> None:
    rng = np.random.default_rng(4)
    rated_rows = [sorted(rng.permutation(50)[: rng.integers(0, 30)].tolist()) for _ in range(30)]
    users = np.arange(30)
    negatives = sample_negatives(users, lists(*rated_rows), 50, 20, seed=6)
    for user in range(30):
        row = negatives[user].tolist()
        assert row == sorted(set(row))
        assert not set(row) & set(rated_rows[user])
    alone = sample_negatives(np.array([17]), lists(rated_rows[17]), 50, 20, seed=6)
    assert np.array_equal(alone[0], negatives[17])
    assert not np.array_equal(sample_negatives(users, lists(*rated_rows), 50, 20, seed=7), negatives)


def test_negatives_are_uniform_over_the_unrated_items() -> None:
    users = np.arange(20_000)
    rated = lists(*([0, 1] for _ in range(20_000)))
    counts = np.bincount(sample_negatives(users, rated, 12, 3, seed=1).ravel(), minlength=12)
    assert counts[:2].tolist() == [0, 0]
    # Each of the other ten is drawn with probability 0.3; six standard deviations.
    assert np.abs(counts[2:] - 6000).max() < 6 * np.sqrt(20_000 * 0.3 * 0.7)


def test_too_few_unrated_items_is_an_error_that_names_the_user() -> None:
    with pytest.raises(ValueError, match="user 9 has 2 unrated items, fewer than the 3 negatives"):
        sample_negatives(np.array([8, 9]), lists([0], [0, 1, 2]), 5, 3, seed=1)
    assert sample_negatives(np.array([9]), lists([0, 1, 2]), 5, 2, seed=1).tolist() == [[3, 4]]
    with pytest.raises(ValueError, match="at least 1"):
        sample_negatives(np.array([9]), lists([0]), 5, 0, seed=1)
