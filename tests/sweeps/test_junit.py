"""JUnit XML, read back as CI systems do."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
from sweep_helpers import cells_of

from coordinator.engine.run_files import MANIFEST
from coordinator.results.junit import Case, Suite, cases_of, cases_of_repeats, junit_xml, suite_of_cell
from coordinator.results.sweep import CellResult, Result
from coordinator.results.verdicts import json_number, verdict_record, verdict_records
from coordinator.scenario.threshold_evaluation import evaluate_one
from coordinator.scenario.thresholds import parse_thresholds


def records(*values: float) -> list[dict[str, object]]:
    thresholds = parse_thresholds({"round.duration{phase=a}": ["max < 5 s", "p95 <= 2 * baseline"]})
    return verdict_records(evaluate_one(threshold, np.array(values), 1.5) for threshold in thresholds)


def test_a_suite_read_back() -> None:
    document = junit_xml([Suite("storm", "storm", cases_of(records(2.0, 4.0)))])
    root = ET.fromstring(document)
    assert document.startswith(b"<?xml version='1.0' encoding='utf-8'?>")
    assert (root.tag, root.get("tests"), root.get("failures"), root.get("errors")) == (
        "testsuites",
        "2",
        "1",
        "0",
    )
    (suite,) = root
    assert (suite.tag, suite.get("name"), suite.get("tests"), suite.get("failures")) == (
        "testsuite", "storm", "2", "1",
    )  # fmt: skip
    held, missed = suite
    assert (held.tag, held.get("classname"), held.get("name"), len(held)) == (
        "testcase", "storm", "round.duration{phase=a}: max < 5 s", 0,
    )  # fmt: skip
    (failure,) = missed
    verdict = "MISSED round.duration{phase=a}: p95 <= 2 * baseline (it was 3.9 s, the limit 3 s)"
    assert (failure.tag, failure.get("type"), failure.get("message"), failure.text) == (
        "failure", "threshold", verdict, verdict,
    )  # fmt: skip


def test_any_text_makes_a_well_formed_document() -> None:
    odd = "a <b> & \"c\" 'd' \x00\x1b\ud800\uffff é 🦊\nnew line"
    root = ET.fromstring(junit_xml([Suite(odd, odd, (Case(odd, failure=odd), Case("run", error=odd)))]))
    clean = "a <b> & \"c\" 'd' ���� é 🦊\nnew line"
    (suite,) = root
    assert suite.get("name") == clean
    failed, broken = suite
    assert failed[0].text == clean
    assert (broken[0].tag, root.get("errors"), root.get("failures")) == ("error", "1", "1")


def test_repeats_fail_if_any_missed_and_say_which() -> None:
    cases = cases_of_repeats({4: records(9.0), 3: records(2.0)}, {5: "the process died"}, {3: 2.5, 4: 1.5})
    assert [case.name for case in cases] == [
        "run, seed 3", "run, seed 4", "run, seed 5",
        "round.duration{phase=a}: max < 5 s", "round.duration{phase=a}: p95 <= 2 * baseline",
    ]  # fmt: skip
    assert cases[3].failure == "seed 4: MISSED round.duration{phase=a}: max < 5 s (it was 9 s)"
    assert cases[:3] == (
        Case("run, seed 3", wall_s=2.5),
        Case("run, seed 4", wall_s=1.5),
        Case("run, seed 5", error="the process died", wall_s=None),
    )
    (suite,) = ET.fromstring(junit_xml([Suite("storm", "storm", cases)]))
    assert [one.get("time") for one in (suite, *suite)] == [
        "4.000", "2.500", "1.500", None, "0.000", "0.000"
    ]  # fmt: skip


def test_a_cell_reports_what_was_not_run(tmp_path: Path) -> None:
    (cell, _) = cells_of(tmp_path)
    measured = {"assemble_s": 0.5, "run_s": 2.0, "write_s": 0.25}
    (tmp_path / MANIFEST).write_text(json.dumps({"measured": measured}), encoding="utf-8")
    done = Result("held", tmp_path, verdicts=tuple(records(1.0)), figures={})
    suite = suite_of_cell("small", CellResult(cell, {3: done}))
    assert suite.name == "small, rounds.over_select=100%"
    assert [(case.name, case.error, case.wall_s) for case in suite.cases] == [
        ("run, seed 3", None, 2.75),
        ("run, seed 4", "not run", None),
        ("round.duration{phase=a}: max < 5 s", None, 0.0),
        ("round.duration{phase=a}: p95 <= 2 * baseline", None, 0.0),
    ]


def test_a_record_holds_value_limit_and_the_figure_of_the_baseline() -> None:
    (threshold,) = parse_thresholds({"device.up_bytes{network=4g}": "p99 < 2 * baseline"})
    assert verdict_record(evaluate_one(threshold, np.array([3000.0]), 1024.0)) == {
        "threshold": "device.up_bytes{network=4g}: p99 < 2 * baseline",
        "key": "device.up_bytes{network=4g}",
        "metric": "device.up_bytes",
        "tags": {"network": "4g"},
        "aggregation": "p99",
        "operator": "<",
        "kind": "bytes",
        "measured": False,
        "implicit": False,
        "held": False,
        "value": 3000.0,
        "limit": 2048.0,
        "baseline": 1024.0,
        "margin": -952.0,
        "observations": 1,
        "reason": "it was 2.93 KiB, the limit 2 KiB",
        "shown": {"value": "2.93 KiB", "limit": "2 KiB", "margin": "-952 B"},
    }


def test_json_has_words_for_infinities_and_null_for_no_number() -> None:
    found = [json_number(value) for value in (1.5, None, float("nan"), float("inf"), float("-inf"))]
    assert found == [1.5, None, None, "infinite", "-infinite"]
