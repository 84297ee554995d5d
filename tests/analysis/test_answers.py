"""The first lines of a summary: what a person asks of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from broken_scenarios import BASE, VANISHING

sys.path.append(str(Path(__file__).resolve().parents[1] / "runs"))

from run_helpers import run_text

from coordinator.results.answers import answers
from coordinator.results.verdicts import read_verdicts
from coordinator.run.runner import RunOutcome


def said(outcome: RunOutcome) -> dict[str, str]:
    """Return the answers by question; of several to one the last."""
    summary = json.loads((outcome.directory / "summary.json").read_text())
    return dict(answers(summary, read_verdicts(outcome.directory)))


def promising(*promises: str) -> list[str]:
    return [f"thresholds={{{', '.join(promises)}}}", "evaluation.every=5"]


def test_kept_promises_and_the_one_with_the_least_room(tmp_path: Path) -> None:
    promises = (
        '"round.duration": p95 < 2 h',
        '"round.completed": rate > 99%',
        '"device.dropped": rate < 25%',
    )
    found = said(run_text(tmp_path, BASE, [VANISHING, *promising(*promises)]))
    assert found["promises"] == (
        "all 3 held; most narrowly device.dropped: rate < 25%, by 5 percentage points (it was 20%)"
    )
    assert "advice" not in found


def test_a_promise_that_leaves_no_room_is_not_called_narrow(tmp_path: Path) -> None:
    found = said(run_text(tmp_path, BASE, promising('"round.completed": rate == 100%')))
    assert found["promises"] == "the only one held"


def test_missed_promises_and_by_how_much(tmp_path: Path) -> None:
    promises = (
        '"round.duration": p95 < 10 s',
        '"device.dropped": rate <= 5%',
        '"round.completed": rate == 100%',
    )
    found = said(run_text(tmp_path, BASE, [VANISHING, *promising(*promises)]))
    assert found["promises"] == (
        "2 of 3 MISSED: round.duration: p95 < 10 s, by 20 s (it was 30 s); "
        "device.dropped: rate <= 5%, by 15 percentage points (it was 20%)"
    )
    assert found["advice"].endswith("(--set 'rounds.over_select=125%')")


def test_the_other_questions(tmp_path: Path) -> None:
    outcome = run_text(tmp_path, BASE, [VANISHING])
    summary, found = json.loads((outcome.directory / "summary.json").read_text()), said(outcome)
    sizes = summary["bytes"]
    assert list(found) == ["promises", "rounds", "waste", "bytes", "model", "advice"]
    assert found["promises"] == "none were made"
    assert found["rounds"] == "p50 30 s, p95 30 s; 5 completed, 0 abandoned"
    wasted = 100 * sizes["wasted"] / (sizes["down"] + sizes["up"])
    assert found["waste"].startswith(f"{wasted:.3g}% of ")
    assert found["waste"].endswith("of the computing")
    assert " a device and round; " in found["bytes"]
    assert found["model"].startswith("rmse 0.989 → ")
    assert found["model"].endswith(" after round 5 (test, seen users)")


def test_a_run_that_learnt_nothing(tmp_path: Path) -> None:
    found = said(run_text(tmp_path, BASE, [VANISHING, "rounds.quorum=18", "rounds.deadline=10 s"]))
    assert found["promises"].startswith("1 of 1 MISSED: round.completed: count > 0 (all 5 rounds abandoned")
    assert found["rounds"] == "p50 10 s, p95 10 s; 0 completed, 5 abandoned (quorum 5)"
    assert "missed their quorum of 18: 20 devices were invited, 16 reported" in found["advice"]


@pytest.mark.parametrize("evaluated", ["true", "false"])
def test_a_model_that_was_not_measured(evaluated: str, tmp_path: Path) -> None:
    found = said(run_text(tmp_path, BASE, [f"evaluation.final={evaluated}", "evaluation.every=100"]))
    assert found["model"].startswith("rmse " if evaluated == "true" else "training loss ")
