"""The campaign of ``benchmarks/hostile.py``, shorter: promises are kept, or it would be noticed."""

from __future__ import annotations

import collections
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.fleet import Fleet

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = [
    ("clear", "Report, run"),
    ("buffered", "Report, elements"),
    ("clear, sparse", "Report, arrays: cut off"),
    ("norm bound", "Report, within: elements"),
    ("trimmed-mean", "Report, within: elements"),
    ("secagg-plus", "MaskedInput, count in the tail"),
    ("secagg-plus, uniform", "SealedShares, arrays: cut off"),
    ("active", "ConsistencySignature, arrays: random bytes"),
    ("active", "Accept, an abort in its place"),
    ("ckks", "DecryptedSum, arrays: another dtype"),
]


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = import_module("hostile")
    monkeypatch.setattr(module, "ROUNDS_OF_RUN", 4)
    monkeypatch.setattr(module, "STRIKES", 3)
    short = module.TEXT.replace("count: 8", "count: 4").replace("strikes: 6", "strikes: 3")
    assert short != module.TEXT
    monkeypatch.setattr(module, "TEXT", short)
    return module


def chosen(hostile: Any, wanted: list[tuple[str, str]]) -> list[Any]:
    found = [case for case in hostile.cases() if (case.mode, case.field) in wanted]
    assert len(found) == len(wanted)
    return found


@pytest.mark.slow
def test_nonsense_is_left_out_and_its_senders_are_suspended(hostile: Any) -> None:
    cases = chosen(hostile, CHOSEN)
    table = hostile.campaign(1, 1, cases)
    assert hostile.broken(table) == []
    for case in cases:
        row = table[case.mode, case.field]
        spoilt = {"garbage", "out-of-range", "protocol"} & row.judged.keys()
        assert bool(spoilt) is (case.nonsense.named or case.mode == "norm bound"), row
        assert (row.suspended > 0) is bool(spoilt), row
    lies = table["secagg-plus", "MaskedInput, count in the tail"]
    assert lies.abandoned == {"protocol": lies.rounds}
    # A rule that withstands a third of far updates is not moved, and a norm bound lets none of them in.
    assert 0 <= table["trimmed-mean", "Report, within: elements"].worst < 1
    assert table["norm bound", "Report, within: elements"].judged["none"] == 0


def test_every_kind_of_message_is_changed_in_every_mode(hostile: Any) -> None:
    kinds = collections.defaultdict(set)
    for case in hostile.cases():
        kinds[case.mode].add(case.kind.__name__)
    assert kinds["clear, sparse"] == kinds["median"] == {"Accept", "Report"}
    masking = {"Accept", "AdvertiseKeys", "SealedShares", "MaskedInput", "UnmaskShares"}
    assert kinds["secagg"] == kinds["secagg-plus, uniform"] == masking
    assert kinds["active"] == masking | {"ConsistencySignature"}
    assert kinds["ckks"] == {"Accept", "EncryptedInput", "DecryptedSum"}


@pytest.mark.slow
def test_nonsense_over_sockets_costs_nobody_else_anything(hostile: Any) -> None:
    (row,), said = hostile.sessions(1, 1)
    assert row.broken == set()
    assert row.rounds == 3
    assert sum(said.values()) > 3


def test_a_sum_that_is_moved_would_be_noticed(hostile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportRanges, "check", lambda self, report, accumulator: None)
    table = hostile.campaign(1, 1, chosen(hostile, [("clear", "Report, elements")]))
    assert any("as far away as promised" in said for said in hostile.broken(table))


def test_a_device_that_goes_on_would_be_noticed(hostile: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "strike", lambda self, devices, allowed: devices[:0])
    table = hostile.campaign(1, 1, chosen(hostile, [("clear", "Report, weight")]))
    assert any("and was not suspended" in said for said in hostile.broken(table))
