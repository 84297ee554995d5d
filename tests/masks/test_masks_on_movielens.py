"""What each mask alone is worth on ML-100K, 80/20 of every user's ratings."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from edge.core.rng import hashed_bits, stream_key
from edge.data.readers.movielens_features import read_100k_features
from edge.data.split import split_ratio
from edge.data.table.reading import read_ratings
from edge.learning.masks.high_order import HighOrderSettings
from edge.learning.masks.one_order import OneOrderSettings
from edge.learning.masks.registry import create
from edge.learning.masks.two_order import TwoOrderSettings
from edge.learning.masks.zero_order import ZeroOrderSettings

# Mean over seeds 0 … 9: 1.0422, 1.0038, 1.0033, 1.0044, each ± .004 from seed to seed.
EXPECTED = (
    (ZeroOrderSettings(), 1.042),
    (OneOrderSettings(), 1.004),
    (TwoOrderSettings(), 1.003),
    (HighOrderSettings(), 1.004),
)


def test_root_mean_square_errors_of_the_masks_alone() -> None:
    data = os.environ.get("RECFLEET_DATA")
    if not data:
        pytest.skip("set RECFLEET_DATA to a folder that holds ml-100k")
    folder = Path(data) / "ml-100k"
    store = read_ratings(folder / "u.data").store
    features = read_100k_features(folder / "u.item", store.item_ids).values
    everyone = np.arange(store.n_users)
    errors: list[list[float]] = []
    for seed in range(3):
        split = split_ratio(store, test=0.2, seed=seed)
        assert split.test is not None
        train, test = split.train.gather(everyone), split.test.gather(everyone)
        keys = hashed_bits(stream_key(seed, "masks"), everyone)
        errors.append([])
        for settings, _ in EXPECTED:
            model = create(settings)
            fitted = model.fit(train, features, split.train.mean(), keys)
            wrong = model.predict(fitted, features, test.indptr, test.items) - test.ratings
            errors[-1].append(float(np.sqrt(np.mean(wrong**2))))
    zero, one, two, high = np.mean(errors, axis=0)
    for measured, (settings, expected) in zip((zero, one, two, high), EXPECTED, strict=True):
        assert measured == pytest.approx(expected, abs=0.006), settings.kind
    # Pairs of features help a little, on every split.
    assert all(row[2] < row[1] for row in errors)
