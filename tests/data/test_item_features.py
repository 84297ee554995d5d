"""Features of items as such: standardising, alignment, generated ones."""

from __future__ import annotations

import numpy as np
import pytest

from edge.core.errors import DataError
from edge.data.features import FeatureTable, ItemFeatures, align, standardise
from edge.data.readers.lastfm_features import SparseMatrix, truncated_svd
from edge.data.synthetic import SyntheticRatings, generate_ratings, synthetic_features
from edge.learning.masks.registry import create
from edge.learning.masks.two_order import TwoOrderSettings
from edge.learning.masks.zero_order import ZeroOrderSettings

NAN = float("nan")


def test_standardising_by_hand() -> None:
    raw = np.array([[1.0, 7.0, 2.0], [3.0, 7.0, NAN], [500.0, 0.0, 500.0], [5.0, 7.0, 4.0]])
    values = standardise(raw, np.array([True, True, False, True]))
    root = np.sqrt(1.5)
    # Column 0: mean 3, variance 8/3. Column 1 is constant. Column 2: 2, its mean 3, 4; variance 2/3.
    expected = [[-root, 0, -root], [0, 0, 0], [0, 0, 0], [root, 0, root]]
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_a_constant_that_no_float_holds_exactly_is_constant() -> None:
    # The mean of some of these differs from 0.1 by rounding.
    for size in range(1, 40):
        assert not standardise(np.full((size, 1), 0.1), np.ones(size, dtype=np.bool_)).any()


@pytest.mark.parametrize("known", [np.zeros(3, dtype=np.bool_), np.array([False, True, False])])
def test_nobody_or_one_item_known(known: np.ndarray) -> None:
    assert not standardise(np.arange(6.0).reshape(3, 2), known).any()


def test_a_column_without_values_is_zero() -> None:
    raw = np.array([[NAN, 1.0], [NAN, 2.0]])
    assert standardise(raw, np.ones(2, dtype=np.bool_)).tolist() == [[0.0, -1.0], [0.0, 1.0]]


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e200])
def test_values_too_large_are_refused(value: float) -> None:
    with pytest.raises(DataError, match=r"column 1.*scale it down"):
        standardise(np.array([[0.0, value], [1.0, 1.0]]), np.ones(2, dtype=np.bool_))


def table(ids: list[int] | list[str], **changes: object) -> FeatureTable:
    fields = {
        "ids": np.array(ids),
        "names": ("a",),
        "raw": np.arange(float(len(ids)))[:, None],
        "titles": [f"title of {label}" for label in ids],
        "source": "items.csv",
        **changes,
    }
    return FeatureTable(**fields)  # type: ignore[arg-type]


def test_rows_are_matched_by_id_and_standardised_over_the_stores_items() -> None:
    features = align(table([30, 10, 20, 99]), np.array([10, 20, 30, 40]))
    # 1, 2, 0 of items 10, 20, 30; item 99, a 3, is not in the store.
    root = np.sqrt(1.5)
    np.testing.assert_allclose(features.values[:, 0], [0.0, root, -root, 0.0], atol=1e-6)
    assert features.known.tolist() == [True, True, True, False]
    assert features.titles == ("title of 10", "title of 20", "title of 30", "")
    assert features.source == "items.csv"


def test_text_ids_match_whole_numbers_that_look_alike() -> None:
    assert align(table(["7", "007"]), np.array([7])).titles == ("title of 7",)
    assert align(table([7]), np.array(["007", "7"])).known.tolist() == [False, True]


def test_what_cannot_be_aligned() -> None:
    with pytest.raises(DataError, match=r"no item ids.*synthetic features"):
        align(table([1]), None)
    with pytest.raises(DataError, match=r"items.csv: none of its items is rated.*\['a'\].*\[5\]"):
        align(table(["a"]), np.array([5, 6]))


def test_features_are_read_only_and_counted() -> None:
    features = align(table([1, 2]), np.array([1, 2, 3]))
    assert features.nbytes == 3 * 4 + 3
    with pytest.raises(ValueError, match="read-only"):
        features.values[0, 0] = 1.0


def test_the_hash_is_of_the_content() -> None:
    ids = np.array([1, 2])
    one = align(table([1, 2]), ids)
    assert one.content_hash() == align(table([2, 1], raw=np.array([[1.0], [0.0]])), ids).content_hash()
    assert one.content_hash() == align(table([1, 2], source="elsewhere"), ids).content_hash()
    others = [
        table([1, 2], names=("b",)),
        table([1, 2], titles=None),
        table([1, 2], titles=["x", "y"]),
        table([2, 1]),
        table([1, 3]),
    ]
    assert one.content_hash() not in {align(other, ids).content_hash() for other in others}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": np.zeros((2, 1))}, "must be float32"),
        ({"names": ("a", "b")}, "as many different names"),
        ({"known": np.ones(3, dtype=np.bool_)}, r"known must be bool\[2\]"),
        ({"titles": ("x",)}, "1 titles for 2 items"),
        ({"values": np.array([[NAN], [0.0]], np.float32)}, "not a finite number"),
        ({"values": np.ones((2, 1), np.float32)}, "unknown item has features"),
    ],
)
def test_features_that_contradict_themselves(changes: dict[str, object], message: str) -> None:
    fields = {
        "names": ("a",),
        "values": np.array([[1.0], [0.0]], np.float32),
        "known": np.array([True, False]),
        "titles": None,
        "source": "here",
    }
    ItemFeatures(**fields)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=f"here: .*{message}"):
        ItemFeatures(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_truncated_decomposition_is_numpys() -> None:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(40, 12)) @ np.diag(2.0 ** -np.arange(12)) @ rng.normal(size=(12, 30))
    dense[np.abs(dense) < 0.3] = 0.0
    rows, columns = np.nonzero(dense)
    matrix = SparseMatrix(rows, columns, dense[rows, columns], dense.shape)
    left, values, right = truncated_svd(matrix, 4, np.random.default_rng(1))
    _, expected, expected_right = np.linalg.svd(dense)
    np.testing.assert_allclose(values, expected[:4], rtol=1e-9)
    np.testing.assert_allclose(np.abs(right), np.abs(expected_right[:4].T), atol=1e-6)
    # Signs are fixed: the largest loading is positive; and left and right agree.
    assert (right[np.argmax(np.abs(right), axis=0), np.arange(4)] > 0).all()
    np.testing.assert_allclose(dense @ right, left * values, atol=1e-8)
    again = truncated_svd(matrix, 4, np.random.default_rng(2))
    np.testing.assert_allclose(again[0], left, atol=1e-6)


@pytest.mark.parametrize("components", [0, 3])
def test_components_that_a_matrix_has_not(components: int) -> None:
    matrix = SparseMatrix(np.array([0]), np.array([1]), np.array([1.0]), (5, 2))
    with pytest.raises(ValueError, match="1 … 2"):
        truncated_svd(matrix, components, np.random.default_rng(0))


SPEC = SyntheticRatings(users=300, items=200, ratings_per_user=20)
RATINGS_OF_SEED_7 = "b17ec78040d5afde20b829768ca6c11e"


def test_the_ratings_of_a_seed_stay_what_they_were() -> None:
    # A change of them changes every run with made up ratings.
    assert generate_ratings(SPEC, seed=7).content_hash() == RATINGS_OF_SEED_7


def test_synthetic_features_are_seeded_and_named() -> None:
    features = synthetic_features(SPEC, seed=7)
    assert features.names[:4] == ("sector-1", "sector-2", "sector-3", "sector-4")
    assert features.names[4:] == ("taste-1", "taste-2", "taste-3", "taste-4")
    assert features.values.shape == (200, 8)
    assert features.known.all()
    np.testing.assert_allclose(features.values.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(features.values.std(axis=0), 1.0, atol=1e-5)
    # Exactly one flag of four is up.
    assert ((features.values[:, :4] > 0).sum(axis=1) == 1).all()
    assert features.content_hash() == synthetic_features(SPEC, seed=7).content_hash()
    assert features.content_hash() != synthetic_features(SPEC, seed=8).content_hash()


def test_noise_is_measured_in_deviations_of_the_factor() -> None:
    exact, noisy = (synthetic_features(SPEC, seed=7, noise=noise).values[:, 4:] for noise in (0.0, 1.0))
    # As much noise as signal: a correlation of √½ (200 items: ± 0.035).
    correlations = [np.corrcoef(exact[:, j], noisy[:, j])[0, 1] for j in range(4)]
    assert np.mean(correlations) == pytest.approx(np.sqrt(0.5), abs=0.06)


@pytest.mark.parametrize("noise", [-0.1, NAN, float("inf")])
def test_noise_out_of_range(noise: float) -> None:
    with pytest.raises(ValueError, match="noise"):
        synthetic_features(SPEC, seed=7, noise=noise)


def test_synthetic_features_say_something_of_the_ratings() -> None:
    spec = SyntheticRatings(users=80, items=400, ratings_per_user=100, activity_sigma=0.2)
    store = generate_ratings(spec, seed=3)
    batch = store.gather(np.arange(spec.users))
    own = np.arange(store.n_ratings) % 2 == 0
    train, test = store.select(own), store.select(~own)
    keys = np.arange(spec.users, dtype=np.uint64)

    def error(settings: ZeroOrderSettings | TwoOrderSettings, values: np.ndarray) -> float:
        model = create(settings)
        fitted = model.fit(train.gather(np.arange(spec.users)), values, batch.ratings.mean(), keys)
        predicted = model.predict(fitted, values, test.indptr, test.items)
        return float(np.sqrt(np.mean((predicted - test.decoded()) ** 2)))

    exact, noisy = (synthetic_features(spec, seed=3, noise=noise).values for noise in (0.0, 1.0))
    other = synthetic_features(spec, seed=4, noise=0.0).values
    mean_only = error(ZeroOrderSettings(), exact)
    two_order = TwoOrderSettings(regularization=10.0)
    assert error(two_order, exact) < 0.8 * mean_only
    assert error(two_order, exact) < error(two_order, noisy) < 0.95 * mean_only
    assert error(two_order, other) > 0.98 * mean_only
