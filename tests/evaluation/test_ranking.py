from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.data.store import StoredRatings
from edge.metrics.ranking import (
    METRICS,
    RankingSums,
    metric_name,
    rank_among,
    rank_fully,
    ranks_among,
    sample_negatives,
    self_information,
    top_k,
)


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
# Per user: `map` and `mrr` at k of ranx.evaluate, and sklearn.metrics.roc_auc_score.
MAP = {2: [1 / 6, 0.0, 0.0], 3: [7 / 18, 1 / 6, 0.0], 6: [5 / 9, 11 / 30, 1 / 6]}
MRR = {2: [1 / 2, 0.0, 0.0], 3: [1 / 2, 1 / 3, 0.0], 6: [1 / 2, 1 / 3, 1 / 6]}
AUC = [4 / 9, 3 / 8, 0.0]
PRECISION_AT_3 = [2 / 3, 1 / 3, 0.0]
RECALL_AT_3 = [2 / 3, 1 / 2, 0.0]


def test_known_values_of_full_ranking() -> None:
    sums = RankingSums((1, 2, 3, 6), n_groups=3)
    sums.add(rank_fully(SCORES, RELEVANT, places=6), np.arange(3))
    results = sums.results()
    for k, expected in NDCG.items():
        assert results[f"ndcg@{k}"] == pytest.approx(expected, abs=1e-12)
    assert results["precision@3"] == pytest.approx(PRECISION_AT_3)
    assert results["recall@3"] == pytest.approx(RECALL_AT_3)
    assert results["hr@3"].tolist() == [1.0, 1.0, 0.0]
    assert results["hr@6"].tolist() == [1.0, 1.0, 1.0]


def test_means_over_users_and_batches() -> None:
    together, apart = RankingSums((3,)), RankingSums((3,))
    together.add(rank_fully(SCORES, RELEVANT, places=3))
    apart.add(rank_fully(SCORES[:1], lists([1, 2, 5]), places=3))
    apart.add(rank_fully(SCORES[1:], lists([0, 4], [5]), places=3))
    assert together.users.tolist() == apart.users.tolist() == [3]
    # sklearn.metrics.ndcg_score of all three users.
    assert together.results()["ndcg@3"][0] == pytest.approx(0.27909829011999093, abs=1e-12)
    for name, value in together.results().items():
        assert apart.results()[name] == pytest.approx(value, abs=1e-15)


def test_excluded_items_are_no_candidates() -> None:
    sums = RankingSums((2,))
    sums.add(rank_fully(SCORES[:1], lists([5]), lists([0, 2]), places=2))
    assert sums.results()["ndcg@2"][0] == 1.0
    with pytest.raises(ValueError, match="both relevant and excluded"):
        rank_fully(SCORES[:1], lists([5]), lists([5]), places=2)


def test_users_without_relevant_items_do_not_count() -> None:
    sums = RankingSums((2,), n_groups=2)
    sums.add(rank_fully(SCORES[:2], lists([0], []), places=2), np.array([0, 1]))
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
    # The relevant item is 0 in all three; so many of the other 99 score more.
    negatives = np.where(np.arange(99) < np.array([[0], [2], [50]]), 2.0, 0.0)
    items = np.tile(np.arange(1, 100), (3, 1))
    sums.add(rank_among(np.ones(3), negatives, np.zeros(3, int), items, places=3))
    results = sums.results()
    assert results["hr@1/99neg"][0] == pytest.approx(1 / 3)
    assert results["hr@3/99neg"][0] == results["recall@3/99neg"][0] == pytest.approx(2 / 3)
    assert results["precision@3/99neg"][0] == pytest.approx(2 / 9)
    # A single relevant item at rank 2 (from 0) has a DCG of 1/log2(4).
    assert results["ndcg@3/99neg"][0] == pytest.approx((1 + 0.5) / 3)


def test_full_and_sampled_metrics_are_named_apart_and_do_not_mix() -> None:
    assert metric_name("ndcg", 10) == "ndcg@10"
    assert metric_name("ndcg", 10, 99) == "ndcg@10/99neg"
    with pytest.raises(ValueError, match="of rankings among 99; add full rankings to sums of their own"):
        RankingSums(negatives=99).add(rank_fully(SCORES, RELEVANT, places=10))


def _metrics_by_hand(
    scores: npt.NDArray[np.float64], relevant: list[int], excluded: list[int], k: int
) -> dict[str, float]:
    """Return MRR, MAP and AUC of one user, item by item."""
    candidates = [item for item in range(scores.size) if item not in excluded]
    order = sorted(candidates, key=lambda item: (-scores[item], item))
    first, precisions, hits = 0.0, 0.0, 0
    for place, item in enumerate(order[:k], start=1):
        if item in relevant:
            hits += 1
            precisions += hits / place
            first = first or 1 / place
    others = [item for item in candidates if item not in relevant]
    wins = [
        1.0 if scores[one] > scores[other] else 0.5 if scores[one] == scores[other] else 0.0
        for one in relevant
        for other in others
    ]
    auc = float(np.mean(wins)) if wins else 0.5
    return {f"mrr@{k}": first, f"map@{k}": precisions / len(relevant), "auc": auc}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 12), st.integers(1, 14), st.integers(1, 6))
def test_reciprocal_ranks_average_precision_and_auc_are_those_counted_item_by_item(
    seed: int, m: int, k: int, distinct: int
) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, distinct, (6, m)).astype(np.float64)
    relevant, excluded = [], []
    for _ in range(6):
        shuffled = rng.permutation(m)
        size = int(rng.integers(1, m))
        relevant.append(sorted(shuffled[:size].tolist()))
        excluded.append(sorted(shuffled[size : int(rng.integers(size, m + 1))].tolist()))
    sums = RankingSums((k,), n_groups=6, metrics=("mrr", "map", "auc"))
    sums.add(rank_fully(scores, lists(*relevant), lists(*excluded), places=k, auc=True), np.arange(6))
    for user in range(6):
        expected = _metrics_by_hand(scores[user], relevant[user], excluded[user], k)
        found = {name: value[user] for name, value in sums.results().items()}
        assert found == pytest.approx(expected, abs=1e-12)


def test_known_values_of_average_precision_reciprocal_rank_and_auc() -> None:
    sums = RankingSums((2, 3, 6), n_groups=3, metrics=("mrr", "map", "auc"))
    sums.add(rank_fully(SCORES, RELEVANT, places=6, auc=True), np.arange(3))
    results = sums.results()
    for k in (2, 3, 6):
        assert results[f"map@{k}"] == pytest.approx(MAP[k], abs=1e-12)
        assert results[f"mrr@{k}"] == pytest.approx(MRR[k], abs=1e-12)
    assert results["auc"] == pytest.approx(AUC, abs=1e-12)


def test_auc_among_sampled_items_is_the_share_that_scores_less() -> None:
    positive, negatives = np.array([1.0, 1.0]), np.array([[0.0, 1.0, 2.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    items = np.array([[1, 2, 3, 4], [0, 5, 6, 7]])
    sums = RankingSums((10,), negatives=4, n_groups=2, metrics=("mrr", "map", "auc"))
    # The second user's first negative is the positive itself, and no competitor.
    sums.add(rank_among(positive, negatives, np.zeros(2, int), items, places=10, auc=True), np.arange(2))
    results = sums.results()
    assert results["auc/4neg"] == pytest.approx([2.5 / 4, 2.5 / 3])
    assert results["mrr@10/4neg"] == pytest.approx([1 / 2, 1])
    assert results["map@10/4neg"] == pytest.approx([1 / 2, 1])


def test_coverage_and_novelty_are_of_what_is_listed() -> None:
    raters = np.array([8, 4, 2, 1, 0, 8])
    information = self_information(raters, 8)
    assert information.tolist() == [0, 1, 2, 3, 3, 0]
    sums = RankingSums((2,), n_groups=3, metrics=("coverage", "novelty"), information=information)
    batch = rank_fully(SCORES, RELEVANT, places=2)
    assert batch.listed is not None
    assert batch.listed.tolist() == [[0, 2], [3, 1], [0, 1]]
    sums.add(batch, np.array([0, 1, 1]))
    assert sums.results()["coverage@2"][:2] == pytest.approx([2 / 6, 3 / 6])
    assert sums.results()["novelty@2"][:2] == pytest.approx([2 / 2, (4 / 2 + 1 / 2) / 2])
    assert all(math.isnan(values[2]) for values in sums.results().values())
    # Again: what is covered already does not count twice.
    sums.add(batch, np.array([0, 1, 1]))
    assert sums.results()["coverage@2"][:2] == pytest.approx([2 / 6, 3 / 6])
    with pytest.raises(ValueError, match="are of full rankings"):
        RankingSums(negatives=9, metrics=("coverage",), information=information)
    with pytest.raises(ValueError, match="unknown metrics hits; of rankings there are hr"):
        RankingSums(metrics=("hits",))


def test_rankings_of_some_of_the_relevant_items_leave_the_others_where_they_are() -> None:
    chosen = np.array([False, True, False, False, True, True])
    whole = rank_fully(SCORES, RELEVANT, places=6, auc=True)
    some = whole.of_items(chosen)
    sums = RankingSums((3, 6), n_groups=3, metrics=(*METRICS[:6], "auc"))
    sums.add(some, np.arange(3))
    # Of the first user items 1 and 5 count, in places 6 and 3, and item 2 still takes the second.
    assert sums.results()["recall@3"] == pytest.approx([1 / 2, 1, 0])
    assert sums.results()["mrr@6"] == pytest.approx([1 / 3, 1 / 3, 1 / 6])
    # Against items 0, 3 and 4: 5 is before two of them, 1 before none.
    assert sums.results()["auc"][0] == pytest.approx((2 / 3 + 0) / 2)
    nobody = whole.of_items(np.zeros(6, dtype=bool))
    sums.add(nobody, np.arange(3))
    assert sums.users.tolist() == [1, 1, 1]
    sampled = rank_among(np.ones(2), np.zeros((2, 3)), np.array([0, 1]), np.array([[2, 3, 4]] * 2), places=5)
    assert sampled.of_items(chosen).hits.any(axis=1).tolist() == [False, True]
    assert sampled.of_items(chosen).relevant.tolist() == [0, 1]


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
    sums.add(rank_fully(scores, RELEVANT, places=2), groups)
    finite.add(rank_fully(SCORES, RELEVANT, places=2), groups)
    for metric, values in finite.results().items():
        values[1] = np.nan
        np.testing.assert_array_equal(sums.results()[metric], values)
    positive, negatives, items = np.array([3.0, bad, 1.0]), np.zeros((3, 2)), np.array([[1, 2]] * 3)
    negatives[2, 1] = bad
    ranks = ranks_among(positive, negatives, np.array([0, 0, 0]), items)
    assert ranks.tolist() == [0, -1, -1]
    sampled = RankingSums((2,), negatives=2, n_groups=2)
    sampled.add(rank_among(positive, negatives, np.zeros(3, int), items, places=2), np.array([0, 1, 1]))
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
    sums.add(rank_among(np.zeros(users), constant, rated.items, negatives, places=10))
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
