"""Advice: the right one on scenarios that are broken in a known way, which it mends; none on sound ones."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_scenarios import BASE, BROKEN, VANISHING

sys.path.append(str(Path(__file__).resolve().parents[1] / "runs"))

from run_helpers import SCENARIOS, Silent, run_text
from shipped_runs import NEEDS_DATA, data_folder

from coordinator.results.advice import PATTERNS, Evidence, read_advice
from coordinator.results.report.page import report_of
from coordinator.results.tables.reader import open_run
from coordinator.run.runner import RunOutcome, run_scenario
from coordinator.scenario.load import load


def summary_of(outcome: RunOutcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((outcome.directory / "summary.json").read_text())
    return found


def patterns_of(outcome: RunOutcome) -> list[str]:
    return [one["pattern"] for one in summary_of(outcome)["advice"]]


@pytest.mark.parametrize("pattern", BROKEN)
def test_a_broken_scenario_gets_the_advice_that_mends_it(pattern: str, tmp_path: Path) -> None:
    broken = BROKEN[pattern]
    before = summary_of(run_text(tmp_path, BASE, broken.settings))
    advice = before["advice"]
    assert [one["pattern"] for one in advice] == [pattern]
    assert advice[0]["key"] == broken.key
    # What people read has the setting as the command line takes it.
    setting = f"{broken.key}={advice[0]['value']}"
    assert setting in shlex.split(advice[0]["text"].rpartition("(")[2].rstrip(")"))
    after = summary_of(run_text(tmp_path, BASE, (*broken.settings, setting), "mended"))
    assert broken.worse(after) <= broken.to * broken.worse(before)


def test_a_sound_scenario_gets_none(tmp_path: Path) -> None:
    assert patterns_of(run_text(tmp_path, BASE, ["rounds.count=10"])) == []


def test_two_rounds_show_no_pattern(tmp_path: Path) -> None:
    assert patterns_of(run_text(tmp_path, BASE, [VANISHING, "rounds.count=2"])) == []


@pytest.mark.parametrize(
    ("limit", "seen"), [("p95 < 1 min", []), ("p95 < 1 s", ["deadline-rounds"])], ids=["kept", "missed"]
)
def test_what_is_promised_and_kept_is_as_its_author_wants_it(
    limit: str, seen: list[str], tmp_path: Path
) -> None:
    promise = f'thresholds."round.duration"={limit}'
    assert patterns_of(run_text(tmp_path, BASE, [VANISHING, promise])) == seen


def test_an_expected_ending_is_no_pattern(tmp_path: Path) -> None:
    settings = (*BROKEN["quorum"].settings, "expect=no-round-completed")
    assert "quorum" not in patterns_of(run_text(tmp_path, BASE, settings))


def test_what_follows_from_another_pattern_is_left_out(tmp_path: Path) -> None:
    settings = (*BROKEN["asked-in-vain"].settings, "rounds.quorum=15")
    outcome = run_text(tmp_path, BASE, settings)
    assert outcome.status == "no-round-completed"
    assert patterns_of(outcome) == ["asked-in-vain"]


def test_a_fleet_without_devices_in_reserve_is_told_to_want_fewer(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, BASE, [VANISHING, "rounds.cohort=55"])
    (advice,) = summary_of(outcome)["advice"]
    assert (advice["pattern"], advice["key"]) == ("deadline-rounds", "rounds.cohort")
    assert 35 <= int(advice["value"]) <= 44


def test_the_report_has_it_and_reads_it_back(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, BASE, [VANISHING])
    (advice,) = read_advice(outcome.directory)
    assert "waited until their deadline of 30 s" in advice["text"]
    assert "waited until their deadline of 30 s" in report_of([outcome.directory])


def test_a_run_of_an_earlier_version_has_none(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, BASE, [VANISHING])
    file = outcome.directory / "summary.json"
    file.write_text(json.dumps({"schema_version": 3}))
    assert read_advice(outcome.directory) == []
    file.unlink()
    assert read_advice(outcome.directory) == []


def test_rounds_that_died_with_their_coordinator_show_nothing(tmp_path: Path) -> None:
    """They have invited nobody, and took no time."""
    outcome = run_text(tmp_path, BASE, [VANISHING])
    run, scenario = open_run(outcome.directory), load(tmp_path / "run.yaml", [VANISHING]).scenario
    evidence = Evidence(scenario, run, summary_of(outcome))
    nothing = {name: np.zeros_like(column) for name, column in evidence.rounds.numbers.items()}
    vars(evidence)["rounds"] = replace(evidence.rounds, numbers=nothing)
    with np.errstate(all="raise"):
        assert [pattern.find(evidence) for pattern in PATTERNS] == [None] * len(PATTERNS)


def test_every_pattern_follows_from_known_ones() -> None:
    for pattern in PATTERNS:
        assert set(pattern.follows) <= BROKEN.keys()


TIMES = {"stragglers", "stage-deadlines"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in SCENARIOS.glob("*.yaml")))
def test_no_shipped_scenario_gets_advice_that_does_not_help(name: str, tmp_path: Path) -> None:
    settings = []
    if name in NEEDS_DATA:
        folder = data_folder(name)
        if folder is None:
            pytest.skip(f"{name} needs {NEEDS_DATA[name]}: set RECFLEET_DATA to a folder that holds it")
        settings = [f"data.path={folder}"]

    def run(to: str, *more: str) -> dict[str, Any]:
        loaded = load(SCENARIOS / f"{name}.yaml", [*settings, *more])
        return summary_of(run_scenario(loaded, target=tmp_path / to, observer=Silent()))

    def rounds_s(summary: dict[str, Any]) -> float:
        return float(sum(summary["held_up"]["seconds_by_stage"].values()))

    before = run("before")
    for advice in before["advice"]:
        after = run(advice["pattern"], f"{advice['key']}={advice['value']}")
        assert advice["pattern"] in TIMES
        assert rounds_s(after) <= 0.5 * rounds_s(before), advice["text"]
        assert after["rounds"]["completed"] >= before["rounds"]["completed"]
