"""Rated items are read off uploads: all of them from a single one, by rows or by signs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from edge.data.store import RatingStore
from edge.learning.base import Problem, Recommender
from edge.learning.registry import METHODS, create
from edge.learning.updates import ITEMS, ROWS, laid_out
from edge.privacy.uploads import rated_rows

USERS, ITEMS_IN_ALL = 12, 120


def ratings(seed: int = 1) -> RatingStore:
    rng = np.random.default_rng(seed)
    rated = [np.sort(rng.choice(ITEMS_IN_ALL, rng.integers(5, 15), replace=False)) for _ in range(USERS)]
    indptr = np.cumsum([0, *map(len, rated)])
    items = np.concatenate(rated).astype(np.uint16)
    return RatingStore(indptr, items, rng.integers(1, 6, items.size).astype(np.float32), ITEMS_IN_ALL)


def method(name: str, **settings: object) -> Recommender:
    section = METHODS[name].Settings.model_validate({"algorithm": name, "factors": 4, **settings})
    made = create(section, Problem(n_items=ITEMS_IN_ALL, rating_mean=3.0))
    assert isinstance(made, Recommender)
    return made


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    ("name", "drawn"), [("fedrecon", False), ("fedmf", False), ("fcf", False), ("pfedrec", True)]
)
def test_one_upload_is_the_list_of_rated_items(name: str, drawn: bool, dense: bool) -> None:
    made, store = method(name), ratings()
    batch = store.gather(np.arange(USERS))
    keys = np.arange(1, USERS + 1, dtype=np.uint64)
    for user, update in enumerate(made.client_update(made.initial_state(1), batch, keys)):
        seen = (laid_out(update, ITEMS_IN_ALL) if dense else update).arrays
        found = rated_rows(seen[ROWS], drawn=drawn)
        items = np.flatnonzero(found) if dense else seen[ITEMS][found]
        assert items.tolist() == batch.items[batch.indptr[user] : batch.indptr[user + 1]].tolist()


def upload(positives: int, negatives: int, untouched: int) -> tuple[npt.NDArray[np.float64], list[int]]:
    rng = np.random.default_rng(2)
    slopes = np.concatenate([rng.uniform(0.1, 1, positives), -rng.uniform(0.1, 1, negatives)])
    order = rng.permutation(positives + negatives + untouched)
    rows = np.outer(np.append(slopes, np.zeros(untouched)), rng.normal(size=5))[order]
    return rows, sorted(np.flatnonzero(order < positives).tolist())


def test_signs_separate_positives_from_negatives() -> None:
    rows, positives = upload(6, 24, 10)
    assert np.flatnonzero(rated_rows(rows, drawn=True)).tolist() == positives
    assert np.flatnonzero(rated_rows(-rows, drawn=True)).tolist() == positives
    assert np.count_nonzero(rated_rows(rows, drawn=False)) == 30


def test_of_one_sign_all_are_taken() -> None:
    rows, _ = upload(7, 0, 3)
    assert np.count_nonzero(rated_rows(rows, drawn=True)) == 7


@pytest.mark.parametrize("drawn", [True, False])
def test_nothing_is_read_off_nothing(drawn: bool) -> None:
    assert not rated_rows(np.zeros((4, 3)), drawn=drawn).any()
    assert not rated_rows(np.zeros((0, 3)), drawn=drawn).any()
    assert not rated_rows(np.full((4, 3), np.nan), drawn=drawn).any()
    rounded = np.array([[1.0, 0.0], [1e-9, 0.0], [0.0, -1.0]])
    assert rated_rows(rounded, drawn=False).tolist() == [True, False, True]
