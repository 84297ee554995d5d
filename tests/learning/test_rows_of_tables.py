"""Tables given by rows: versions that nobody sees change, and server updates by rows, bit for bit."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_helpers import add_all, fedrecon, keys_for, random_ratings, trained_looking_state

from edge.learning import accumulators, fedrecon_kernels, tables
from edge.learning.base import Problem
from edge.learning.methods.fedmf import FedMF
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.tables import NamedSums, SpareArrays, TableRows, TableVersions
from edge.learning.updates import Aggregate, ClientUpdate

N_ITEMS = 60


@settings(max_examples=60)
@given(data=st.data())
def test_versions_are_what_copies_would_be_and_stay_as_they_are(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    versions, n = TableVersions(), 8
    newest = rng.normal(size=(n, 2))
    held: list[tuple[Any, Any]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            # Somebody holds this version, or a part of it: nothing may be written to it.
            part = newest if data.draw(st.booleans()) else newest[2:5].T
            held.append((part, part.copy()))
        if held and data.draw(st.booleans()):
            held.pop(0)
        start = newest
        if held and data.draw(st.integers(0, 4)) == 0:
            start = rng.normal(size=(n, 2))  # a model that was restored
        index = np.flatnonzero(rng.random(n) < 0.4)
        change = rng.normal(size=(len(index), 2))
        expected = start.copy()
        expected[index] += change
        newest = versions.plus(start, index, change)
        del start
        np.testing.assert_array_equal(newest, expected)
        for part, copy in held:
            np.testing.assert_array_equal(part, copy)


def test_two_versions_are_all_that_is_allocated() -> None:
    table: Any = np.zeros((10_000, 16))
    versions, index = TableVersions(), np.arange(5)
    table = versions.plus(table, index, np.ones((5, 16)))
    tracemalloc.start()
    try:
        for _ in range(20):
            table = versions.plus(table, index, np.ones((5, 16)))
            assert tracemalloc.get_traced_memory()[1] < 2 * table.nbytes
        table = versions.plus(table, index, np.ones((5, 16)))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            table = versions.plus(table, index, np.ones((5, 16)))
        assert tracemalloc.get_traced_memory()[1] - before < table.nbytes / 10
    finally:
        tracemalloc.stop()
    assert table[:6, 0].tolist() == [42.0] * 5 + [0.0]
    assert pickle.loads(pickle.dumps(versions)).plus(table, index, np.ones((5, 16)))[0, 0] == 43.0


def test_sums_lay_a_table_out_when_it_is_asked_for() -> None:
    rows = TableRows(np.array([1, 3]), np.array([[1.0, 2.0], [3.0, 4.0]]), 5)
    sums = NamedSums({"bias": np.ones(2)}, {"rows": rows})
    assert sorted(sums) == ["bias", "rows"]
    assert len(sums) == 2
    assert sums["rows"].tolist() == [[0, 0], [1, 2], [0, 0], [3, 4], [0, 0]]
    assert sums["rows"] is sums["rows"]
    aggregate = Aggregate(sums, 2.0, 1, 1, 0.0, shrinkage=0.5)
    assert aggregate.mean()["rows"][3].tolist() == [0.75, 1.0]
    mean = aggregate.mean_rows("rows")
    assert isinstance(mean, TableRows)
    np.testing.assert_array_equal(mean.whole(), aggregate.mean()["rows"])
    np.testing.assert_array_equal(aggregate.mean_rows("bias"), [0.25, 0.25])
    more = aggregate.beside({"more": np.zeros(1)})
    assert sorted(more.sums) == ["bias", "more", "rows"]
    assert more.rows("rows") is rows
    assert more.rows("bias") is None
    assert more.finite()
    assert not aggregate.beside({"more": np.array([np.nan])}).finite()
    rows.rows[0, 0] = np.inf
    assert not more.finite()


@pytest.mark.parametrize("algorithm", [FedRecon, FedMF])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("optimizer", [{"kind": "sgd"}, {"kind": "sgd", "momentum": 0.5}, {"kind": "adam"}])
def test_a_server_update_by_rows_has_the_bits_of_a_whole_one(
    algorithm: type[FedRecon], bias: bool, optimizer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    for whole_bytes in (10**9, 0):
        monkeypatch.setattr(accumulators, "WHOLE_BYTES", whole_bytes)
        chosen = {"algorithm": algorithm.name(), "factors": 3, "item_bias": bias, "optimizer": optimizer}
        method = algorithm(algorithm.Settings.model_validate(chosen), Problem(n_items=N_ITEMS))
        state = trained_looking_state(method, 1)
        optimizer_state = method.initial_optimizer_state(state)
        for number in range(4):
            batch = random_ratings(number, [5, 0, 12, 1], N_ITEMS)
            accumulator = method.accumulator(state)
            add_all(accumulator, method.client_update(state, batch, keys_for(number, 4)))
            aggregate = accumulator.result()
            assert (aggregate.rows("item_rows") is None) == (whole_bytes > 0)
            before = state
            state, optimizer_state = method.server_update(state, optimizer_state, aggregate, number)
            assert method.finite(before, state, aggregate)
        models.append({name: array.tobytes() for name, array in state.items()})
    assert models[0] == models[1]


@pytest.mark.parametrize("whole_bytes", [10**9, 0])
@pytest.mark.parametrize("column", [0, 3])
def test_a_model_that_has_run_away_is_seen(
    whole_bytes: int, column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulators, "WHOLE_BYTES", whole_bytes)
    method = fedrecon(N_ITEMS, factors=3, optimizer={"kind": "sgd"}, learning_rate=9e29)
    state = trained_looking_state(method, 1)
    accumulator = method.accumulator(state)
    rows = np.zeros((2, 4), np.float32)
    rows[1, column] = 2.0**30
    accumulator.add(ClientUpdate({"items": np.array([3, 17], np.uint16), "item_rows": rows}, 1.0, 1, 0.0), 5)
    aggregate = accumulator.result()
    assert aggregate.finite()
    with np.errstate(over="ignore"):
        after, _ = method.server_update(state, {}, aggregate, 0)
    assert not method.finite(state, after, aggregate)


@pytest.mark.parametrize("user_bias", [True, False])
@pytest.mark.parametrize("item_bias", [True, False])
def test_a_few_rows_of_an_item_table_are_those_of_the_whole(user_bias: bool, item_bias: bool) -> None:
    rng = np.random.default_rng(3)
    factors, bias = rng.normal(size=(200, 5)), rng.normal(size=200) if item_bias else None
    few = fedrecon_kernels.item_table(factors, bias, user_bias=user_bias, mean=0.0)
    items = np.array([199, 0, 7, 7])
    found = few.take(items)
    assert "rows" not in few.__dict__
    np.testing.assert_array_equal(found, few.rows[items])
    np.testing.assert_array_equal(few.take(items), found)


def test_rows_are_replaced_by_the_very_numbers() -> None:
    versions, index = TableVersions(), np.array([1, 3])
    table = np.full((5, 2), 0.1, np.float32)
    rows = np.array([[1e-8, 7.0], [3e8, -2.0]], np.float32)
    new = versions.replaced(table, index, rows)
    np.testing.assert_array_equal(new[index], rows)
    np.testing.assert_array_equal(np.delete(new, index, axis=0), np.full((3, 2), 0.1, np.float32))
    np.testing.assert_array_equal(table, np.full((5, 2), 0.1, np.float32))


def test_memory_is_taken_again_once_nothing_refers_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_LARGE_BYTES", 64)
    spare, table = SpareArrays(), np.zeros((4, 4), np.float32)
    first, second = spare.like(table), spare.like(table)
    view, address = first[1:], first.ctypes.data
    assert second.ctypes.data != address
    del first
    assert spare.like(table).ctypes.data != address, "a view of it was left"
    del view
    assert spare.like(np.zeros((4, 4), np.int32)).ctypes.data != address
    assert spare.like(table).ctypes.data == address
    assert pickle.loads(pickle.dumps(spare)).like(table).ctypes.data != address


def test_only_some_arrays_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_LARGE_BYTES", 64)
    spare, table = SpareArrays(), np.zeros((4, 4), np.float32)
    dropped, *held = [spare.like(table) for _ in range(tables._MOST_SPARE + 1)]
    references = sys.getrefcount(dropped), sys.getrefcount(held[0])
    assert references == (2, 3), "of the name or the list here, of the call, and of what is kept"
