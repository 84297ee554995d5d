from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.data import synthetic
from edge.data.split import split_ratio
from edge.data.store import RatingStore
from edge.data.synthetic import GeneratedRatings, SyntheticRatings, generate_ratings


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 2500), st.integers(2, 400)),
    share=st.floats(0, 1),
    exponent=st.floats(0, 3),
    sigma=st.floats(0, 2),
    seed=st.integers(0, 2**62),
)
def test_any_setting_gives_a_valid_store(
    sizes: tuple[int, int], share: float, exponent: float, sigma: float, seed: int
) -> None:
    users, items = sizes
    least = max(1, min(3, items // 4))
    spec = SyntheticRatings(
        users=users,
        items=items,
        ratings_per_user=least + share * (items / 2 - least),
        min_ratings_per_user=least,
        popularity_exponent=exponent,
        activity_sigma=sigma,
    )
    store = generate_ratings(spec, seed=seed, workers=1)
    store.validate()
    assert (store.n_users, store.n_items) == (users, items)
    assert store.counts.min() >= least
    assert store.counts.max() <= items // 2
    assert set(np.unique(store.ratings)) <= {1, 2, 3, 4, 5}


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    spec = SyntheticRatings(users=5000, items=300, ratings_per_user=20)
    one, three, default = (generate_ratings(spec, seed=8, workers=workers) for workers in (1, 3, None))
    assert one.content_hash() == three.content_hash() == default.content_hash()
    assert one.content_hash() != generate_ratings(spec, seed=9).content_hash()


def test_large_catalogues_use_wider_indices() -> None:
    spec = SyntheticRatings(users=50, items=70_000, ratings_per_user=30)
    store = generate_ratings(spec, seed=1)
    store.validate()
    assert store.items.dtype == np.int32


def test_shape_of_activity_and_popularity() -> None:
    spec = SyntheticRatings(users=4000, items=2000, ratings_per_user=40, min_ratings_per_user=10)
    store = generate_ratings(spec, seed=2)
    counts = np.sort(store.counts)
    assert counts.mean() == pytest.approx(40, rel=0.05)
    # A long tail: the median is well below the mean.
    assert np.median(counts) < 0.9 * counts.mean()
    popularity = np.sort(store.item_counts())[::-1]
    # The top tenth of the items has several times its share, and the tail is still rated.
    assert popularity[:200].sum() > 0.3 * store.n_ratings
    assert np.count_nonzero(popularity) > 0.95 * spec.items


def test_without_a_tail_all_items_are_equally_popular() -> None:
    spec = SyntheticRatings(users=4000, items=200, ratings_per_user=20, popularity_exponent=0.0, taste_sd=0.0)
    counts = generate_ratings(spec, seed=2).item_counts()
    # 400 ratings an item are expected; stratification makes them vary less than a Poisson count would.
    assert np.abs(counts / counts.mean() - 1).max() < 6 / np.sqrt(counts.mean())


def test_popularity_is_not_a_matter_of_item_index() -> None:
    store = generate_ratings(SyntheticRatings(users=2000, items=400, ratings_per_user=20), seed=3)
    correlation = np.corrcoef(np.arange(400), store.item_counts())[0, 1]
    assert abs(correlation) < 0.2


def test_spread_of_the_parts_is_as_asked() -> None:
    """With every part but one at 0, the ratings spread as that part does."""
    base: dict[str, Any] = {
        "users": 3000,
        "items": 400,
        "ratings_per_user": 40,
        "mean_rating": 3.0,
        "taste_sd": 0.0,
        "user_bias_sd": 0.0,
        "item_bias_sd": 0.0,
        "noise_sd": 0.0,
    }
    flat = generate_ratings(SyntheticRatings(**base), seed=1)
    assert np.all(flat.ratings == 3)
    noisy = generate_ratings(SyntheticRatings(**(base | {"noise_sd": 0.6})), seed=1)
    # Rounding to whole stars adds 1/12 to the variance (Sheppard 1898).
    assert noisy.decoded().std() == pytest.approx(np.sqrt(0.36 + 1 / 12), rel=0.02)
    biased = generate_ratings(SyntheticRatings(**(base | {"user_bias_sd": 0.6})), seed=1)
    assert all(np.ptp(biased.local(user)[1]) == 0 for user in range(100))


def _biases(train: RatingStore) -> tuple[float, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    users, items = train.owners(), train.items.astype(np.int64)
    residual = train.decoded() - train.mean()
    user_bias = np.zeros(train.n_users)
    for _ in range(10):
        sums = np.bincount(items, residual - user_bias[users], train.n_items)
        item_bias = sums / (train.item_counts() + 3)
        user_bias = np.bincount(users, residual - item_bias[items], train.n_users) / (train.counts + 3)
    return train.mean(), user_bias, item_bias


def _solve(
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    other: npt.NDArray[np.float64],
    size: int,
) -> npt.NDArray[np.float64]:
    """Ridge of every row on the other side's factors."""
    factors = other.shape[1]
    gram = np.zeros((size, factors, factors))
    right = np.zeros((size, factors))
    picked = other[columns]
    np.add.at(gram, rows, picked[:, :, None] * picked[:, None, :])
    np.add.at(right, rows, picked * values[:, None])
    return np.asarray(np.linalg.solve(gram + 3.0 * np.eye(factors), right[..., None])[..., 0])


def _errors(store: RatingStore) -> tuple[float, float]:
    """Return the RMSE on held-out ratings of biases, and of a factorisation by alternating least squares."""
    split = split_ratio(store, test=0.2, seed=7)
    assert split.test is not None
    train, test = split.train, split.test
    mean, user_bias, item_bias = _biases(train)
    rows, columns = train.owners(), train.items.astype(np.int64)
    residual = train.decoded() - mean - user_bias[rows] - item_bias[columns]
    item_factors = np.random.default_rng(0).normal(0, 0.1, (store.n_items, 8))
    for _ in range(12):
        user_factors = _solve(rows, columns, residual, item_factors, store.n_users)
        item_factors = _solve(columns, rows, residual, user_factors, store.n_items)
    rows, columns = test.owners(), test.items.astype(np.int64)
    biased = mean + user_bias[rows] + item_bias[columns]
    factored = biased + (user_factors[rows] * item_factors[columns]).sum(axis=1)
    first, second = (
        float(np.sqrt(np.mean((np.clip(guess, 1, 5) - test.decoded()) ** 2))) for guess in (biased, factored)
    )
    return first, second


@pytest.mark.parametrize(("users", "items", "each"), [(200, 300, 30), (1000, 2000, 40)])
@pytest.mark.slow
def test_factorisation_beats_biases_clearly(users: int, items: int, each: int) -> None:
    biased, factored = _errors(
        generate_ratings(SyntheticRatings(users=users, items=items, ratings_per_user=each), seed=7)
    )
    assert factored < 0.92 * biased


class TestRatingsAsAFunctionOfTheUser:
    """A large store makes what is asked of it: the same ratings as if all were made."""

    SPEC = SyntheticRatings(users=3000, items=400, ratings_per_user=20, timestamps=True)

    @pytest.fixture
    def large(self, monkeypatch: pytest.MonkeyPatch) -> GeneratedRatings:
        monkeypatch.setattr(synthetic, "KEPT_RATINGS", 0)
        store = generate_ratings(self.SPEC, seed=8)
        assert isinstance(store, GeneratedRatings)
        return store

    @pytest.fixture(scope="class")
    @classmethod
    def kept(cls) -> RatingStore:
        store = generate_ratings(cls.SPEC, seed=8)
        assert not isinstance(store, GeneratedRatings)
        return store

    @pytest.mark.parametrize("size", [0, 1, 7, 1500])
    def test_gathered_like_those_of_a_kept_store(
        self, size: int, large: GeneratedRatings, kept: RatingStore
    ) -> None:
        # In any order, and some twice.
        users = np.random.default_rng(size).integers(0, 3000, size)
        made, stored = large.gather(users, timed=True), kept.gather(users, timed=True)
        assert made.timestamps is not None
        assert stored.timestamps is not None
        for one, other in (
            (made.indptr, stored.indptr),
            (made.items, stored.items),
            (made.ratings, stored.ratings),
            (made.timestamps, stored.timestamps),
        ):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
        assert large.gather(users).timestamps is None
        if size:
            user = int(users[0])
            for one, other in zip(large.local(user), kept.local(user), strict=True):
                assert np.array_equal(one, other)

    def test_nothing_is_kept_of_users_that_are_not_asked_for(self, large: GeneratedRatings) -> None:
        before = large.nbytes
        large.gather(np.arange(100))
        said = (large.mean(), large.limits(), large.content_hash(), large.n_ratings)
        assert said[3] == large.counts.sum()
        assert large.nbytes == before

    def test_everything_else_holds_too(self, large: GeneratedRatings, kept: RatingStore) -> None:
        said = (large.mean(), large.limits(), large.content_hash())
        assert (large.n_ratings, large.n_users, large.n_items) == (kept.n_ratings, 3000, 400)
        assert large.mean() == pytest.approx(kept.mean(), abs=0.02)
        assert large.limits() == kept.limits() == (1.0, 5.0)
        large.validate()
        assert np.array_equal(large.item_counts(), kept.item_counts())
        assert split_ratio(large, test=0.2, seed=7).hash == split_ratio(kept, test=0.2, seed=7).hash
        with pytest.raises(IndexError):
            large.gather(np.array([3000]))
        with pytest.raises(IndexError):
            large.local(-1)
        # Who has asked for what changes nothing of what it says.
        assert (large.mean(), large.limits(), large.content_hash()) == said

    def test_its_name_changes_with_what_it_holds(
        self, large: GeneratedRatings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        others = [
            generate_ratings(self.SPEC, seed=9),
            generate_ratings(dataclasses.replace(self.SPEC, timestamps=False), seed=8),
            generate_ratings(dataclasses.replace(self.SPEC, noise_sd=0.5), seed=8),
            generate_ratings(dataclasses.replace(self.SPEC, popularity_exponent=1.1), seed=8),
        ]
        assert len({large.content_hash(), *(one.content_hash() for one in others)}) == 5
        assert generate_ratings(self.SPEC, seed=8).content_hash() == large.content_hash()


class TestWordsOfUsersAreAsGoodAsAGenerators:
    """Ratings by hashed counters of users beside ratings by words of numpy's SFC64, all else being equal."""

    SPEC = SyntheticRatings(users=6000, items=300, ratings_per_user=25)

    @pytest.fixture(scope="class")
    @classmethod
    def hashed(cls) -> RatingStore:
        return generate_ratings(cls.SPEC, seed=5)

    @pytest.fixture(scope="class")
    @classmethod
    def drawn(cls) -> Iterator[RatingStore]:
        generator = np.random.Generator(np.random.SFC64(1))

        def words(_: Any, users: Any, counts: npt.NDArray[np.int64], rank: Any) -> npt.NDArray[np.uint32]:
            return generator.integers(0, 2**32, int(counts.sum()), dtype=np.uint32)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(synthetic._Generator, "_words", words)
            yield generate_ratings(cls.SPEC, seed=5, workers=1)

    def test_words_are_uniform_and_independent(self) -> None:
        generator = synthetic._Generator(self.SPEC, 5, 1)
        users = np.arange(6000)
        counts = np.diff(generator.indptr)
        rank = (np.arange(int(counts.sum())) - np.repeat(generator.indptr[:-1], counts)).astype(np.int32)
        words = generator._words(users, counts, rank)
        for shift in (0, 8, 16, 24):
            histogram = np.bincount((words >> np.uint32(shift)) & np.uint32(255), minlength=256)
            expected = len(words) / 256
            # Chi-square of 255 degrees: mean 255, sd 22.6.
            assert ((histogram - expected) ** 2 / expected).sum() < 255 + 5 * 22.6
        values = words / 2.0**32 - 0.5
        first_of_users = values[generator.indptr[:-1]]
        for series in (values, first_of_users, values[::2]):
            lagged = np.mean(series[1:] * series[:-1]) * 12
            assert abs(lagged) < 5 / np.sqrt(len(series))

    def test_popularity_ratings_and_their_moments(self, hashed: RatingStore, drawn: RatingStore) -> None:
        assert np.array_equal(hashed.indptr, drawn.indptr)
        for one, other in (
            (hashed.item_counts(), drawn.item_counts()),
            (np.bincount(hashed.ratings)[1:], np.bincount(drawn.ratings)[1:]),
        ):
            degrees = len(one) - 1
            difference = ((one - other) ** 2 / np.maximum(one + other, 1)).sum()
            # Stratified draws vary less than independent ones, for which this is a chi-square.
            assert difference < degrees + 5 * np.sqrt(2 * degrees)
        error = 1 / np.sqrt(hashed.n_ratings)
        assert hashed.mean() == pytest.approx(drawn.mean(), abs=5 * error)
        assert hashed.decoded().std() == pytest.approx(drawn.decoded().std(), abs=5 * error)
        means = [np.bincount(store.owners(), store.decoded()) / store.counts for store in (hashed, drawn)]
        assert np.std(means[0]) == pytest.approx(np.std(means[1]), rel=0.02)

    @pytest.mark.slow
    def test_signal_and_noise_of_a_model_of_factors(self, hashed: RatingStore, drawn: RatingStore) -> None:
        for one, other in zip(_errors(hashed), _errors(drawn), strict=True):
            assert one == pytest.approx(other, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": 0}, "users"),
        ({"items": 1}, "items"),
        ({"items": 1_048_577}, "items"),
        ({"ratings_per_user": 60}, "ratings_per_user"),
        ({"ratings_per_user": float("nan")}, "ratings_per_user"),
        ({"min_ratings_per_user": 11}, "min_ratings_per_user"),
        ({"taste_rank": 1}, "taste_rank"),
        ({"mean_rating": 0.5}, "mean_rating"),
        ({"noise_sd": -0.1}, "noise_sd"),
        ({"taste_sd": float("nan")}, "taste_sd"),
        ({"activity_sigma": 4.0}, "activity_sigma"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SyntheticRatings(**({"users": 10, "items": 100, "ratings_per_user": 10} | changes))


def test_timestamps_order_the_ratings_of_a_user_at_random_and_change_nothing_else() -> None:
    spec = SyntheticRatings(users=3000, items=40, ratings_per_user=8)
    plain = generate_ratings(spec, seed=4)
    timed = generate_ratings(dataclasses.replace(spec, timestamps=True), seed=4)
    timed.validate()
    assert plain.timestamps is None
    assert timed.timestamps is not None
    assert timed.items.tolist() == plain.items.tolist()
    assert timed.ratings.tolist() == plain.ratings.tolist()
    hours = (timed.timestamps - timed.timestamps.min()) // 3600
    latest_first = 0
    for user in range(3000):
        own = hours[timed.indptr[user] : timed.indptr[user + 1]]
        assert sorted(own.tolist()) == list(range(len(own)))
        latest_first += int(own.argmax() == 0)
    # With n ratings the last one is the first in the catalogue in one of n users.
    assert latest_first / 3000 == pytest.approx((1 / timed.counts).mean(), abs=0.02)
    again = generate_ratings(dataclasses.replace(spec, timestamps=True), seed=4, workers=1)
    assert timed.content_hash() == again.content_hash() != plain.content_hash()


@pytest.mark.slow
def test_a_large_catalogue_is_rated_to_its_end() -> None:
    store = generate_ratings(SyntheticRatings(users=300, items=150_000, ratings_per_user=300), seed=2)
    for user in range(300):
        items = store.items[store.indptr[user] : store.indptr[user + 1]]
        assert (np.diff(items) > 0).all()
    assert store.items.min() < 1000
    assert store.items.max() > 149_000
    # Rare as most items are, few are rated twice.
    assert len(np.unique(store.items)) > 0.3 * len(store.items)
