"""Proposals: settings found in few trials, none twice, the same for the same randomness."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from coordinator.tuning.proposals import Tried, first_points, propose
from coordinator.tuning.space import Point, Space, parse_key, space_of
from device_profiles.documents import Node
from device_profiles.errors import Position
from edge.core.rng import stream

PLACES = (Position("--vary", 1, 1), Position("--vary", 1, 5))
Outcome = Callable[[float, float], tuple[float, dict[str, float]]]


def space_with(*nodes: Node) -> Space:
    return space_of([parse_key((f"key{at}",), node, PLACES) for at, node in enumerate(nodes)])


def searched(space: Space, outcome: Outcome, trials: int, seed: int) -> list[Tried]:
    tried: list[Tried] = []
    begin = first_points(space, stream(seed, "first"), 3)
    for at in range(trials):
        point = begin[at] if at < 3 else propose(space, tried, stream(seed, "next", at))
        assert point is not None
        value, distances = outcome(*point)
        tried.append(Tried(point, value, distances))
    return tried


def bowl(x: float, y: float) -> tuple[float, dict[str, float]]:
    return 1 + 3 * ((x - 0.7) ** 2 + (y - 0.3) ** 2), {}


def slope(x: float, y: float) -> tuple[float, dict[str, float]]:
    """The less the better, but for two thresholds: the best that they leave is (0, 0.9)."""
    return (1 + 4 * x) * (1 + 2 * y), {"a": x + y - 0.9, "b": y - 0.2}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("outcome", "best"), [(bowl, 1.0), (slope, 2.8)], ids=["bowl", "slope"])
def test_nine_trials_come_within_five_percent(outcome: Outcome, best: float, seed: int) -> None:
    tried = searched(space_with("0.0..1.0", "0.0..1.0"), outcome, 9, seed)
    found = min(one.value for one in tried if one.holds and one.value is not None)
    assert found <= 1.05 * best


def test_the_same_trials_and_randomness_give_the_same_proposal() -> None:
    space = space_with("0.0..1.0", "1..50")
    tried = [Tried((0.1 * at, float(at)), 1.0 / at, {"a": 0.1 - 0.02 * at}) for at in range(1, 7)]
    found = [propose(space, tried, stream(seed, "next")) for seed in (4, 4, 5)]
    assert found[0] == found[1] != found[2]


def test_every_point_of_a_small_space_is_proposed_once() -> None:
    space = space_with("1..3", ["x", "y"])
    tried = [Tried((1.0, 0.0), 5.0, {"a": 1.0})]
    for at in range(5):
        point = propose(space, tried, stream(1, "next", at))
        assert point is not None
        tried.append(Tried(point, point[0], {"a": 1.0}))
    assert {one.point for one in tried} == set(space.every())
    assert propose(space, tried, stream(1, "next", 6)) is None


def test_what_is_being_tried_is_not_proposed_again_nor_what_is_next_to_it() -> None:
    space = space_with("0.0..1.0", "0.0..1.0")
    tried = searched(space, bowl, 8, 1)
    first = propose(space, tried, stream(1, "next", 8))
    assert first is not None
    second = propose(space, [*tried, Tried(first)], stream(1, "next", 8))
    assert second is not None
    assert np.hypot(first[0] - second[0], first[1] - second[1]) > 0.01


def test_as_long_as_nothing_holds_the_likeliest_to_hold_is_proposed() -> None:
    space = space_with("0.0..1.0")
    # The distance grows with the key: a fit of it leads to its end.
    tried = [Tried((x,), None, {"a": x - 1.2}) for x in (0.1, 0.3, 0.5, 0.7)]
    point = propose(space, tried, stream(1, "next"))
    assert point is not None
    assert point[0] > 0.9


def test_refused_settings_are_kept_away_from() -> None:
    space = space_with("0.0..1.0")
    tried = [Tried((x,), 1 - x, {"ran": 1.0}) for x in (0.0, 0.2, 0.4)]
    tried += [Tried((x,), None, {"ran": -1.0}) for x in (0.7, 0.8, 0.9, 1.0)]
    points: list[Point] = []
    for at in range(5):
        point = propose(
            space, [*tried, *(Tried(one, 1 - one[0], {"ran": 1.0}) for one in points)], stream(1, at)
        )
        assert point is not None
        points.append(point)
    assert all(point[0] < 0.7 for point in points)


def test_the_first_points_fill_the_space() -> None:
    points = first_points(space_with("0.0..1.0", "0.0..1.0"), stream(3, "first"), 17)
    assert points[0] == (0.5, 0.5)
    quarters = {(x > 0.5, y > 0.5) for x, y in points[1:]}
    assert len(quarters) == 4
    cells = {(int(4 * x), int(4 * y)) for x, y in points[1:]}
    assert len(cells) >= 12
