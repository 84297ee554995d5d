"""Rules on whole updates, sparse and dense, against loops over their coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from coordinator.engine.aggregation import held
from coordinator.engine.aggregation.held import BoundedUpdates, HeldUpdates, norm_of
from edge.core.errors import RemoteProtocolError
from edge.learning.accumulators import DenseAccumulator, RowAccumulator
from edge.learning.robust_rules import Krum, Median, Rule, TrimmedMean
from edge.learning.updates import Accumulator, Aggregate, ClientUpdate
from edge.privacy.protection import clipped_update

ITEMS, WIDTH = 23, 3
DTYPE = np.dtype(np.float64)
RULES: tuple[Rule, ...] = (Median(), TrimmedMean(0.2), Krum(0.2, multi=False), Krum(0.2, multi=True))


def rows() -> Accumulator:
    return RowAccumulator(
        "rows", "items", index_dtype=np.dtype(np.uint16), dtype=DTYPE, rows=ITEMS, width=WIDTH
    )


def dense() -> Accumulator:
    return DenseAccumulator({"a": (DTYPE, (5, 2)), "b": (DTYPE, (3,))})


def sparse_updates(n: int, seed: int = 0) -> list[ClientUpdate]:
    rng = np.random.default_rng(seed)
    updates = []
    for _ in range(n):
        items = np.sort(rng.choice(ITEMS - 2, rng.integers(0, 15), replace=False)).astype(np.uint16)
        weight = float(rng.integers(1, 9))
        values = rng.normal(size=(len(items), WIDTH)) * weight
        updates.append(
            ClientUpdate({"items": items, "rows": values}, weight, int(weight), float(rng.random()))
        )
    return updates


def dense_updates(n: int, seed: int = 0) -> list[ClientUpdate]:
    rng = np.random.default_rng(seed)
    return [
        ClientUpdate({"a": rng.normal(size=(5, 2)), "b": rng.normal(size=3)}, 1.0, 4, 0.5) for _ in range(n)
    ]


def made(
    accumulator: Accumulator, rule: Rule, updates: Sequence[ClientUpdate], senders: int = 1
) -> Aggregate:
    robust = HeldUpdates(accumulator, rule, senders)
    for client, update in enumerate(updates):
        robust.check(update.arrays)
        robust.add(update, client)
    return robust.result()


def trimmed(values: list[Any], cut: int) -> Any:
    ordered = np.sort(np.stack(values), axis=0)
    return ordered[cut : len(ordered) - cut].mean(axis=0)


@pytest.mark.parametrize("block", [1, 50, held.BLOCK])
@pytest.mark.parametrize("senders", [1, 3])
@pytest.mark.parametrize("rule", RULES[:2])
def test_a_row_is_what_the_rule_makes_of_its_senders(
    rule: Any, senders: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "BLOCK", block)
    updates = sparse_updates(12)
    expected = np.zeros((ITEMS, WIDTH))
    for item in range(ITEMS):
        sent = [
            update.arrays["rows"][place] / update.weight
            for update in updates
            for place in np.flatnonzero(update.arrays["items"] == item)
        ]
        if len(sent) >= senders:
            expected[item] = trimmed(sent, rule.cut(len(sent))) * len(sent)
    found = made(rows(), rule, updates, senders)
    np.testing.assert_allclose(found.sums["rows"], expected, rtol=1e-12, atol=1e-14)
    assert np.count_nonzero(expected.any(axis=1)) > 15
    assert (found.weight, found.clients) == (12.0, 12)
    assert found.examples == sum(update.examples for update in updates)
    losses = sum(update.loss * update.examples for update in updates)
    assert found.loss == pytest.approx(losses / found.examples)


@pytest.mark.parametrize("block", [1, 24, held.BLOCK])
@pytest.mark.parametrize("rule", RULES[:2])
def test_whole_arrays_are_over_all_clients(rule: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "BLOCK", block)
    updates = dense_updates(9)
    found = made(dense(), rule, updates)
    for name in ("a", "b"):
        expected = trimmed([update.arrays[name] for update in updates], rule.cut(9)) * 9
        np.testing.assert_allclose(found.sums[name], expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found.mean()[name], expected / 9, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("block", [1, 200, held.BLOCK])
@pytest.mark.parametrize("rule", RULES[2:])
def test_krum_takes_rows_that_were_not_sent_for_zeros(
    rule: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "BLOCK", block)
    updates = sparse_updates(11, seed=4)
    tables = []
    for update in updates:
        table = np.zeros((ITEMS, WIDTH))
        table[update.arrays["items"]] = update.arrays["rows"]
        tables.append(update._replace(arrays={"rows": table}))
    whole = made(DenseAccumulator({"rows": (DTYPE, (ITEMS, WIDTH))}), rule, tables)
    found = made(rows(), rule, updates)
    np.testing.assert_allclose(found.sums["rows"], whole.sums["rows"], rtol=1e-12, atol=1e-14)
    assert found.weight == whole.weight == rule.kept(11)
    assert found.clients == 11


@pytest.mark.parametrize("rule", RULES)
def test_updates_that_are_alike_are_their_mean(rule: Any) -> None:
    (one,) = dense_updates(1)
    found = made(dense(), rule, [one] * 7).mean()
    for name, array in one.arrays.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_two_of_eleven_do_little_whatever_they_send_and_claim_to_weigh(rule: Any) -> None:
    honest = dense_updates(9, seed=2)
    low = min(float(array.min()) for update in honest for array in update.arrays.values())
    high = max(float(array.max()) for update in honest for array in update.arrays.values())
    for value, weight in ((1e9, 1.0), (-1e9, 1e-9), (1e9, 1e12), (5.0, -3.0), (5.0, 0.0)):
        false = ClientUpdate({"a": np.full((5, 2), value), "b": np.full(3, value)}, weight, 1, 0.0)
        for name, array in made(dense(), rule, [false, *honest, false]).mean().items():
            assert (array >= low).all(), name
            assert (array <= high).all(), name


@pytest.mark.parametrize("rule", RULES)
def test_nobody_and_empty_updates_are_no_step(rule: Any) -> None:
    empty = ClientUpdate({"items": np.zeros(0, np.uint16), "rows": np.zeros((0, WIDTH))}, 0.0, 0, 0.0)
    found = made(rows(), rule, [empty] * 5)
    assert not found.sums["rows"].any()
    if not isinstance(rule, Krum):
        assert made(rows(), rule, []).weight == 0.0
        assert not made(dense(), rule, []).sums["a"].any()


def test_what_devices_clip_passes_and_nothing_above_does() -> None:
    accumulator = BoundedUpdates(rows(), 0.7)
    for client, update in enumerate(sparse_updates(40, seed=8)):
        clipped, _ = clipped_update(update, 0.7)
        accumulator.check(clipped.arrays)
        accumulator.add(clipped, client)
        beyond = {**clipped.arrays, "rows": clipped.arrays["rows"] * (1 + 1e-9)}
        if norm_of(beyond) > 0.7:
            with pytest.raises(RemoteProtocolError, match=r"above the bound 0\.7"):
                accumulator.check(beyond)
    assert accumulator.result().clients == 40
    assert norm_of({"items": np.array([9], np.uint16), "rows": np.array([[3.0, 4.0, 0.0]])}) == 5.0
    huge = {"items": np.array([9], np.uint16), "rows": np.full((1, WIDTH), 1e9)}
    with pytest.raises(RemoteProtocolError, match=r"the norm 1\.7"):
        accumulator.check(huge)
    with pytest.raises(RemoteProtocolError, match="the arrays items, rows"):
        accumulator.check({})


def test_an_update_that_weighs_nothing_is_taken_as_it_is() -> None:
    updates = [ClientUpdate({"a": np.full((5, 2), 3.0), "b": np.full(3, 3.0)}, 0.0, 0, 0.0) for _ in range(3)]
    found = made(dense(), Median(), updates)
    assert found.sums["a"].tolist() == [[3.0 * found.weight] * 2] * 5
