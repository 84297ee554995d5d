"""Sums in groups: the same bits however updates come in, each group in its order."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.engine.aggregation.held import BoundedUpdates, HeldUpdates
from edge.core.errors import LocalProtocolError, RemoteProtocolError
from edge.learning import accumulators
from edge.learning.accumulators import (
    VALUE_MAX,
    DenseAccumulator,
    RowAccumulator,
    RowsAndWholeAccumulator,
    UserRowsAccumulator,
)
from edge.learning.robust_rules import Krum, Median
from edge.learning.updates import (
    ITEMS,
    ROWS,
    Accumulator,
    Aggregate,
    ClientUpdate,
    DenseUpdateBatch,
    Layout,
    UpdateBatch,
)

N_ITEMS, WIDTH = 40, 3
SINGLE, INDEX = np.dtype(np.float32), np.dtype(np.uint16)
WHOLE = {"bias": (SINGLE, (4,)), "scale": (SINGLE, ())}


class Plain(Accumulator):
    """Defines what an accumulator must and inherits the rest, as a plug-in may."""

    def __init__(self) -> None:
        self._sums = [np.zeros(4, SINGLE) for _ in range(self.groups)]

    @property
    def layout(self) -> Layout:
        return Layout({"bias": WHOLE["bias"]})

    def check(self, arrays: Any) -> None:
        if not np.isfinite(arrays["bias"]).all():
            raise RemoteProtocolError("malformed-update", "not finite")

    def add(self, update: ClientUpdate, client: int) -> None:
        self._sums[client % self.groups] += update.arrays["bias"]

    def result(self) -> Aggregate:
        total = np.zeros(4, SINGLE)
        for one in self._sums:
            total += one
        return Aggregate({"bias": total}, 1.0, 1, 1, 0.0)


def rows_of(n_items: int = N_ITEMS, width: int = WIDTH) -> RowAccumulator:
    return RowAccumulator(ROWS, ITEMS, index_dtype=INDEX, dtype=SINGLE, rows=n_items, width=width)


def batch_of(
    n: int, seed: int, *, rows: bool = False, whole: bool = False, users: bool = False, dense: bool = False
) -> UpdateBatch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, n)
    stacked: dict[str, Any] = {}
    ragged: dict[str, Any] = {}
    if rows:
        chosen = [np.sort(rng.choice(N_ITEMS, length, replace=False)) for length in lengths]
        ragged[ITEMS] = np.concatenate([*chosen, np.zeros(0, np.int64)]).astype(INDEX)
        ragged[ROWS] = numbers(rng, (int(lengths.sum()), WIDTH))
    if whole:
        stacked |= {name: numbers(rng, (n, *shape)) for name, (_, shape) in WHOLE.items()}
    if users:
        stacked |= {"user_row": numbers(rng, (n, 2)), "users": rng.permutation(n)[:, None]}
    fields: dict[str, Any] = {
        "stacked": stacked,
        "ragged": ragged,
        "offsets": np.concatenate([[0], np.cumsum(lengths)]),
        "weights": rng.gamma(1.0, 1.0, n),
        "examples": rng.integers(0, 100, n),
        "losses": rng.gamma(1.0, 1.0, n),
    }
    return DenseUpdateBatch(**fields, n_items=N_ITEMS) if dense else UpdateBatch(**fields)


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Numbers of many sizes, zeros of both signs among them: any other order has another sum."""
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-4, 4, shape)
    return np.where(rng.random(shape) < 0.1, -0.0, values).astype(SINGLE)


def both() -> RowsAndWholeAccumulator:
    return RowsAndWholeAccumulator(
        ROWS, ITEMS, index_dtype=INDEX, dtype=SINGLE, rows=N_ITEMS, width=WIDTH, whole=WHOLE
    )


def table() -> DenseAccumulator:
    return DenseAccumulator({ROWS: (SINGLE, (N_ITEMS, WIDTH)), **WHOLE})


def of_users() -> UserRowsAccumulator:
    return UserRowsAccumulator(rows_of(), "user_row", "users", dtype=SINGLE, width=2)


KINDS: dict[str, tuple[Callable[[], Accumulator], dict[str, bool]]] = {
    "dense": (lambda: DenseAccumulator(WHOLE), {"whole": True}),
    "dense table": (table, {"rows": True, "whole": True, "dense": True}),
    "rows": (rows_of, {"rows": True}),
    "rows and whole": (both, {"rows": True, "whole": True}),
    "rows of users": (of_users, {"rows": True, "users": True}),
    "bounded": (lambda: BoundedUpdates(rows_of(), 1e9), {"rows": True}),
    "median": (lambda: HeldUpdates(both(), Median()), {"rows": True, "whole": True}),
    "krum": (lambda: HeldUpdates(rows_of(), Krum(0.2, multi=True)), {"rows": True}),
    "of a plug-in": (Plain, {"whole": True}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def bits(aggregate: Aggregate) -> tuple[Any, ...]:
    arrays = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in aggregate.sums.items()}
    return arrays, repr(aggregate.weight), aggregate.clients, aggregate.examples, repr(aggregate.loss)


def one_by_one(accumulator: Accumulator, batch: UpdateBatch, clients: npt.NDArray[np.int64]) -> Aggregate:
    for place, client in enumerate(clients.tolist()):
        accumulator.add(batch.client(place), client)
    return accumulator.result()


@kinds
@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.few(3)
def test_batches_and_the_order_of_groups_cannot_be_seen(kind: str, data: st.DataObject) -> None:
    make, parts = KINDS[kind]
    n = data.draw(st.integers(1, 40))
    batch = batch_of(n, data.draw(st.integers(0, 1000)), **parts)
    clients = np.array(data.draw(st.lists(st.integers(0, 200), min_size=n, max_size=n)), np.int64)
    groups = 16 if kind == "of a plug-in" else data.draw(st.sampled_from([1, 3, 16, 100]))

    def empty() -> Accumulator:
        accumulator = make()
        accumulator.in_groups(groups)
        return accumulator

    expected = bits(one_by_one(empty(), batch, clients))
    # Another order of arrival that is the same within each group.
    ranks = np.array(data.draw(st.permutations(range(n))))
    group = clients % groups
    order = np.arange(n)
    for number in np.unique(group):
        places = np.flatnonzero(group == number)
        order[np.sort(ranks[places])] = places
    # Tables that are held whole, or the rows alone that are touched.
    with mock.patch.object(accumulators, "WHOLE_BYTES", data.draw(st.sampled_from([0, 10**9]))):
        accumulator, start = empty(), 0
        while start < n:
            step = data.draw(st.integers(1, n - start))
            part = order[start : start + step]
            if data.draw(st.booleans()):
                accumulator.add_many(batch, part, clients[part])
            else:
                for place in part.tolist():
                    accumulator.add(batch.client(place), int(clients[place]))
            start += step
        accumulator.add_many(batch, order[:0], clients[:0])
        assert bits(accumulator.result()) == expected


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "of a plug-in"])
@pytest.mark.parametrize("whole_bytes", [0, 10**9])
def test_groups_that_are_added_up_apart_are_joined_to_the_same_bits(kind: str, whole_bytes: int) -> None:
    make, parts = KINDS[kind]
    batch = batch_of(60, 8, **parts)
    clients = np.random.default_rng(9).integers(0, 200, 60)
    with mock.patch.object(accumulators, "WHOLE_BYTES", whole_bytes):
        expected = bits(one_by_one(make(), batch, clients))
        joined = make()
        for shard in (2, 0, 1):
            apart, places = make(), np.flatnonzero(clients % joined.groups % 3 == shard)
            apart.add_many(batch, places, clients[places])
            joined.join(pickle.loads(pickle.dumps(apart.partial())))
        joined.join(make().partial())
        assert bits(joined.result()) == expected


def test_sums_that_are_not_kept_by_group_cannot_be_joined() -> None:
    with pytest.raises(LocalProtocolError, match="Plain does not keep its sums by group"):
        Plain().partial()
    with pytest.raises(LocalProtocolError, match="Plain does not keep its sums by group"):
        Plain().join(None)


@pytest.mark.parametrize("kind", ["dense", "dense table", "rows", "rows and whole"])
def test_the_sum_is_that_of_float64_but_for_rounding(kind: str) -> None:
    make, parts = KINDS[kind]
    batch = batch_of(300, 5, **parts)
    clients = np.random.default_rng(6).integers(0, 10_000, 300)
    found = one_by_one(make(), batch, clients)
    layout = make().layout
    shapes = {name: shape for name, (_, shape) in layout.dense.items()}
    shapes |= {of.name: (of.rows, of.width) for of in layout.tables}
    for name, shape in shapes.items():
        total, size = np.zeros(shape), np.zeros(shape)
        for update in batch:
            array = update.arrays[name].astype(np.float64)
            where: Any = update.arrays[ITEMS] if ITEMS in update.arrays and name == ROWS else ...
            total[where] += array
            size[where] += np.abs(array)
        # As many roundings as there are terms, each of a partial sum.
        assert (np.abs(found.sums[name] - total) <= 300 * 2.0**-24 * size).all()
    assert found.weight == pytest.approx(batch.weights.sum(), rel=1e-14)
    assert found.loss == pytest.approx(np.average(batch.losses, weights=batch.examples), rel=1e-13)


def test_groups_are_added_in_their_order_and_can_be_seen() -> None:
    values = np.array([2.0**24, 1.0, 1.0, -(2.0**24)], np.float32)
    batch = UpdateBatch(
        {"bias": np.repeat(values[:, None], 4, axis=1)},
        {},
        np.zeros(5, np.int64),
        values.astype(np.float64),
        np.ones(4, np.int64),
        np.zeros(4),
    )
    sums = []
    for groups in (1, 2, 4):
        accumulator = DenseAccumulator({"bias": WHOLE["bias"]})
        accumulator.in_groups(groups)
        sums.append(float(one_by_one(accumulator, batch, np.array([0, 1, 3, 2])).sums["bias"][0]))
    # 2²⁴ + 1 is no number of float32: a 1 that is added to 2²⁴ is lost.
    assert sums == [0.0, 2.0, 1.0]


@pytest.mark.parametrize("whole_bytes", [0, accumulators.WHOLE_BYTES])
def test_a_sum_can_be_added_to_after_it_was_looked_at(
    whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulators, "WHOLE_BYTES", whole_bytes)
    batch, clients = batch_of(30, 3, rows=True), np.arange(30) * 7
    accumulator, other = rows_of(), rows_of()
    accumulator.add_many(batch, np.arange(12), clients[:12])
    early = bits(accumulator.result())
    assert early == bits(accumulator.result())
    other.add_many(batch, np.arange(30), clients)  # has the table that the first one gave back
    accumulator.add_many(batch, np.arange(12, 30), clients[12:])
    assert bits(accumulator.result()) == bits(other.result())
    assert bits(rows_of().result()) != early


def test_sums_of_a_large_table_take_what_their_rows_do() -> None:
    n_items, width, n = 1_000_000, 17, 50
    rng = np.random.default_rng(1)
    items = np.sort(rng.integers(0, n_items, (n, 100)), axis=1)
    items += np.arange(100)  # none twice
    batch = UpdateBatch(
        {},
        {ITEMS: items.ravel().astype(np.uint32), ROWS: rng.normal(size=(n * 100, width)).astype(SINGLE)},
        np.arange(n + 1) * 100,
        np.ones(n),
        np.ones(n, np.int64),
        np.zeros(n),
    )
    tracemalloc.start()
    try:
        accumulator = RowAccumulator(
            ROWS, ITEMS, index_dtype=np.dtype(np.uint32), dtype=SINGLE, rows=n_items + 100, width=width
        )
        accumulator.add_many(batch, np.arange(n), np.arange(n))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A number of four bytes a row and group; a table of rows for each group would be sixteen times 68 MB.
    assert held < 16 * 4 * 2**20 + 3e6
    assert peak < held + 3e6


# -- checks ----------------------------------------------------------------------------------------------

OF_OWN = [kind for kind in KINDS if kind != "of a plug-in"]


@kinds
def test_sound_batches_pass_together(kind: str) -> None:
    make, parts = KINDS[kind]
    for n in (1, 2, 20):
        batch = batch_of(n, n, **parts)
        assert make().check_many(batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31)])
def test_a_batch_with_a_number_out_of_range_does_not(kind: str, value: float) -> None:
    make, parts = KINDS[kind]
    if kind == "of a plug-in" and abs(value) == 2.0**31:
        value = np.nan
    batch = batch_of(20, 8, **parts)
    for array in (*batch.stacked.values(), *batch.ragged.values()):
        if array.dtype.kind == "f":
            flat = array.reshape(-1)
            before = flat[len(flat) // 2].copy()
            flat[len(flat) // 2] = value
            passes = make().check_many(batch)
            single = True
            for update in batch:
                try:
                    make().check(update.arrays)
                except RemoteProtocolError:
                    single = False
            assert passes == single
            flat[len(flat) // 2] = before
    assert make().check_many(batch)


@pytest.mark.parametrize("value", [VALUE_MAX, -VALUE_MAX])
def test_the_largest_number_passes(value: float) -> None:
    batch = batch_of(20, 8, rows=True)
    batch.ragged[ROWS][:] = value
    assert rows_of().check_many(batch)


@pytest.mark.parametrize("at", [0, 1, 5, -1])
def test_rows_that_do_not_increase_within_a_client_are_seen(at: int) -> None:
    items = np.array([3, 5, 7, 1, 2, 39, 0], INDEX)
    fields: dict[str, Any] = {
        "stacked": {},
        "offsets": np.array([0, 0, 3, 3, 6, 7, 7]),
        "weights": np.ones(6),
        "examples": np.ones(6, np.int64),
        "losses": np.zeros(6),
    }
    rows = np.ones((7, WIDTH), SINGLE)
    assert rows_of().check_many(UpdateBatch(ragged={ITEMS: items, ROWS: rows}, **fields))
    spoilt = items.copy()
    spoilt[at] = 40 if at in (-1, 5) else items[at + 1]
    assert not rows_of().check_many(UpdateBatch(ragged={ITEMS: spoilt, ROWS: rows}, **fields))


@pytest.mark.parametrize("kind", OF_OWN)
def test_batches_of_other_arrays_do_not_pass(kind: str) -> None:
    make, parts = KINDS[kind]
    batch = batch_of(6, 4, **parts)
    more = np.zeros((6, 2), SINGLE)
    assert not make().check_many(batch_like(batch, stacked={**batch.stacked, "more": more}))
    for name, array in batch.ragged.items():
        if kind == "dense table" and name == ITEMS:
            continue  # no array of the update
        other = array.astype(np.float64)
        assert not make().check_many(batch_like(batch, ragged={**batch.ragged, name: other}))
    for name in set(batch.stacked) - {"users"}:
        rest = {other: array for other, array in batch.stacked.items() if other != name}
        assert not make().check_many(batch_like(batch, stacked=rest))
        assert not make().check_many(
            batch_like(batch, stacked={**rest, name: batch.stacked[name][..., None]})
        )


def batch_like(batch: UpdateBatch, **changed: Any) -> UpdateBatch:
    fields = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    return type(batch)(**fields | changed)
