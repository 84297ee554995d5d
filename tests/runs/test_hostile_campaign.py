"""The campaign of ``benchmarks/hostile.py``, shorter: promises are kept, or it would be noticed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from coordinator.aggregation.ranges import ReportRanges

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = [
    *(("clear", field) for field in ("weight", "loss", "elements", "run")),
    *(("buffered", field) for field in ("weight", "examples", "elements")),
    *(("robust", field) for field in ("weight", "elements", "arrays: cut off")),
    *(("secagg", field) for field in ("tail, weight", "tail, count", "SealedShares, arrays: cut off")),
    *(
        ("active", field)
        for field in ("ConsistencySignature, arrays: random bytes", "MaskedInput, arrays: none")
    ),
]


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("hostile")


def campaign(hostile: Any, chosen: list[tuple[str, str]], rounds: int) -> Any:
    cases = [case for case in hostile.cases() if case[:2] in chosen]
    assert len(cases) == len(chosen)
    return hostile.campaign(rounds, 1, cases)


def test_nonsense_is_left_out_and_its_senders_are_suspended(hostile: Any) -> None:
    table = campaign(hostile, CHOSEN, 40)
    assert hostile.broken(table) == []
    assert sum(row.rounds for row in table.values()) >= 40
    for (mode, field), row in table.items():
        # Whoever lies in a masked tail has no name, and a frame of another run is nobody's offence.
        nameable = not field.startswith("tail") and field != "run"
        assert row.suspended == (row.hostile if nameable else 0), (mode, field)
        assert row.judged["none"] == (0 if nameable or field == "run" else sum(row.judged.values()))
    assert table["secagg", "tail, count"].abandoned["protocol"] == table["secagg", "tail, count"].rounds


def test_it_would_be_noticed(hostile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportRanges, "check", lambda self, report, accumulator: None)
    table = campaign(hostile, [("clear", "elements")], 1)
    (said,) = hostile.broken(table)
    assert said.startswith("clear, elements: ")
