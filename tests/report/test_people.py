"""Figures as people write them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coordinator.results.intervals import Estimate
from coordinator.results.report.people import interval, percent, points, show, shown, verdict_texts


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "s", "500 ms"),
        (2048, "B", "2 KiB"),
        (12.3, "J", "12.3 J"),
        (5046.2, "J", "5.05 kJ"),
        (4e6, "J", "4 MJ"),
        (0.0, "J", "0 J"),
        (0.0846154, "%", "8.5 %"),
        (1.5, "", "1.5"),
        (0.8091047664, "", "0.809"),
        (1250.4, "", "1,250"),
        (math.inf, "", "inf"),
        (math.inf, "%", "inf %"),
    ],
)
def test_values_are_shown_in_their_units(value: float, unit: str, text: str) -> None:
    assert show(value, unit) == text.replace(" ", "\N{NO-BREAK SPACE}")


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown unit 'kg'"):
        show(1.0, "kg")


def test_whole_numbers_keep_their_digits_and_nothing_is_a_dash() -> None:
    assert (shown(12_345, ""), shown(12_345.0, ""), shown(None, "s")) == ("12,345", "12,345", "–")


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100"), (0.999999, "99.9999"), (0.769, "76.9"), (0.12, "12"), (0.0034, "0.34"), (0.0, "0")],
)
def test_what_is_not_the_whole_is_not_shown_as_the_whole(share: float, text: str) -> None:
    assert percent(share) == f"{text}\N{NO-BREAK SPACE}%"


def test_differences_of_shares_are_in_percentage_points() -> None:
    assert [points(0.0353846).split(), points(0.01).split()] == [["3.5", "points"], ["1", "point"]]


@pytest.mark.parametrize(
    ("found", "unit", "text"),
    [
        (Estimate(0.147727, None, 1), "event", "14.8 %"),
        (Estimate(0.147727, 0.00321, 3), "event", "14.77 % ± 0.32 %"),
        (Estimate(0.907041, None, 1), "number", "0.907"),
        (Estimate(12_345.0, None, 1), "count", "12,345"),
    ],
)
def test_means_have_the_digits_that_their_interval_tells(found: Estimate, unit: str, text: str) -> None:
    assert interval(found, unit).replace("\N{NO-BREAK SPACE}", " ") == text


def verdict(value: float | str | None, limit: float, kind: str, operator: str, held: bool) -> dict[str, Any]:
    known = isinstance(value, float)
    sign = 1 if operator in (">", ">=") else -1
    return {
        "value": value, "limit": limit, "margin": sign * (value - limit) if known else None,
        "kind": kind, "aggregation": "rate", "operator": operator, "held": held,
        "shown": {"value": "exactly", "limit": "this", "margin": "–"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "texts"),
    [
        (verdict(0.0846154, 0.12, "event", "<", True), ("8.5 %", "12 %", "3.5 points to spare")),
        (verdict(0.15, 0.12, "share", "<", False), ("15 %", "12 %", "3 points over")),
        (verdict(0.9, 0.95, "event", ">=", False), ("90 %", "95 %", "5 points short")),
        (verdict(5.0, 2.0, "duration", "<", False), ("5 s", "2 s", "3 s over")),
        (verdict(2.0, 2.0, "duration", "<=", True), ("2 s", "2 s", "at the limit")),
        (verdict(1.0, 1.0, "event", "==", True), ("100 %", "100 %", "as promised")),
        # Three digits do not tell these apart.
        (verdict(0.12004, 0.12, "event", "<", False), ("exactly", "this", "0.004 points over")),
        (verdict(None, 2.0, "duration", "<", False), ("exactly", "this", "–")),
        (verdict("infinite", 2.0, "duration", "<", False), ("exactly", "this", "–")),
    ],
)
def test_margins_are_said_in_words(found: dict[str, Any], texts: tuple[str, str, str]) -> None:
    assert tuple(text.replace("\N{NO-BREAK SPACE}", " ") for text in verdict_texts(found)) == texts
