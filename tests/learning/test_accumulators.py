from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learning_helpers import add_all, fedrecon, keys_for, random_ratings, trained_looking_state

from edge.core.errors import LocalProtocolError, RemoteProtocolError
from edge.learning.accumulators import DenseAccumulator, RowsAndWholeAccumulator
from edge.learning.updates import ClientUpdate

N_ITEMS = 60


def updates_of(upload: str) -> tuple[Any, Any, list[ClientUpdate]]:
    algorithm = fedrecon(N_ITEMS, factors=3, upload=upload)
    state = trained_looking_state(algorithm, 1)
    batch = random_ratings(2, [5, 0, 30, 12, 1, 60], N_ITEMS)
    return algorithm, state, list(algorithm.client_update(state, batch, keys_for(0, 6)))


@pytest.mark.parametrize("upload", ["sparse", "dense"])
def test_the_sum_is_that_of_the_rows(upload: str) -> None:
    algorithm, state, updates = updates_of("sparse")
    expected = np.zeros((N_ITEMS, 4))
    for update in updates:
        np.add.at(expected, update.arrays["items"], update.arrays["item_rows"].astype(np.float64))
    algorithm, state, updates = updates_of(upload)
    accumulator = algorithm.accumulator(state)
    add_all(accumulator, updates)
    aggregate = accumulator.result()
    np.testing.assert_allclose(aggregate.sums["item_rows"], expected, rtol=1e-5, atol=1e-6)
    assert aggregate.weight == aggregate.examples == 108
    assert aggregate.clients == 6
    assert aggregate.loss == pytest.approx(sum(u.loss * u.examples for u in updates) / 108)


def test_sparse_and_dense_uploads_have_the_same_sum() -> None:
    sums = []
    for upload in ("sparse", "dense"):
        algorithm, state, updates = updates_of(upload)
        accumulator = algorithm.accumulator(state)
        add_all(accumulator, updates)
        sums.append(accumulator.result().sums["item_rows"])
    np.testing.assert_array_equal(sums[0], sums[1])


def test_a_result_is_not_changed_by_what_comes_later() -> None:
    algorithm, state, updates = updates_of("sparse")
    accumulator = algorithm.accumulator(state)
    accumulator.add(updates[0], 0)
    early = accumulator.result()
    kept = early.sums["item_rows"].copy()
    add_all(accumulator, updates[1:])
    np.testing.assert_array_equal(early.sums["item_rows"], kept)


def test_an_empty_round_has_no_mean() -> None:
    algorithm, state, _ = updates_of("sparse")
    aggregate = algorithm.accumulator(state).result()
    assert np.isnan(aggregate.loss)
    with pytest.raises(LocalProtocolError, match="0 clients"):
        aggregate.mean()


@pytest.mark.parametrize("upload", ["sparse", "dense"])
def test_real_updates_pass_the_check(upload: str) -> None:
    algorithm, state, updates = updates_of(upload)
    for update in updates:
        algorithm.accumulator(state).check(update.arrays)


ITEMS, ROWS = np.array([1, 4, 7], np.uint16), np.ones((3, 4), np.float32)
BAD_SPARSE: list[tuple[dict[str, Any], str]] = [
    ({}, "has the arrays item_rows, items"),
    ({"items": ITEMS, "item_rows": ROWS, "more": ROWS}, "not item_rows, items, more"),
    ({"items": ITEMS.astype(np.int64), "item_rows": ROWS}, "'items' is uint16"),
    ({"items": ITEMS[:, None], "item_rows": ROWS}, "2 dimensions"),
    ({"items": ITEMS, "item_rows": ROWS[:2]}, r"'item_rows' is float32\[3, 4\]"),
    ({"items": ITEMS, "item_rows": ROWS[:, :3]}, r"not float32\[3, 3\]"),
    ({"items": ITEMS, "item_rows": ROWS.astype(np.float64)}, "not float64"),
    ({"items": ITEMS, "item_rows": np.full((3, 4), np.nan, np.float32)}, "not finite"),
    ({"items": ITEMS[::-1], "item_rows": ROWS}, "does not increase"),
    ({"items": np.array([1, 1, 2], np.uint16), "item_rows": ROWS}, "does not increase"),
    ({"items": np.array([1, 2, 60], np.uint16), "item_rows": ROWS}, "outside 0..59"),
]


@pytest.mark.parametrize(("arrays", "message"), BAD_SPARSE)
def test_malformed_sparse_updates_are_refused(arrays: dict[str, Any], message: str) -> None:
    algorithm, state, _ = updates_of("sparse")
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        algorithm.accumulator(state).check(arrays)
    assert caught.value.reason == "malformed-update"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"w": np.ones(3)}, "'w' is float64"),
        ({"w": np.array([1.0, np.inf])}, "not finite"),
        ({"v": np.ones(2)}, "has the arrays w, not v"),
    ],
)
def test_malformed_dense_updates_are_refused(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        DenseAccumulator({"w": (np.dtype(np.float64), (2,))}).check(arrays)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"bias": np.full(3, 2.0**31, np.float32)}, "out-of-range"),
        ({"bias": np.zeros(2, np.float32)}, "malformed-update"),
        ({"rows": np.full((1, 2), 2.0**31, np.float32)}, "out-of-range"),
        ({"rows": np.zeros((1, 3), np.float32)}, "malformed-update"),
        ({"more": np.zeros(1, np.float32)}, "malformed-update"),
    ],
)
def test_rows_and_whole_arrays_are_both_checked(arrays: dict[str, Any], reason: str) -> None:
    single = np.dtype(np.float32)
    accumulator = RowsAndWholeAccumulator(
        "rows",
        "items",
        index_dtype=np.dtype(np.uint16),
        dtype=single,
        rows=5,
        width=2,
        whole={"bias": (single, (3,))},
    )
    sound = {"items": np.array([1], np.uint16), "rows": np.ones((1, 2), single), "bias": np.ones(3, single)}
    accumulator.check(sound)
    with pytest.raises(RemoteProtocolError) as caught:
        accumulator.check({**sound, **arrays})
    assert caught.value.reason == reason
