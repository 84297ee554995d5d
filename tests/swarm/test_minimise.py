from __future__ import annotations

from typing import Any

import pytest

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load_text
from coordinator.swarm.generator import document, text_of
from coordinator.swarm.minimise import minimise
from coordinator.swarm.verdict import fails_alike, judge_text
from edge.learning.accumulators import DenseAccumulator, RowAccumulator

Document = dict[str, Any]


def valid(made: Document) -> bool:
    try:
        load_text(text_of(made), "smaller")
    except ScenarioError:
        return False
    return True


def with_kind(key: str) -> Document:
    """Return a generated scenario with several faults, one of them of a kind."""
    for index in range(2000):
        made = document(8, index)
        if len(made["faults"]) > 2 and any(key in fault for fault in made["faults"]):
            return made
    raise LookupError(key)


@pytest.mark.slow
def test_only_what_matters_is_left() -> None:
    made = with_kind("latency")

    def fails(candidate: Document) -> bool:
        return valid(candidate) and any("latency" in fault for fault in candidate["faults"])

    small = minimise(made, fails)
    assert fails(small)
    (fault,) = small["faults"]
    assert set(fault) <= {"name", "latency", "during", "at", "at_stage"}
    assert len(small["phases"]) == 1
    assert "privacy" not in small
    assert "secure_aggregation" not in small
    assert set(small["rounds"]) == {"cohort"}
    assert len(text_of(small)) < len(text_of(made))
    # Nothing that is tried makes it smaller.
    assert minimise(small, fails) == small


def test_numbers_shrink_as_far_as_it_fails() -> None:
    made = document(8, 3)
    made["rounds"] = {"cohort": 3, "quorum": 1}
    small = minimise(made, lambda candidate: valid(candidate) and candidate["rounds"]["cohort"] >= 2)
    assert small["rounds"] == {"cohort": 2}


@pytest.mark.slow
def test_time_becomes_rounds_where_they_fail_too() -> None:
    made = next(made for i in range(50) if "time" in (made := document(8, i))["phases"][0])
    small = minimise(made, valid)
    assert [sorted(phase) for phase in small["phases"]] == [["name", "rounds"]]
    timed = minimise(made, lambda candidate: valid(candidate) and "time" in candidate["phases"][0])
    assert [phase["time"] for phase in timed["phases"]] == [made["phases"][1]["time"]]


def test_the_scenario_itself_stays_as_it_was() -> None:
    made = document(8, 4)
    before = text_of(made)
    minimise(made, valid)
    assert text_of(made) == before


def test_runs_are_bounded() -> None:
    tried = []

    def never(candidate: Document) -> bool:
        tried.append(candidate)
        return False

    made = document(8, 5)
    assert minimise(made, never, most=7) == made
    assert len(tried) == 7


@pytest.mark.slow
def test_a_bug_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second report is added twice: a bug that needs two reports in the clear to show."""
    for kind in (DenseAccumulator, RowAccumulator):
        add = kind.add

        def twice(self: Any, update: Any, client: int, add: Any = add) -> None:
            add(self, update, client)
            if self._totals.clients % 2 == 0:
                add(self, update, client)

        monkeypatch.setattr(kind, "add", twice)
    failing = next(made for i in range(50) if fails_alike("exact-sums", made := document(1, i)))
    small = minimise(failing, lambda made: fails_alike("exact-sums", made))
    assert fails_alike("exact-sums", small)
    assert small["rounds"]["cohort"] == 2
    assert small["faults"] == []
    (violation, *_) = judge_text(text_of(small)).violations
    assert violation.invariant == "exact-sums"
