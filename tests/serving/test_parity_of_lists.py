"""Scores of many devices against the formula: how far apart, what is said of the worst; and their lists."""

from __future__ import annotations

import numpy as np
import pytest

from edge.core.errors import ParityError
from edge.metrics.ranking import top_k
from edge.onnx.parity import Tolerance, check_lists, check_rows

TOLERANCE = Tolerance(1e-3, 1e-3)
NOBODY = (np.array([], np.intp), np.array([], np.int64))


def named(place: tuple[int, ...]) -> str:
    return f"device {place[0]}, {place[1]}"


def test_each_row_has_errors_of_its_own() -> None:
    expected = np.array([[1.0, -4.0], [0.0, 2.0], [5.0, 5.0], [1e-4, 0.5]])
    found = np.array([[1.001, -4.0], [0.0, 2.002], [5.0, 5.0], [-1e-4, 0.5]])
    errors = check_rows(expected, found, TOLERANCE, named)
    np.testing.assert_allclose(errors.max_absolute, [0.001, 0.002, 0.0, 2e-4], atol=1e-12)
    np.testing.assert_allclose(errors.max_relative, [0.001 / 1.001, 0.002 / 2.002, 0.0, 2e-4], atol=1e-12)


def test_the_worst_score_is_named() -> None:
    expected = np.array([[1.0, 2.0], [3.0, 4.0]])
    found = np.array([[1.0, 2.01], [3.0, 4.1]])
    with pytest.raises(ParityError, match=r"device 1, 1 is 4\.1, the formula gives 4: 0\.1 apart, beyond"):
        check_rows(expected, found, TOLERANCE, named)
    found[0, 1] = np.nan
    with pytest.raises(ParityError, match="device 0, 1: the model gives nan"):
        check_rows(expected, found, TOLERANCE, named)
    with pytest.raises(ParityError, match="device 0, 1: the formula gives nan"):
        check_rows(found, expected, TOLERANCE, named)
    with pytest.raises(ParityError, match=r"\[2, 1\] scores where the formula gives \[2, 2\]"):
        check_rows(expected, found[:, :1], TOLERANCE, named)


class Lists:
    def __init__(self, indptr: list[int], items: list[int]) -> None:
        self.indptr, self.items = np.array(indptr), np.array(items, np.int32)


@pytest.mark.parametrize("top", [1, 3, 8, 12])
def test_numpys_own_ranking_passes(top: int) -> None:
    rng = np.random.default_rng(top)
    expected = np.round(rng.normal(size=(6, 10)), 1)
    rated = Lists([0, 3, 3, 13, 14, 15, 16], [0, 4, 9, *range(10), 2, 2, 2])
    owners = np.repeat(np.arange(6), np.diff(rated.indptr))
    check_lists(expected, top_k(expected, top, rated), (owners, rated.items), TOLERANCE, named)


def test_ties_within_the_tolerance_may_stand_either_way() -> None:
    expected = np.array([[3.0, 2.0, 2.0005, 1.0]])
    for lists in ([[0, 2, 1]], [[0, 1, 2]]):
        check_lists(expected, np.array(lists), NOBODY, TOLERANCE, named)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0, 3, 1]], r"device 0, 1 is item 3, which the formula gives 1; the best that is left has 2"),
        ([[0, 1, 1]], "an item stands twice"),
        ([[4, 0, 1]], r"device 0, 0 is item 4, which the formula gives -inf"),
        ([[0, 1, 9]], r"device 0, 2 is item 9, .* gives -inf"),
        ([[0, 1, -1]], r"device 0, 2 is item -1, .* gives -inf; the best that is left has 1\.5"),
    ],
)
def test_other_lists_are_refused(lists: list[list[int]], message: str) -> None:
    expected = np.array([[3.0, 2.0, 1.5, 1.0, 9.0]])
    with pytest.raises(ParityError, match=message):
        check_lists(expected, np.array(lists), (np.array([0]), np.array([4])), TOLERANCE, named)


def test_an_item_where_nothing_is_left_is_refused() -> None:
    expected = np.array([[3.0, 2.0]])
    rated = (np.array([0]), np.array([0]))
    check_lists(expected, np.array([[1, -1, -1]]), rated, TOLERANCE, named)
    with pytest.raises(ParityError, match="device 0, 1 is item 0"):
        check_lists(expected, np.array([[1, 0, -1]]), rated, TOLERANCE, named)
