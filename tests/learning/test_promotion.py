"""Updates that promote an item: gradients by finite differences, and where they stand in an upload."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from edge.core.rng import stream
from edge.learning.promotion import Attacker, PromotedItem, Promotion
from edge.learning.updates import ITEMS, ROWS, ClientUpdate

FACTORS = np.array([0.4, -0.2, 0.1])
MODEL = {"item_factors": np.arange(15, dtype=np.float32).reshape(5, 3) / 10, "item_bias": np.ones(5)}
TARGET = PromotedItem(3, ("item_factors", "item_bias"))


def objective(row: np.ndarray, users: np.ndarray) -> float:
    scores = users @ row[:3] + (row[3] if len(row) == 4 else 0.0)
    return float(np.mean([math.log1p(math.exp(-score)) for score in scores.tolist()]))


@pytest.mark.parametrize("bias", [None, -0.3])
def test_the_change_is_the_downhill_gradient_of_the_users_loss(bias: float | None) -> None:
    promotion = Promotion(users=4, spread=1.0, scale=2.5)
    users = promotion.drawn(3, np.random.default_rng(1))
    found = promotion.change(FACTORS, bias, users)
    row = FACTORS if bias is None else np.append(FACTORS, bias)
    for place in range(len(row)):
        step = np.zeros(len(row))
        step[place] = 1e-6
        slope = (objective(row + step, users) - objective(row - step, users)) / 2e-6
        assert found[place] == pytest.approx(-2.5 * slope, abs=1e-8)


def test_a_long_change_is_cut_and_a_short_one_is_not() -> None:
    users = np.ones((1, 3))
    whole = Promotion(scale=10.0).change(FACTORS, 0.0, users)
    assert np.linalg.norm(whole) > 1
    cut = Promotion(scale=10.0, norm_limit=1.0).change(FACTORS, 0.0, users)
    np.testing.assert_allclose(cut, whole / np.linalg.norm(whole))
    np.testing.assert_array_equal(Promotion(scale=10.0, norm_limit=100.0).change(FACTORS, 0.0, users), whole)


def test_users_who_dislike_the_item_are_harder_to_win_over() -> None:
    users = np.array([[0.5, 0.5, 0.5]])
    disliking = Promotion(dislike_steps=1, dislike_rate=0.2)
    score = users[0] @ FACTORS + 0.7
    moved = users[0] - 0.2 / (1 + math.exp(-score)) * FACTORS
    after = moved @ FACTORS + 0.7
    expected = np.append(moved, 1.0) / (1 + math.exp(after))
    np.testing.assert_allclose(disliking.change(FACTORS, 0.7, users), expected, rtol=1e-12)
    many = dataclasses.replace(disliking, dislike_steps=100)
    assert many.change(FACTORS, 0.7, users)[3] > Promotion().change(FACTORS, 0.7, users)[3]


def attacker(target: PromotedItem = TARGET) -> Attacker:
    return Attacker(Promotion(), target, 7, ("fault", "promoters", "users", 4))


def sparse(*items: int) -> ClientUpdate:
    rows = np.arange(4 * len(items), dtype=np.float32).reshape(-1, 4)
    return ClientUpdate({ITEMS: np.array(items, np.uint16), ROWS: rows}, 3.0, 3, 0.5)


@pytest.mark.parametrize("rated", [(0, 2, 4), (0, 3, 4), (0, 1), ()])
def test_the_rest_of_a_sparse_update_stays(rated: tuple[int, ...]) -> None:
    honest = sparse(*rated)
    found = attacker().update(honest, MODEL)
    assert found.arrays[ITEMS].tolist() == sorted({*rated, 3})
    assert (found.arrays[ITEMS].dtype, found.arrays[ROWS].dtype) == (np.uint16, np.float32)
    others = found.arrays[ITEMS] != 3
    np.testing.assert_array_equal(found.arrays[ROWS][others], honest.arrays[ROWS][honest.arrays[ITEMS] != 3])
    users = Promotion().drawn(3, stream(7, "fault", "promoters", "users", 4))
    expected = 3.0 * Promotion().change(*TARGET.row(MODEL), users)
    np.testing.assert_allclose(found.arrays[ROWS][~others][0], expected, rtol=1e-6)
    assert honest.arrays[ITEMS].tolist() == list(rated)


def test_a_dense_update_is_another_in_one_row() -> None:
    honest = ClientUpdate({ROWS: np.zeros((5, 3), np.float32), "more": np.ones(2)}, 2.0, 3, 0.5)
    found = attacker(PromotedItem(3, ("item_factors",))).update(honest, MODEL)
    assert np.flatnonzero(found.arrays[ROWS].any(axis=1)).tolist() == [3]
    assert found.arrays["more"] is honest.arrays["more"]
    assert not honest.arrays[ROWS].any()
