"""A run says whether its thresholds held."""

import json
from pathlib import Path

import pytest
from run_helpers import SMALL, run_text

from coordinator.exit_codes import ExitCode


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("expectation", "held"),
    [
        ("round.completed: [rate == 100%]", True),
        ("round.completed: [count >= 4]", False),
        ("device.up_bytes: [max < 100 B]", False),
        ('"device.up_bytes{network=wifi_home}": [max < 64 KiB]', True),
        ("model.rmse: [last < 0.5 * first]", False),
        ('"device.latency{phase=second}": [count > 0]', True),
    ],
)
def test_the_exit_code_follows_the_thresholds(expectation: str, held: bool, tmp_path: Path) -> None:
    phases = "phases: [{name: first, rounds: 1}, {name: second, rounds: 2}]"
    text = SMALL.replace("count: 3, ", "") + f"{phases}\nthresholds:\n  {expectation}\n"
    outcome = run_text(tmp_path, text)
    assert outcome.status == "finished"
    assert [verdict.held for verdict in outcome.verdicts] == [held]
    assert outcome.exit_code is (ExitCode.HELD if held else ExitCode.THRESHOLD_MISSED)
    manifest = json.loads((outcome.directory / "manifest.json").read_text())
    (line,) = manifest["thresholds"]
    assert line.startswith("held" if held else "MISSED")


def test_one_missed_threshold_among_others_is_enough(tmp_path: Path) -> None:
    text = SMALL + "thresholds:\n  round.completed: [rate == 100%]\n  round.duration: [p95 < 1 ms]\n"
    outcome = run_text(tmp_path, text)
    assert int(outcome.exit_code) == 3
    assert [verdict.held for verdict in outcome.verdicts] == [True, False]
