"""What every kind of mask must do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_samples import KINDS, Batch, all_models, keys_of, random_batch, random_features, ratings_of
from pydantic import BaseModel, TypeAdapter, ValidationError

from edge.learning.masks.base import groups, padded_sizes
from edge.learning.masks.high_order import HighOrderSettings
from edge.learning.masks.one_order import OneOrderSettings
from edge.learning.masks.registry import MaskSettings, create
from edge.learning.masks.two_order import TwoOrderSettings

ITEMS, D = 160, 5
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@settings(max_examples=12, deadline=None)
@given(
    counts=st.lists(st.integers(0, 12) | st.integers(13, 150), min_size=2, max_size=7),
    seed=st.integers(0, 1000),
)
def test_a_user_is_the_same_alone_and_among_others(kind: str, counts: list[int], seed: int) -> None:
    model = all_models()[kind]
    batch, features = random_batch(seed, counts, ITEMS), random_features(seed, ITEMS, D)
    keys = keys_of(len(counts), seed)
    together = model.fit(batch, features, 3.4, keys)
    predicted = model.predict(together, features, batch.indptr, batch.items)
    catalogue = model.catalogue(together, features)
    for user in range(len(counts)):
        own = batch.user(user)
        alone = model.fit(own, features, 3.4, keys[user : user + 1])
        for name, array in alone.items():
            assert array[0].tobytes() == together[name][user].tobytes(), name
        part = slice(int(batch.indptr[user]), int(batch.indptr[user + 1]))
        assert model.predict(alone, features, own.indptr, own.items).tobytes() == predicted[part].tobytes()
        assert model.catalogue(alone, features)[0].tobytes() == catalogue[user].tobytes()


@each_kind
def test_users_of_many_blocks_are_the_same_alone(kind: str) -> None:
    # More than 8,192 ratings of users of one length, and more than 4,096 of neighbours.
    model, features = all_models()[kind], random_features(2, ITEMS, D)
    batch, keys = random_batch(1, [96] * 120, ITEMS), keys_of(120)
    together = model.fit(batch, features, 3.0, keys)
    for user in (0, 84, 85, 119):
        alone = model.fit(batch.user(user), features, 3.0, keys[user : user + 1])
        for name, array in alone.items():
            assert array[0].tobytes() == together[name][user].tobytes(), name


@each_kind
def test_parameters_look_as_the_specification_says(kind: str) -> None:
    model, features = all_models()[kind], random_features(0, ITEMS, D)
    parameters = model.fit(random_batch(0, [3, 0, 20], ITEMS), features, 3.0, keys_of(3))
    assert [(name, array.shape, array.dtype) for name, array in parameters.items()] == [
        (name, (3, *shape), np.float32) for name, shape in model.spec(D)
    ]


@each_kind
def test_the_catalogue_holds_the_predictions(kind: str) -> None:
    model, features = all_models()[kind], random_features(0, ITEMS, D)
    batch = random_batch(3, [4, 0, 40], ITEMS)
    parameters = model.fit(batch, features, 3.0, keys_of(3))
    predicted = model.predict(parameters, features, batch.indptr, batch.items)
    catalogue = model.catalogue(parameters, features)
    owners = np.repeat(np.arange(3), np.diff(batch.indptr))
    assert predicted.dtype == catalogue.dtype == np.float32
    np.testing.assert_allclose(predicted, catalogue[owners, batch.items], rtol=1e-5)
    if kind != "zero-order":
        assert catalogue[2].std() > 0.05


@each_kind
@pytest.mark.parametrize("zero_features", [False, True])
def test_users_with_little_to_learn_from(kind: str, zero_features: bool) -> None:
    model = all_models()[kind]
    features = random_features(0, 6, 3)
    if zero_features:
        features[:] = 0.0
    batch = ratings_of({}, {2: 5.0}, dict.fromkeys(range(6), 4.0), {0: 1.0, 5: 5.0})
    parameters = model.fit(batch, features, 3.25, keys_of(4))
    catalogue = model.catalogue(parameters, features)
    assert all(np.isfinite(array).all() for array in parameters.values())
    assert catalogue[0].tolist() == [3.25] * 6
    assert 3.25 < catalogue[1, 2] < 5.0
    assert (catalogue[2] > 3.25).all()
    assert (catalogue[2] < 4.2).all()
    if zero_features:
        assert (np.ptp(catalogue, axis=1) == 0).all()


@each_kind
def test_a_batch_without_users_or_ratings(kind: str) -> None:
    model, features = all_models()[kind], random_features(0, 6, 3)
    empty = Batch(np.zeros(1, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.float32))
    parameters = model.fit(empty, features, 3.0, keys_of(0))
    assert model.predict(parameters, features, empty.indptr, empty.items).shape == (0,)
    assert model.catalogue(parameters, features).shape == (0, 6)
    nobody_rated = model.fit(ratings_of({}, {}), features, 3.0, keys_of(2))
    assert (model.catalogue(nobody_rated, features) == 3.0).all()


@pytest.mark.parametrize("kind", ["two-order", "high-order"])
def test_draws_come_from_the_users_key(kind: str) -> None:
    model, features = all_models()[kind], random_features(0, ITEMS, D)
    batch = random_batch(0, [30], ITEMS)
    name = "factors" if kind == "two-order" else "hidden_weights"
    one, again, other = (
        model.fit(batch, features, 3.0, np.array([key], np.uint64))[name] for key in (1, 1, 2)
    )
    assert one.tobytes() == again.tobytes()
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "chosen", [OneOrderSettings(), TwoOrderSettings(), HighOrderSettings()], ids=lambda s: s.kind
)
def test_features_beyond_the_limit_are_cut(chosen: BaseModel) -> None:
    model, batch = create(chosen), random_batch(0, [40], ITEMS)
    features = random_features(0, ITEMS, D)
    features[::7, 0] = 25.0
    cut = np.clip(features, -2.0, 2.0)
    far, near = (model.fit(batch, table, 3.0, keys_of(1)) for table in (features, cut))
    assert model.catalogue(far, features).tobytes() == model.catalogue(near, cut).tobytes()
    predictions = [
        model.predict(far, table, batch.indptr, batch.items).tobytes() for table in (features, cut)
    ]
    assert predictions[0] == predictions[1]
    free = create(chosen.model_copy(update={"feature_limit": 30.0}))
    assert not np.array_equal(free.catalogue(far, features), model.catalogue(far, features))


@each_kind
def test_ratings_on_features_beat_the_global_mean(kind: str) -> None:
    rng = np.random.default_rng(5)
    features = random_features(5, ITEMS, D)
    slopes = rng.normal(size=(8, D))
    users = [
        {i: float(4.0 + 0.5 * features[i] @ slope) for i in rng.choice(ITEMS, 60, replace=False).tolist()}
        for slope in slopes
    ]
    batch = ratings_of(*users)
    model = create(TypeAdapter(MaskSettings).validate_python({"kind": kind}))
    parameters = model.fit(batch, features, 3.0, keys_of(8))
    error = model.predict(parameters, features, batch.indptr, batch.items) - batch.ratings
    baseline = np.mean((batch.ratings - 3.0) ** 2)
    # A mean explains the offset of 1, features the rest.
    assert np.mean(error**2) < (0.7 if kind == "zero-order" else 0.4) * baseline


@each_kind
def test_work_is_positive_and_grows_with_ratings(kind: str) -> None:
    model = all_models()[kind]
    examples = np.array([0, 1, 20, 400], np.int64)
    work = model.work(examples, D)
    for array in (work.flops, work.moved_bytes, work.ops):
        assert array.shape == (4, 3)
        assert array.dtype == np.float64
        assert (array >= 0).all()
    assert (work.steps >= 1).all()
    assert (np.diff(work.flops.sum(axis=1)) > 0).all()
    assert (np.diff(work.memory_bytes) > 0).all()
    wider = model.work(examples, 2 * D)
    if kind != "zero-order":
        assert (wider.flops[1:].sum(axis=1) > work.flops[1:].sum(axis=1)).all()
    # A device without ratings gathers nothing.
    assert not work.ops[0, 0]


@each_kind
def test_settings_are_told_apart_by_kind(kind: str) -> None:
    read = TypeAdapter(MaskSettings).validate_python({"kind": kind})
    assert read.kind == kind
    assert create(read).settings is read
    with pytest.raises(ValidationError):
        read.kind = "other"


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "three-order"},
        {},
        {"kind": "zero-order", "shrinkage": "0"},
        {"kind": "one-order", "regularization": "-1"},
        {"kind": "two-order", "factors": "0"},
        {"kind": "high-order", "width": "2.5"},
        {"kind": "zero-order", "factors": "4"},
    ],
)
def test_settings_that_are_refused(document: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(MaskSettings).validate_python(document)


def test_every_setting_is_described() -> None:
    for model in all_models().values():
        for name, field in type(model.settings).model_fields.items():
            assert name == "kind" or field.description, name


def test_other_settings_make_no_mask() -> None:
    class Other(BaseModel):
        pass

    with pytest.raises(ValueError, match=r"Other .* there are zero-order, one-order, two-order, high-order"):
        create(Other())


@given(st.integers(0, 5000))
def test_padding_adds_a_quarter_at_most(count: int) -> None:
    size = int(padded_sizes(np.array([count]))[0])
    assert count <= size <= 1.25 * count
    assert int(padded_sizes(np.array([size]))[0]) == size


def test_groups_cover_every_rating_once() -> None:
    counts = np.array([0, 5, 300, 1, 5, 290, 0, 17])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    seen: list[int] = []
    covered: list[npt.NDArray[np.int64]] = []
    for group in groups(indptr):
        seen += group.users.tolist()
        assert group.positions.shape == group.present.shape
        assert group.present.sum(axis=1).tolist() == counts[group.users].tolist()
        assert (group.positions >= indptr[group.users, None]).all()
        assert (group.positions < indptr[group.users + 1, None]).all()
        covered.append(group.positions[group.present])
    assert sorted(seen) == [1, 2, 3, 4, 5, 7]
    assert sorted(np.concatenate(covered).tolist()) == list(range(int(indptr[-1])))
