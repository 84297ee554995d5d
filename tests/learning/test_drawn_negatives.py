"""Negatives of implicit feedback: distinct, never rated or kept back, uniform, the same whoever is asked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import keys_for, offsets_of, random_ratings

from edge.learning.sampled_negatives import Examples, ImplicitBatch, draw_examples, negative_counts

N_ITEMS = 50


def implicit(seed: int, counts: list[int], kept: int, n_items: int = N_ITEMS) -> ImplicitBatch:
    """Return users with so many positives, and ``kept`` other items each that are kept back."""
    together = random_ratings(seed, [count + kept for count in counts], n_items)
    rng = np.random.default_rng(seed + 1)
    positives, held_out = [], []
    for start, count in zip(together.indptr.tolist(), counts, strict=False):
        items = rng.permutation(together.items[start : start + count + kept])
        positives.append(np.sort(items[:count]))
        held_out.append(np.sort(items[count:]))
    n = sum(counts)
    return ImplicitBatch(
        offsets_of(np.array(counts)),
        np.concatenate([*positives, np.zeros(0, np.uint16)]),
        np.ones(n, np.float32),
        np.arange(len(counts) + 1) * kept,
        np.concatenate([*held_out, np.zeros(0, np.uint16)]),
    )


def of_user(examples: Examples, user: int) -> tuple[list[int], list[int]]:
    part = slice(examples.indptr[user], examples.indptr[user + 1])
    items, positive = examples.items[part], examples.positive[part]
    return items[positive].tolist(), items[~positive].tolist()


@given(st.lists(st.integers(0, 46), min_size=1, max_size=6), st.integers(0, 3), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_negatives_are_distinct_and_new_and_those_of_each_user_alone(
    counts: list[int], kept: int, each: int
) -> None:
    batch, keys = implicit(len(counts), counts, kept), keys_for(3, len(counts))
    examples = draw_examples(batch, keys, each=each, n_items=N_ITEMS, kept_back=kept)
    wanted = negative_counts(np.array(counts), each=each, n_items=N_ITEMS, kept_back=kept)
    for user, count in enumerate(counts):
        positives, negatives = of_user(examples, user)
        assert positives == batch.items[batch.indptr[user] : batch.indptr[user + 1]].tolist()
        barred = set(positives) | set(batch.kept_items[user * kept : (user + 1) * kept].tolist())
        assert len(negatives) == wanted[user] == min(each * count, N_ITEMS - count - kept)
        assert len(set(negatives)) == len(negatives)
        assert not barred & set(negatives)
        part = slice(examples.indptr[user], examples.indptr[user + 1])
        assert (np.diff(examples.items[part]) > 0).all()
        alone = ImplicitBatch(
            np.array([0, count]),
            batch.items[batch.indptr[user] : batch.indptr[user + 1]],
            batch.ratings[:count],
            np.array([0, kept]),
            batch.kept_items[user * kept : (user + 1) * kept],
        )
        single = draw_examples(alone, keys[[user]], each=each, n_items=N_ITEMS, kept_back=kept)
        assert of_user(single, 0) == (positives, negatives)


@pytest.mark.parametrize("count", [2, 12])
def test_every_free_item_is_as_likely(count: int) -> None:
    """12 positives with 2 negatives each want half of what is free, which is drawn in the other way."""
    users = 4000
    one = implicit(1, [count], 2)
    batch = ImplicitBatch(
        np.arange(users + 1) * count,
        np.tile(one.items, users),
        np.tile(one.ratings, users),
        np.arange(users + 1) * 2,
        np.tile(one.kept_items, users),
    )
    examples = draw_examples(batch, keys_for(7, users), each=2, n_items=N_ITEMS, kept_back=2)
    drawn = np.bincount(examples.items[~examples.positive], minlength=N_ITEMS)
    free = np.setdiff1d(np.arange(N_ITEMS), np.concatenate([one.items, one.kept_items]))
    assert drawn.sum() == drawn[free].sum() == users * 2 * count
    share = 2 * count / len(free)
    deviation = np.sqrt(users * share * (1 - share))
    assert np.abs(drawn[free] - users * share).max() < 4.5 * deviation


def test_another_key_draws_others() -> None:
    batch = implicit(2, [5], 0)
    one, other = (
        draw_examples(batch, keys_for(seed, 1), each=4, n_items=N_ITEMS, kept_back=0) for seed in (1, 2)
    )
    assert of_user(one, 0)[1] != of_user(other, 0)[1]


def test_what_is_kept_back_of_others_bounds_what_is_drawn() -> None:
    counts = np.array([0, 3, 40, 49, 50])
    assert negative_counts(counts, each=4, n_items=50, kept_back=2).tolist() == [0, 12, 8, 0, 0]
